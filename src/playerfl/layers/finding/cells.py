"""Recurrent cells written by hand: what a time loop runs again and again, on its own results."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from playerfl.layers.finding.flow import Flow, bends, kernel_of, passes
from playerfl.layers.finding.naming import common_module
from playerfl.layers.finding.regions import Block, depth, meeting_of
from playerfl.layers.finding.units import Unit

_DEEPEST = 3
"""More kernels in a row than this, again and again, are a network in a loop. An attentive decoder step has three."""


def cells(flow: Flow) -> Iterator[Block]:
    """Kernels that read their own results time step after time step, and those whose results are added to theirs or
    multiplied with them."""
    loops = list(_loops(flow))
    for loop in loops:
        steps = tuple(flow.uses[name][0] for name in loop)
        if depth(flow, sorted(steps, key=lambda step: step.number), [], _DEEPEST) > _DEEPEST:
            continue
        place = common_module([step.where for step in steps])
        beside = {unit.name: unit for unit in (*_added_to(flow, loop), *_multiplied_with(flow, loop))}
        joined = {name for name, unit in beside.items() if _inside(flow, unit, place, loop)}
        others = set().union(*(other for other in loops if other is not loop))
        yield Block(loop | joined - others, "cell")


def begun(flow: Flow) -> Iterator[Block]:
    """A kernel that reads no data, added to one that does: the first step of a time loop starts from a constant. All
    such gates of a module are one."""
    gates: dict[str, set[str]] = defaultdict(set)
    for name in sorted(flow.kernels, key=flow.first_use.__getitem__):
        first, *later = flow.uses[name]
        if first.inputs or later or flow.units[name].role != "kernel":
            continue
        partners = {
            unit.name
            for unit in _added_to(flow, {name}, directly=True)
            if _inside(flow, unit, first.where, {name})
            # What reads its result is a later block, added to it over a shortcut (DETR's first self-attention).
            and not flow.depends(flow.first_use[unit.name], first.number)
        }
        if partners:
            gates[first.where or name] |= {name, *partners}
    for units in gates.values():
        yield Block(units, "residual", straight=True)


def _loops(flow: Flow) -> Iterator[set[str]]:
    """Kernels that are used several times and each read the results of all others, directly or through them."""
    again = {name for name in flow.kernels if len(flow.uses[name]) > 1}
    reads: dict[str, set[str]] = defaultdict(set)
    for name in sorted(again, key=flow.first_use.__getitem__):
        reads[name] = flow.read_by(flow.uses[name]) & again
    reached = {name: _reachable(reads, name) for name in list(reads)}
    done: set[str] = set()
    for name in list(reads):
        loop = {other for other in reached[name] if name in reached.get(other, ())}
        if name in loop and name not in done:
            done |= loop
            yield loop


def _reachable(reads: dict[str, set[str]], start: str) -> set[str]:
    waiting, seen = [*reads[start]], set()
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += reads.get(name, ())
    return seen


def _added_to(flow: Flow, names: set[str], *, directly: bool = False) -> Iterator[Unit]:
    """Other kernels whose results are added to those of `names`, with no activation in between; `directly`: nor another
    sum."""
    for step in flow.steps:
        if step.unit is not None or meeting_of(step) != "sum":
            continue
        sides = [_linear_sources(flow, number, through_sums=not directly) for number in step.inputs]
        if not any(unit.name in names for side in sides for unit in side):
            continue
        for unit in (unit for side in sides for unit in side):
            if unit.name not in names and unit.role == "kernel":
                yield unit


def _multiplied_with(flow: Flow, names: set[str]) -> Iterator[Unit]:
    """Other kernels whose results are multiplied with those of `names` time step after time step, as the decay of a
    state is (GRU-D)."""
    for step in flow.steps:
        if step.unit is None and step.operation == "mul" and meeting_of(step) == "product":
            sides = [flow.nearest[number] for number in step.inputs]
            if any(side & names for side in sides):
                for name in sorted(set().union(*(side for side in sides if not side & names))):
                    if len(flow.uses[name]) > 1 and flow.units[name].role == "kernel":
                        yield flow.units[name]


def _linear_sources(flow: Flow, number: int, *, through_sums: bool) -> list[Unit]:
    """The kernels behind a value, up to the nearest activation."""
    reached = flow.backward([number], lambda s: passes(s) and not bends(s) and (through_sums or meeting_of(s) is None))
    return [unit for step in reached if (unit := kernel_of(step)) is not None]


def _inside(flow: Flow, unit: Unit, place: str, names: set[str]) -> bool:
    """Whether a unit is called in the module `place`; in the model itself, it must also be a neighbour of `names`."""
    where = flow.uses[unit.name][0].where
    if place:
        return where == place or where.startswith(f"{place}.")
    parents = {flow.units[name].path.rpartition(".")[0] for name in names}
    return not where and unit.path.rpartition(".")[0] in parents


def iterated(flow: Flow, cell: Block, blocks: list[Block]) -> bool:
    """Whether a cell has several residual blocks in a row, and so is a network in a loop, as ALBERT's is."""
    ends = [max(block.ends, default=-1) for block in blocks if block.firm and block.units & flow.kernels <= cell.units]
    return any(a != b and flow.depends(b, a) for a in ends for b in ends)
