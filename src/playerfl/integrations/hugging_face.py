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

    Gradients are taken before the Trainer clips them (its own event comes after that), complete where they are
    accumulated, and unscaled under mixed precision. DeepSpeed and FSDP are refused: they spread parameters over
    processes.
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, **at_hand: Any) -> None:
        for spread in ("deepspeed", "fsdp"):
            if getattr(args, spread, None):
                raise ConfigError(
                    f"the Trainer uses {spread}, which spreads parameters over processes; measure one epoch without it"
                )
        self.probe = SensitivityProbe(at_hand["model"], **self.probe_options)
        # accelerate wraps the optimiser and holds the scaler of mixed precision.
        optimizer = at_hand["optimizer"]
        inner = getattr(optimizer, "optimizer", optimizer)
        self.probe.attach(inner, before_clipping=True, scaler=getattr(optimizer, "scaler", None))

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        # The epoch is a sum of fractions, so a whole one may fall short by a rounding error.
        if self.probe is not None and state.epoch is not None and state.epoch >= self.epochs - 1e-6:
            self.probe.detach()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.probe is not None:
            self.probe.detach()
