"""Gathered: the examples of many models in one table, so that one operation can select rows for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from playerfl.data.examples import TensorExamples, map_tensors

_MOST_TABLES = 16
_MOST_KEPT_BYTES = 2**23


@dataclass(frozen=True)
class Gathered:
    """The distinct sets of examples of several models, concatenated."""

    table: TensorExamples
    first: Tensor
    """For each model, the row of the table at which its examples begin."""

    @classmethod
    def of(cls, examples: Sequence[TensorExamples]) -> Gathered:
        """One entry per model; models with the same examples share their rows, and a single table is not copied.

        >>> one = TensorExamples(torch.tensor([[1.0], [2.0]]), torch.tensor([0, 1]))
        >>> other = TensorExamples(torch.tensor([[3.0]]), torch.tensor([1]))
        >>> gathered = Gathered.of([one, other, one])
        >>> gathered.first.tolist(), gathered.table.inputs.flatten().tolist()
        ([0, 2, 0], [1.0, 2.0, 3.0])
        """
        key = tuple(map(id, examples))
        if key not in _recent:
            gathered = cls._gathered(examples)
            if gathered.table.num_bytes > _MOST_KEPT_BYTES:
                return gathered
            if len(_recent) == _MOST_TABLES:
                _recent.pop(next(iter(_recent)))
            _recent[key] = (tuple(examples), gathered)
        return _recent[key][1]

    @classmethod
    def _gathered(cls, examples: Sequence[TensorExamples]) -> Gathered:
        distinct = {id(one): one for one in examples}
        starts = dict(zip(distinct, accumulate(map(len, distinct.values()), initial=0), strict=False))
        first = torch.tensor([starts[id(one)] for one in examples])
        if len(distinct) == 1:
            return cls(examples[0], first)
        inputs = tree_map(lambda *tensors: torch.cat(tensors), *(one.inputs for one in distinct.values()))
        return cls(TensorExamples(inputs, torch.cat([one.targets for one in distinct.values()])), first)

    def inputs(self, rows: Tensor) -> Any:
        """The inputs in these rows of the table, arranged in the shape of `rows`."""
        return map_tensors(self.table.inputs, lambda tensor: _taken(tensor, rows))

    def targets(self, rows: Tensor) -> Tensor:
        """The targets in these rows of the table, arranged in the shape of `rows`."""
        return _taken(self.table.targets, rows)


# Tables of the last few stacks: the same models train and are scored in every round. The examples are kept with their
# table, so that an id in a key cannot be reused by another object.
_recent: dict[tuple[int, ...], tuple[tuple[TensorExamples, ...], Gathered]] = {}


def _taken(tensor: Tensor, rows: Tensor) -> Tensor:
    return tensor.index_select(0, rows.flatten()).view(*rows.shape, *tensor.shape[1:])
