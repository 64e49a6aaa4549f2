"""The flow of data through a recorded forward pass: what comes before what, and what lies between two steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, partial

from playerfl.layers.finding.trace import Step, Trace
from playerfl.layers.finding.units import Unit

SOFTMAX = {"_softmax", "softmax", "_safe_softmax"}
_BENDS = SOFTMAX | {
    "relu", "gelu", "silu", "sigmoid", "tanh", "leaky_relu", "elu", "celu", "selu", "mish", "softplus", "hardtanh",
    "hardswish", "hardsigmoid", "clamp", "clamp_min", "threshold", "exp", "pow", "prelu", "_prelu_kernel", "glu",
    "max_pool2d_with_indices", "log_sigmoid_forward", "relu6", "sin", "cos",
}  # fmt: skip


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
    def unit_steps(self) -> list[Step]:
        return [step for step in self.steps if step.unit is not None]

    @cached_property
    def kernels(self) -> set[str]:
        """The units that can be layers of their own."""
        return {step.unit.name for step in self.steps if step.unit is not None and not step.unit.joins}

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

    def first_used(self, steps: Iterable[Step]) -> set[str]:
        """The units whose first use is among these steps."""
        return {s.unit.name for s in steps if s.unit is not None and self.first_use[s.unit.name] == s.number}

    def depends(self, later: int, earlier: int) -> bool:
        return bool(self.before[later] >> earlier & 1)

    def latest_common(self, one: int, other: int) -> int | None:
        """The last step with data that both depend on: where two paths part."""
        common = self.before[one] & self.before[other] & self._of_data
        return common.bit_length() - 1 if common else None

    def between(self, fork: int, ends: Iterable[int]) -> list[Step]:
        """The steps on the paths from a fork to some steps, those included."""
        reached = 0
        for end in ends:
            reached |= self.before[end]
        last = reached.bit_length()
        return [self.steps[n] for n in range(fork + 1, last) if reached >> n & 1 and self.depends(n, fork)]

    def has_units(self, number: int) -> bool:
        """Whether a step depends on any unit: what does not is the model's input, or a constant."""
        return any(self.depends(number, step.number) for step in self.unit_steps if step.number <= number)

    def bends(self, steps: Iterable[Step]) -> bool:
        """Whether there is an activation among the steps, so that they are more than one linear map."""
        return any(operation in _BENDS or "attention" in operation for operation in _operations(steps))

    def attends(self, steps: Iterable[Step]) -> bool:
        """Whether there is an attention inside one of the units, such as torch's own."""
        inside = [step.unit.operations for step in steps if step.unit is not None]
        fused = any("attention" in operation for operations in inside for operation in operations)
        return fused or any(operations & SOFTMAX and operations & {"bmm", "baddbmm"} for operations in inside)

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


def _operations(steps: Iterable[Step]) -> Iterator[str]:
    for step in steps:
        yield step.operation
        yield from step.unit.operations if step.unit is not None else ()


def passes(step: Step) -> bool:
    """Whether a step is no kernel: an operation without parameters, a norm or a scale."""
    return step.unit is None or step.unit.joins


def kernel_of(step: Step) -> Unit | None:
    """The unit of a step, if it can be a layer of its own."""
    return step.unit if step.unit is not None and not step.unit.joins else None
