"""Invalid hyper-parameters are refused by name, before anything runs."""

from __future__ import annotations

from typing import Any

import pytest

from playerfl.algorithms import ALGORITHMS
from playerfl.errors import ConfigError

INVALID: dict[str, list[dict[str, Any]]] = {
    "fedprox": [{"mu": -0.1}],
    "ditto": [{"lam": -1.0}, {"personal_epochs": -1}, {"anchor": "never"}],
    "fedbabu": [{"finetune_epochs": -1}, {"finetune": "tail"}],
    "fedlp": [{"keep": -0.1}, {"keep": 1.1}, {"keep": float("nan")}, {"weighting": "none"}],
    "fedlama": [{"tau": 0}, {"phi": 0}, {"warmup_rounds": -1}],
    "pfedla": [{"hyper_learning_rate": -1.0}, {"embedding": 0}, {"hidden": 0}],
    "player_fl": [{"rule": "fixed"}, {"fixed_cut": 2}, {"first_epoch": "never"}],
    "player_fl_fedprox": [{"mu": -1.0}],
    "player_fl_ditto": [{"lam": -1.0}, {"anchor": "never"}, {"personal_epochs": -1}],
    "player_fl_fedrep": [{"head_epochs": -1}, {"body_epochs": -1}],
}


@pytest.mark.parametrize(("name", "invalid"), [(name, each) for name, cases in INVALID.items() for each in cases])
def test_an_invalid_hyperparameter_is_refused_by_name(name: str, invalid: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(invalid))):
        ALGORITHMS[name](**invalid)
