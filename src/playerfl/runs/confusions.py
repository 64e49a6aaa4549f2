"""Confusions: the confusion matrices of a run, stored as their nonzero cells."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from playerfl.federation.messages import ConfusionKey
from playerfl.learning.confusion import F1Labels, Matrix, f1_of_margins
from playerfl.storage.packed_rows import Row, packed, unpacked

CONFUSION_COLUMNS = ("stage", "round", "site", "split", "classes", "true", "predicted", "count")
_DIVERGED = -1
"""The count that stands for the matrix of a diverged model, in the first cell, the only one stored."""
MOST_CLASSES = 2**15
_PENDING_NUMBERS = 2**20
_KINDS = (torch.uint8, torch.int8, torch.int16, torch.int32)


class Confusions(Mapping[ConfusionKey, Tensor]):
    """One matrix per stage, round, site and split: how often each class (row) was predicted as each class (column).

    Most cells of most matrices are 0, so only the others are stored, in memory and in files. The matrix of a diverged
    model is -1 everywhere.

    >>> runs = Confusions.of({("round", 1, "north", "test"): np.array([[3, 1], [0, 2]], np.int32)})
    >>> runs["round", 1, "north", "test"]
    tensor([[3, 1],
            [0, 2]])
    >>> runs.rows()[1]
    ('round', 1, 'north', 'test', 2, 0, 1, 1)
    """

    def __init__(
        self, keys: Sequence[ConfusionKey], classes: int, sizes: Tensor, cells: Tensor, counts: Tensor
    ) -> None:
        """`sizes`: how many cells each matrix has; `cells`: true · classes + predicted, increasing within a matrix."""
        self.classes = classes
        self._keys = list(keys)
        self._sizes, self._cells, self._counts = sizes, cells, counts

    def _checked(self) -> Confusions:
        """Returns itself; ValueError if what was read is inconsistent."""
        tensors = (self._sizes, self._cells, self._counts)
        if any(t.dim() != 1 or t.dtype not in (*_KINDS, torch.int64) for t in tensors):
            raise ValueError("confusion matrices are not lists of whole numbers")
        if len(set(self._keys)) < len(self._keys) or len(self._keys) != len(self._sizes):
            raise ValueError("confusion matrices need one stage, round, site and split each")
        if not 0 < self.classes <= MOST_CLASSES and (self._keys or self.classes):
            raise ValueError(f"confusion matrices cannot have {self.classes} classes")
        if len(self._cells) != len(self._counts) or int(self._sizes.sum()) != len(self._cells):
            raise ValueError("confusion matrices have more or fewer cells than counts")
        if not self._keys:
            return self
        if int(self._sizes.min()) < 1:
            raise ValueError("a confusion matrix has no cells")
        alone = (self._sizes == 1).repeat_interleave(self._sizes.long()) & (self._cells == 0)
        if (
            int(self._cells.min()) < 0
            or int(self._cells.max()) >= self.classes**2
            or not bool(((self._counts > 0) | ((self._counts == _DIVERGED) & alone)).all())
        ):
            raise ValueError("confusion matrices have impossible cells or counts")
        places = self._owners * self.classes**2 + self._cells
        if bool((places[1:] <= places[:-1]).any()):
            raise ValueError("the cells of a confusion matrix are out of order")
        return self

    @classmethod
    def none(cls) -> Confusions:
        """No matrices, as for an old run, numeric targets, or too many classes."""
        empty = torch.empty(0, dtype=torch.uint8)
        return cls((), 0, empty, empty, empty)

    @classmethod
    def of(cls, matrices: Mapping[ConfusionKey, Matrix]) -> Confusions:
        """The cells of these matrices, all of the same size."""
        if not matrices:
            return cls.none()
        stack = torch.from_numpy(np.stack(list(matrices.values())))
        classes = stack.shape[-1]
        flat = stack.flatten(1)
        diverged = flat[:, 0] < 0
        if bool(diverged.any()):
            flat = flat.masked_fill(diverged.unsqueeze(1), 0)
            flat[diverged, 0] = _DIVERGED
        owners, cells = flat.nonzero(as_tuple=True)
        sizes = torch.bincount(owners, minlength=len(flat))
        return cls(list(matrices), classes, _small(sizes), _small(cells), _small(flat[owners, cells]))

    @classmethod
    def joined(cls, parts: Sequence[Confusions]) -> Confusions:
        """The matrices of several parts of one run."""
        some = [part for part in parts if part]
        if len(some) < 2:
            return some[0] if some else cls.none()
        if len({part.classes for part in some}) > 1:
            raise ValueError("one run has confusion matrices of different sizes")
        tensors = ([getattr(part, name).long() for part in some] for name in ("_sizes", "_cells", "_counts"))
        sizes, cells, counts = (_small(torch.cat(column)) for column in tensors)
        return cls(list(chain.from_iterable(some)), some[0].classes, sizes, cells, counts)

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> Confusions:
        """The inverse of `tree`; ValueError for anything else."""
        keys: Any = unpacked(tree["keys"])
        if any([type(part) for part in key] != [str, int, str, str] for key in keys):
            raise ValueError("confusion matrices need one stage, round, site and split each")
        return cls(keys, int(tree["classes"]), tree["sizes"], tree["cells"], tree["counts"])._checked()

    def tree(self) -> dict[str, Any]:
        """All matrices, as a tree of small tensors and values."""
        return {
            "keys": packed(self._keys),
            "classes": self.classes,
            "sizes": self._sizes,
            "cells": self._cells,
            "counts": self._counts,
        }

    @classmethod
    def from_rows(cls, rows: Sequence[Row]) -> Confusions:
        """The inverse of `rows`; ValueError for anything else."""
        if not rows:
            return cls.none()
        columns = list(zip(*rows, strict=True))
        keys: dict[Any, int] = {}
        owners = [keys.setdefault(key, len(keys)) for key in zip(*columns[:4], strict=True)]
        classes = int(columns[4][0])
        if set(columns[4]) != {classes} or owners != sorted(owners):
            raise ValueError("confusion matrices are of different sizes or out of order")
        if not all(0 <= int(side) < classes for column in columns[5:7] for side in column):
            raise ValueError(f"confusion matrices of {classes} classes have cells of other classes")
        if not all(_DIVERGED <= int(count) < 2**31 for count in columns[7]):
            raise ValueError("confusion matrices have impossible counts")
        true, predicted, counts = map(torch.tensor, columns[5:])
        sizes = torch.bincount(torch.tensor(owners))
        made = cls(list(keys), classes, _small(sizes), _small(true * classes + predicted), _small(counts))
        return made._checked()

    def rows(self) -> list[Row]:
        """One row of CONFUSION_COLUMNS for each cell that is not 0; a diverged model has one row, with the count -1."""
        true, predicted = (self._cells.long() // self.classes).tolist(), (self._cells.long() % self.classes).tolist()
        cells = zip(self._owners.tolist(), true, predicted, self._counts.tolist(), strict=True)
        return [(*self._keys[owner], self.classes, t, p, count) for owner, t, p, count in cells]

    def f1(self, labels: F1Labels, keys: Iterable[ConfusionKey] | None = None) -> list[float]:
        """The macro-F1 of all matrices, or of those with these keys, in order; KeyError if there is no such matrix.

        >>> matrix = np.array([[3, 1], [0, 0]], np.int32)
        >>> runs = Confusions.of({("round", 1, "north", "test"): matrix})
        >>> [round(score, 3) for labels in ("true_or_predicted", "true") for score in runs.f1(labels)]
        [0.429, 0.857]
        """
        asked = list(range(len(self))) if keys is None else [self._places[key] for key in keys]
        if not asked:
            return []
        wanted = list(dict.fromkeys(asked))
        owners, cells, counts = self._some(wanted)
        true, predicted = cells // self.classes, cells % self.classes
        hits, rows, columns = (
            torch.zeros(len(wanted) * self.classes, dtype=torch.int64)
            .index_add_(0, owners[chosen] * self.classes + side[chosen], counts[chosen])
            .view(len(wanted), self.classes)
            for side, chosen in ((true, true == predicted), (true, ...), (predicted, ...))
        )
        scores = f1_of_margins(hits, rows.clamp_min(0), columns.clamp_min(0), labels)
        scores[owners[counts == _DIVERGED]] = torch.nan
        score_of = dict(zip(wanted, scores.tolist(), strict=True))
        return [score_of[place] for place in asked]

    def __getitem__(self, key: ConfusionKey) -> Tensor:
        _, cells, counts = self._some([self._places[key]])
        if counts[0] == _DIVERGED:
            return torch.full((self.classes, self.classes), _DIVERGED)
        matrix = torch.zeros(self.classes**2, dtype=torch.int64)
        matrix[cells] = counts
        return matrix.view(self.classes, self.classes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Confusions) and self._keys == other._keys and self.rows() == other.rows()

    __hash__ = None  # type: ignore[assignment]

    def __contains__(self, key: object) -> bool:
        return key in self._places

    def __iter__(self) -> Iterator[ConfusionKey]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def _some(self, wanted: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """The cells of some matrices: for each, its matrix's position in `wanted`, its number and its count."""
        position = torch.full((len(self),), -1)
        position[torch.tensor(wanted)] = torch.arange(len(wanted))
        owners = position[self._owners]
        chosen = owners >= 0
        return owners[chosen], self._cells[chosen].long(), self._counts[chosen].long()

    @cached_property
    def _places(self) -> dict[ConfusionKey, int]:
        return {key: place for place, key in enumerate(self._keys)}

    @property
    def _owners(self) -> Tensor:
        return torch.arange(len(self)).repeat_interleave(self._sizes.long())


