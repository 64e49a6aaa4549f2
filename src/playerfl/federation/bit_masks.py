"""Masks, element by element, as a list of numbers that every wire carries exactly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

BITS = 48
Masks = dict[str, Tensor]


def packed(masks: Masks) -> list[int | float | str]:
    """Masks as a list of integers of 48 bits each.

    >>> packed({"w": torch.tensor([True, False, True])})
    [5]
    """
    bits = torch.cat([mask.flatten() for mask in masks.values()])
    bits = torch.cat([bits, bits.new_zeros(-len(bits) % BITS)]).reshape(-1, BITS)
    return list((bits.long() << torch.arange(BITS)).sum(1).tolist())


def unpacked(numbers: Sequence[float], like: Mapping[str, Tensor]) -> Masks:
    """The inverse of `packed`, for tensors of the same names and shapes in the same order.

    >>> unpacked([5], {"w": torch.zeros(3)})
    {'w': tensor([ True, False,  True])}
    """
    whole = torch.tensor([int(number) for number in numbers])
    bits = ((whole.unsqueeze(1) >> torch.arange(BITS)) & 1).bool().flatten()
    masks, start = {}, 0
    for name, tensor in like.items():
        masks[name] = bits[start : start + tensor.numel()].reshape(tensor.shape)
        start += tensor.numel()
    return masks


def packed_length(elements: int) -> int:
    """How many numbers the masks of this many elements take.

    >>> packed_length(48), packed_length(49)
    (1, 2)
    """
    return -(-elements // BITS)
