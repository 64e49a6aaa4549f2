"""A site's examples: tensors that are sliced into batches, or the user's own DataLoader."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sized
from dataclasses import dataclass
from functools import cache, partial
from operator import itemgetter
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, default_collate

from playerfl.errors import DataError

Inputs = Tensor | tuple[Tensor, ...] | Mapping[str, Tensor]
"""A model's inputs, for `model(x)`, `model(*x)` or `model(**x)`."""
Batch = tuple[Any, Tensor]


class Examples(Protocol):
    """Anything that can be counted and read in batches."""

    def __len__(self) -> int: ...

    def batches(self, size: int, order: torch.Generator | None = None, *, join_single: bool = False) -> Iterator[Batch]:
        """Batches of (inputs, targets): shuffled by `order`, or in their stored order if it is None.

        `join_single` adds a last batch of one row to the one before it: batch norm cannot train on one row.
        """
        ...

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Examples:
        """The same examples with every tensor changed (moved to a device, laid out differently)."""
        ...


@dataclass(frozen=True)
class TensorExamples:
    """Examples held in memory: inputs and targets with the same number of rows."""

    inputs: Inputs
    targets: Tensor

    def __post_init__(self) -> None:
        check_inputs(self.inputs)
        rows = {len(tensor) for tensor in (*tensors_in(self.inputs), self.targets)}
        if len(rows) > 1:
            raise DataError(f"inputs and targets must have the same number of rows, not {sorted(rows)}")

    def __len__(self) -> int:
        return self.targets.shape[0]

    def batches(self, size: int, order: torch.Generator | None = None, *, join_single: bool = False) -> Iterator[Batch]:
        rows = len(self)
        whole = join_single and rows > size and rows % size == 1
        stops = [*range(size, rows - 1 if whole else rows, size), rows]
        shuffled = None if order is None else torch.randperm(rows, generator=order).to(self.targets.device)
        start = 0
        for stop in stops if rows else ():
            chosen = slice(start, stop) if shuffled is None else shuffled[start:stop]
            yield map_tensors(self.inputs, partial(_taken, rows=chosen)), _taken(self.targets, chosen)
            start = stop

    def mapped(self, change: Callable[[Tensor], Tensor]) -> TensorExamples:
        return TensorExamples(map_tensors(self.inputs, change), change(self.targets))

    @property
    def num_bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in (*tensors_in(self.inputs), self.targets))

    def rows(self, indices: Tensor) -> TensorExamples:
        return TensorExamples(map_tensors(self.inputs, itemgetter(indices)), self.targets[indices])


@dataclass(frozen=True)
class LoaderExamples:
    """Examples read through the user's own DataLoader, with its batch size and its shuffling."""

    loader: DataLoader[Any]
    what: str = "data"
    """Whose examples these are, for messages."""
    change: Callable[[Tensor], Tensor] = lambda tensor: tensor

    def __len__(self) -> int:
        return _rows_of(self.loader)

    def batches(self, size: int, order: torch.Generator | None = None, *, join_single: bool = False) -> Iterator[Batch]:
        if order is not None and self.loader.generator is not None:
            # The loader's generator carries state from earlier epochs, which a resumed run has not seen.
            self.loader.generator.manual_seed(int(torch.randint(2**62, (), generator=order)))
        for number, batch in enumerate(self.loader):
            inputs, targets = split_batch(batch)
            check_inputs(inputs, f"{self.what}, batch {number}: ")
            # The batch before it is already gone, so a single row cannot join it and is left out.
            if join_single and len(targets) == 1 and number:
                continue
            for tensor in (*tensors_in(inputs), targets):
                if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                    raise DataError(
                        f"{self.what} has NaN or infinite values in batch {number}; drop or impute them before training"
                    )
            yield map_tensors(inputs, self.change), self.change(whole_numbers(targets))

    def mapped(self, change: Callable[[Tensor], Tensor]) -> LoaderExamples:
        before = self.change
        return LoaderExamples(self.loader, self.what, lambda tensor: change(before(tensor)))


@cache
def _rows_of(loader: DataLoader[Any]) -> int:
    """The number of rows a loader yields per epoch; its sampler decides, not its dataset."""
    if loader.batch_sampler is None:
        return len(loader.dataset)  # type: ignore[arg-type]
    if type(loader.batch_sampler) is not BatchSampler:
        return sum(len(rows) for rows in loader.batch_sampler)
    rows = len(loader.sampler)  # type: ignore[arg-type]
    return rows - rows % loader.batch_size if loader.drop_last else rows  # type: ignore[operator]


def whole_numbers(targets: Tensor) -> Tensor:
    """Class numbers in the dtype that losses expect; other targets unchanged."""
    is_class = not targets.is_floating_point() and targets.dtype != torch.bool
    return targets.long() if is_class else targets


