"""Named weights and the arithmetic across sites."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

import torch
from torch import Tensor

Weights = dict[str, Tensor]
"""State entries of a model by name: parameters and buffers."""


class Measured(Protocol):
    """A tensor, or what stands for one."""

    @property
    def nbytes(self) -> int: ...


Key = TypeVar("Key", bound=Hashable)
Held = TypeVar("Held", bound=Measured)

# Small models are summed in one call; of large ones at most this much (or one entry) is read at a time.
_BYTES_AT_ONCE = 2**26
# Adding float32 to float64 makes a copy in float64 first: of this many numbers it stays in the processor's cache.
_NUMBERS_AT_ONCE = 2**18


def weighted_mean(
    parts: Sequence[tuple[Mapping[str, Tensor], float]], combine: Callable[[Sequence[Tensor]], Tensor] | None = None
) -> Weights:
    """The weighted mean of each entry over the sites that sent it, summed in float64 in the given order.

    One function serves full, partial and random uploads. Equal uploads give the same bits back, and so
    does a single one. Integer entries (batch norm's step counter) have no mean, so the largest is taken.
    `combine` replaces the mean where entries differ.

    >>> mean = weighted_mean([({"w": torch.tensor([1.0])}, 1), ({"w": torch.tensor([4.0])}, 2)])
    >>> mean["w"]
    tensor([3.])
    """
    senders: dict[str, tuple[int, ...]] = {
        name: tuple(i for i, (weights, _) in enumerate(parts) if name in weights)
        for name in dict.fromkeys(name for weights, _ in parts for name in weights)
    }
    means: Weights = {}
    for group in dict.fromkeys(senders.values()):
        sent = [parts[i] for i in group]
        of_first = ((name, sent[0][0][name]) for name, sites in senders.items() if sites == group)
        for first in some_at_once(of_first, _BYTES_AT_ONCE):
            means |= _means(first, sent, combine)
    return {name: means[name] for name in senders}


def _means(
    first: Weights,
    parts: Sequence[tuple[Mapping[str, Tensor], float]],
    combine: Callable[[Sequence[Tensor]], Tensor] | None,
) -> Weights:
    """The means of the entries that all of these parts have; `first` holds those of the first part."""
    # Equal entries are not summed: in float64 three thirds need not be one, and 0.0 + -0.0 loses its sign.
    means = {name: e.clone() for name, e in first.items() if all(torch.equal(w[name], e) for w, _ in parts[1:])}
    if combine is not None:
        return means | {name: combine([w[name] for w, _ in parts]) for name in first if name not in means}
    counts = [name for name, entry in first.items() if name not in means and not entry.is_floating_point()]
    means |= {name: torch.stack([w[name] for w, _ in parts]).amax(0) for name in counts}
    if others := [name for name in first if name not in means]:
        sums = [torch.zeros_like(first[name], dtype=torch.float64) for name in others]
        total = sum(share for _, share in parts)
        for weights, share in [(first, parts[0][1]), *parts[1:]]:
            _add(sums, [weights[name] for name in others], share / total)
        means |= {name: mean.to(first[name].dtype) for name, mean in zip(others, sums, strict=True)}
    return means


def _add(sums: Sequence[Tensor], entries: Sequence[Tensor], factor: float) -> None:
    """sums += factor · entries, in place; large ones piece by piece, with the same bits."""
    pieces: list[tuple[Tensor, Tensor]] = []
    for total, entry in zip(sums, entries, strict=True):
        if total.numel() > _NUMBERS_AT_ONCE and total.is_contiguous() and entry.is_contiguous():
            begins = list(range(_NUMBERS_AT_ONCE, total.numel(), _NUMBERS_AT_ONCE))
            pieces += zip(total.view(-1).tensor_split(begins), entry.view(-1).tensor_split(begins), strict=True)
        else:
            pieces.append((total, entry))
    torch._foreach_add_([total for total, _ in pieces], [entry for _, entry in pieces], alpha=factor)


def some_at_once(tensors: Iterable[tuple[Key, Held]], most: int) -> Iterator[dict[Key, Held]]:
    """Splits tensors into parts of at most `most` bytes, or of a single tensor.

    >>> [list(part) for part in some_at_once(zip("abc", torch.ones(3, 2)), 16)]
    [['a', 'b'], ['c']]
    """
    part: dict[Key, Held] = {}
    size = 0
    for key, tensor in tensors:
        if part and size + tensor.nbytes > most:
            yield part
            part, size = {}, 0
        part[key] = tensor
        size += tensor.nbytes
    if part:
        yield part


def squared_distance(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> float:
    """‖left - right‖² over the floating-point entries both have, in float64.

    >>> squared_distance({"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([4.0, 2.0]), "b": torch.ones(1)})
    9.0
    """
    # An entry of a large model takes much memory in float64: it is made once and worked on in place.
    return sum(
        float(_minus(tensor, right[name]).square_().sum())
        for name, tensor in left.items()
        if name in right and tensor.is_floating_point()
    )


def _minus(left: Tensor, right: Tensor) -> Tensor:
    """left - right in float64."""
    difference = left.to(torch.float64, copy=True)
    _add([difference], [right], -1)
    return difference


def prefixed(prefix: str, weights: Mapping[str, Tensor]) -> Weights:
    """The same tensors under longer names, to send them along with the weights they belong to.

    >>> list(prefixed("control/", {"w": torch.zeros(1)}))
    ['control/w']
    """
    return {prefix + name: tensor for name, tensor in weights.items()}


def unprefixed(prefix: str, weights: Mapping[str, Tensor]) -> Weights:
    """The tensors whose names begin with a prefix, without it: the inverse of `prefixed`."""
    return {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}


def num_bytes(weights: Mapping[str, Tensor]) -> int:
    """Bytes of the tensors themselves, without names or framing.

    >>> num_bytes({"w": torch.zeros(3, 2), "steps": torch.tensor(7)})
    32
    """
    return sum(tensor.nbytes for tensor in weights.values())


def raw(tensor: Tensor) -> memoryview:
    """A tensor's bytes, without a copy if it is contiguous and on the CPU."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def digest(weights: Mapping[str, Tensor]) -> str:
    """A fingerprint of names, shapes, dtypes and bits: equal digests mean equal weights.

    >>> digest({"w": torch.zeros(2)}) == digest({"w": torch.zeros(2, dtype=torch.float64)})
    False
    """
    fingerprint = hashlib.blake2b(digest_size=16)
    for name in sorted(weights):
        tensor = weights[name]
        fingerprint.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        fingerprint.update(raw(tensor))
    return fingerprint.hexdigest()
