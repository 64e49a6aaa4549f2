"""What the files of a finished run must contain, checked before anything is computed from them."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from typing_extensions import TypeAliasType

from playerfl.errors import RunDirectoryError
from playerfl.paper import facts as paper
from playerfl.runs.result import RunResult

# Strict: the text "3" is not the number 3. Keys that later versions add are ignored.
_STRICT = ConfigDict(strict=True, extra="ignore")
_Count = Annotated[int, Field(ge=0, lt=2**63)]
_Plain = None | bool | int | float | str
_Setting = TypeAliasType("_Setting", "_Plain | list[_Plain] | dict[str, _Setting]")


class _Named(BaseModel):
    model_config = _STRICT

    name: str
    personal_layers: _Count | None = None


class _Experiment(BaseModel):
    model_config = _STRICT

    task: str
    seed: _Count
    rounds: Annotated[int, Field(ge=1, lt=2**31)]
    selection: Literal["client_best", "round_best", "last"]
    algorithm: _Named


class _Part(BaseModel):
    model_config = _STRICT

    examples: _Count


class _Site(BaseModel):
    model_config = _STRICT

    train: _Part


class _Data(BaseModel):
    model_config = _STRICT

    sites: dict[str, _Site]
    notes: list[str] = []
    paper: str | None = None

    @model_validator(mode="after")
    def _known(self) -> _Data:
        if self.paper is not None and self.paper not in paper.facts()["datasets"]:
            raise ValueError(f"the paper has no dataset {self.paper!r}")
        if not sum(site.train.examples for site in self.sites.values()):
            raise ValueError("no site has training examples")
        return self


class _Layer(BaseModel):
    model_config = _STRICT

    name: str
    entries: list[str]
    parameters: _Count


class _Decision(BaseModel):
    model_config = _STRICT

    index: _Count
    federated: list[str]
    personal: list[str]
    rule: str
    threshold: float | None
    ratios: list[float | None]
    reason: str
    warnings: list[str]
    importance: dict[str, float]


class _Profile(BaseModel):
    model_config = _STRICT

    layers: list[str]
    batches: Annotated[list[list[float]], Field(min_length=1)]
    batch_sizes: list[Annotated[int, Field(ge=1, lt=2**63)]]
    num_examples: _Count
    weight_batches: bool

    @model_validator(mode="after")
    def _fits(self) -> _Profile:
        if len(self.batch_sizes) != len(self.batches) or any(len(row) != len(self.layers) for row in self.batches):
            raise ValueError("a site's layer scores need one row per batch and one number per layer")
        return self


class _Layers(BaseModel):
    model_config = _STRICT

    layers: list[_Layer]
    decision: _Decision | None = None
    profiles: dict[str, _Profile] = {}

    @model_validator(mode="after")
    def _fits(self) -> _Layers:
        names = [layer.name for layer in self.layers]
        if len(set(names)) < len(names):
            raise ValueError("a layer is named twice")
        cut = self.decision
        if cut and (cut.index != len(cut.federated) or [*cut.federated, *cut.personal] != names):
            raise ValueError("the decision is not about these layers")
        if cut and cut.importance.keys() - set(names):
            raise ValueError("the decision scores other layers")
        if any(profile.layers != names for profile in self.profiles.values()):
            raise ValueError("a site scored other layers")
        return self


class _Timing(BaseModel):
    model_config = _STRICT

    wall_seconds: float
    runs_side_by_side: _Count = 1


@cache
def _schemas() -> dict[str, TypeAdapter[Any]]:
    rows = ConfigDict(strict=True)
    return {
        "experiment": TypeAdapter(_Experiment),
        "settings": TypeAdapter(dict[str, _Setting]),
        "data": TypeAdapter(_Data),
        "layers": TypeAdapter(_Layers),
        "timing": TypeAdapter(_Timing),
        "scores": TypeAdapter(list[tuple[Literal["round", "finish"], _Count, str, str, str, float]], config=rows),
        "traffic": TypeAdapter(list[tuple[_Count, str, str, _Count, _Count]], config=rows),
    }


def checked(result: RunResult) -> RunResult:
    """The same result; RunDirectoryError if its files do not contain what a run writes."""
    held: dict[str, Any] = {
        "experiment": result.experiment,
        "settings": result.experiment,
        "data": result.data,
        "layers": result.layers,
        "timing": result.timing,
        "scores": result.score_rows,
        "traffic": result.traffic_rows,
    }
    try:
        for what, schema in _schemas().items():
            schema.validate_python(held[what])
        # Rows of any site count: one that was lost on the way was scored before.
        last, rounds = max((row[1] for row in result.score_rows), default=0), result.experiment["rounds"]
        if last > rounds:
            raise ValueError(f"scores of round {last}, of {rounds} rounds")
    except ValidationError as problem:
        first = problem.errors()[0]
        place = ".".join(str(part) for part in (what, *first["loc"]))
        raise RunDirectoryError(
            f"{result.path or 'a run'} is not what a run writes: {place}: {first['msg']}"
        ) from problem
    except ValueError as problem:
        raise RunDirectoryError(f"{result.path or 'a run'} is not what a run writes: {problem}") from problem
    return result