@dataclass(frozen=True)
class SiteData:
    """One site's data: for training, for choosing the best round, and for the reported scores."""

    train: Examples
    validation: Examples
    test: Examples

    def mapped(self, change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> SiteData:
        """The same site with the (inputs, targets) of every part changed; its examples must be single tensors."""
        parts = (self.train, self.validation, self.test)
        return SiteData(*(TensorExamples(*change(*tensor_pair(part))) for part in parts))


def tensor_pair(examples: Examples) -> tuple[Tensor, Tensor]:
    """The inputs and targets of examples in memory, where a model takes one tensor."""
    assert isinstance(examples, TensorExamples)
    assert isinstance(examples.inputs, Tensor)
    return examples.inputs, examples.targets


def as_examples(source: object, what: str = "data") -> Examples:
    """Accepts (inputs, targets) tensors, a torch Dataset or a DataLoader.

    >>> len(as_examples((torch.zeros(4, 2), torch.zeros(4, dtype=torch.long))))
    4
    """
    try:
        return _read(source, what)
    except (DataError, TypeError, ValueError) as problem:
        if isinstance(problem, DataError) and str(problem).startswith(what):
            raise
        raise DataError(f"{what}: {problem}") from problem


def _read(source: object, what: str) -> Examples:
    if isinstance(source, TensorExamples | LoaderExamples):
        return source
    if isinstance(source, DataLoader):
        if not isinstance(source.dataset, Sized):
            raise DataError(f"{what}: the DataLoader's dataset has no length; use one that has")
        return LoaderExamples(source, what)
    if isinstance(source, IterableDataset):
        raise DataError(f"{what}: an IterableDataset has no length; wrap a sized Dataset in a DataLoader")
    if isinstance(source, Dataset):
        return _in_memory(source, what)
    if isinstance(source, tuple | list) and len(source) == 2:
        inputs = map_tensors(source[0], _as_tensor)
        return TensorExamples(inputs, whole_numbers(torch.as_tensor(source[1])))
    raise DataError(
        f"{what}: cannot read {type(source).__name__}; give (inputs, targets), a torch Dataset or a DataLoader"
    )


def _as_tensor(value: Any) -> Any:
    """The value as a tensor if it is an array or list of numbers; anything else as it is, for `check_inputs`."""
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        return value


def _in_memory(dataset: Dataset[Any], what: str) -> TensorExamples:
    rows = len(dataset)  # type: ignore[arg-type]
    if rows == 0:
        raise DataError(f"{what} is empty; every site needs examples")
    inputs, targets = split_batch(default_collate([dataset[i] for i in range(rows)]))
    return TensorExamples(inputs, whole_numbers(targets))


def split_batch(batch: Any) -> Batch:
    """(inputs, targets) of a collated batch: a pair, several inputs with the target last, or a mapping with
    the targets under "labels", "label", "targets" or "target"."""
    if isinstance(batch, Mapping):
        for key in ("labels", "label", "targets", "target"):
            if key in batch:
                return {name: value for name, value in batch.items() if name != key}, batch[key]
        raise DataError(f"a batch with the keys {', '.join(batch)} has no targets; call them 'labels'")
    if isinstance(batch, tuple | list) and len(batch) == 2:
        inputs = batch[0]
        return (tuple(inputs) if isinstance(inputs, list) else inputs), batch[1]
    if isinstance(batch, tuple | list) and len(batch) > 2:
        return tuple(batch[:-1]), batch[-1]
    raise DataError("a batch must be (inputs, targets), (input, input, …, targets) or a mapping with 'labels'")


def check_inputs(inputs: object, where: str = "") -> None:
    """Refuses inputs that a model cannot be called with, such as mappings within mappings, or text."""
    parts = inputs.items() if isinstance(inputs, Mapping) else enumerate(inputs) if isinstance(inputs, tuple) else None
    for name, value in parts if parts is not None else [("", inputs)]:
        if not isinstance(value, Tensor):
            which = "inputs are" if parts is None else f"input {name!r} is"
            raise DataError(
                f"{where}{which} of type {type(value).__name__}; inputs must be a tensor, a tuple of tensors (the "
                "model is called with them in order) or a mapping from names to tensors (with them as keywords)"
            )


def tensors_in(inputs: Any) -> list[Tensor]:
    if isinstance(inputs, Tensor):
        return [inputs]
    return list(inputs.values() if isinstance(inputs, Mapping) else inputs)


def _taken(tensor: Tensor, rows: Tensor | slice) -> Tensor:
    # `index_select` takes a quarter of the time that indexing takes for pictures, but forgets that they are stored
    # channels last.
    if isinstance(rows, slice) or not tensor.is_contiguous():
        return tensor[rows]
    return tensor.index_select(0, rows)


def map_tensors(inputs: Any, change: Callable[[Any], Tensor]) -> Any:
    if isinstance(inputs, Mapping):
        return {name: change(tensor) for name, tensor in inputs.items()}
    if isinstance(inputs, tuple):
        return tuple(change(tensor) for tensor in inputs)
    return change(inputs)
