"""A model as a list of tensor operations: data that can be stored as JSON and run by `load_model` with torch alone."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from typing import Any

import torch
from torch import Tensor, nn

from playerfl.errors import PlayerflError
from playerfl.export.load_model import ALLOWED, NUMBERS, Program
from playerfl.weights import Weights

_ROWS = 5
_TOLERANCE = 1e-6
# The value of a size is checked by these, which a fixed list of operations does not need.
_CHECKS = ("_assert_scalar", "_assert_tensor_metadata", "sym_constrain_range", "sym_constrain_range_for_size")
_PLACES = ("device", "layout", "pin_memory")


class NotPortableError(PlayerflError):
    """A model's forward pass is not a fixed list of tensor operations that can be stored."""


@dataclass(frozen=True)
class Graph:
    """The operations as JSON, and the tensors they use."""

    operations: dict[str, Any]
    tensors: Weights

    @property
    def program(self) -> Program:
        return Program(self.operations, dict(self.tensors))


def graph_of(model: nn.Module, inputs: Mapping[str, Tensor]) -> Graph:
    """The operations of a model with a `forward(*inputs)` for these inputs; their first dimension counts rows.

    The result is compared with the model on several numbers of rows. NotPortableError says why a model has none.
    """
    rows = min(len(tensor) for tensor in inputs.values())
    some = {name: _repeated(tensor, rows) for name, tensor in inputs.items()}
    graph = _stored(_exported(model, some), row_by_row=False)
    if _same(model, graph, some):
        return graph
    # len(x) in a forward pass ties the operations to one number of rows.
    first = {name: tensor[:1] for name, tensor in some.items()}
    graph = _stored(_exported(model, first), row_by_row=True)
    if _same(model, graph, some):
        return graph
    raise NotPortableError("its stored operations give different results from its forward pass")


def _repeated(tensor: Tensor, rows: int) -> Tensor:
    return torch.cat([tensor[:rows]] * math.ceil(_ROWS / rows))[:_ROWS]


def _exported(model: nn.Module, inputs: Mapping[str, Tensor]) -> Any:
    # Imported here: it takes seconds.
    from torch.export import Dim, export

    any_rows = (tuple({0: Dim.AUTO} for _ in inputs),)
    one_row = all(len(tensor) == 1 for tensor in inputs.values())
    try:
        with silenced():
            shapes = None if one_row else any_rows
            exported = export(model, tuple(inputs.values()), dynamic_shapes=shapes, strict=False)
            # Without decompositions: only operations in place are replaced, so that results stay the same bit for bit.
            return exported.run_decompositions({})
    except Exception as problem:  # what a trace of a user's code raises is unpredictable
        reason = (str(problem).strip().splitlines() or [type(problem).__name__])[0][:200]
        if "data-dependent" in reason:
            reason = "what it computes depends on the values of its inputs"
        raise NotPortableError(f"its forward pass cannot be traced ({reason})") from problem


@contextmanager
def silenced() -> Iterator[None]:
    """Hides what torch's exporters log, warn about and print: failures are reported in one sentence."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _stored(exported: Any, *, row_by_row: bool) -> Graph:
    from torch.export.graph_signature import InputKind, OutputKind

    signature = exported.graph_signature
    constants: dict[str, str] = {}
    tensors: dict[str, Tensor] = {}
    inputs: list[str] = []
    for spec in signature.input_specs:
        if spec.kind == InputKind.USER_INPUT:
            inputs.append(spec.arg.name)
        elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            known = exported.state_dict if spec.target in exported.state_dict else exported.constants
            constants[spec.arg.name] = spec.target
            # A copy of its own: tied tensors share memory, which a safetensors file cannot.
            tensors[spec.target] = known[spec.target].detach().cpu().clone().contiguous()
        else:
            raise NotPortableError(f"it uses {spec.target!r}, which is not a tensor")
    outputs = [spec.arg.name for spec in signature.output_specs if spec.kind == OutputKind.USER_OUTPUT]
    calls = [_call(node) for node in exported.graph.nodes if node.op == "call_function" and not _is_check(node)]
    used = {name: entry for name, entry in constants.items() if name in _names_in(calls)}
    operations = {"inputs": inputs, "tensors": used, "calls": calls, "output": outputs[0], "row_by_row": row_by_row}
    return Graph(operations, {entry: tensors[entry] for entry in used.values()})


def _names_in(argument: Any) -> set[str]:
    if isinstance(argument, dict):
        here = {argument["value"]} if set(argument) == {"value"} else set()
        return here.union(*map(_names_in, argument.values()))
    return set().union(*map(_names_in, argument)) if isinstance(argument, list) else set()


def _is_check(node: Any) -> bool:
    return getattr(node.target, "_opname", "") in _CHECKS


def _call(node: Any) -> list[Any]:
    kwargs = {name: _argument(value) for name, value in node.kwargs.items() if name not in _PLACES}
    return [node.name, _name_of(node.target), [_argument(value) for value in node.args], kwargs]


def _name_of(target: Any) -> str:
    if isinstance(target, torch._ops.OpOverload) and target.namespace == "aten":
        if target._opname == "sym_size":
            return "size"
        if target._opname in ALLOWED:
            return f"aten.{target._opname}.{target._overloadname}"
    elif getattr(target, "__name__", "") in NUMBERS and target in NUMBERS.values():
        return f"number.{target.__name__}"
    raise NotPortableError(f"it uses the operation {target}, which the loader does not run")


def _argument(value: Any) -> Any:
    if isinstance(value, torch.fx.Node):
        return {"value": value.name}
    if isinstance(value, list | tuple):
        return [_argument(item) for item in value]
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, torch.memory_format):
        return {"memory_format": str(value).removeprefix("torch.")}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise NotPortableError(f"an operation takes {value!r}, which cannot be stored")


def _same(model: nn.Module, graph: Graph, inputs: Mapping[str, Tensor]) -> bool:
    program = graph.program
    for rows in (1, 2, _ROWS):
        few = [tensor[:rows] for tensor in inputs.values()]
        with torch.inference_mode():
            expected = model(*few)
        try:
            if not torch.allclose(program(*few), expected, rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True):
                return False
        except (RuntimeError, IndexError, TypeError, ValueError):
            return False
    return True
