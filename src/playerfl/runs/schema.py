"""Checks the files of a finished run before anything is computed from them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Annotated, Any, Literal, NotRequired

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError
from typing_extensions import TypeAliasType, TypedDict

from playerfl.errors import RunDirectoryError
from playerfl.layers.sensitivity import ProfileRecord
from playerfl.paper import facts as paper
from playerfl.runs.files import DataFile, EnvironmentFile, LayersFile, TimingFile
from playerfl.runs.result import RunResult

_MOST = 2**63
_Count = Annotated[int, Field(ge=0, lt=_MOST)]
_Plain = None | bool | int | float | str
_Setting = TypeAliasType("_Setting", "_Plain | list[_Plain] | dict[str, _Setting]")


class _Algorithm(TypedDict):
    name: str
    personal_layers: NotRequired[_Count | None]


class _Experiment(TypedDict):
    """The settings that are read from a finished run's experiment; it has many more."""

    task: str
    seed: _Count
    rounds: Annotated[int, Field(ge=1, lt=2**31)]
    selection: Literal["by_owner", "client_best", "round_best", "last"]
    algorithm: _Algorithm


def _data(data: DataFile) -> DataFile:
    examples = [site["train"]["examples"] for site in data["sites"].values()]
    _check_counts(examples)
    if data["paper"] is not None and data["paper"] not in paper.facts()["datasets"]:
        raise ValueError(f"the paper has no dataset {data['paper']!r}")
    if not sum(examples):
        raise ValueError("no site has training examples")
    return data


def _layers(file: LayersFile) -> LayersFile:
    names = [layer["name"] for layer in file["layers"]]
    _check_counts(layer["parameters"] for layer in file["layers"])
    if len(set(names)) < len(names):
        raise ValueError("a layer is named twice")
    cut = file["decision"]
    if cut and (cut["index"] != len(cut["federated"]) or [*cut["federated"], *cut["personal"]] != names):
        raise ValueError("the cut does not divide these layers")
    if cut and cut["importance"].keys() - set(names):
        raise ValueError("the cut's scores are not of these layers")
    for profile in file["profiles"].values():
        if profile["layers"] != names:
            raise ValueError("a site scored other layers")
        _check_profile(profile)
    return file


def _check_profile(profile: ProfileRecord) -> None:
    sizes, batches = profile["batch_sizes"], profile["batches"]
    _check_counts([profile["num_examples"], *sizes])
    if not sizes or 0 in sizes or len(sizes) != len(batches):
        raise ValueError("a site's layer scores need batches of at least one example")
    if any(len(row) != len(profile["layers"]) for row in batches):
        raise ValueError("a site's layer scores need one number per layer")


def _timing(timing: TimingFile) -> TimingFile:
    _check_counts([timing["runs_side_by_side"]])
    return timing


def _check_counts(numbers: Iterable[int]) -> None:
    for number in numbers:
        if not 0 <= number < _MOST:
            raise ValueError(f"{number} is not a number of examples, parameters or runs")


@cache
def _schemas() -> dict[str, TypeAdapter[Any]]:
    return {
        "experiment": TypeAdapter(_Experiment),
        "settings": TypeAdapter(dict[str, _Setting]),
        "environment": TypeAdapter(EnvironmentFile),
        "data": TypeAdapter(Annotated[DataFile, AfterValidator(_data)]),
        "layers": TypeAdapter(Annotated[LayersFile, AfterValidator(_layers)]),
        "timing": TypeAdapter(Annotated[TimingFile, AfterValidator(_timing)]),
        "scores": TypeAdapter(list[tuple[Literal["round", "finish", "unseen"], _Count, str, str, str, float]]),
        "traffic": TypeAdapter(list[tuple[_Count, str, str, _Count, _Count]]),
    }


def checked(result: RunResult) -> RunResult:
    """The same result; RunDirectoryError if its files are not those of a valid run."""
    held: dict[str, Any] = {
        "experiment": result.experiment,
        "settings": result.experiment,
        "environment": result.environment,
        "data": result.data,
        "layers": result.layers,
        "timing": result.timing,
        "scores": result.score_rows,
        "traffic": result.traffic_rows,
    }
    try:
        for what, schema in _schemas().items():
            # Strict: the text "3" is not the number 3. Keys that later versions add are ignored.
            schema.validate_python(held[what], strict=True)
        # The rows of every site count, even of one that was lost along the way.
        last, rounds = max((row[1] for row in result.score_rows), default=0), result.experiment["rounds"]
        if last > rounds:
            raise ValueError(f"it has scores of round {last}, but only {rounds} rounds")
        scored = {row[:4] for row in map(tuple, result.score_rows)} if result.confusions else set()
        if not all(key in scored for key in result.confusions):
            raise ValueError("a confusion matrix of a round without scores")
    except ValidationError as problem:
        first = problem.errors()[0]
        place = ".".join(str(part) for part in (what, *first["loc"]))
        raise RunDirectoryError(f"{result.path or 'a run'} is not a valid run: {place}: {first['msg']}") from problem
    except ValueError as problem:
        raise RunDirectoryError(f"{result.path or 'a run'} is not a valid run: {problem}") from problem
    return result
