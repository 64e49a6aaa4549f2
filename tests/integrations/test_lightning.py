"""The callback inside the real Lightning Trainer, on a tiny model."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import playerfl
from playerfl.errors import ConfigError
from playerfl.seeding import generator_for, seeded_rng
from playerfl.weights import digest

pytestmark = [
    pytest.mark.skipif(find_spec("lightning") is None, reason="lightning is not installed"),
    pytest.mark.system,
    pytest.mark.filterwarnings("ignore"),
]

X = torch.randn(24, 5, generator=generator_for(0, "x"))
Y = torch.randint(3, (24,), generator=generator_for(0, "y"))


def module(optimizer: Callable[[Any], Any] | None = None) -> Any:
    import lightning

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            with seeded_rng(1):
                self.net = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.net(x)
            return out

        def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
            return F.cross_entropy(self(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return (optimizer or (lambda p: torch.optim.SGD(p, lr=0.01)))(self.parameters())

    return Module()


def fitted(model: Any, size: int = 24, callbacks: list[Any] | None = None, **options: Any) -> Any:
    import lightning

    from playerfl.integrations.lightning import SensitivityCallback

    callback = SensitivityCallback()
    trainer = lightning.Trainer(
        **{
            "accelerator": "cpu", "max_epochs": 1, "logger": False, "enable_checkpointing": False,
            "enable_progress_bar": False, "enable_model_summary": False,
            "callbacks": [callback] if callbacks is None else callbacks, **options,
        }
    )  # fmt: skip
    trainer.fit(model, DataLoader(TensorDataset(X, Y), batch_size=size))
    return callback


def whole_batch() -> list[float]:
    from playerfl.layers.probe import SensitivityProbe

    probe = SensitivityProbe(module(), mode="post_epoch")
    return list(probe.measure([(X, Y)], F.cross_entropy).batches[0])


@pytest.mark.parametrize(
    ("options", "tolerance"),
    [
        ({}, 1e-5),
        ({"gradient_clip_val": 1e-3}, 1e-5),
        ({"size": 6, "accumulate_grad_batches": 4}, 1e-4),
        ({"size": 6, "accumulate_grad_batches": 4, "gradient_clip_val": 1e-3}, 1e-4),
        ({"precision": "bf16-mixed"}, 0.1),
    ],
    ids=["plain", "clipped", "accumulated", "accumulated and clipped", "mixed precision"],
)
def test_the_scores_are_those_of_the_whole_batch(options: dict[str, Any], tolerance: float) -> None:
    (row,) = fitted(module(), **options).profile().batches
    assert row == pytest.approx(whole_batch(), rel=tolerance)


@pytest.mark.parametrize("fused", [False, True])
def test_scaled_gradients_are_measured_unscaled(fused: bool) -> None:
    from lightning.pytorch.plugins.precision import MixedPrecision

    class Scaled(MixedPrecision):  # type: ignore[misc]
        """Half precision's scaling without its rounding, which a CPU is slow at."""

        def forward_context(self) -> Any:
            from contextlib import nullcontext

            return nullcontext()

    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    plugin = Scaled("16-mixed", "cpu", scaler)
    model = module(lambda p: torch.optim.SGD(p, lr=0.01, fused=fused))
    (row,) = fitted(model, plugins=[plugin]).profile().batches
    assert row == pytest.approx(whole_batch(), rel=1e-5)


def test_a_step_that_overflowed_is_not_measured() -> None:
    from lightning.pytorch.plugins.precision import MixedPrecision

    plugin = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=1e38))
    callback = fitted(module(), size=8, plugins=[plugin], max_epochs=1)
    with pytest.raises(playerfl.PlayerflError, match="nothing was measured"):
        callback.profile()


def test_only_the_first_epoch_counts_and_training_is_unchanged() -> None:
    measured, alone = module(), module()
    callback = fitted(measured, size=8, max_epochs=2)
    fitted(alone, size=8, max_epochs=2, callbacks=[])
    assert len(callback.profile().batches) == 3
    assert digest(measured.state_dict()) == digest(alone.state_dict())
    assert playerfl.recommend({"north": callback.profile()}, measured).cut.layers == ("net.0", "net.2")


def test_several_optimizers_are_refused() -> None:
    def two(parameters: Any) -> list[Any]:
        every = list(parameters)
        return [torch.optim.SGD(every[:2], lr=0.1), torch.optim.SGD(every[2:], lr=0.1)]

    model = module(two)
    model.automatic_optimization = False
    with pytest.raises(ConfigError, match="has 2 optimizers, so a batch has no single gradient"):
        fitted(model)
