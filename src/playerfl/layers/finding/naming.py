"""Names of layers: that of the module that holds a layer's kernels and no others, else those of the kernels."""

from __future__ import annotations

from collections.abc import Sequence

_MOST_NAMES = 4


def names_of(layers: Sequence[Sequence[str]]) -> list[str]:
    """A name for each layer, given the paths of its kernels.

    >>> names_of([["words"], ["block.up", "block.down"], ["head.a"], ["head.b", "head.c"]])
    ['words', 'block', 'head.a', 'head.b+c']
    """
    names: list[str] = []
    for number, paths in enumerate(layers):
        own = list(dict.fromkeys(paths))
        foreign = [path for other, members in enumerate(layers) if other != number for path in members]
        name = _module_of_all(own, foreign) or _joined(own)
        while name in names:
            name += "'"
        names.append(name)
    return names


def common_module(paths: Sequence[str]) -> str:
    """The innermost module around all paths, themselves included; empty for the model itself.

    >>> common_module(["cells.0.input", "cells.0.state"]), common_module(["a.b"]), common_module(["a", "b"])
    ('cells.0', 'a.b', '')
    """
    shared = []
    for steps in zip(*(path.split(".") for path in paths), strict=False):
        if len(set(steps)) > 1:
            break
        shared.append(steps[0])
    return ".".join(shared)


def _module_of_all(paths: list[str], foreign: list[str]) -> str | None:
    if len(paths) == 1:
        return paths[0]
    name = common_module([path.rpartition(".")[0] for path in paths])
    taken = any(path.startswith(f"{name}.") for path in foreign)
    return name if name and not taken else None


def _joined(paths: list[str]) -> str:
    """The first path in full, and the last part of the others; for members of different lists, the list's name too.

    >>> _joined(["a.up", "a.down"]), _joined(["q", "k", "v", "gate", "out"]), _joined(["a.scales.0", "a.convs.0"])
    ('a.up+down', 'q+...+out', 'a.scales.0+convs.0')
    """
    first, *others = paths
    beside = first.rpartition(".")[0]
    last = []
    for path in others:
        around, _, name = path.rpartition(".")
        last.append(f"{around.rpartition('.')[2]}.{name}" if name.isdigit() and around != beside else name)
    return "+".join([first, *last]) if len(paths) <= _MOST_NAMES else f"{first}+...+{last[-1]}"
