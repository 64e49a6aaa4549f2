"""A model folder: what is written into it, and how an unknown one is read without trusting it."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any, NotRequired

import torch
from pydantic import TypeAdapter, ValidationError
from safetensors.torch import save
from torch import Tensor
from typing_extensions import TypedDict

from playerfl.data.encoding.encoding import Encoding, TargetEncoding
from playerfl.errors import ConfigError, PlayerflError
from playerfl.export.graph import Graph
from playerfl.export.load_model import Model
from playerfl.export.ranges import RangeRecord
from playerfl.storage.atomic_files import RERUN_HINT, make_directory, storage_error, temp_path, write_atomically

FORMAT = "playerfl model 1"
ABOUT, GRAPH, WEIGHTS, LOADER, CARD, ONNX = (
    "model.json",
    "graph.json",
    "weights.safetensors",
    "load_model.py",
    "README.md",
    "model.onnx",
)
_CHECKED = (GRAPH, WEIGHTS)
_LARGEST_TEXT = 2**28
_FORMS_IMPORT = "from playerfl.data.encoding.forms import FORMS, may_hold_flags\n"
_EXPORT_AGAIN = "export it again"


class ModelFolderError(PlayerflError):
    """A model folder cannot be read, written or trusted."""


class InputRecord(TypedDict):
    """One input of the model."""

    name: str
    dtype: str
    shape: list[int]
    """The shape of one row."""


class ScoresRecord(TypedDict):
    """How good the model is on the site's test rows."""

    rows: int
    scores: dict[str, float | None]
    """None: not a number, because the model diverged."""
    baseline: dict[str, float]
    """The scores of always predicting the most frequent class, or the mean; empty if they are not known."""
    intervals: dict[str, tuple[float, float]]
    """95 % intervals over the test rows; empty if they are not known."""


class LayersRecord(TypedDict):
    """Which layers the sites averaged."""

    shared: list[str]
    private: list[str]
    reason: str | None
    """Why the cut is there, for an algorithm that decides on one."""


class AboutFile(TypedDict):
    """model.json."""

    format: str
    site: str
    task: str
    model: str
    """Its class."""
    encoding: dict[str, Any]
    """How rows or images become inputs, if the task has an `Encoding`; and what the outputs mean."""
    inputs: list[InputRecord]
    ranges: NotRequired[list[RangeRecord]]
    """Where the values of the site's training rows lie; folders of early versions do not say."""
    test: ScoresRecord
    layers: LayersRecord
    round: int | None
    """The round whose model the site kept."""
    sites: dict[str, int]
    """Training rows by site, as far as they are known here."""
    experiment: dict[str, Any]
    environment: dict[str, Any]
    fingerprints: dict[str, str]
    """SHA-256 of the files that decide a prediction."""


@dataclass(frozen=True)
class ExportedModel:
    """A model folder that has been read and checked."""

    path: Path
    about: AboutFile
    model: Model

    @cached_property
    def encoding(self) -> Encoding | None:
        """How rows or images become inputs; None for a model that takes tensors."""
        stored = self.about["encoding"]
        return Encoding.from_dict(stored) if {"table", "pictures"} & stored.keys() else None

    @cached_property
    def target(self) -> TargetEncoding:
        return target_of(self.about["encoding"])

    def outputs(self, *inputs: Tensor) -> Tensor:
        """The model's outputs for some rows, before they become probabilities."""
        try:
            output = self.model.program(*inputs)
        except Exception as problem:  # what torch raises on a crafted folder is unpredictable
            reason = (str(problem).strip().splitlines() or [type(problem).__name__])[0]
            raise ModelFolderError(
                f"the model in {self.path} fails on these inputs: {reason[:200]}; check them, or {_EXPORT_AGAIN}"
            ) from problem
        expected = len(self.target.classes)
        if not isinstance(output, Tensor) or output.dim() == 0 or len(output) != len(inputs[0]):
            raise ModelFolderError(f"the model in {self.path} does not return one prediction per row; {_EXPORT_AGAIN}")
        if expected and (output.dim() != 2 or output.shape[1] != expected):
            raise ModelFolderError(
                f"the model in {self.path} has outputs of the shape {tuple(output.shape)}, but {expected} classes; "
                f"{_EXPORT_AGAIN}"
            )
        return output


def target_of(encoding: Mapping[str, Any]) -> TargetEncoding:
    """The target of a stored encoding."""
    try:
        target: TargetEncoding = TypeAdapter(TargetEncoding).validate_python(encoding.get("target"))
    except ValidationError as problem:
        raise ModelFolderError(f"{ABOUT} does not say what the model predicts; {_EXPORT_AGAIN}") from problem
    return target


