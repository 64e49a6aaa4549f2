"""Layout: the entries of many models as rows of one matrix."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

# Every entry of every row begins at a multiple of this many numbers: then each number is worked on by the same lanes
# of the same vector instructions, however many rows there are, and comes out with the same bits.
ALIGNMENT = 64


class Layout:
    """Where each entry lies in a row; the gaps between entries hold zeros and stay zero.

    >>> layout = Layout({"w": torch.zeros(2, 3), "b": torch.zeros(2)})
    >>> rows = layout.stacked([{"w": torch.ones(2, 3), "b": torch.tensor([1.0, 2.0])}] * 5)
    >>> rows.shape, layout.models(rows)[4]["b"]
    (torch.Size([5, 128]), tensor([1., 2.]))
    """

    def __init__(self, entries: Mapping[str, Tensor]) -> None:
        self.shapes = {name: tuple(entry.shape) for name, entry in entries.items()}
        self.starts: dict[str, int] = {}
        self.width = 0
        for name, shape in self.shapes.items():
            self.starts[name] = self.width
            self.width += -(-max(1, math.prod(shape)) // ALIGNMENT) * ALIGNMENT

    def stacked(self, models: Sequence[Mapping[str, Tensor]]) -> Tensor:
        """A matrix of its own with one row a model."""
        rows = torch.zeros(len(models), self.width, dtype=models[0][next(iter(self.shapes))].dtype)
        for name, view in self.views(rows).items():
            # Not `out=view`: into a view with gaps that goes tensor by tensor.
            view.copy_(torch.stack([model[name] for model in models]))
        return rows

    def views(self, rows: Tensor) -> dict[str, Tensor]:
        """Each entry of all rows, the row as first dimension; what is written into them is in the rows."""
        return {
            name: rows[:, start : start + math.prod(self.shapes[name])].view(len(rows), *self.shapes[name])
            for name, start in self.starts.items()
        }

    def models(self, rows: Tensor) -> list[dict[str, Tensor]]:
        """Every row as a model: views, not copies."""
        columns = [view.unbind(0) for view in self.views(rows).values()]
        return [dict(zip(self.shapes, entries, strict=True)) for entries in zip(*columns, strict=True)]
