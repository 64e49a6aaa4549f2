"""A model as an ONNX file, checked with onnxruntime against torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from playerfl.export.graph import silenced

TOLERANCE = 1e-5
_ROWS = 5


class NoOnnxError(Exception):
    """Why there is no ONNX file; the model folder is complete without it."""


def onnx_bytes(model: nn.Module, inputs: Mapping[str, Tensor], output: str) -> bytes:
    """The ONNX file of a model with these inputs (by name, rows first), after comparing its outputs with torch's."""
    try:
        import onnx  # noqa: F401
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as problem:
        raise NoOnnxError("onnx and onnxruntime are not installed; pip install 'playerfl[onnx]'") from problem
    some = {name: tensor[:_ROWS] for name, tensor in inputs.items()}
    try:
        with silenced():
            content = _exported(model, some, output)
            quiet = onnxruntime.SessionOptions()
            quiet.log_severity_level = 4  # it would print what we report in one sentence
            session = onnxruntime.InferenceSession(content, quiet, providers=["CPUExecutionProvider"])
            _compare(session, model, some)
    except NoOnnxError:
        raise
    except Exception as problem:  # exporter and runtime raise whatever the model leads them to
        reason = (str(problem).strip().splitlines() or [type(problem).__name__])[0]
        raise NoOnnxError(f"this model cannot be written as ONNX ({reason[:200]})") from problem
    return content


def _exported(model: nn.Module, inputs: Mapping[str, Tensor], output: str) -> bytes:
    rows = tuple({0: torch.export.Dim.AUTO} for _ in inputs)
    program = torch.onnx.export(
        model,
        tuple(inputs.values()),
        dynamic_shapes=(rows,),
        input_names=list(inputs),
        output_names=[output],
        dynamo=True,
        verbose=False,
    )
    if program is None:
        raise NoOnnxError("torch wrote no ONNX file")
    proto: Any = program.model_proto
    # Stack traces, with the paths of the machine the model was exported on.
    for node in proto.graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
    for value in (*proto.graph.value_info, *proto.graph.input, *proto.graph.output):
        del value.metadata_props[:]
    for function in proto.functions:
        del function.metadata_props[:]
        for node in function.node:
            del node.metadata_props[:]
    content: bytes = proto.SerializeToString()
    return content


def _compare(session: Any, model: nn.Module, inputs: Mapping[str, Tensor]) -> None:
    for rows in (1, 2, _ROWS):
        few = {name: tensor[:rows] for name, tensor in inputs.items()}
        with torch.inference_mode():
            expected = model(*few.values())
        (output,) = session.run(None, {name: tensor.numpy() for name, tensor in few.items()})
        apart = float((torch.from_numpy(output).double() - expected.double()).abs().max())
        if not apart <= TOLERANCE * max(1.0, float(expected.abs().max())):
            raise NoOnnxError(f"its ONNX form differs from torch by {apart:.2g} on {rows} rows")
