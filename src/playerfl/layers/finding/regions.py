"""Regions: where two paths from one value meet again, so that a cut between them would separate them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from torch import nn

from playerfl.layers.finding.flow import Flow, kernel_of
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
    starts_with_norm: bool = False
    straight: bool = False
    """A single linear map, such as a layer and its low-rank update."""
    attends: bool = False
    """Whether there is an attention in it."""

    @property
    def firm(self) -> bool:
        """A residual block with an activation inside. Several in a row make a network, not a larger block."""
        return self.kind == "residual" and not self.straight

    def take(self, other: Block) -> None:
        self.units |= other.units
        self.forks |= other.forks
        self.ends |= other.ends
        self.starts_with_norm |= other.starts_with_norm
        self.attends |= other.attends


@dataclass(frozen=True)
class Region:
    """The steps between a fork and the step where two of its paths meet."""

    meeting: Meeting
    fork: int
    end: int
    steps: tuple[Step, ...]
    one: tuple[Step, ...]
    """The kernels on the first path only, and on the second."""
    other: tuple[Step, ...]
    units: frozenset[str]
    """The units whose first use is inside."""

    @property
    def kernels(self) -> tuple[Step, ...]:
        return tuple(step for step in self.steps if kernel_of(step))

    @property
    def has_shortcut(self) -> bool:
        """Whether one of the paths has no kernel: the value itself is added or appended."""
        return not self.one or not self.other


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
            kernels = [step for step in steps if kernel_of(step)]
            scaled = (end,) if end.unit is not None else ()
            if not kernels or (end.operation == "call" and not all(_near(step, end) for step in kernels)):
                continue
            units = frozenset(flow.first_used((*steps, *scaled)))
            on_a = tuple(step for step in kernels if flow.depends(a, step.number))
            on_b = tuple(step for step in kernels if flow.depends(b, step.number))
            yield Region(meeting, fork, end.number, (*steps, *scaled), on_a, on_b, units)


def block_of(flow: Flow, region: Region, straight: list[Block]) -> Block | None:
    """The block that a region is; None if it is a long skip connection, or two towers that meet."""
    if not region.units & flow.kernels:
        return None  # a block that is used again
    if flow.kernels <= region.units or any(step.enlarges for step in region.steps):
        return None
    if depth(flow, region.kernels, straight) > DEEPEST:
        return None
    on_input = not flow.has_units(region.fork)
    if on_input:
        shallow = min(depth(flow, region.one, straight), depth(flow, region.other, straight))
        if region.meeting != "sum" or shallow > 1:
            return None
    if region.meeting == "sum" and _adds_a_table_again(flow, region):
        return None
    if region.meeting != "product" and not region.has_shortcut and not _closed(flow, region):
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
        _starts_with_norm(flow, region),
        straight=not flow.bends(region.steps),
        attends=flow.attends(region.steps),
    )


def _adds_a_table_again(flow: Flow, region: Region) -> bool:
    """Whether a region lies between two places where the same rows of a table are added, such as one bias for the
    attention of every block: what is between them is a network."""
    behind = flow.backward([region.fork], lambda step: kernel_of(step) is None and bool(step.inputs))
    units = [step.unit for step in behind if step.unit is not None]
    only_tables = all(unit.role == "lookup" for unit in units) and not any(s.operation == "input" for s in behind)
    again = any(meeting_of(step) == "sum" and region.fork in step.inputs for step in region.steps)
    return bool(units) and only_tables and again


def depth(flow: Flow, kernels: tuple[Step, ...], straight: list[Block]) -> int:
    """The largest number of kernels in a row; those of one linear map count once."""
    longest: dict[int, int] = {}
    for step in kernels:
        assert step.unit is not None
        name = step.unit.name
        earlier = [s for s in kernels if s.number in longest and flow.depends(step.number, s.number)]
        together = next((block.units for block in straight if name in block.units), {name})
        same = [s for s in earlier if s.unit is not None and s.unit.name in together]
        others = [s for s in earlier if s.unit is None or s.unit.name not in together]
        longest[step.number] = max(
            1 + max((longest[s.number] for s in others), default=0), max((longest[s.number] for s in same), default=0)
        )
    return max(longest.values(), default=0)


def _closed(flow: Flow, region: Region) -> bool:
    """Whether nothing outside reads a value from the middle of a region. A linear map may be added to its result once
    more, as DoRA's base layer is."""
    inside = {step.number for step in region.steps} | {region.end}
    ends = set(flow.steps[region.end].inputs)
    outside = {reader for n in inside - ends - {region.end} for reader in flow.readers[n]} - inside
    if not outside or flow.bends(region.steps):
        return not outside
    return all(meeting_of(flow.steps[n]) == "sum" and flow.depends(n, region.end) for n in outside)


def _starts_with_norm(flow: Flow, region: Region) -> bool:
    """Whether the path around the shortcut begins with a norm, as in a pre-norm transformer."""
    units = [step for step in region.steps if step.unit is not None and step.number != region.end]
    first = [step for step in units if not any(s is not step and flow.depends(step.number, s.number) for s in units)]
    return any(step.unit is not None and step.unit.role == "norm" for step in first)
