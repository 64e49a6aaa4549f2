"""Which layer a norm, a scale or a bare parameter belongs to: the one it feeds, or the one it follows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile

from torch import nn

from playerfl.layers.finding.flow import Flow, passes
from playerfl.layers.finding.regions import Block, meeting_of
from playerfl.layers.finding.trace import Step

_POOLING = {"mean", "sum", "amax", "max", "select"}


@dataclass(frozen=True)
class Neighbour:
    """The unit whose layer a norm or scale joins, and whether it feeds it or follows it."""

    name: str
    feeds: bool


class Joining:
    """Finds the neighbours of norms and scales in a recorded forward pass."""

    def __init__(self, flow: Flow, blocks: list[Block], model: nn.Module) -> None:
        self._flow, self._blocks = flow, blocks
        self._shortcuts = {fork for block in blocks for fork in block.shortcuts}
        self._repeated = repeated_modules(model)

    def neighbour(self, step: Step, placed: Mapping[str, object]) -> Neighbour | None:
        """The neighbour of a unit's step among the units that have a layer; None if there is none."""
        flow, unit = self._flow, step.unit
        assert unit is not None
        sources = flow.backward(step.inputs, lambda s: passes(s) and (s.unit is None or s.unit.name not in placed))
        behind = [s.unit.name for s in sources if s.unit is not None and s.unit.name in placed]
        ahead = [s.unit.name for s in flow.forward(flow.readers[step.number], passes) if s.unit is not None]
        if not behind and not ahead:
            return None
        # The last to run, by this step: a shared unit may be behind in one place and ahead in another.
        nearest = max(behind, key=lambda name: self._last_use(name, step.number), default="")
        readers = {id(placed[name]) for name in ahead if name in placed}
        # What several layers read ends the one before. Without blocks, queries, keys and values are layers.
        one_reader = len(readers) == 1 or (bool(ahead) and not self._blocks)
        feeds = not behind or (one_reader and unit.role == "norm" and self._feeds(step, nearest, ahead[0]))
        feeds = feeds or (one_reader and self._opens_its_module(step, nearest, ahead[0]))
        chosen = Neighbour(ahead[0] if feeds else nearest, feeds)
        return self._within_its_module(step, chosen, placed) or chosen

    def _opens_its_module(self, step: Step, behind: str, ahead: str) -> bool:
        """Whether a vector scales what the kernel beside it in a module is about to read (BatchEnsemble)."""
        assert step.unit is not None
        module, one, other = (self._flow.units[n].path.rpartition(".")[0] for n in (step.unit.name, ahead, behind))
        return step.operation == "mul" and step.unit.is_bare and module == one != other and bool(module)

    def _within_its_module(self, step: Step, chosen: Neighbour, placed: Mapping[str, object]) -> Neighbour | None:
        """The nearest neighbour in the same one of several equal modules, if another was chosen: the norm before a
        mixer without weights would otherwise leave its block."""
        flow, around = self._flow, step.where
        kernels: list[str] = []
        while around and not kernels:
            if around in self._repeated:
                kernels = [name for name in flow.kernels if flow.units[name].path.startswith(f"{around}.")]
            around = around.rpartition(".")[0]
        if id(placed[chosen.name]) in {id(placed[name]) for name in kernels}:
            return None
        if after := [name for name in kernels if flow.depends(flow.first_use[name], step.number)]:
            return Neighbour(min(after, key=flow.first_use.__getitem__), feeds=True)
        before = [name for name in kernels if flow.depends(step.number, flow.first_use[name])]
        return Neighbour(max(before, key=flow.first_use.__getitem__), feeds=False) if before else None

    def _last_use(self, name: str, before: int) -> int:
        return max((step.number for step in self._flow.uses[name] if step.number <= before), default=-1)

    def _feeds(self, norm: Step, behind: str, ahead: str) -> bool:
        """Whether a norm prepares the input of what comes next (pre-norm) rather than complete what came before."""
        flow = self._flow
        path, paths = norm.where, {name: flow.units[name].path for name in (behind, ahead)}
        if path in self._repeated:
            # Inside one of several equal modules: a norm does not leave its module for the next one.
            within = {name for name in paths if paths[name].startswith(f"{path}.")}
            if len(within) == 1:
                return ahead in within
        if norm.number in self._shortcuts:
            return False  # a shortcut starts from its result, so it ends what came before
        assert norm.unit is not None
        onward, back = (_distance(norm.unit.path, paths[name]) for name in (ahead, behind))
        # A norm that the model defines beside its head, and not inside the stage before, is the head's.
        nearer = onward[0] < back[0] or (onward == (0, 0) and back != onward)
        if self._enters_aside(norm, ahead):
            return nearer
        value = norm.inputs[0]
        pooled = False
        while True:
            if len(set(flow.readers[value])) > 1:
                return True  # others read the value without the norm, so it is not the end of what came before
            step = flow.steps[value]
            ended = next((block for block in self._blocks if value in block.ends), None)
            if ended is not None and (ended.norms_its_path or pooled):
                # Blocks with a norm on their path leave their sum as it is, and nothing in a block follows a pooling
                # over all positions: such a norm prepares the head.
                return True
            source = None if ended is not None or step.unit is not None else _only_source(flow, step)
            if source is None:
                return nearer or (ended is None and meeting_of(step) == "concatenation" and self._ends_pre_norm(step))
            value = source
            pooled |= len(step.shape) < len(flow.steps[value].shape) and step.operation in _POOLING

    def _ends_pre_norm(self, together: Step) -> bool:
        """Whether all values that are put together are results of blocks with a norm on their path, such as a class
        token and the patches it has attended to."""
        return all(
            any(block.norms_its_path and number in block.ends for block in self._blocks) for number in together.inputs
        )

    def _enters_aside(self, norm: Step, ahead: str) -> bool:
        """Whether a norm's result enters a block beside its input, as what an encoder found enters each cross-attention
        of a decoder."""
        forks = next((block.forks for block in self._blocks if ahead in block.units), ())
        depends = self._flow.depends
        return bool(forks) and not any(depends(norm.number, f) or depends(f, norm.number) for f in forks)


