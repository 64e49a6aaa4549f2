"""SensitivityCallback for Hugging Face's Trainer."""

from __future__ import annotations

from typing import Any

from playerfl.errors import ConfigError
from playerfl.integrations.measuring import Measuring
from playerfl.layers.probe import SensitivityProbe

try:
    from transformers import TrainerCallback
except ImportError as problem:
    raise ImportError(
        "the Hugging Face callback needs transformers and accelerate; pip install 'playerfl[transformers]'"
    ) from problem


class SensitivityCallback(Measuring, TrainerCallback):
    """Measures federation sensitivity while a Trainer trains, by default in its first epoch.

        callback = SensitivityCallback()
        Trainer(model, arguments, train_dataset=site, callbacks=[callback]).train()
        playerfl.recommend({"north": callback.profile()}, model)

    Gradients are read before the Trainer clips them (its own event comes after clipping), in full under gradient
    accumulation, and unscaled under mixed precision. DeepSpeed and FSDP are refused, because they shard parameters
    across processes.
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, **trained: Any) -> None:
        for sharding in ("deepspeed", "fsdp"):
            if getattr(args, sharding, None):
                raise ConfigError(f"the Trainer uses {sharding}, which shards parameters; measure one epoch without it")
        self.probe = SensitivityProbe(trained["model"], **self.probe_options)
        # accelerate wraps the optimiser and holds the scaler for mixed precision.
        optimizer = trained["optimizer"]
        inner = getattr(optimizer, "optimizer", optimizer)
        self.probe.attach(inner, before_clipping=True, scaler=getattr(optimizer, "scaler", None))

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        # The epoch is a sum of fractions, so it may fall short by a rounding error.
        if self.probe is not None and state.epoch is not None and state.epoch >= self.epochs - 1e-6:
            self.probe.detach()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.probe is not None:
            self.probe.detach()
