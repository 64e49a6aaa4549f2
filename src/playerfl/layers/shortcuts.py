"""Residual blocks, known by their code: two ways from the input meet in a sum, which is what the block gives back."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import fx, nn

_SUMS = (operator.add, operator.iadd, torch.add, "add", "add_")
_SHAPES = ("shape", "size", "dim", "ndim", "dtype", "device")


class _Reader(fx.Tracer):
    """Reads one module's own forward; its children are black boxes."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True


@dataclass(frozen=True)
class _Way:
    """How data came to a place: from which inputs, through which children and parameters."""

    inputs: frozenset[str] = frozenset()
    through: frozenset[str] = frozenset()

    def __or__(self, other: _Way) -> _Way:
        return _Way(self.inputs | other.inputs, self.through | other.through)


def ends_in_a_shortcut(module: nn.Module, is_norm: Callable[[nn.Module], bool]) -> bool:
    """Whether a module gives back one sum of two ways its input took, with nothing but norms after it.

    False where its code cannot be read without data (conditions on shapes or values), and where there are several sums:
    such a module is a row of blocks rather than one.

    >>> class Block(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.one, self.two = nn.Linear(2, 2), nn.Linear(2, 2)
    ...     def forward(self, x):
    ...         return x + self.two(self.one(x).relu())
    >>> ends_in_a_shortcut(Block(), lambda m: False)
    True
    """
    try:
        # A forward may draw random numbers or warn while it is read.
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            graph = _Reader().trace(module)
    except Exception:  # whatever another's code may raise when it is called without data
        return False
    ways: dict[fx.Node, _Way] = {}
    sums = 0
    trained_after = False
    for node in graph.nodes:
        came = [ways[argument] for argument in node.all_input_nodes]
        way = _Way()
        for other in came:
            way |= other
        if node.op == "placeholder":
            way = _Way(frozenset({node.name}))
        elif node.op == "get_attr":
            way = _Way(through=frozenset({str(node.target)}))
        elif node.op == "call_module":
            child = module.get_submodule(str(node.target))
            if next(child.parameters(), None) is not None:
                way |= _Way(through=frozenset({str(node.target)}))
                trained_after |= sums > 0 and not is_norm(child)
        elif _asks_for_a_shape(node):
            way = _Way()
        if node.target in _SUMS and len(came) == 2 and came[0].inputs & came[1].inputs:
            sums += came[0].through != came[1].through
        ways[node] = way
    return sums == 1 and not trained_after


def _asks_for_a_shape(node: fx.Node) -> bool:
    if node.op == "call_function" and node.target is getattr:
        return node.args[1] in _SHAPES
    return node.op == "call_method" and node.target in _SHAPES
