"""Small sites and models on which algorithms are checked."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

FEATURES, CLASSES = 6, 3


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(FEATURES, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, CLASSES)
    )


def with_batch_norm() -> nn.Module:
    return nn.Sequential(
        nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(),
        nn.Linear(8, CLASSES),
    )  # fmt: skip


def with_dropout() -> nn.Module:
    return nn.Sequential(
        nn.Linear(FEATURES, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, CLASSES)
    )


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 4, 2, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 2), nn.ReLU(),
        nn.Flatten(), nn.Linear(4 * 2 * 3, CLASSES),
    )  # fmt: skip


def frozen_first() -> nn.Module:
    model = mlp()
    model.get_submodule("0").requires_grad_(False)
    return model


class LowRank(nn.Module):
    """A frozen linear layer with a LoRA adapter, as peft names its parts: x ↦ W·x + B·A·x."""

    def __init__(self, features: int, outputs: int, rank: int = 2) -> None:
        super().__init__()
        self.base_layer = nn.Linear(features, outputs).requires_grad_(False)
        self.lora_A = nn.Linear(features, rank, bias=False)
        self.lora_B = nn.Linear(rank, outputs, bias=False)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x: Tensor) -> Tensor:
        adapted: Tensor = self.base_layer(x) + self.lora_B(self.lora_A(x))
        return adapted


def with_adapters() -> nn.Module:
    return nn.Sequential(
        LowRank(FEATURES, 8), nn.ReLU(), LowRank(8, 8), nn.ReLU(), LowRank(8, 8), nn.ReLU(), nn.Linear(8, CLASSES)
    )


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": mlp,
    "batch norm": with_batch_norm,
    "dropout": with_dropout,
    "convolutional": convolutional,
    "frozen first layer": frozen_first,
    "low-rank adapters": with_adapters,
}


def sites(count: int = 3, rows: tuple[int, ...] = (40, 57, 33, 25)) -> dict[str, tuple[Tensor, Tensor]]:
    """Sites of different sizes that share features and name their classes differently."""
    generator = torch.Generator().manual_seed(7)
    direction = torch.randn(FEATURES, CLASSES, generator=generator)
    by_site = {}
    for i in range(count):
        inputs = torch.randn(rows[i], FEATURES, generator=generator)
        by_site[f"site-{i}"] = (inputs, ((inputs @ direction).argmax(1) + i) % CLASSES)
    return by_site
