"""A site's examples from tensors, datasets and loaders, read in batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, SubsetRandomSampler, TensorDataset

from playerfl.data.examples import LoaderExamples, TensorExamples, as_examples, split_batch
from playerfl.errors import DataError

X, Y = torch.arange(10.0).unsqueeze(1), torch.arange(10)


def order(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def targets_of(batches: Iterator[tuple[Any, Tensor]]) -> list[list[int]]:
    return [targets.tolist() for _, targets in batches]


class Pairs(Dataset[Any]):
    """A dataset whose rows are built by the test."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter([])


@given(st.integers(0, 30), st.integers(1, 12), st.booleans(), st.booleans())
def test_batches_give_every_example_once(rows: int, size: int, shuffle: bool, join: bool) -> None:
    examples = TensorExamples(torch.arange(rows), torch.arange(rows))
    batches = targets_of(examples.batches(size, order() if shuffle else None, join_single=join))
    assert sorted(target for batch in batches for target in batch) == list(range(rows))
    assert all(batches)
    assert all(len(batch) <= size + join for batch in batches)


@given(st.integers(2, 30), st.integers(2, 12))
def test_joined_batches_never_have_one_row(rows: int, size: int) -> None:
    examples = TensorExamples(torch.arange(rows), torch.arange(rows))
    assert min(map(len, targets_of(examples.batches(size, join_single=True)))) > 1


@pytest.mark.parametrize(("join", "sizes"), [(False, [3, 3, 3, 1]), (True, [3, 3, 4])])
def test_a_single_last_row_is_joined_only_if_asked(join: bool, sizes: list[int]) -> None:
    assert [len(b) for b in targets_of(TensorExamples(X, Y).batches(3, join_single=join))] == sizes


