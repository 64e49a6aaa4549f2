"""Named weights and the arithmetic that crosses sites."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

Weights = dict[str, Tensor]
"""State entries of a model by name: parameters and buffers."""


def weighted_mean(parts: Sequence[tuple[Mapping[str, Tensor], float]]) -> Weights:
    """The mean of each entry over those who sent it, weighted, summed in float64 in the given order.

    One function serves full, partial and random uploads. Equal uploads give the same bits back, and so
    does a single one. Integer entries (batch norm's step counter) have no mean: the largest is taken.

    >>> mean = weighted_mean([({"w": torch.tensor([1.0])}, 1), ({"w": torch.tensor([4.0])}, 2)])
    >>> mean["w"]
    tensor([3.])
    """
    names = dict.fromkeys(name for weights, _ in parts for name in weights)
    return {name: _mean_of([(w[name], share) for w, share in parts if name in w]) for name in names}


def _mean_of(tensors: Sequence[tuple[Tensor, float]]) -> Tensor:
    first = tensors[0][0]
    if not first.is_floating_point():
        return torch.stack([tensor for tensor, _ in tensors]).amax(0)
    if all(torch.equal(tensor, first) for tensor, _ in tensors):
        # No sum: in float64 three thirds need not be one, and 0.0 + -0.0 loses its sign.
        return first.clone()
    total = sum(share for _, share in tensors)
    mean = torch.zeros_like(first, dtype=torch.float64)
    for tensor, share in tensors:
        mean.add_(tensor, alpha=share / total)
    return mean.to(first.dtype)


def squared_distance(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> float:
    """‖left - right‖² over the floating-point entries both have, in float64.

    >>> squared_distance({"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([4.0, 2.0]), "b": torch.ones(1)})
    9.0
    """
    return sum(
        float((tensor.double() - right[name].double()).square().sum())
        for name, tensor in left.items()
        if name in right and tensor.is_floating_point()
    )


def num_bytes(weights: Mapping[str, Tensor]) -> int:
    """Bytes of the tensors themselves, without names or framing.

    >>> num_bytes({"w": torch.zeros(3, 2), "steps": torch.tensor(7)})
    32
    """
    return sum(tensor.nbytes for tensor in weights.values())


def digest(weights: Mapping[str, Tensor]) -> str:
    """A fingerprint of names, shapes, kinds and bits: equal digests mean equal weights.

    >>> digest({"w": torch.zeros(2)}) == digest({"w": torch.zeros(2, dtype=torch.float64)})
    False
    """
    fingerprint = hashlib.blake2b(digest_size=16)
    for name in sorted(weights):
        tensor = weights[name].detach().cpu().contiguous()
        fingerprint.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        fingerprint.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return fingerprint.hexdigest()
