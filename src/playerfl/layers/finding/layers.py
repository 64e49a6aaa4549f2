"""From blocks to layers: norms and bare parameters find their block, and every layer gets a name and a reason."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import nn

from playerfl.layers.finding.blocks import find_blocks
from playerfl.layers.finding.flow import Flow, passes
from playerfl.layers.finding.regions import Block
from playerfl.layers.finding.trace import Trace
from playerfl.layers.finding.units import Unit

_BECAUSE: dict[str, str] = {
    "residual": "residual block: a shortcut leads around it",
    "parallel": "parallel branches that meet again",
    "gate": "paths that are multiplied with each other",
    "attention": "attention with its projections",
    "embedding": "tables whose rows are added or concatenated",
    "cell": "recurrent cell: it reads its own results",
    "sibling": "of the same class as a residual block",
}
_MOST_NAMES = 4
_POOLING = {"mean", "sum", "amax", "max", "select"}


@dataclass
class FoundLayer:
    """A layer as it was found."""

    units: list[Unit]
    why: str
    start: int
    notes: list[str] = field(default_factory=list)
    name: str = ""

    @property
    def entries(self) -> list[str]:
        return [entry for unit in self.units for entry in unit.entries]

    @property
    def kernels(self) -> list[Unit]:
        return [unit for unit in self.units if not unit.joins] or self.units


def found_layers(trace: Trace, model: nn.Module, *, by_module: bool = False) -> list[FoundLayer]:
    """The layers of a recorded forward pass, in the order of their first use. `by_module`: no blocks are formed."""
    flow = Flow(trace)
    blocks = [] if by_module else find_blocks(flow, model)
    layers = _with_kernels(flow, blocks)
    _attach_joining(flow, trace, layers, blocks)
    ordered = sorted({id(layer): layer for layer in layers.values()}.values(), key=lambda layer: layer.start)
    for layer in ordered:
        layer.units.sort(key=lambda unit: flow.first_use.get(unit.name, -1))
    ordered = _with_unused(trace, ordered)
    _name(ordered)
    return ordered


def _with_kernels(flow: Flow, blocks: list[Block]) -> dict[str, FoundLayer]:
    """A layer for each block and for each kernel outside of blocks, by the names of their units."""
    layers: dict[str, FoundLayer] = {}
    for block in blocks:
        kernels = [name for name in block.units if name in flow.kernels]
        start = min((flow.first_use[name] for name in kernels), default=0)
        why = _because(block)
        layer = FoundLayer([flow.units[name] for name in block.units], why, start)
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
        layers[name] = FoundLayer([unit], why, flow.first_use[name])
    return layers


def _because(block: Block) -> str:
    if block.attends:
        return "attention with its projections" + (", and a shortcut around it" if block.firm else "")
    if block.straight and block.kind == "residual":
        return "paths that add up to one linear map"
    return _BECAUSE[block.kind]


def _attach_joining(flow: Flow, trace: Trace, layers: dict[str, FoundLayer], blocks: list[Block]) -> None:
    """Norms, scales and bare parameters join the layer they follow or feed."""
    for step in flow.unit_steps:
        unit = step.unit
        if unit is None or unit.name in layers:
            continue
        sources = flow.backward(step.inputs, lambda s: passes(s) and (s.unit is None or s.unit.name not in layers))
        behind = [s.unit.name for s in sources if s.unit is not None and s.unit.name in layers]
        ahead = [s.unit.name for s in flow.forward(flow.readers[step.number], passes) if s.unit is not None]
        if not behind and not ahead:
            layers[unit.name] = FoundLayer([unit], "parameters of the model itself", step.number)
            continue
        feeds = not behind or (bool(ahead) and unit.role == "norm" and _feeds(flow, step.number, behind, ahead, blocks))
        target = layers[ahead[0]] if feeds else layers[max(behind, key=lambda name: flow.first_use[name])]
        target.units.append(unit)
        target.notes.append(f"{unit.name} {'feeds' if feeds else 'follows'} it")
        layers[unit.name] = target
    for name, reader in trace.fed.items():
        target = layers[reader]
        target.units.append(trace.units[name])
        target.notes.append(f"{name} feeds it")
        layers[name] = target


def _feeds(flow: Flow, norm: int, behind: list[str], ahead: list[str], blocks: list[Block]) -> bool:
    """Whether a norm prepares the input of what comes next (pre-norm) rather than complete what came before."""
    value = flow.steps[norm].inputs[0]
    pooled = False
    while True:
        if len(set(flow.readers[value])) > 1:
            return True  # others read the value without the norm, so it is not the end of what came before
        step = flow.steps[value]
        ended = next((block for block in blocks if value in block.ends), None)
        if ended is not None and (ended.starts_with_norm or pooled):
            # Blocks that begin with a norm leave their sum as it is, and nothing in a block follows a pooling over all
            # positions: such a norm prepares the head.
            return True
        if ended is not None or step.unit is not None or len(step.inputs) != 1:
            break
        value = step.inputs[0]
        pooled |= len(step.shape) < len(flow.steps[value].shape) and step.operation in _POOLING
    here = flow.steps[norm].unit
    assert here is not None
    nearest = max(behind, key=lambda name: flow.first_use[name])
    return _common_depth(here.path, flow.units[ahead[0]].path) > _common_depth(here.path, flow.units[nearest].path)


def _common_depth(one: str, other: str) -> int:
    """How many modules two paths share.

    >>> _common_depth("blocks.0.norm", "blocks.0.mlp.fc1"), _common_depth("norm", "head")
    (2, 0)
    """
    depth = 0
    for a, b in zip(one.split(".")[:-1], other.split(".")[:-1], strict=False):
        if a != b:
            break
        depth += 1
    return depth


def _with_unused(trace: Trace, layers: list[FoundLayer]) -> list[FoundLayer]:
    """Puts units that the forward pass did not use after the layer of their predecessor in the model's definition."""
    home = {unit.name: layer for layer in layers for unit in layer.units}
    unused = {unit.name: unit for unit in trace.unused}
    previous: FoundLayer | None = None
    for name in trace.registered:
        if name in home:
            previous = home[name]
        elif name in unused:
            layer = FoundLayer([unused[name]], "not used in the forward pass", -1)
            layers.insert(0 if previous is None else layers.index(previous) + 1, layer)
            previous = layer
    return layers