def test_without_an_order_rows_come_as_they_are() -> None:
    assert targets_of(TensorExamples(X, Y).batches(4)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_the_order_generator_shuffles_every_epoch_anew() -> None:
    examples, generator = TensorExamples(X, Y), order()
    first, second = targets_of(examples.batches(4, generator)), targets_of(examples.batches(4, generator))
    assert first == targets_of(examples.batches(4, order()))
    assert first != second


@pytest.mark.parametrize("inputs", [X, (X, 2 * X), {"a": X, "b": 2 * X}], ids=["tensor", "tuple", "mapping"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_inputs_of_every_form_stay_with_their_targets(inputs: Any, shuffle: bool) -> None:
    for batch, targets in TensorExamples(inputs, Y).batches(4, order() if shuffle else None):
        parts = [batch] if isinstance(batch, Tensor) else list(batch.values() if isinstance(batch, dict) else batch)
        assert type(batch) is type(inputs)
        assert all(part.flatten().tolist() == [(i + 1) * t for t in targets.tolist()] for i, part in enumerate(parts))


@pytest.mark.parametrize(
    "examples", [TensorExamples((X, X), Y), LoaderExamples(DataLoader(TensorDataset(X, X, Y), 10))]
)
def test_mapping_changes_every_tensor(examples: TensorExamples | LoaderExamples) -> None:
    twice = examples.mapped(lambda tensor: tensor + 1).mapped(lambda tensor: tensor * 10)
    ((inputs, targets),) = twice.batches(10)
    assert targets.tolist() == [10 * (i + 1) for i in range(10)]
    assert all(torch.equal(part, (X + 1) * 10) for part in inputs)


def test_rows_selects_by_position() -> None:
    chosen = TensorExamples({"x": X}, Y).rows(torch.tensor([7, 2]))
    assert chosen.targets.tolist() == [7, 2]
    assert chosen.inputs["x"].flatten().tolist() == [7.0, 2.0]  # type: ignore[call-overload, index]


@pytest.mark.parametrize("inputs", [X[:9], (X, X[:9]), {"a": X, "b": X[:9]}])
def test_inputs_and_targets_must_have_the_same_rows(inputs: Any) -> None:
    with pytest.raises(DataError, match=r"same number of rows, not \[9, 10\]"):
        TensorExamples(inputs, Y)


# What a site's data may be.


@pytest.mark.parametrize(
    "source",
    [
        (X, Y),
        [X, Y],
        (X.numpy(), Y.numpy()),
        (X.tolist(), Y.tolist()),
        TensorDataset(X, Y),
        Pairs([(x, int(y)) for x, y in zip(X, Y, strict=True)]),
        Pairs([(x.numpy(), y.numpy()) for x, y in zip(X, Y, strict=True)]),
    ],
    ids=["tuple", "list", "numpy", "lists", "tensor dataset", "python numbers", "numpy dataset"],
)
def test_pairs_and_datasets_become_tensors(source: object) -> None:
    examples = as_examples(source)
    assert isinstance(examples, TensorExamples)
    assert torch.equal(examples.inputs, X)  # type: ignore[arg-type]
    assert examples.targets.tolist() == Y.tolist()


def test_several_inputs_may_be_a_tuple_or_a_mapping_of_arrays() -> None:
    by_position = as_examples(((X.numpy(), X), Y))
    by_name = as_examples(({"a": X.numpy(), "b": X}, Y))
    assert isinstance(by_position, TensorExamples)
    assert isinstance(by_name, TensorExamples)
    assert [torch.equal(part, X) for part in by_position.inputs] == [True, True]
    assert {name: torch.equal(part, X) for name, part in by_name.inputs.items()} == {"a": True, "b": True}  # type: ignore[union-attr]


def test_a_dataset_of_mappings_keeps_its_names() -> None:
    examples = as_examples(Pairs([{"ids": x, "mask": x > 0, "label": y} for x, y in zip(X, Y, strict=True)]))
    assert isinstance(examples, TensorExamples)
    assert set(examples.inputs) == {"ids", "mask"}  # type: ignore[arg-type]
    assert examples.targets.tolist() == Y.tolist()


def test_examples_pass_unchanged() -> None:
    examples = TensorExamples(X, Y)
    assert as_examples(examples) is examples


def test_a_loader_keeps_its_own_batches() -> None:
    examples = as_examples(DataLoader(TensorDataset(X, Y), batch_size=4))
    assert isinstance(examples, LoaderExamples)
    assert targets_of(examples.batches(99)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert len(examples) == 10


@pytest.mark.parametrize(
    "options",
    [{"sampler": SubsetRandomSampler(range(7))}, {"batch_size": 4, "drop_last": True}],
    ids=["sampler", "drop last"],
)
def test_a_loader_counts_the_examples_it_gives(options: dict[str, Any]) -> None:
    examples = LoaderExamples(DataLoader(TensorDataset(X, Y), **options))
    assert len(examples) == sum(len(targets) for _, targets in examples.batches(1))


def test_a_loader_with_its_own_generator_follows_the_order() -> None:
    loader = DataLoader(TensorDataset(X, Y), batch_size=4, shuffle=True, generator=torch.Generator())
    examples = LoaderExamples(loader)
    first = targets_of(examples.batches(1, order(1)))
    assert targets_of(examples.batches(1, order(1))) == first
    assert targets_of(examples.batches(1, order(2))) != first


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (DataLoader(Stream()), "north: the DataLoader's dataset has no length; use one that has"),
        (Stream(), "north: an IterableDataset has no length; wrap a sized Dataset in a DataLoader"),
        (Pairs([]), "north is empty; every site needs examples"),
        (X, r"north: cannot read Tensor; give \(inputs, targets\), a torch Dataset or a DataLoader"),
        ((X, Y, Y), "north: cannot read tuple"),
        ((X, Y[:3]), "north"),
        (Pairs([{"x": 1.0}]), "north"),
        ((np.array(["a", "b"]), np.array([0, 1])), "north"),
    ],
    ids=["stream loader", "stream", "empty", "tensor", "triple", "rows", "no targets", "texts"],
)
def test_unreadable_data_is_refused_with_the_site_and_the_remedy(source: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        as_examples(source, "north")


# Batches from loaders.


@pytest.mark.parametrize(
    ("batch", "inputs"),
    [
        ((X, Y), X),
        ([X, Y], X),
        (([X, X], Y), (X, X)),
        ((X, X, Y), (X, X)),
        ({"a": X, "labels": Y}, {"a": X}),
        ({"a": X, "label": Y}, {"a": X}),
        ({"a": X, "targets": Y}, {"a": X}),
        ({"a": X, "target": Y}, {"a": X}),
    ],
)
def test_batches_are_split_into_inputs_and_targets(batch: Any, inputs: Any) -> None:
    split, targets = split_batch(batch)
    assert targets is Y
    assert type(split) is type(inputs)
    assert split is inputs or list(split) == list(inputs)


@pytest.mark.parametrize(("batch", "message"), [({"a": X}, "a has no targets"), (X, "must be"), ((X,), "must be")])
def test_a_batch_without_targets_is_refused(batch: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        split_batch(batch)