def write_folder(
    out: Path,
    about: Mapping[str, Any],
    graph: Graph,
    others: Mapping[str, bytes],
    *,
    overwrite: bool = False,
) -> None:
    """Writes a model folder completely or not at all; `about` without the fingerprints, `others` by file name."""
    check_free(out, overwrite=overwrite)
    decisive = {
        GRAPH: _json(graph.operations),
        WEIGHTS: save({name: tensor.contiguous() for name, tensor in graph.tensors.items()}),
    }
    fingerprints = {name: hashlib.sha256(content).hexdigest() for name, content in decisive.items()}
    content = {
        **decisive,
        ABOUT: _json({**about, "fingerprints": fingerprints}),
        LOADER: loader_source().encode(),
        **others,
    }
    unfinished = temp_path(out)
    make_directory(out.parent)
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        make_directory(unfinished)
        for name, data in content.items():
            write_atomically(unfinished / name, data, RERUN_HINT)
        if out.exists():
            shutil.rmtree(out)
        unfinished.replace(out)
    except OSError as problem:
        raise storage_error(out, problem, RERUN_HINT) from problem
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def check_free(out: Path, *, overwrite: bool) -> None:
    """Refuses a place that holds something else, or a model that is to be kept."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not (out / ABOUT).is_file():
        raise ConfigError(f"{out} holds something that is not a model; choose another directory for --out")
    if not overwrite:
        raise ConfigError(f"{out} already holds a model; replace it with --overwrite, or choose another --out")


def loader_source() -> str:
    """load_model.py as one file that needs torch only."""
    loader = (files("playerfl.export") / LOADER).read_text(encoding="utf-8")
    forms = (files("playerfl.data.encoding") / "forms.py").read_text(encoding="utf-8")
    assert _FORMS_IMPORT in loader
    return loader.replace(_FORMS_IMPORT, forms.partition("from __future__ import annotations\n")[2].strip("\n") + "\n")


def read_folder(path: Path) -> ExportedModel:
    """Reads and checks a model folder, which may be damaged or made by somebody else."""
    if not path.is_dir():
        raise ModelFolderError(f"there is no model folder {path}; make one with  playerfl export RUN --site SITE")
    about = _about(path)
    for name in _CHECKED:
        content = _read(path / name)
        if about["fingerprints"].get(name) != hashlib.sha256(content).hexdigest():
            raise ModelFolderError(f"{path / name} has been changed since the model was exported; {_EXPORT_AGAIN}")
    try:
        model = Model(path)
    except Exception as problem:  # a crafted file may break the loader anywhere
        raise ModelFolderError(f"{path} is not a valid model: {_reason(problem)}; {_EXPORT_AGAIN}") from problem
    read = ExportedModel(path, about, model)
    _check_ranges(path, about)
    target_of(about["encoding"])
    _ = read.encoding
    return read


def _about(path: Path) -> AboutFile:
    try:
        about = json.loads(_read(path / ABOUT))
    except (ValueError, RecursionError) as problem:
        raise ModelFolderError(f"{path / ABOUT} cannot be read: {problem}") from problem
    made_by = about.get("format") if isinstance(about, dict) else None
    if made_by != FORMAT:
        raise ModelFolderError(
            f"{path} was not written by this version of playerfl (it says {made_by!r}, not {FORMAT!r}); {_EXPORT_AGAIN}"
        )
    try:
        checked: AboutFile = TypeAdapter(AboutFile).validate_python(about)
    except ValidationError as problem:
        first = problem.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ModelFolderError(f"{path / ABOUT}: {place}: {first['msg']}; {_EXPORT_AGAIN}") from problem
    return checked


def _check_ranges(path: Path, about: AboutFile) -> None:
    widths = [math.prod(record["shape"]) for record in about["inputs"]]
    for limits in about.get("ranges", []):
        if not 0 <= limits["input"] < len(widths) or not 0 <= (limits["position"] or 0) < widths[limits["input"]]:
            raise ModelFolderError(
                f"{path / ABOUT}: ranges: {limits['column']!r} is not one of the model's inputs; {_EXPORT_AGAIN}"
            )


def _read(file: Path) -> bytes:
    try:
        # A link could make a folder from elsewhere show what only its reader may see.
        if file.is_symlink() or not file.is_file():
            raise ModelFolderError(
                f"{file.parent} has no file {file.name}, so it is not a complete model; {_EXPORT_AGAIN}"
            )
        if file.suffix == ".json" and file.stat().st_size > _LARGEST_TEXT:
            raise ModelFolderError(f"{file} is too large for a description of a model; {_EXPORT_AGAIN}")
        return file.read_bytes()
    except OSError as problem:
        raise ModelFolderError(f"cannot read {file}: {problem.strerror or problem}") from problem


def _reason(problem: Exception) -> str:
    message = " ".join(str(problem).split())[:200]
    return message if isinstance(problem, ValueError) and message else f"{type(problem).__name__}: {message}"


def _json(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=1, allow_nan=False) + "\n").encode()


def input_records(inputs: Mapping[str, Tensor]) -> list[InputRecord]:
    """These inputs as records for model.json."""
    return [
        {"name": name, "dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape[1:])}
        for name, tensor in inputs.items()
    ]


def tensor_for(record: InputRecord, values: Any) -> Tensor:
    """Numbers as an input of the model; ModelFolderError if they have another shape."""
    dtype = getattr(torch, record["dtype"], None)
    if not isinstance(dtype, torch.dtype):
        raise ModelFolderError(
            f"{ABOUT} says that input {record['name']!r} is of kind {record['dtype']!r}; {_EXPORT_AGAIN}"
        )
    given = torch.as_tensor(values)
    tensor = given.to(dtype)
    if not dtype.is_floating_point and not torch.equal(tensor.double(), given.double()):
        raise ModelFolderError(f"input {record['name']!r} takes whole numbers ({record['dtype']}); round them yourself")
    if list(tensor.shape[1:]) != record["shape"]:
        raise ModelFolderError(
            f"input {record['name']!r} has the shape {tuple(tensor.shape)}; the model takes (rows, "
            f"{', '.join(map(str, record['shape']))})"
        )
    return tensor
