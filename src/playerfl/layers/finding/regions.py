"""Regions: where two paths from one value meet again, so that a cut between them would separate them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Literal

from torch import nn

from playerfl.layers.finding.flow import Flow, kernel_of, members
from playerfl.layers.finding.naming import common_module
from playerfl.layers.finding.trace import Step
from playerfl.layers.finding.units import mixes

Kind = Literal["residual", "parallel", "gate", "attention", "embedding", "cell", "sibling"]
Meeting = Literal["sum", "concatenation", "product"]

_SUMS = {"add", "sub", "rsub", "addcmul", "lerp", "where", "maximum", "minimum"}
_PRODUCTS = {"mul", "div"}
DEEPEST = 6
"""A shortcut around more kernels in a row than this is a long skip connection, not a block. The deepest blocks in use,
inverted bottlenecks with squeeze-and-excitation, have five or six."""


@dataclass
class Block:
    """Units that belong to one layer, and why."""

    units: set[str]
    kind: Kind
    forks: set[int] = field(default_factory=set)
    ends: set[int] = field(default_factory=set)
    shortcuts: set[int] = field(default_factory=set)
    """The forks from which a value reaches the end as it is."""
    norms_its_path: bool = False
    """The path around its shortcut begins or ends with a norm, so the sum needs none."""
    straight: bool = False
    """A single linear map, such as a layer and its low-rank update."""
    attends: bool = False
    """Whether there is an attention in it."""
    appends: bool = False
    """Its result is appended to its input, as in a dense layer. Several in a row inside a shortcut are one block."""

    @property
    def firm(self) -> bool:
        """A residual block with an activation inside. Several in a row make a network, not a larger block."""
        return self.kind == "residual" and not self.straight

    def take(self, other: Block) -> None:
        self.units |= other.units
        self.forks |= other.forks
        self.ends |= other.ends
        self.shortcuts |= other.shortcuts
        self.norms_its_path |= other.norms_its_path
        self.attends |= other.attends
        self.appends &= other.appends or not other.firm


@dataclass(frozen=True)
class Region:
    """The steps between a fork and the step where two of its paths meet. A time loop has one around all its steps, for
    every step, so only sets are stored."""

    flow: Flow
    meeting: Meeting
    fork: int
    end: int
    values: tuple[int, int]
    """The two steps whose results meet."""
    inside: int
    """The set of steps; with the end, if that has weights of its own."""

    @cached_property
    def units(self) -> set[str]:
        """The units whose first use is inside."""
        return self.flow.first_used(self.inside)

    @property
    def kernel_names(self) -> set[str]:
        return {name for name, steps in self.flow.steps_of.items() if self.inside & steps} & self.flow.kernels

    @property
    def num_kernels(self) -> int:
        """How often a kernel is used."""
        return (self.inside & self.flow.kernel_steps).bit_count()

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        return self._among(self.inside)

    @cached_property
    def kernels(self) -> tuple[Step, ...]:
        return self._among(self.inside & self.flow.kernel_steps)

    @property
    def one(self) -> tuple[Step, ...]:
        """The kernels on the first path only."""
        return self._among(self._kernels_before(self.values[0]))

    @property
    def other(self) -> tuple[Step, ...]:
        """The kernels on the second path only."""
        return self._among(self._kernels_before(self.values[1]))

    def _kernels_before(self, number: int) -> int:
        return self.inside & self.flow.kernel_steps & self.flow.before[number]

    def _among(self, steps: int) -> tuple[Step, ...]:
        return tuple(self.flow.steps[number] for number in members(steps))

    @property
    def has_shortcut(self) -> bool:
        """Whether one of the paths has no kernel: the value itself is added or appended."""
        return not all(map(self._kernels_before, self.values))


def meeting_of(step: Step) -> Meeting | None:
    """How values meet in a step; None if it reads a single one."""
    if step.operation == "call" or len(step.inputs) < 2:
        return None
    if step.operation in _SUMS:
        return "sum"
    return "product" if step.operation in _PRODUCTS or mixes(step.operation) else "concatenation"


def _updates(step: Step) -> bool:
    """Whether a step is a torch cell that reads several values: a state, and what changes it."""
    return step.unit is not None and isinstance(step.unit.module, nn.RNNCellBase) and len(step.inputs) > 1


def _near(step: Step, cell: Step) -> bool:
    """Whether a step ran in the module that called a cell; in the model itself, nothing counts as near."""
    return bool(cell.where) and (step.where == cell.where or step.where.startswith(f"{cell.where}."))


def regions(flow: Flow) -> Iterator[Region]:
    """Every region of a forward pass that has a kernel in it."""
    for end in flow.steps:
        meeting = meeting_of(end) or ("sum" if _updates(end) else None)
        if meeting is None:
            continue
        for a, b in pairwise(end.inputs):
            fork = flow.latest_common(a, b)
            if fork is None:
                continue
            steps = flow.between(fork, (a, b))
            kernels = steps & flow.kernel_steps
            if not kernels:
                continue
            if end.operation == "call" and not all(_near(flow.steps[number], end) for number in members(kernels)):
                continue
            scaled = 1 << end.number if end.unit is not None else 0
            yield Region(flow, meeting, fork, end.number, (a, b), steps | scaled)


def block_of(flow: Flow, region: Region, straight: list[Block], repeated: list[set[str]]) -> Block | None:
    """The block that a region is; None if it is a long skip connection, or two towers that meet. `repeated`: the
    kernels of each module whose class is used several times, and which may therefore be a deep block."""
    kernels = region.units & flow.kernels
    if not kernels:
        return None  # a block that is used again
    on_input = not flow.has_units(region.fork)
    # The whole network, with or without the tables that it looks its inputs up in.
    if flow.kernels - (flow.tables if on_input else set()) <= region.units:
        return None
    # A pooling with one kernel behind it, brought back to the size of its input, is a branch and not a decoder.
    if region.inside & flow.enlarging and depth(flow, region.kernels, straight, 1) > 1:
        return None
    if on_input and region.meeting != "sum":
        return None
    if kernels not in repeated and depth(flow, region.kernels, straight, DEEPEST) > DEEPEST:
        return None
    if on_input and min(depth(flow, path, straight, 1) for path in (region.one, region.other)) > 1:
        return None
    if region.meeting != "concatenation" and _uses_a_table_again(flow, region):
        return None
    parts = region.meeting != "product" and not region.has_shortcut
    if parts and (not _closed(flow, region) or _adds_up(flow, region)):
        return None
    if region.meeting == "product" and not region.has_shortcut and _steers(flow, region):
        return None
    if region.meeting == "product":
        kind: Kind = "gate"
    elif region.meeting == "sum" or region.has_shortcut:
        kind = "residual"
    else:
        kind = "parallel"
    return Block(
        set(region.units),
        kind,
        {region.fork},
        {region.end},
        {region.fork} if region.has_shortcut else set(),
        _starts_with_norm(flow, region) or _ends_with_norm(flow, region),
        straight=not region.inside & flow.bending,
        attends=bool(region.inside & flow.attending),
        appends=region.meeting == "concatenation",
    )


def _uses_a_table_again(flow: Flow, region: Region) -> bool:
    """Whether a region lies between two places where the same rows of a table are added or multiplied, such as one bias
    for the attention of every block, or rotary positions: what is between them is a network. The rows of words differ
    between examples, and their sum with a function of them is a block."""
    behind = flow.backward([region.fork], lambda step: kernel_of(step) is None and bool(step.inputs))
    units = [step.unit for step in behind if step.unit is not None]
    only_tables = all(unit.role == "lookup" for unit in units) and not any(s.operation == "input" for s in behind)
    if not units or not only_tables:
        return False
    tables = {unit.name for unit in units}

    def adds_rows(step: Step) -> bool:
        """Whether the rows meet something else: a block may also add them to themselves, as a token shift does."""
        if meeting_of(step) != region.meeting:  # first, because a time loop asks this for every pair of its steps
            return False
        sources = [(number, flow.nearest[number]) for number in step.inputs]
        return any(names - tables for _, names in sources) and any(
            names == tables and same_for_every_example(flow, number, step) for number, names in sources
        )

    return any(map(adds_rows, region.steps))


def same_for_every_example(flow: Flow, number: int, step: Step) -> bool:
    """Whether a value is broadcast over the examples of a step that reads it, or was repeated for them before it is
    added; a prompt that is put before the words is not a position."""
    shape = flow.steps[number].shape
    if (len(shape) < len(step.shape) and step.operation != "stack") or (shape[:1] == (1,) and step.shape[:1] != (1,)):
        return True
    made = flow.steps[number]
    while meeting_of(step) != "concatenation" and made.unit is None and len(made.inputs) == 1:
        before = flow.steps[made.inputs[0]]
        grows = before.shape[:1] == (1,) != made.shape[:1] or len(before.shape) < len(made.shape)
        if made.operation in ("expand", "repeat") and grows:
            return True
        made = before
    return False


def depth(flow: Flow, kernels: Iterable[Step], straight: list[Block], most: int) -> int:
    """The largest number of kernels in a row, or the first number above `most`; those of one linear map count once."""
    counted_once = _counted_once(flow, straight)
    levels: list[int] = []
    """The sets of steps that are at least 1, 2, 3, ... kernels deep."""
    for step in kernels:
        assert step.unit is not None
        earlier, same, own = flow.before[step.number], counted_once[step.unit.name], 1 << step.number
        deepest = next((d for d in range(len(levels), 0, -1) if earlier & levels[d - 1]), 0)
        if deepest == 0 or earlier & levels[deepest - 1] & ~same:
            deepest += 1
        if deepest > len(levels):
            levels.append(0)
        if deepest > most:
            return deepest
        for level in range(deepest):
            levels[level] |= own
    return len(levels)


def _counted_once(flow: Flow, straight: list[Block]) -> dict[str, int]:
    """For each unit, the set of the steps that do not add to a depth: its own, and those of its linear map."""
    together = dict(flow.steps_of)
    for block in reversed(straight):
        everything = 0
        for name in block.units:
            everything |= flow.steps_of.get(name, 0)
        together.update(dict.fromkeys(block.units, everything))
    return together


def _closed(flow: Flow, region: Region) -> bool:
    """Whether nothing outside reads a value from the middle of a region. A linear map may be added to its result once
    more, as DoRA's base layer is."""
    inside = region.inside | 1 << region.end
    ends = flow.steps[region.end].inputs
    middle = (number for number in members(region.inside) if number not in ends and number != region.end)
    outside = (reader for number in middle for reader in flow.readers[number] if not inside >> reader & 1)
    if region.inside & flow.bending:
        return next(outside, None) is None
    return all(meeting_of(flow.steps[n]) == "sum" and flow.depends(n, region.end) for n in outside)


