"""A recorded forward pass: which modules and operations ran, in which order, and whose results each of them read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from playerfl.layers.finding.units import (
    Unit,
    mixes,
    outermost_parametrised,
    own_entries,
    role_of,
    stateful_modules,
)

_CONSTANTS = re.compile(r"^(zeros|ones|empty|full|rand|randn)_like|^new_(zeros|ones|empty|full)|^empty_strided")
"""Operations that take a shape from a tensor, but no values."""
_PICKS = {"index", "index_select", "gather", "take"}
"""Operations that look rows of a table up, if the model's input says which."""
_MOST_MATRICES = 8
"""A module with more is a network of bare parameters. An LSTM cell, gate by gate, has eight."""
_ENLARGING = ("upsample", "unpool", "pixel_shuffle")


@dataclass
class Step:
    """One operation, or one whole call of a module that is a unit."""

    number: int
    operation: str
    """The name of the operation; "call" for a unit, "input" for what the model was given."""
    inputs: list[int]
    """The steps whose results it read, in the order of its arguments."""
    unit: Unit | None = None
    shape: tuple[int, ...] = ()
    where: str = ""
    """The path of the module whose forward pass ran it."""
    enlarges: bool = False
    """Its result has more positions than its input, as in the decoder of a U-Net."""


@dataclass
class Trace:
    """All steps of one forward pass, and the units it did not use."""

    steps: list[Step] = field(default_factory=list)
    units: Mapping[str, Unit] = field(default_factory=dict)
    unused: list[Unit] = field(default_factory=list)
    registered: list[str] = field(default_factory=list)
    """The names of all units that own something, in order of registration."""
    fed: Mapping[str, list[str]] = field(default_factory=dict)
    """Bare parameters that go straight into a module, such as learnt queries, and the units that read them."""
    buffers: Mapping[str, int] = field(default_factory=dict)
    """The first step that uses each buffer together with data or weights, except by the module that owns it."""


def trace(model: nn.Module, run: Callable[[], object], example: object) -> Trace:
    """Runs the model twice: once to see which modules are called, once to see every operation."""
    calls = _Calls(model)
    with calls.watched(calls.entered, calls.left):
        run()
    recorder = _Recorder(model, calls, list(_tensors(example)))
    fast_path = torch.backends.mha.get_fastpath_enabled()
    try:
        # The fast path of torch's encoder layers would hide their parts.
        torch.backends.mha.set_fastpath_enabled(False)
        with calls.watched(recorder.entered, recorder.left), recorder:
            run()
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
    return recorder.result()


def order_of_calls(model: nn.Module, run: Callable[[], object]) -> dict[str, int]:
    """The rank of each module, by its first call."""
    calls = _Calls(model)
    with calls.watched(calls.entered, calls.left):
        run()
    return {calls.paths[module]: rank for rank, module in enumerate(calls.order)}


