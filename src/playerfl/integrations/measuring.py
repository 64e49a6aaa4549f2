"""Shared by the callbacks: how long to measure, and access to the scores."""

from __future__ import annotations

from typing import Any

from playerfl.errors import ConfigError
from playerfl.layers.layer_map import LayerMap
from playerfl.layers.probe import SensitivityProbe
from playerfl.layers.sensitivity import Profile


class Measuring:
    """Owns the probe; subclasses decide when it starts, records and stops."""

    def __init__(self, *, epochs: int = 1, layers: LayerMap | None = None, **options: Any) -> None:
        """Measures the first `epochs`. `options` go to `SensitivityProbe`: example, include_bias, max_batches …"""
        if epochs < 1:
            raise ConfigError(f"epochs must be at least 1, not {epochs}")
        self.epochs = epochs
        self.probe_options = {**options, "layers": layers}
        self.probe: SensitivityProbe | None = None

    @property
    def layers(self) -> LayerMap:
        """The layers of the model being trained."""
        return self._started().layers

    def profile(self) -> Profile:
        """The measured profile, for `playerfl.recommend`."""
        return self._started().profile()

    def _started(self) -> SensitivityProbe:
        if self.probe is None:
            raise ConfigError("nothing has been measured yet: pass this callback to a trainer and train")
        return self.probe
