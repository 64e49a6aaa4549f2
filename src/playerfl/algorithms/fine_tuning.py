"""Fine-tuning after the last round."""

from __future__ import annotations

from collections.abc import Iterable

from playerfl.federation.client import Client
from playerfl.layers.layer_map import LayerName
from playerfl.learning.optimizers import with_rate


async def tune(
    client: Client, epochs: int, learning_rate: float | None, only: Iterable[LayerName] | None = None
) -> None:
    """Trains the loaded model for some epochs, with a fresh optimiser."""
    client.optimizers.clear()
    await client.train(epochs, only=only, optimizer=with_rate(client.plan.optimizer, learning_rate))
