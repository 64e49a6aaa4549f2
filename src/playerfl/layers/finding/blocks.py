"""Blocks of a recorded forward pass: attention, residual blocks, gates, embeddings, cells; each is one layer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise

from torch import nn

from playerfl.layers.finding.attention import attentions, is_attention
from playerfl.layers.finding.cells import begun, cells, iterated
from playerfl.layers.finding.flow import Flow, passes, set_of
from playerfl.layers.finding.joining import repeated_modules
from playerfl.layers.finding.naming import common_module
from playerfl.layers.finding.regions import Block, Region, block_of, meeting_of, regions, same_for_every_example
from playerfl.layers.finding.trace import Step


def find_blocks(flow: Flow, model: nn.Module) -> list[Block]:
    """Disjoint blocks. Units in none of them are layers of their own, or norms that join a neighbour."""
    seeds = [*_embeddings(flow), *attentions(flow, model), *begun(flow)]
    # Inner regions first: whether an outer one is a block or a network depends on what is inside.
    every = sorted(regions(flow), key=lambda region: (region.num_kernels, region.end))
    classes = _kernels_by_class(flow, model)
    repeated = [kernels for members in classes if len(members) > 1 for kernels in members]
    loops = list(cells(flow))
    if loops:
        straight_through = _formed(flow, seeds, every, repeated)
        seeds += [cell for cell in loops if not iterated(flow, cell, straight_through)]
    blocks = _formed(flow, seeds, every, repeated)
    for sibling in _siblings(flow, classes, blocks):
        _absorb(flow, blocks, sibling)
    _add_side_units(flow, model, blocks)
    for block in blocks:
        block.units -= set(_norms_of_others(flow, block, repeated_modules(model)))
    return blocks


def _norms_of_others(flow: Flow, block: Block, repeated: set[str]) -> Iterator[str]:
    """Norms that a block has taken from another of several equal modules: with the shortcut beside it, the last norm of
    one module feeds the next."""
    paths = [flow.units[name].path for name in flow.kernels]
    own = [flow.units[name].path for name in block.units & flow.kernels]
    for name in block.units - flow.kernels:
        steps = flow.uses[name][0].where.split(".") if name in flow.uses and flow.units[name].role == "norm" else []
        around = next((p for d in range(len(steps), 0, -1) if (p := ".".join(steps[:d])) in repeated), None)
        if (
            around
            and any(p.startswith(f"{around}.") for p in paths)
            and not any(p.startswith(f"{around}.") for p in own)
        ):
            yield name


def _formed(flow: Flow, seeds: Iterable[Block], every: list[Region], repeated: list[set[str]]) -> list[Block]:
    """Blocks from seeds, and from regions that contain whole blocks or nothing of them."""
    blocks: list[Block] = []
    for seed in seeds:
        _absorb(flow, blocks, replace(seed, units=set(seed.units), forks=set(seed.forks), ends=set(seed.ends)))
    for region in every:
        together = [block for block in blocks if block.straight or block.kind == "cell"]
        block = block_of(flow, region, together, repeated)
        if block is not None and _fits(flow, block, blocks):
            _absorb(flow, blocks, block)
    firm = [(block, block.units & flow.kernels) for block in blocks if block.firm]
    for region in every if firm else ():
        if region.units & flow.kernels:
            continue
        again = region.kernel_names
        for block, kernels in firm:
            if again == kernels:
                block.forks.add(region.fork)
                block.ends.add(region.end)
                block.shortcuts |= {region.fork} if region.has_shortcut else set()
    return blocks


def _absorb(flow: Flow, blocks: list[Block], new: Block) -> None:
    """Adds a block, together with those it shares units with."""
    touching = [block for block in blocks if block.units & new.units & flow.kernels]
    if len(touching) == 1 and new.units <= touching[0].units:
        touching[0].ends = _outer(flow, touching[0].ends | new.ends)
        return
    for block in touching:
        blocks.remove(block)
        new.take(block)
        if block.kind == "attention" and new.kind == "gate":
            new.kind = "attention"
        elif block.firm:
            new.kind, new.straight = "residual", False
    new.ends = _outer(flow, new.ends)
    blocks.append(new)


def _outer(flow: Flow, ends: set[int]) -> set[int]:
    """The ends from which no way leads to another end."""
    return {end for end in ends if not any(other != end and flow.depends(other, end) for other in ends)}


def _fits(flow: Flow, new: Block, blocks: list[Block]) -> bool:
    """Whether a block can be one with the blocks it touches."""
    new_kernels = new.units & flow.kernels
    touching = [block for block in blocks if block.units & new_kernels]
    if any(block.kind == "cell" and not block.units & flow.kernels <= new_kernels for block in touching):
        return False
    firm = [block for block in touching if block.firm]
    if new.kind == "gate" and any(
        block.kind == "cell" and block.units & flow.kernels < new_kernels for block in touching
    ):
        return False  # what a time loop attends to
    if not new.firm:
        return not firm or any(new.units <= block.units for block in firm)
    inside = [block for block in firm if block.units & flow.kernels <= new_kernels]
    beside = [block for block in firm if block not in inside and _are_beside(flow, new, block)]
    if len(inside) + len(beside) < len(firm):
        return any(new.units <= block.units for block in firm) or (len(firm) == 1 and _completes(flow, new, firm[0]))
    # An attention without a shortcut of its own is a block too, such as one whose queries are learnt, or whose bias
    # comes from what the shortcut leads around.
    inside += [block for block in touching if block.kind == "attention"]
    last = [max(block.ends, default=-1) for block in inside if new.appends or not block.appends]
    in_a_row = any(a != b and flow.depends(b, a) for a in last for b in last)
    return not in_a_row


def _are_beside(flow: Flow, one: Block, other: Block) -> bool:
    """Whether what two blocks share feeds two sums of one module, neither of which reads the other, as the messages of
    a graph network do that move its nodes too (EGNN)."""
    apart = [b for b in other.ends if not any(flow.depends(a, b) or flow.depends(b, a) for a in one.ends)]
    module = common_module([flow.units[name].path for name in (one.units | other.units) & flow.kernels])
    within = bool(module) and {flow.steps[end].where for end in (*one.ends, *apart)} == {module}
    return within and bool(one.shortcuts and other.shortcuts and apart)


def _completes(flow: Flow, new: Block, block: Block) -> bool:
    """Whether a region branches off from the middle of a block and is added to its end, as the feed-forward beside an
    attention that shares its projection (PaLM)."""
    parts = any(flow.depends(fork, start) for fork in new.forks for start in block.forks - {fork})
    return parts and any(block.ends & set(flow.steps[end].inputs) for end in new.ends)


def _embeddings(flow: Flow) -> Iterator[Block]:
    """Tables whose rows are added or concatenated, such as those of tokens and positions."""
    for step, looked_up in _looked_up(flow):
        for one, other in pairwise(looked_up) if meeting_of(step) != "product" else ():
            rows = [side & flow.tables for side in (one, other)]
            # Two values of the same tables are a block's, such as a norm's result and its mean over positions.
            if one and other and rows[0] != rows[1] and not is_attention(step):
                yield Block(one | other, "embedding", ends={step.number})
        for number, rows_of in zip(step.inputs, looked_up, strict=True) if meeting_of(step) == "sum" else ():
            if rows_of and (projections := _projections_of_rows(flow, step, number, rows_of)):
                yield Block(rows_of | projections, "embedding", ends={step.number})
    placed: set[str] = set()
    for tables, places, end in position_tables(flow):
        if not placed & tables:
            placed |= tables
            yield Block(tables | places, "embedding", ends={end})


def _projections_of_rows(flow: Flow, step: Step, number: int, tables: set[str]) -> set[str]:
    """A projection that brings the rows of some tables to the width of those they are added to (OPT's positions)."""
    if not any(flow.steps[number].shape == use.shape for name in tables for use in flow.uses[name]):
        return set()
    other = {name for value in step.inputs if value != number for name in flow.nearest[value]} - flow.tables
    read = flow.read_by(flow.uses[name][0] for name in other)
    return other if len(other) == 1 and read and read <= flow.tables - tables else set()


def _looked_up(flow: Flow) -> Iterator[tuple[Step, list[set[str]]]]:
    """Every step where values meet, and the tables that each of them is made of, if it is made of nothing else."""
    lookups = set_of(step for name in flow.tables for step in flow.uses[name])
    kernels = set_of(s for s in flow.unit_steps if s.unit is not None and s.unit.role == "kernel") & ~lookups
    for step in flow.steps:
        if meeting_of(step) not in ("sum", "concatenation") and not _scales(step) and not is_attention(step):
            continue
        looked_up: list[set[str]] = []
        for number in step.inputs:
            only_tables = flow.before[number] & lookups and not flow.before[number] & kernels
            behind = (s for s in flow.unit_steps if flow.depends(number, s.number)) if only_tables else ()
            looked_up.append({s.unit.name for s in behind if s.unit is not None})
        if any(looked_up):
            yield step, looked_up


def position_tables(flow: Flow) -> Iterator[tuple[set[str], set[str], int]]:
    """Tables that give the same rows for every example, such as positions; the unit that makes what they are added to;
    and the step that adds them. Those that turn queries and keys (rotary positions) go with the first layer of all."""
    for step, looked_up in _looked_up(flow):
        for number, tables in zip(step.inputs, looked_up, strict=True):
            if not tables or not same_for_every_example(flow, number, step):
                continue
            nearest = flow.backward((other for other in step.inputs if other != number), passes)
            places = {s.unit.name for s in nearest[:1] if s.unit is not None} - tables
            if places and _scales(step):
                places = {min(flow.kernels - tables, key=flow.first_use.__getitem__)}
            if places:
                yield tables, places, step.number


def _scales(step: Step) -> bool:
    return step.operation == "mul" and meeting_of(step) == "product"


def _kernels_by_class(flow: Flow, model: nn.Module) -> list[list[set[str]]]:
    """The kernels inside each module, for each class but torch's own."""
    by_class: dict[type[nn.Module], list[set[str]]] = defaultdict(list)
    for path, module in model.named_modules():
        kind = type(module)
        if path and not kind.__module__.startswith("torch.nn."):
            inside = {name for name in flow.kernels if flow.units[name].path.startswith(f"{path}.")}
            by_class[kind].append(inside)
    return list(by_class.values())


def _siblings(flow: Flow, classes: list[list[set[str]]], blocks: list[Block]) -> Iterator[Block]:
    """Modules of the same class as a block: the first block of a stage often has no shortcut, or reads the input."""
    whole = [block.units & flow.kernels for block in blocks]
    for members in classes:
        if not any(kernels in whole for kernels in members):
            continue
        for kernels in members:
            touching = [block for block in blocks if block.units & kernels]
            apart = all(block.units & flow.kernels <= kernels and not block.firm for block in touching)
            if len(kernels) > 1 and apart:
                yield Block(set(kernels), "sibling")


def _near(model: nn.Module, one: str, other: str) -> bool:
    """Whether a path is in the module that another is directly in, or has the same number in a list beside its list."""
    parent, _, number = one.rpartition(".")
    if parent and other.startswith(f"{parent}."):
        return True
    beside, _, name = parent.rpartition(".")
    listed = bool(parent) and isinstance(model.get_submodule(parent), nn.ModuleList)
    steps = other.removeprefix(f"{beside}." if beside else "").split(".")
    return listed and not name.isdigit() and len(steps) > 1 and steps[1] == number


def _add_side_units(flow: Flow, model: nn.Module, blocks: list[Block]) -> None:
    """Kernels beside a block, in the same module, that only feed its middle or only read from its middle."""
    taken = set().union(*(block.units for block in blocks)) if blocks else set()
    beside = sorted(flow.kernels - taken, key=flow.first_use.__getitem__)
    # Against the flow as well: of a network that feeds a block, such as one that computes a bias from positions, only
    # the last kernel does so directly.
    for name in (*beside, *reversed(beside)):
        if any(name in block.units for block in blocks):
            continue
        path = flow.units[name].path
        near = [
            block
            for block in blocks
            if _is_inside(flow, block, path) or any(_near(model, path, flow.units[unit].path) for unit in block.units)
        ]
        for block in near:
            if block.kind not in ("residual", "attention", "gate"):
                continue
            start = flow.steps[flow.first_use[name]]
            if (block.forks and _feeds_middle(flow, start, block)) or (
                block.firm and _reads_middle(flow, start, block)
            ):
                block.units.add(name)
                break


def _is_inside(flow: Flow, block: Block, path: str) -> bool:
    """Whether a path is in the module that a block is in, unless that is the model itself."""
    module = common_module([flow.units[name].path.rpartition(".")[0] for name in block.units & flow.kernels])
    return bool(module) and path.startswith(f"{module}.")


def _feeds_middle(flow: Flow, start: Step, block: Block) -> bool:
    """Whether everything that a step feeds is in a block, and it is not on the way to the block."""
    if any(fork == start.number or flow.depends(fork, start.number) for fork in block.forks):
        return False
    readers = flow.forward(flow.readers[start.number], lambda s: passes(s) and s.number not in block.ends)
    inside = [s for s in readers if s.number in block.ends or (s.unit is not None and s.unit.name in block.units)]
    return bool(readers) and len(inside) == len(readers)


def _reads_middle(flow: Flow, start: Step, block: Block) -> bool:
    """Whether everything that a step reads is in a block, before its end."""
    sources = flow.backward(start.inputs, passes)
    inside = [s for s in sources if s.unit is not None and s.unit.name in block.units]
    return bool(sources) and len(inside) == len(sources) and not any(flow.depends(start.number, e) for e in block.ends)