class ConfusionLog:
    """Collects matrices as they come in. They are packed a few at a time, because they might not all fit in memory."""

    def __init__(self, before: Confusions | None = None) -> None:
        """`before`: the matrices recorded so far, if a run is resumed."""
        self._parts = [before] if before else []
        self._pending: dict[ConfusionKey, Matrix] = {}
        self._numbers = 0

    def add(self, matrices: Mapping[ConfusionKey, Matrix]) -> None:
        if not matrices:
            return
        self._pending.update(matrices)
        self._numbers += len(matrices) * next(iter(matrices.values())).size
        if self._numbers > _PENDING_NUMBERS:
            self._pack()

    def _pack(self) -> None:
        self._parts.append(Confusions.of(self._pending))
        self._pending, self._numbers = {}, 0

    def so_far(self) -> Confusions:
        if self._pending:
            self._pack()
        self._parts = [Confusions.joined(self._parts)]
        return self._parts[0]


def _small(numbers: Tensor) -> Tensor:
    """The same numbers in the smallest type that holds them."""
    low, high = (int(bound) for bound in numbers.aminmax())
    fitting = (kind for kind in _KINDS if torch.iinfo(kind).min <= low and high <= torch.iinfo(kind).max)
    return numbers.to(next(fitting, torch.int64))