def _name(layers: list[FoundLayer]) -> None:
    """Names each layer after the module that holds its kernels and no others, else after the kernels."""
    paths = {id(layer): [unit.path for unit in layer.kernels] for layer in layers}
    used: set[str] = set()
    for layer in layers:
        own = list(dict.fromkeys(paths[id(layer)]))
        foreign = [path for other in layers if other is not layer for path in paths[id(other)]]
        name = _common_module(own, foreign)
        name = name or _joined(own) or "parameters"
        while name in used:
            name += "'"
        used.add(name)
        layer.name = name


def _common_module(paths: list[str], foreign: list[str]) -> str | None:
    if len(paths) == 1:
        return paths[0]
    common = paths[0].split(".")[:-1]
    for path in paths[1:]:
        steps = path.split(".")[:-1]
        shared = 0
        while shared < min(len(common), len(steps)) and common[shared] == steps[shared]:
            shared += 1
        common = common[:shared]
    name = ".".join(common)
    taken = any(path.startswith(f"{name}.") for path in foreign)
    return name if name and not taken else None


def _joined(paths: list[str]) -> str:
    """The first path in full, and the last part of the others.

    >>> _joined(["a.up", "a.down"]), _joined(["q", "k", "v", "gate", "out"])
    ('a.up+down', 'q+...+out')
    """
    first, *others = paths
    last = [path.rpartition(".")[2] for path in others]
    return "+".join([first, *last]) if len(paths) <= _MOST_NAMES else f"{first}+...+{last[-1]}"
