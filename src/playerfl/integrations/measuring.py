"""What the callbacks share: how long to measure, and where what was measured is found."""

from __future__ import annotations

from typing import Any

from playerfl.errors import ConfigError
from playerfl.layers.layer_map import LayerMap
from playerfl.layers.probe import SensitivityProbe
from playerfl.layers.sensitivity import Profile


class Measuring:
    """Owns the probe; a subclass says when it begins, reads and ends."""

    def __init__(self, *, epochs: int = 1, layers: LayerMap | None = None, **options: Any) -> None:
        """Measures the first `epochs`. `options` go to `SensitivityProbe`: example, include_bias, max_batches …"""
        if epochs < 1:
            raise ConfigError(f"epochs must be at least 1, not {epochs}")
        self.epochs = epochs
        self.probe_options = {**options, "layers": layers}
        self.probe: SensitivityProbe | None = None

    @property
    def layers(self) -> LayerMap:
        """The layers of the model in training."""
        return self._begun().layers

    def profile(self) -> Profile:
        """What was measured, for `playerfl.recommend`."""
        return self._begun().profile()

    def _begun(self) -> SensitivityProbe:
        if self.probe is None:
            raise ConfigError("nothing is measured yet: give this callback to a trainer and let it train")
        return self.probe