def _only_source(flow: Flow, step: Step) -> int | None:
    """The one value that a step reads, as it is or in parts that are put together again (Swin's merging of patches)."""
    if len(step.inputs) < 2:
        return step.inputs[0] if step.inputs else None
    source = flow.latest_common(min(step.inputs), max(step.inputs))
    if source is None or flow.between(source, step.inputs) & flow.with_units:
        return None
    return source if all(flow.depends(number, source) for number in step.inputs) else None


def repeated_modules(model: nn.Module) -> set[str]:
    """The paths of modules that repeat: members of a list, and numbered modules of one class (`block1`, `block2`)."""
    modules: Mapping[str, nn.Module] = dict(model.named_modules())
    classes = Counter(type(module) for module in modules.values())
    found = set()
    for path, module in modules.items():
        around, _, name = path.rpartition(".")
        numbered = name[-1:].isdigit() and not type(module).__module__.startswith("torch.nn.")
        if path and (isinstance(modules.get(around), nn.ModuleList) or (numbered and classes[type(module)] > 1)):
            found.add(path)
    return found


def _distance(one: str, other: str) -> tuple[int, int]:
    """How many modules lead from one path to another: out of those around the first, then into those of the other.

    >>> _distance("blocks.0.norm", "blocks.0.mlp.fc1"), _distance("blocks.0.norm", "head"), _distance("norm", "head")
    ((0, 1), (2, 0), (0, 0))
    """
    here, there = (path.split(".")[:-1] for path in (one, other))
    shared = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(here, there, strict=False))))
    return len(here) - shared, len(there) - shared
