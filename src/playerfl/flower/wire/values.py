"""Which numbers a tensor in a message may hold, whichever side sends it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

LARGEST_WEIGHT = 1e32
"""Far beyond the weights of any model that still works; means and distances of such numbers do not overflow."""
LARGEST_COUNT = 2.0**53


def unusable_values(name: str, tensor: Tensor) -> str | None:
    """Why a tensor cannot be computed with, or None.

    >>> unusable_values("fc.bias", torch.tensor([1.0, -3e38]))
    "'fc.bias' has values beyond 1e+32"
    """
    if not tensor.numel() or tensor.dtype == torch.bool:
        return None
    lowest, highest = (float(value) for value in torch.aminmax(tensor))
    if not (math.isfinite(lowest) and math.isfinite(highest)):
        return f"{name!r} has NaN or infinite values"
    largest = LARGEST_WEIGHT if tensor.is_floating_point() else LARGEST_COUNT
    if max(-lowest, highest) > largest:
        return f"{name!r} has values beyond {largest:g}"
    return None
