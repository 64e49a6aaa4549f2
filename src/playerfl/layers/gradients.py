"""Gradients at fixed weights, batch by batch or of the mean loss over all batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from playerfl.layers.derive import call_model

Gradients = dict[str, Tensor | None]
"""By parameter name; None for a parameter the loss does not use."""
LossFunction = Callable[[Any, Any], Tensor]
"""The loss per example, or its mean."""


def batch_gradients(
    model: nn.Module, batches: Iterable[tuple[Any, Any]], loss: LossFunction, limit: int | None = None
) -> Iterator[tuple[Gradients, int]]:
    """Each batch's gradient of the mean loss, and its number of rows."""
    names, parameters = zip(*((n, p) for n, p in model.named_parameters() if p.requires_grad), strict=True)
    for inputs, targets in islice(batches, limit):
        value = loss(call_model(model, inputs), targets).mean()
        gradients = torch.autograd.grad(value, parameters, allow_unused=True)
        yield dict(zip(names, gradients, strict=True)), len(targets)


def mean_gradient(
    model: nn.Module, batches: Iterable[tuple[Any, Any]], loss: LossFunction, limit: int | None = None
) -> tuple[Gradients, int]:
    """The gradient of the mean loss over all rows, summed in float64, and the number of rows."""
    summed: Gradients = {}
    rows = 0
    for gradients, size in batch_gradients(model, batches, loss, limit):
        rows += size
        for name, gradient in gradients.items():
            before = summed.get(name)
            if gradient is not None:
                # Apple's mps device has no float64.
                part = gradient.to(torch.float64 if gradient.device.type != "mps" else None) * size
                summed[name] = part if before is None else before + part
            else:
                summed.setdefault(name, None)
    return {name: None if total is None else total / rows for name, total in summed.items()}, rows


@contextmanager
def preserve_state(model: nn.Module) -> Iterator[None]:
    """Restores the model's modes and buffers, and the random state, afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    buffers = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
    try:
        with torch.random.fork_rng():
            yield
    finally:
        for module, training in modes:
            module.training = training
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(buffers[name])
