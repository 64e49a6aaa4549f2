from __future__ import annotations

import pytest

from playerfl.errors import DataError, PlayerflError
from playerfl.runs.experiment import Experiment
from playerfl.tasks.bundled.synthetic import SyntheticOptions, load_sites


def test_data_too_large_for_memory_is_refused_before_it_is_generated() -> None:
    with pytest.raises(DataError, match="this would generate 10,000,000,000 numbers; the limit is 100,000,000"):
        load_sites(SyntheticOptions(rows=1_000_000, features=1000, sites=10))
    with pytest.raises(PlayerflError, match="features"):
        Experiment.resolve({"task": "synthetic", "data": {"features": 2**63}})