def _adds_up(flow: Flow, region: Region) -> bool:
    """Whether one of the values is a running sum with kernels from elsewhere in it, such as that of a head for every
    stage: the stages between are no block."""
    if region.meeting != "sum":
        return False
    added = [n for v in region.values if meeting_of(flow.steps[v]) == "sum" for n in flow.steps[v].inputs]
    apart = [n for n in added if not flow.depends(n, region.fork) and not flow.depends(region.fork, n)]
    return any(flow.before[n] & flow.kernel_steps for n in apart)


def _steers(flow: Flow, region: Region) -> bool:
    """Whether a region branches off from a condition: its first path scales or shifts what another network makes of its
    own input, and its second path does so with a later layer of that network (FiLM)."""

    def is_of_another(number: int) -> bool:
        apart = not flow.depends(number, region.fork) and not flow.depends(region.fork, number)
        return apart and bool(flow.before[number] & flow.kernel_steps)

    return any(
        meeting_of(step) == "product" and any(map(is_of_another, step.inputs))
        for step in region.steps
        if step.number != region.end
    )


def _starts_with_norm(flow: Flow, region: Region) -> bool:
    """Whether the path around the shortcut begins with a norm, as in a pre-norm transformer."""
    units = region.inside & flow.with_units & ~(1 << region.end)
    first = [flow.steps[number] for number in members(units) if flow.before[number] & units == 1 << number]
    before = flow.backward([region.fork], lambda step: step.unit is None)
    return any(_is_norm(step) for step in first) or any(
        _is_norm(step) and _opens(flow, step, region) for step in before
    )


def _ends_with_norm(flow: Flow, region: Region) -> bool:
    """Whether the path around the shortcut ends with a norm, as in Swin v2 and OLMo 2."""
    ends = [number for number in region.values if region.has_shortcut and flow.before[number] & region.inside]
    last = flow.backward(ends, lambda step: step.unit is None)
    return bool(last) and all(map(_is_norm, last))


def _is_norm(step: Step) -> bool:
    return step.unit is not None and step.unit.role == "norm"


def _opens(flow: Flow, norm: Step, region: Region) -> bool:
    """Whether a norm is the first to run in the module around a region: where the shortcut is a projection, a
    pre-activation block parts only after its norm."""
    module = common_module([step.unit.path.rpartition(".")[0] for step in region.kernels if step.unit is not None])
    inside = [name for name in flow.uses if module and flow.units[name].path.startswith(f"{module}.")]
    return norm.unit is not None and norm.unit.name == min(inside, key=flow.first_use.__getitem__, default=None)
