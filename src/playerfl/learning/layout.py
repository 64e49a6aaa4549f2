"""Layout: the entries of many models as rows of one matrix."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

# Every entry of every row begins at a multiple of this many numbers: then each number is worked on by the same lanes
# of the same vector instructions, however many rows there are, and comes out with the same bits.
ALIGNMENT = 64
# Matrices with fewer outputs than this lie as they are.
NARROW = 16


class Layout:
    """Where each entry lies in a row; the gaps between entries hold zeros and stay zero.

    Matrices lie transposed, as the gradients of a stack of linear layers come out: copying those is twice as fast.
    Those with few outputs lie as they are, because a product with a narrow transposed matrix takes thrice as long.

    >>> layout = Layout({"w": torch.zeros(2, 3), "b": torch.zeros(2)})
    >>> rows = layout.stacked([{"w": torch.ones(2, 3), "b": torch.tensor([1.0, 2.0])}] * 5)
    >>> rows.shape, layout.models(rows)[4]["b"]
    (torch.Size([5, 128]), tensor([1., 2.]))
    """

    def __init__(self, entries: Mapping[str, Tensor]) -> None:
        self.shapes = {name: tuple(entry.shape) for name, entry in entries.items()}
        self.starts: dict[str, int] = {}
        self.gaps: list[slice] = []
        self.width = 0
        for name, shape in self.shapes.items():
            self.starts[name] = self.width
            end = self.width + math.prod(shape)
            self.width += -(-max(1, math.prod(shape)) // ALIGNMENT) * ALIGNMENT
            if end < self.width:
                self.gaps.append(slice(end, self.width))

    def blank(self, count: int, dtype: torch.dtype) -> Tensor:
        """A matrix of rows whose entries are still to be written; their gaps hold zeros already."""
        rows = torch.empty(count, self.width, dtype=dtype)
        for gap in self.gaps:
            rows[:, gap] = 0
        return rows

    def stacked(self, models: Sequence[Mapping[str, Tensor]]) -> Tensor:
        """A matrix of its own with one row a model."""
        rows = self.blank(len(models), models[0][next(iter(self.shapes))].dtype)
        for name, view in self.views(rows).items():
            own = [model[name] for model in models]
            # As they lie, and not with `out=`, which goes tensor by tensor where the view has gaps.
            if self._transposed(name):
                view.mT.copy_(torch.stack([entry.mT for entry in own]))
            else:
                view.copy_(torch.stack(own))
        return rows

    def views(self, rows: Tensor) -> dict[str, Tensor]:
        """Each entry of all rows, the row as first dimension; what is written into them is in the rows."""
        return {name: self.view(rows, name) for name in self.shapes}

    def view(self, rows: Tensor, name: str) -> Tensor:
        start, shape = self.starts[name], self.shapes[name]
        flat = rows[..., start : start + math.prod(shape)]
        if self._transposed(name):
            return flat.view(*rows.shape[:-1], *shape[::-1]).mT
        return flat.view(*rows.shape[:-1], *shape)

    def _transposed(self, name: str) -> bool:
        shape = self.shapes[name]
        return len(shape) == 2 and shape[0] >= NARROW

    def models(self, rows: Tensor) -> list[dict[str, Tensor]]:
        """Every row as a model: views, not copies."""
        columns = [view.unbind(0) for view in self.views(rows).values()]
        return [dict(zip(self.shapes, entries, strict=True)) for entries in zip(*columns, strict=True)]


class Held(Mapping[str, Tensor]):
    """One model's entries in a matrix of many, looked up only when asked for, and others it held before."""

    def __init__(self, layout: Layout, rows: Tensor, index: int, before: Mapping[str, Tensor]) -> None:
        self.layout = layout
        self.rows = rows
        self.index = index
        self.others = _without(before, layout)

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.layout.shapes:
            return self.others[name]
        return self.layout.view(self.rows[self.index], name)

    def __iter__(self) -> Iterator[str]:
        yield from self.layout.shapes
        yield from self.others

    def __len__(self) -> int:
        return len(self.layout.shapes) + len(self.others)


def _without(held: Mapping[str, Tensor], layout: Layout) -> Mapping[str, Tensor]:
    """What is left when the entries of a layout are taken over."""
    if isinstance(held, Held) and held.layout is layout:
        return held.others
    if isinstance(held, Held) and not held.layout.shapes.keys() & layout.shapes.keys():
        return Held(held.layout, held.rows, held.index, _without(held.others, layout))
    return {name: held[name] for name in held if name not in layout.shapes}


def side_by_side(held: Sequence[Mapping[str, Tensor]], layout: Layout) -> Tensor | None:
    """The matrix in which these already are the rows, in this order; None if there is none."""
    first = _part(held[0], layout)
    if first is None or len(first.rows) != len(held):
        return None
    parts = (_part(own, layout) for own in held)
    return first.rows if all(p and p.rows is first.rows and p.index == i for i, p in enumerate(parts)) else None


def _part(held: Mapping[str, Tensor], layout: Layout) -> Held | None:
    while isinstance(held, Held):
        if held.layout is layout:
            return held
        held = held.others
    return None
