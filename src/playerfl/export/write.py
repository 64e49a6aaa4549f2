"""export_model: from a site's trained model to a self-contained folder."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from playerfl.data.encoding.encoding import VERSION, PictureEncoding, TableEncoding, TargetEncoding
from playerfl.errors import ConfigError
from playerfl.export.card import card_text
from playerfl.export.folder import CARD, FORMAT, ONNX, check_free, input_records, write_folder
from playerfl.export.graph import Graph, NotPortableError, graph_of
from playerfl.export.onnx_file import TOLERANCE, NoOnnxError, onnx_bytes
from playerfl.export.site_model import SiteModel, model_of_run
from playerfl.export.standalone import ONE_INPUT, Answering, Standalone, named_inputs
from playerfl.learning.training import EVALUATION_BATCH
from playerfl.tasks.task import Task

OnnxChoice = Literal["auto", "never", "require"]


@dataclass(frozen=True)
class Exported:
    """The result of an export."""

    path: Path
    why_no_onnx: str | None
    """Why there is no ONNX file; None if there is one."""
    largest_difference: float
    """Between the outputs of the stored operations and the model's own, over the site's test rows."""
    test_rows: int


def export_model(
    run: Path | str,
    site: str,
    out: Path | str,
    *,
    task: Task | None = None,
    onnx: OnnxChoice = "auto",
    overwrite: bool = False,
) -> Exported:
    """Writes the model that a site keeps from a finished run into a self-contained folder.

    Pass the `task` again if it was your own. `onnx`: whether to write an ONNX file too.
    """
    place = Path(out)
    check_free(place, overwrite=overwrite)
    return write_model(model_of_run(Path(run), site, task), place, onnx=onnx, overwrite=overwrite)


def write_model(source: SiteModel, out: Path, *, onnx: OnnxChoice = "auto", overwrite: bool = False) -> Exported:
    """Writes a site's model into a folder, after comparing the stored form with the model on the site's test rows."""
    standalone = Standalone(source.model, source.encoding, named_inputs(source.inputs)[1]).eval()
    inputs = _taken(source, source.inputs)
    target = _target(source, standalone)
    try:
        graph = graph_of(standalone, inputs)
    except NotPortableError as problem:
        raise ConfigError(
            f"{type(source.model).__name__} cannot be exported: {problem}; write its forward pass as a fixed sequence "
            "of tensor operations"
        ) from problem
    rows, apart = _checked_on_test_rows(source, standalone, graph)
    content, why_no_onnx = _onnx(source, standalone, inputs, target, onnx)
    about = _about(source, inputs, target)
    others = {
        CARD: card_text(about, has_onnx=content is not None, why_no_onnx=why_no_onnx).encode(),
        "experiment.toml": source.experiment.to_toml().encode(),
        **({ONNX: content} if content is not None else {}),
    }
    write_folder(out, about, graph, others, overwrite=overwrite)
    return Exported(out, why_no_onnx, apart, rows)


def _taken(source: SiteModel, inputs: Any) -> dict[str, Tensor]:
    """A batch of the site's data as the standalone model takes it: by name, and for a table before scaling."""
    named, _ = named_inputs(inputs)
    table = source.encoding.inputs if source.encoding is not None else None
    if not isinstance(table, TableEncoding):
        return named
    centre, spread = (torch.tensor([getattr(scale, name) for scale in table.scales]) for name in ("centre", "spread"))
    return {ONE_INPUT: named[ONE_INPUT].double() * spread.double() + centre.double()}


def _target(source: SiteModel, standalone: Standalone) -> TargetEncoding:
    if source.encoding is not None:
        return source.encoding.target
    if not source.classification:
        return TargetEncoding("output")
    with torch.inference_mode():
        outputs = standalone(*_taken(source, source.inputs).values()).shape[-1]
    return TargetEncoding("class", tuple(map(str, range(outputs))))


def _checked_on_test_rows(source: SiteModel, standalone: Standalone, graph: Graph) -> tuple[int, float]:
    """The number of test rows, and how far the stored operations are from the model on them."""
    program = graph.program
    rows, apart, largest = 0, 0.0, 1.0
    with torch.inference_mode():
        for inputs, targets in source.test.batches(EVALUATION_BATCH):
            taken = _taken(source, inputs)
            expected = standalone(*taken.values())
            rows += len(targets)
            apart = max(apart, float((expected - program(*taken.values())).abs().max()))
            largest = max(largest, float(expected.abs().max()))
    if not apart <= TOLERANCE * largest:
        raise ConfigError(
            f"{type(source.model).__name__} cannot be exported: its stored operations differ from it by {apart:.2g}"
        )
    return rows, apart


def _onnx(
    source: SiteModel, standalone: Standalone, inputs: Mapping[str, Tensor], target: TargetEncoding, choice: OnnxChoice
) -> tuple[bytes | None, str | None]:
    if choice == "never":
        return None, "it was not asked for"
    pictures = source.encoding.inputs if source.encoding is not None else None
    # 16-bit images have their own range, which one input cannot know.
    eight_bit = isinstance(pictures, PictureEncoding) and (pictures.low, pictures.high) == (0.0, 65535.0)
    answering = Answering(standalone, None if target.classes else target.mean, target.spread, eight_bit=eight_bit)
    some = {name: (tensor + 1) * 127.5 for name, tensor in inputs.items()} if eight_bit else dict(inputs)
    if eight_bit:
        some = {"pixels": some[ONE_INPUT]}
    try:
        return onnx_bytes(answering.eval(), some, "probabilities" if target.classes else "numbers"), None
    except NoOnnxError as problem:
        if choice == "require":
            raise ConfigError(f"no ONNX file was written: {problem}") from problem
        return None, str(problem)


def _about(source: SiteModel, inputs: Mapping[str, Tensor], target: TargetEncoding) -> dict[str, Any]:
    encoding = source.encoding.as_dict() if source.encoding else {"version": VERSION, "target": asdict(target)}
    private = [name for name in source.layers if name not in source.shared]
    return {
        "format": FORMAT,
        "site": source.site,
        "task": source.experiment.task,
        "model": type(source.model).__name__,
        "encoding": encoding,
        "inputs": input_records(inputs),
        "test": {
            "rows": len(source.test),
            "scores": {name: value if math.isfinite(value) else None for name, value in source.scores.items()},
            "baseline": dict(source.baseline),
            "intervals": {name: list(bounds) for name, bounds in source.intervals.items()},
        },
        "layers": {"shared": list(source.shared), "private": private, "reason": source.reason},
        "round": source.round,
        "sites": dict(source.sites),
        "experiment": source.experiment.model_dump(mode="json"),
        "environment": dict(source.environment),
    }