class _Calls:
    """Which modules are called, and inside which others."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.paths = {module: path for path, module in model.named_modules()}
        self.order: dict[nn.Module, None] = {}
        self._open: list[nn.Module] = []
        self._stateful = {module for _, module in stateful_modules(model)}
        self._around_calls: set[nn.Module] = set()
        """Modules in whose forward pass another module with state of its own was called."""

    @contextmanager
    def watched(
        self, entered: Callable[[nn.Module], None], left: Callable[[nn.Module, object], None]
    ) -> Iterator[None]:
        with ExitStack() as hooks:
            for module in self.paths:
                before = module.register_forward_pre_hook(lambda m, _: entered(m))
                after = module.register_forward_hook(lambda m, _, output: left(m, output), always_call=True)
                hooks.callback(before.remove)
                hooks.callback(after.remove)
            yield

    def entered(self, module: nn.Module) -> None:
        self.order.setdefault(module)
        if module in self._stateful:
            self._around_calls.update(self._open)
        self._open.append(module)

    def left(self, module: nn.Module, _: object) -> None:
        if self._open and self._open[-1] is module:
            self._open.pop()

    def is_unit(self, module: nn.Module) -> bool:
        """A called module that does its work without calling modules with state: nn.Linear, nn.LSTM,
        nn.MultiheadAttention, or a user's own. The whole model, and a module with very many matrices, is one only if it
        is torch's own."""
        path = self.paths[module]
        if path and outermost_parametrised(self.model, path) == path:
            return True
        if module in self._around_calls or next(module.parameters(), None) is None:
            return module in self._stateful and module not in self._around_calls
        if type(module).__module__.startswith("torch.nn."):
            return module in self.order
        return bool(path) and module in self.order and sum(p.dim() > 1 for p in module.parameters()) <= _MOST_MATRICES


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every tensor operation. Values are followed by tensor; writes into a tensor also by its memory."""

    def __init__(self, model: nn.Module, calls: _Calls, inputs: list[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._model, self._calls = model, calls
        self._steps: list[Step] = []
        self._alive: list[Tensor] = []
        """Everything seen, so that no address is used twice."""
        self._maker: dict[int, int] = {}
        self._latest: dict[int, int] = {}
        self._writes: dict[int, list[int]] = {}
        self._weights: dict[int, frozenset[str]] = {}
        """Tensors computed from parameters alone, and from which."""
        self._open: list[nn.Module] = []
        self._unit_call: tuple[nn.Module, Step] | None = None
        self._units: dict[str, Unit] = {}
        self._unit_of: dict[str, Unit] = {}
        self._fed: dict[str, list[str]] = {}
        kept = model.state_dict().keys()
        self._buffers = {id(buffer): frozenset({name}) for name, buffer in model.named_buffers() if name in kept}
        """Buffers, and tensors computed from them alone."""
        self._buffer_uses: dict[str, int] = {}
        self._weighted: set[int] = set()
        """Steps that depend on a unit."""
        self._constant: set[int] = set()
        """Steps that read neither data nor parameters, such as the scale of a frozen batch norm."""
        self._parameters = dict(model.named_parameters())
        for name, parameter in self._parameters.items():
            self._alive.append(parameter)
            self._weights[id(parameter)] = frozenset({name})
        self._registered = self._make_units()
        self._whole: dict[int, list[int]] = {}
        """Whole numbers from the model's inputs, what is computed from them alone, and the steps they came in with.
        They are data where a matrix or a module reads nothing else, such as pixels; masks never are."""
        self._whole_in_call: list[int] = []
        """The steps with which the whole numbers came in that a unit reads as numbers while it is called."""
        for tensor in inputs:
            step = self._step("input", [])
            step.shape = tuple(tensor.shape)
            if _carries_data(tensor):
                self._made(tensor, step)
            else:
                self._alive.append(tensor)
                self._whole[id(tensor)] = [step.number]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled while operations are recorded. If it had to be skipped, torch would import
        torch._dynamo, which takes seconds."""
        return False

    def _make_units(self) -> list[str]:
        """One unit per called module that works alone, and per uncalled one; the parameters of others one by one."""
        for path, module in self._calls.model.named_modules(remove_duplicate=False):
            around = self._around(path)
            if around is not None:
                unit = self._units.setdefault(around, Unit(around, around, [], self._model.get_submodule(around)))
                unit.entries += [e for e in own_entries(path, module) if e not in unit.entries]
            elif (
                path and module not in self._calls.order and not isinstance(module, nn.ParameterList | nn.ParameterDict)
            ):
                if entries := [e for e in own_entries(path, module) if e in self._parameters]:
                    self._units[path] = Unit(path, path, entries)
            else:
                for entry in own_entries(path, module):
                    if entry in self._parameters:
                        self._units[entry] = Unit(entry, entry, [entry])
        self._units = {name: unit for name, unit in self._units.items() if unit.entries}
        for unit in self._units.values():
            for entry in unit.entries:
                self._unit_of.setdefault(entry, unit)
        return list(self._units)

    def _around(self, path: str) -> str | None:
        """The outermost unit module around a path, itself included."""
        steps = path.split(".") if path else []
        for depth in range(len(steps) + 1):
            here = ".".join(steps[:depth])
            module = self._model.get_submodule(here)
            if module in self._calls.paths and self._calls.is_unit(module) and self._calls.paths[module] == here:
                return here
        return None

    def entered(self, module: nn.Module) -> None:
        if self._unit_call is None and self._calls.is_unit(module):
            unit = self._units.get(self._calls.paths[module])
            if unit is not None:
                self._unit_call = (module, self._step("call", [], unit))
                self._whole_in_call = []
        self._open.append(module)

    def left(self, module: nn.Module, output: object) -> None:
        if self._open and self._open[-1] is module:
            self._open.pop()
        if self._unit_call is not None and self._unit_call[0] is module:
            step = self._unit_call[1]
            for tensor in _tensors(output):
                step.shape = step.shape or tuple(tensor.shape)
            step.inputs = step.inputs or list(dict.fromkeys(self._whole_in_call))
            self._unit_call = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        arguments = list(_tensors((args, kwargs)))
        output = func(*args, **kwargs)
        schema = func._schema
        results = [tensor for tensor in _tensors(output) if _carries_data(tensor)]
        written = [
            tensor
            for argument, value in zip(schema.arguments, args, strict=False)
            if argument.alias_info is not None and argument.alias_info.is_write
            for tensor in _tensors(value)
        ]
        step = None
        if results or written:
            operation = schema.name.partition("::")[2]
            transposed = operation == "convolution" and len(args) > 6 and bool(args[6])
            enlarges = transposed or any(word in operation for word in _ENLARGING)
            step = self._note(operation.rstrip("_"), arguments, results, written, enlarges)
        if not _CONSTANTS.search(schema.name.partition("::")[2]):
            made = [tensor for tensor in (*_tensors(output), *written) if step is None or not _carries_data(tensor)]
            self._note_whole(arguments, made)
        if buffers := frozenset(name for tensor in arguments for name in self._buffers.get(id(tensor), ())):
            self._uses_buffers(buffers, step, list(_tensors(output)))
        return output

    def _note_whole(self, arguments: list[Tensor], made: list[Tensor]) -> None:
        """Notes what is computed from whole numbers alone, and whole numbers computed from data as it came in."""
        came_in = [number for tensor in arguments for number in self._whole.get(id(tensor), ())] if made else []
        if not came_in and made and not any(map(_carries_data, made)):
            data = [number for tensor in arguments for number in self._sources(tensor)]
            came_in = data if self._weighted.isdisjoint(data) else []
        for tensor in made if came_in else ():
            self._alive.append(tensor)
            self._whole[id(tensor)] = list(dict.fromkeys(came_in))

    def _uses_buffers(self, names: frozenset[str], step: Step | None, results: list[Tensor]) -> None:
        if step is not None and (step.unit is not None or not self._constant.issuperset(step.inputs)):
            for name in names:
                self._buffer_uses.setdefault(name, step.number)
            return
        for tensor in results:
            self._alive.append(tensor)
            self._buffers[id(tensor)] = names

    def _note(
        self, operation: str, arguments: list[Tensor], results: list[Tensor], written: list[Tensor], enlarges: bool
    ) -> Step | None:
        data = list(dict.fromkeys(step for tensor in arguments for step in self._sources(tensor)))
        names = frozenset(name for tensor in arguments for name in self._weights.get(id(tensor), ()))
        whole = [number for t in arguments if _carries_data(t) for number in self._whole.get(id(t), ())]
        if self._unit_call is not None:
            self._whole_in_call += whole
            step = self._unit_call[1]
            assert step.unit is not None
            step.unit.operations.add(operation)
            step.enlarges |= enlarges
            step.inputs += [number for number in data if number != step.number and number not in step.inputs]
            for tensor in (*results, *written):
                self._made(tensor, step)
            for name in names - set(step.unit.entries):
                stranger = self._unit_of[name]
                if stranger.module is None:
                    stranger.operations.add("value")
                    readers = self._fed.setdefault(stranger.name, [])
                    readers += [step.unit.name] if step.unit.name not in readers else []
            return step
        if names and not data:
            if operation in _PICKS and any(id(tensor) in self._whole for tensor in arguments):
                operation = f"embedding_{operation}"
            elif mixes(operation):
                data = list(dict.fromkeys(whole))
        if names and not data and "embedding" not in operation:
            for tensor in results:
                self._alive.append(tensor)
                self._weights[id(tensor)] = names
            return None
        stays_whole = not (data or names) and (bool(whole) or not any(map(_carries_data, arguments)))
        if stays_whole or _CONSTANTS.search(operation):
            return None
        if names and any(tensor.is_complex() for tensor in results):
            operation = f"fft_{operation}"  # a product in frequency space is a convolution
        if names and operation == "mul" and self._embeds_numbers(data, arguments, results):
            operation = "linear_mul"
        units = self._using(names, operation) if names else []
        step = self._step(operation, data, units[0] if units else None)
        for unit in units[1:]:
            step.shape = tuple(results[0].shape) if results else ()
            step = self._step(operation, [step.number], unit)
        step.enlarges = enlarges
        step.shape = tuple(results[0].shape) if results else ()
        if not units and self._constant.issuperset(data):
            self._constant.add(step.number)
        for tensor in results:
            self._made(tensor, step)
        for tensor in written:
            self._made(tensor, step)
            self._writes.setdefault(_memory(tensor), []).append(step.number)
        return step

    def _embeds_numbers(self, data: list[int], arguments: list[Tensor], results: list[Tensor]) -> bool:
        """Whether a product turns each number of the model's input into a vector (FT-Transformer), as a linear layer
        does with one feature."""
        numbers = [tensor for tensor in arguments if self._sources(tensor)]
        grows = any(t.shape[-1:] == (1,) != result.shape[-1:] for t in numbers for result in results)
        return grows and self._weighted.isdisjoint(data)

    def _using(self, names: frozenset[str], operation: str) -> list[Unit]:
        """The units behind the parameters of one operation. Bare parameters of one matrix product are one unit."""
        # A product is called after its matrix, even if its bias was defined first.
        ordered = sorted((n for n in self._parameters if n in names), key=lambda n: -self._parameters[n].dim())
        units: list[Unit] = []
        for name in ordered:
            owner = self._unit_of[name]
            if owner.module is not None and owner.module in self._calls.order:
                again = f"{name} again"
                units.append(self._units.setdefault(again, Unit(again, again, [name], again=True)))
            elif mixes(operation) and units and units[0] is not owner and not (owner.operations or units[0].again):
                units[0].entries += owner.entries
                self._unit_of.update(dict.fromkeys(owner.entries, units[0]))
                del self._units[owner.name]
            elif owner not in units:
                units.append(owner)
        for unit in units:
            unit.operations.add(operation)
        return units

    def _step(self, operation: str, inputs: list[int], unit: Unit | None = None) -> Step:
        where = self._calls.paths[self._open[-1]] if self._open else ""
        step = Step(len(self._steps), operation, inputs, unit, where=where)
        if unit is not None or not self._weighted.isdisjoint(inputs):
            self._weighted.add(step.number)
        self._steps.append(step)
        return step

    def _made(self, tensor: Tensor, step: Step) -> None:
        self._alive.append(tensor)
        self._weights.pop(id(tensor), None)
        self._maker[id(tensor)] = step.number
        self._latest[_memory(tensor)] = step.number

    def _sources(self, tensor: Tensor) -> list[int]:
        """The steps that made a tensor's present content."""
        if not _carries_data(tensor) or id(tensor) in self._weights:
            return []
        maker = self._maker.get(id(tensor))
        since = -1 if maker is None else maker
        later = [number for number in self._writes.get(_memory(tensor), ()) if number > since]
        found = [*([] if maker is None else [maker]), *later]
        if not found and _memory(tensor) in self._latest:
            found = [self._latest[_memory(tensor)]]
        return found

    def result(self) -> Trace:
        used = {step.unit.name: step.unit for step in self._steps if step.unit is not None}
        read_data = {step.unit.name for step in self._steps if step.unit is not None and step.inputs}
        every = dict(self._model.named_parameters(remove_duplicate=False))
        for unit in self._units.values():
            own = [every[entry] for entry in unit.entries if entry in every]
            unit.role = role_of(unit, own, reads_data=unit.name in read_data)
            if unit.name in self._fed and unit.name not in used:
                unit.role = "scale"
        unused = [unit for name, unit in self._units.items() if name not in used and name not in self._fed]
        fed = {name: readers for name, readers in self._fed.items() if name not in used}
        registered = [name for name in self._registered if name in self._units]
        return Trace(self._steps, self._units, unused, registered, fed, self._buffer_uses)


def _tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _tensors(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)


def _carries_data(tensor: Tensor) -> bool:
    """Whole numbers and masks choose what happens to data; they are not data themselves."""
    return tensor.is_floating_point() or tensor.is_complex()


def _memory(tensor: Tensor) -> int:
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):  # sparse tensors have none
        return id(tensor)
