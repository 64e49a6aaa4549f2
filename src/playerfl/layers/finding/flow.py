"""The flow of data through a recorded forward pass: what comes before what, and what lies between two steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, partial

from playerfl.layers.finding.trace import Step, Trace
from playerfl.layers.finding.units import Unit, mixes

SOFTMAX = {"_softmax", "softmax", "_safe_softmax"}
_BENDS = SOFTMAX | {
    "relu", "gelu", "silu", "sigmoid", "tanh", "leaky_relu", "elu", "celu", "selu", "mish", "softplus", "hardtanh",
    "hardswish", "hardsigmoid", "clamp", "clamp_min", "threshold", "exp", "pow", "prelu", "_prelu_kernel", "glu",
    "max_pool2d_with_indices", "log_sigmoid_forward", "relu6", "sin", "cos",
}  # fmt: skip


_LINEAR = {
    "addmm",
    "mm",
    "bmm",
    "linear",
    "add",
    "t",
    "transpose",
    "view",
    "_unsafe_view",
    "expand",
    "squeeze",
    "unsqueeze",
}


class Flow:
    """Steps as a graph. Sets of steps are whole numbers with a bit for each step, which makes them fast."""

    def __init__(self, trace: Trace) -> None:
        self.steps = trace.steps
        self.units = trace.units
        self.before: list[int] = []
        """For each step, itself and every step whose result it depends on."""
        self.readers: list[list[int]] = [[] for _ in self.steps]
        for step in self.steps:
            earlier = 1 << step.number
            for number in step.inputs:
                earlier |= self.before[number]
                self.readers[number].append(step.number)
            self.before.append(earlier)

    @cached_property
    def after(self) -> list[int]:
        """For each step, itself and every step that depends on its result."""
        found = [1 << step.number for step in self.steps]
        for step in reversed(self.steps):
            for number in step.inputs:
                found[number] |= found[step.number]
        return found

    @cached_property
    def unit_steps(self) -> list[Step]:
        return [step for step in self.steps if step.unit is not None]

    @cached_property
    def kernels(self) -> set[str]:
        """The units that can be layers of their own."""
        return {step.unit.name for step in self.steps if step.unit is not None and not step.unit.joins}

    @cached_property
    def kernel_steps(self) -> int:
        """The set of the steps of all kernels."""
        return set_of(step for step in self.unit_steps if kernel_of(step))

    @cached_property
    def steps_of(self) -> dict[str, int]:
        """The set of the steps of each unit."""
        return {name: set_of(steps) for name, steps in self.uses.items()}

    @cached_property
    def _first_steps(self) -> int:
        return set_of(steps[0] for steps in self.uses.values())

    @cached_property
    def first_use(self) -> dict[str, int]:
        return {name: steps[0].number for name, steps in self.uses.items()}

    @cached_property
    def _of_data(self) -> int:
        """The steps that depend on the model's inputs, or on tables that whole numbers are looked up in."""
        found = 0
        for step in self.steps:
            comes_in = step.operation == "input" or (step.unit is not None and step.unit.role == "lookup")
            found |= (comes_in or bool(self.before[step.number] & found)) << step.number
        return found

    @cached_property
    def uses(self) -> dict[str, list[Step]]:
        """Every step of each unit. A unit belongs where it is used first; later uses make no block. Uses on constants
        come last (DoRA takes the norm of its update from the identity matrix), unless a time loop starts with them."""
        found: dict[str, list[Step]] = {}
        for step in self.unit_steps:
            assert step.unit is not None
            found.setdefault(step.unit.name, []).append(step)
        return {name: sorted(steps, key=partial(self._is_aside, uses=steps)) for name, steps in found.items()}

    def _is_aside(self, step: Step, uses: list[Step]) -> bool:
        """Whether a use reads no data, and no later use of the same unit reads its result."""
        on_constants = not self._of_data >> step.number & 1
        return on_constants and not any(s is not step and self.depends(s.number, step.number) for s in uses)

    def first_used(self, steps: int) -> set[str]:
        """The units whose first use is in a set of steps."""
        units = (self.steps[number].unit for number in members(self._first_steps & steps))
        return {unit.name for unit in units if unit is not None}

    def depends(self, later: int, earlier: int) -> bool:
        return bool(self.before[later] >> earlier & 1)

    def latest_common(self, one: int, other: int) -> int | None:
        """The last step with data that both depend on: where two paths part."""
        common = self.before[one] & self.before[other] & self._of_data
        return common.bit_length() - 1 if common else None

    def between(self, fork: int, ends: Iterable[int]) -> int:
        """The set of the steps on the paths from a fork to some steps, those included."""
        reached = 0
        for end in ends:
            reached |= self.before[end]
        return reached & self.after[fork] & ~(1 << fork)

    def has_units(self, number: int) -> bool:
        """Whether a step depends on any unit: what does not is the model's input, or a constant."""
        return bool(self.before[number] & self.with_units)

    @cached_property
    def with_units(self) -> int:
        """The set of the steps of all units."""
        return set_of(self.unit_steps)

    @cached_property
    def enlarging(self) -> int:
        """The set of the steps whose results have more positions than their inputs."""
        return set_of(step for step in self.steps if step.enlarges)

    @cached_property
    def bending(self) -> int:
        """The set of the steps with an activation, or that multiply data by data, which make what they are in more than
        one linear map."""
        return set_of(step for step in self.steps if bends(step) or self._multiplies_data(step))

    def _multiplies_data(self, step: Step) -> bool:
        if step.unit is not None or not (step.operation == "mul" or mixes(step.operation)):
            return False
        return sum(self._of_data >> n & 1 and bool(self.nearest[n]) for n in step.inputs) > 1

    @cached_property
    def tables(self) -> set[str]:
        """The units whose rows or vectors stand for the model's inputs: tables, and linear maps of a single number."""
        return {
            name for name, steps in self.uses.items() if self.units[name].role == "lookup" or self._embeds(steps[0])
        }

    def _embeds(self, step: Step) -> bool:
        unit = kernel_of(step)
        if unit is None or not step.inputs or not unit.operations <= _LINEAR:
            return False
        return all(self.steps[n].shape[-1:] == (1,) and not self.has_units(n) for n in step.inputs)

    @cached_property
    def attending(self) -> int:
        """The set of the steps of units with an attention inside, such as torch's own."""
        return set_of(step for step in self.unit_steps if _attends(step))

    @cached_property
    def nearest(self) -> list[frozenset[str]]:
        """For each step, the nearest kernels that its result comes from; its own, if it has one."""
        found: list[frozenset[str]] = []
        for step in self.steps:
            kernel = kernel_of(step)
            inputs = (found[number] for number in step.inputs)
            found.append(frozenset().union(*inputs) if kernel is None else frozenset({kernel.name}))
        return found

    def read_by(self, steps: Iterable[Step]) -> set[str]:
        """The nearest kernels whose results some steps read."""
        return {name for step in steps for number in step.inputs for name in self.nearest[number]}

    def backward(self, start: Iterable[int], through: Callable[[Step], bool]) -> list[Step]:
        """The nearest steps that are not gone through, against the flow."""
        return self._walk(start, through, lambda number: self.steps[number].inputs)

    def forward(self, start: Iterable[int], through: Callable[[Step], bool]) -> list[Step]:
        """The nearest steps that are not gone through, with the flow."""
        return self._walk(start, through, lambda number: self.readers[number])

    def _walk(
        self, start: Iterable[int], through: Callable[[Step], bool], onward: Callable[[int], list[int]]
    ) -> list[Step]:
        waiting, seen, reached = list(start), set(), []
        while waiting:
            number = waiting.pop(0)
            if number in seen:
                continue
            seen.add(number)
            step = self.steps[number]
            if through(step):
                waiting += onward(number)
            else:
                reached.append(step)
        return reached


def set_of(steps: Iterable[Step]) -> int:
    """The set of some steps."""
    found = 0
    for step in steps:
        found |= 1 << step.number
    return found


def members(steps: int) -> Iterator[int]:
    """The numbers in a set of steps, in order.

    >>> list(members(0b10110))
    [1, 2, 4]
    """
    bits = f"{steps:b}"[::-1]
    number = bits.find("1")
    while number >= 0:
        yield number
        number = bits.find("1", number + 1)


def bends(step: Step) -> bool:
    """Whether there is an activation in a step."""
    inside = step.unit.operations if step.unit is not None else ()
    return any(operation in _BENDS or "attention" in operation for operation in (step.operation, *inside))


def _attends(step: Step) -> bool:
    operations = step.unit.operations if step.unit is not None else set()
    return any("attention" in o for o in operations) or bool(operations & SOFTMAX and operations & {"bmm", "baddbmm"})


def passes(step: Step) -> bool:
    """Whether a step is no kernel: an operation without parameters, a norm or a scale."""
    return step.unit is None or step.unit.joins


def kernel_of(step: Step) -> Unit | None:
    """The unit of a step, if it can be a layer of its own."""
    return step.unit if step.unit is not None and not step.unit.joins else None
