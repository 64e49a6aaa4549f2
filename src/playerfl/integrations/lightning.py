"""SensitivityCallback for PyTorch Lightning."""

from __future__ import annotations

from typing import Any

import torch

from playerfl.errors import ConfigError
from playerfl.integrations.measuring import Measuring
from playerfl.layers.probe import SensitivityProbe

try:
    from lightning.pytorch import Callback
except ImportError as problem:
    raise ImportError("the Lightning callback needs lightning; pip install 'playerfl[lightning]'") from problem

_SHARDING = ("FSDP", "DeepSpeed", "ModelParallel")


class SensitivityCallback(Measuring, Callback):
    """Measures federation sensitivity while a Lightning Trainer trains, by default in its first epoch.

        callback = SensitivityCallback()
        Trainer(max_epochs=5, callbacks=[callback]).fit(module, loader)
        playerfl.recommend({"north": callback.profile()}, module)

    Gradients are read before Lightning clips them, in full under gradient accumulation, and unscaled under mixed
    precision. Several optimisers, DeepSpeed and FSDP are refused, each with a reason.
    """

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        strategy = type(trainer.strategy).__name__
        if any(name in strategy for name in _SHARDING):
            raise ConfigError(
                f"{strategy} shards parameters across processes; measure one epoch without it, on a single device"
            )
        if len(trainer.optimizers) != 1:
            raise ConfigError(
                f"the module has {len(trainer.optimizers)} optimizers, so a batch has no single gradient; attach a "
                "SensitivityProbe to the one that trains the task"
            )
        self.probe = SensitivityProbe(pl_module, **self.probe_options)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: torch.optim.Optimizer) -> None:
        if self.probe is None or trainer.current_epoch >= self.epochs:
            return
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        if scaler is None:
            self.probe.record()
            return
        gradients = [p.grad for p in pl_module.parameters() if p.grad is not None]
        # A step whose gradients overflow in half precision is skipped.
        if all(bool(gradient.isfinite().all()) for gradient in gradients):
            # Fused optimisers unscale inside their step; for all others Lightning has already done so.
            fused = getattr(optimizer, "_step_supports_amp_scaling", False)
            self.probe.record(scale=scaler.get_scale() if fused else None)
