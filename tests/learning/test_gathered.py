"""Tables of examples for a stack: built once for the same examples, and never mistaken for those of others."""

from __future__ import annotations

import torch

from playerfl.data.examples import TensorExamples
from playerfl.learning.stacked import gathered
from playerfl.learning.stacked.gathered import Gathered


def examples(value: float, rows: int = 3) -> TensorExamples:
    return TensorExamples(torch.full((rows, 2), value), torch.zeros(rows, dtype=torch.long))


def test_the_same_examples_are_put_into_a_table_once() -> None:
    one, other = examples(1.0), examples(2.0)
    assert Gathered.of([one, other]) is Gathered.of([one, other])
    assert Gathered.of([other, one]).table.inputs[0].tolist() == [2.0, 2.0]


def test_examples_at_the_address_of_earlier_ones_get_a_table_of_their_own() -> None:
    for value in range(200):
        pair = [examples(float(value)), examples(-float(value))]
        assert Gathered.of(pair).table.inputs[:, 0].tolist() == [value] * 3 + [-value] * 3


def test_only_a_few_small_tables_are_kept() -> None:
    for value in range(100):
        Gathered.of([examples(float(value)), examples(0.5)])
    assert len(gathered._recent) <= gathered._MOST_TABLES
    large = [examples(1.0, 2**20), examples(2.0, 2**20)]
    assert Gathered.of(large) is not Gathered.of(large)
