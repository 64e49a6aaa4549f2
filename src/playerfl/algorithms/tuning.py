"""Fine-tuning after the last round, for the methods that have it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from playerfl.federation.client import Client
from playerfl.layers.layer_map import LayerName


async def tune(
    client: Client, epochs: int, learning_rate: float | None, only: Iterable[LayerName] | None = None
) -> None:
    """Some epochs of the model on the bench with an optimiser that remembers nothing of the rounds."""
    client.optimizers.clear()
    optimizer = client.plan.optimizer
    if learning_rate is not None:
        optimizer = replace(optimizer, learning_rate=learning_rate)  # type: ignore[type-var]
    await client.train(epochs, only=only, optimizer=optimizer)
