"""Layout: the entries of many models, one block of rows per entry."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

# Every row of every block starts at a multiple of this many numbers. Then each number is processed by the same lanes
# of the same vector instructions, however many rows there are, and the result has the same bits.
ALIGNMENT = 64
_NARROW = 16

Blocks = dict[str, Tensor]
"""By entry: one row per model."""


class Layout:
    """How each entry is stored in the rows of its block; the rest of a row is zeros and stays zero.

    Matrices are stored transposed, because that is how the gradients of a stack of linear layers are computed, so
    they need no copy. Matrices with few outputs are not, because a product with a narrow transposed matrix takes three
    times as long.

    >>> layout = Layout({"w": torch.zeros(2, 3), "b": torch.zeros(2)})
    >>> blocks = layout.stacked([{"w": torch.ones(2, 3), "b": torch.tensor([1.0, 2.0])}] * 5)
    >>> blocks["b"].shape, layout.models(blocks)[4]["b"]
    (torch.Size([5, 64]), tensor([1., 2.]))
    """

    def __init__(self, entries: Mapping[str, Tensor]) -> None:
        self.shapes = {name: tuple(entry.shape) for name, entry in entries.items()}
        self._sizes = {name: math.prod(shape) for name, shape in self.shapes.items()}
        self._widths = {name: -(-max(1, size) // ALIGNMENT) * ALIGNMENT for name, size in self._sizes.items()}
        self.width = sum(self._widths.values())

    def stacked(self, models: Sequence[Mapping[str, Tensor]]) -> Blocks:
        """New blocks with one row per model."""
        return {
            name: self._block(name, torch.stack([self._stored(name, model[name]) for model in models]))
            for name in self.shapes
        }

    def blocks(self, entries: Mapping[str, Tensor]) -> Blocks:
        """Blocks from entries whose first dimension is the model; without a copy if the memory is laid out that way."""
        return {name: self._block(name, self._stored(name, entry)) for name, entry in entries.items()}

    def _block(self, name: str, stored: Tensor) -> Tensor:
        # Contiguous, because the fused optimisers ignore the strides of gradients.
        rows = stored.reshape(len(stored), self._sizes[name]).contiguous()
        if rows.shape[1] == self._widths[name]:
            return rows
        block = torch.zeros(len(rows), self._widths[name], dtype=rows.dtype)
        block[:, : rows.shape[1]] = rows
        return block

    def views(self, blocks: Blocks) -> dict[str, Tensor]:
        """Each entry of all models, model first: views, so writing to them writes to the blocks."""
        return {name: self.view(name, block) for name, block in blocks.items()}

    def view(self, name: str, block: Tensor) -> Tensor:
        """The entries in a block, or the entry in one row of it."""
        shape = self.shapes[name]
        stored = shape[::-1] if self._transposed(name) else shape
        return self._stored(name, block[..., : self._sizes[name]].view((*block.shape[:-1], *stored)))

    def _stored(self, name: str, entry: Tensor) -> Tensor:
        """From an entry (or many) to how it is stored, and back."""
        return entry.mT if self._transposed(name) else entry

    def _transposed(self, name: str) -> bool:
        shape = self.shapes[name]
        return len(shape) == 2 and shape[0] >= _NARROW

    def models(self, blocks: Blocks) -> list[dict[str, Tensor]]:
        """The models one by one: views, not copies."""
        columns = [view.unbind(0) for view in self.views(blocks).values()]
        return [dict(zip(self.shapes, entries, strict=True)) for entries in zip(*columns, strict=True)]


class Held(Mapping[str, Tensor]):
    """One model's entries in the blocks of many models, looked up on demand, and the other entries it had before."""

    def __init__(self, layout: Layout, blocks: Blocks, index: int, before: Mapping[str, Tensor]) -> None:
        self.layout = layout
        self.blocks = blocks
        self.index = index
        self.others = _without(before, layout)

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.layout.shapes:
            return self.others[name]
        return self.layout.view(name, self.blocks[name][self.index])

    def __iter__(self) -> Iterator[str]:
        yield from self.layout.shapes
        yield from self.others

    def __len__(self) -> int:
        return len(self.layout.shapes) + len(self.others)


def _without(held: Mapping[str, Tensor], layout: Layout) -> Mapping[str, Tensor]:
    """The entries that a layout does not cover."""
    if isinstance(held, Held) and held.layout is layout:
        return held.others
    if isinstance(held, Held) and not held.layout.shapes.keys() & layout.shapes.keys():
        return Held(held.layout, held.blocks, held.index, _without(held.others, layout))
    return {name: held[name] for name in held if name not in layout.shapes}


def side_by_side(held: Sequence[Mapping[str, Tensor]], layout: Layout) -> Blocks | None:
    """The blocks whose rows are exactly these models, in this order; None if there are no such blocks."""
    first = _part(held[0], layout)
    if first is None or len(next(iter(first.blocks.values()))) != len(held):
        return None
    parts = (_part(state, layout) for state in held)
    return first.blocks if all(p and p.blocks is first.blocks and p.index == i for i, p in enumerate(parts)) else None


def _part(held: Mapping[str, Tensor], layout: Layout) -> Held | None:
    while isinstance(held, Held):
        if held.layout is layout:
            return held
        held = held.others
    return None
