"""Residual blocks, recognised by their code: two paths from the input meet in a sum, which the block returns."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import fx, nn

_SUMS = (operator.add, operator.iadd, torch.add, "add", "add_")
_SHAPES = ("shape", "size", "dim", "ndim", "dtype", "device")


class _Tracer(fx.Tracer):
    """Traces one module's own forward; its children are black boxes."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True


@dataclass(frozen=True)
class _Path:
    """How a value was computed: from which inputs, through which children and parameters."""

    inputs: frozenset[str] = frozenset()
    through: frozenset[str] = frozenset()

    def __or__(self, other: _Path) -> _Path:
        return _Path(self.inputs | other.inputs, self.through | other.through)


def ends_in_a_shortcut(module: nn.Module, is_norm: Callable[[nn.Module], bool]) -> bool:
    """Whether a module returns one sum of two paths from its input, with nothing but norms after it.

    False if its code cannot be traced without data (conditions on shapes or values), and if there are several sums:
    such a module is a sequence of blocks rather than one.

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
        # A forward pass may draw random numbers or warn while it is traced.
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            graph = _Tracer().trace(module)
    except Exception:  # anything a user's code may raise when it is called without data
        return False
    paths: dict[fx.Node, _Path] = {}
    sums = 0
    trained_after = False
    for node in graph.nodes:
        incoming = [paths[argument] for argument in node.all_input_nodes]
        path = _Path()
        for other in incoming:
            path |= other
        if node.op == "placeholder":
            path = _Path(frozenset({node.name}))
        elif node.op == "get_attr":
            path = _Path(through=frozenset({str(node.target)}))
        elif node.op == "call_module":
            child = module.get_submodule(str(node.target))
            if next(child.parameters(), None) is not None:
                path |= _Path(through=frozenset({str(node.target)}))
                trained_after |= sums > 0 and not is_norm(child)
        elif _asks_for_a_shape(node):
            path = _Path()
        if node.target in _SUMS and len(incoming) == 2 and incoming[0].inputs & incoming[1].inputs:
            sums += incoming[0].through != incoming[1].through
        paths[node] = path
    return sums == 1 and not trained_after


def _asks_for_a_shape(node: fx.Node) -> bool:
    if node.op == "call_function" and node.target is getattr:
        return node.args[1] in _SHAPES
    return node.op == "call_method" and node.target in _SHAPES
