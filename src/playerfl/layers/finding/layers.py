"""From blocks to layers: norms, bare parameters and buffers find their block; every layer gets a name and a reason."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from torch import nn

from playerfl.layers.finding.blocks import find_blocks, position_tables
from playerfl.layers.finding.flow import Flow
from playerfl.layers.finding.joining import Joining
from playerfl.layers.finding.loops import with_short_loops
from playerfl.layers.finding.naming import names_of
from playerfl.layers.finding.regions import Block
from playerfl.layers.finding.trace import Step, Trace
from playerfl.layers.finding.units import Unit

_BECAUSE: dict[str, str] = {
    "residual": "residual block: a shortcut leads around it",
    "parallel": "parallel branches that meet again",
    "gate": "paths that are multiplied with each other",
    "attention": "attention with its projections",
    "embedding": "tables whose rows are added or concatenated",
    "cell": "recurrent cell: it reads its own results",
    "sibling": "of the same class as another block",
}


@dataclass(eq=False)
class FoundLayer:
    """A layer as it was found."""

    units: list[Unit]
    why: str
    notes: list[str] = field(default_factory=list)
    name: str = ""
    borrowed: list[Unit] = field(default_factory=list)
    """Units of earlier layers that this one uses too."""
    buffers: list[str] = field(default_factory=list)

    @property
    def entries(self) -> list[str]:
        return [entry for unit in (*self.units, *self.borrowed) for entry in unit.entries] + self.buffers

    @property
    def kernels(self) -> list[Unit]:
        """What the layer is called after: not its norms, nor the tables of positions inside an attention."""
        kernels = [unit for unit in self.units if not unit.joins]
        kernels = [unit for unit in kernels if not unit.again] or kernels
        mixing = [unit for unit in kernels if unit.role == "kernel"]
        return (mixing if self.why.startswith("attention") else kernels) or kernels or self.units


def found_layers(trace: Trace, model: nn.Module, *, by_module: bool = False) -> list[FoundLayer]:
    """The layers of a recorded forward pass, in the order of their first use. `by_module`: no blocks are formed."""
    trace = with_short_loops(trace)
    flow = Flow(trace)
    blocks = [] if by_module else find_blocks(flow, model)
    layers = _with_kernels(flow, blocks)
    joining = Joining(flow, blocks, model)
    _attach_joining(flow, trace, layers, joining)
    _attach_buffers(flow, trace, layers)
    _note_sharing(flow, trace, layers, joining)
    ordered = _in_order(flow, list(dict.fromkeys(layers.values())))
    for layer in ordered:
        layer.units.sort(key=lambda unit: flow.first_use.get(unit.name, -1))
    ordered = _with_unused(trace, ordered)
    for layer, name in zip(ordered, names_of([[u.path for u in layer.kernels] for layer in ordered]), strict=True):
        layer.name = name
    _note_users(ordered)
    return ordered


def _with_kernels(flow: Flow, blocks: list[Block]) -> dict[str, FoundLayer]:
    """A layer for each block and for each kernel outside of blocks, by the names of their units."""
    layers: dict[str, FoundLayer] = {}
    for block in blocks:
        layer = FoundLayer([flow.units[name] for name in block.units], _because(block))
        layers.update(dict.fromkeys(block.units, layer))
    for name in flow.kernels - layers.keys():
        unit = flow.units[name]
        why = (
            "second use of tied weights"
            if unit.again
            else "a table"
            if unit.role == "lookup"
            else "a module of its own"
        )
        layers[name] = FoundLayer([unit], why)
    owners = {entry: unit for unit in flow.units.values() if not unit.again for entry in unit.entries}
    for name in [name for name in layers if flow.units[name].again]:
        owner = owners[flow.units[name].entries[0]]
        home = layers.get(owner.name)
        # Read before its own module is called, as a codebook is searched before its rows are looked up.
        if home is not None and home.units == [owner] and flow.first_use[name] < flow.first_use[owner.name]:
            home.units += [unit for unit in layers[name].units if unit is not owner]
            layers.update({unit.name: home for unit in home.units})
    return layers


def _because(block: Block) -> str:
    if block.attends:
        return "attention with its projections" + (", and a shortcut around it" if block.firm else "")
    if block.straight and block.kind == "residual":
        return "paths that add up to one linear map"
    return _BECAUSE[block.kind]


def _attach_joining(flow: Flow, trace: Trace, layers: dict[str, FoundLayer], joining: Joining) -> None:
    """Norms, scales and bare parameters join the layer they follow or feed where they are used first."""
    for step in flow.unit_steps:
        unit = step.unit
        if unit is None or unit.name in layers:
            continue
        neighbour = joining.neighbour(step, layers)
        if neighbour is None:
            layers[unit.name] = FoundLayer([unit], "parameters of the model itself")
            continue
        target = layers[neighbour.name]
        target.units.append(unit)
        target.notes.append(f"{unit.name} {'feeds' if neighbour.feeds else 'follows'} it")
        layers[unit.name] = target
    for name, readers in trace.fed.items():
        target = layers[readers[0]]
        target.units.append(trace.units[name])
        target.notes.append(f"{name} feeds it")
        layers[name] = target


def _attach_buffers(flow: Flow, trace: Trace, layers: dict[str, FoundLayer]) -> None:
    """Buffers join the layer whose results they meet, unless a module with weights owns them."""
    owners = {unit.path for unit in flow.units.values() if unit.module is not None}
    for name, number in trace.buffers.items():
        if name.rpartition(".")[0] in owners:
            continue
        step = flow.steps[number]
        behind = [step] if step.unit is not None else flow.backward(step.inputs, _has_no_unit)
        home = next((s.unit.name for s in (*behind, *flow.forward([number], _has_no_unit)) if s.unit is not None), None)
        if home is not None:
            layers[home].buffers.append(name)


def _has_no_unit(step: Step) -> bool:
    return step.unit is None


def _note_sharing(flow: Flow, trace: Trace, layers: dict[str, FoundLayer], joining: Joining) -> None:
    """Layers that use a unit of another layer borrow it."""
    begins = {id(layer): min(flow.first_use.get(unit.name, -1) for unit in layer.kernels) for layer in layers.values()}
    for name, user in _later_uses(flow, trace, layers, joining):
        home, unit = layers[name], trace.units[name]
        # Earlier layers do not use it: what they are next to is a sum over layers, such as a flow's log-determinant.
        if begins[id(user)] > begins[id(home)] and unit not in user.borrowed:
            user.borrowed.append(unit)


def _later_uses(
    flow: Flow, trace: Trace, layers: dict[str, FoundLayer], joining: Joining
) -> Iterator[tuple[str, FoundLayer]]:
    """Each further use of a norm, a scale, a table of positions or a fed parameter, and the layer that uses it."""
    for name, steps in flow.uses.items():
        for step in steps[1:] if flow.units[name].joins else ():
            neighbour = joining.neighbour(step, layers)
            if neighbour is not None:
                yield name, layers[neighbour.name]
    for tables, places, _ in position_tables(flow):
        for table in tables:
            yield from ((table, layers[place]) for place in places)
    for name, readers in trace.fed.items():
        yield from ((name, layers[reader]) for reader in readers)


def _note_users(layers: list[FoundLayer]) -> None:
    home = {unit.name: layer for layer in layers for unit in layer.units}
    users: dict[str, list[str]] = {}
    for layer in layers:
        for unit in layer.borrowed:
            users.setdefault(unit.name, []).append(layer.name)
    for name, names in users.items():
        home[name].notes.append(f"{name} is also used by {', '.join(names)}")


def _in_order(flow: Flow, layers: list[FoundLayer]) -> list[FoundLayer]:
    """Layers by their first use; those that only end something, again and again, by their last.

    A head that reads every stage of a network comes after all of them.
    """
    mixing = {id(layer): [u for u in layer.units if u.role == "kernel"] or layer.kernels for layer in layers}
    uses = {id(layer): [flow.uses.get(unit.name, []) for unit in mixing[id(layer)]] for layer in layers}
    home = {unit.name: id(layer) for layer in layers for unit in layer.units}
    reads: dict[int, set[int]] = {
        key: {home[name] for steps in every for name in flow.read_by(steps)} - {key} for key, every in uses.items()
    }
    ending = {key for key, every in uses.items() if every and all(len(steps) > 1 for steps in every)}
    while spoiled := {key for key in ending if any(key in reads[reader] for reader in reads.keys() - ending)}:
        ending -= spoiled

    def position(layer: FoundLayer) -> int:
        every = [steps for steps in uses[id(layer)] if steps]
        which = -1 if id(layer) in ending else 0
        return min((steps[which].number for steps in every), default=-1)

    return sorted(layers, key=position)


def _with_unused(trace: Trace, layers: list[FoundLayer]) -> list[FoundLayer]:
    """Puts units that the forward pass did not use into the block they are part of, such as an expert that no example
    was sent to; else after the layer of their predecessor in the model's definition."""
    home = {unit.name: layer for layer in layers for unit in layer.units}
    unused = {unit.name: unit for unit in trace.unused}
    previous: FoundLayer | None = None
    for name in trace.registered:
        if name in unused:
            layer = _block_around(unused[name].path, layers)
            if layer is None and unused[name].is_bare:
                # A token that replaces masked values in training only goes with what it is defined beside.
                layer = previous or next((home[other] for other in trace.registered if other in home), None)
            if layer is not None:
                layer.units.append(unused[name])
                layer.notes.append(f"{name} is part of it, but was not used in the forward pass")
            else:
                layer = FoundLayer([unused[name]], "not used in the forward pass")
                layers.insert(0 if previous is None else layers.index(previous) + 1, layer)
            home[name] = layer
        previous = home.get(name, previous)
    return layers


def _block_around(path: str, layers: list[FoundLayer]) -> FoundLayer | None:
    """The layer to which everything else in a module around `path` belongs, if it has several of the module's parts."""
    steps = path.split(".")
    for depth in range(len(steps) - 1, 0, -1):
        inside = f"{'.'.join(steps[:depth])}."
        parts = {
            (layer, unit.path.removeprefix(inside).partition(".")[0])
            for layer in layers
            for unit in layer.units
            if unit.path.startswith(inside)
        }
        owners = {layer for layer, _ in parts}
        if len(owners) > 1:
            return None
        if len(parts) > 1:
            return owners.pop()
    return None
