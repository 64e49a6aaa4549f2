"""Fine-tuning after the last round, for the methods that have it."""

from __future__ import annotations

from collections.abc import Iterable

from playerfl.federation.client import Client
from playerfl.layers.layer_map import LayerName
from playerfl.learning.optimizers import with_rate


async def tune(
    client: Client, epochs: int, learning_rate: float | None, only: Iterable[LayerName] | None = None
) -> None:
    """Some epochs of the model on the bench with an optimiser that remembers nothing of the rounds."""
    client.optimizers.clear()
    await client.train(epochs, only=only, optimizer=with_rate(client.plan.optimizer, learning_rate))
