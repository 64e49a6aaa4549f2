"""A method that amounts to a simpler one says so, and then really gives the simpler one's models."""

from __future__ import annotations

import pytest

from federations import build, federate, largest_difference, task
from playerfl.algorithms import (
    ALGORITHMS,
    APFL,
    Algorithm,
    FedALA,
    FedBN,
    FedCAC,
    FedDBE,
    FedLAMA,
    FedLP,
    FedPer,
    FedProx,
    FedSelect,
    LGFedAvg,
    LocalAdaptation,
)


@pytest.mark.parametrize(
    "algorithm",
    [
        FedBN(), FedPer(0), FedPer(4), LGFedAvg(0), LGFedAvg(4), FedProx(0.0), FedLP(1.0), FedLAMA(1, 1),
        LocalAdaptation(0), APFL(0.0), APFL(1.0), FedALA(eta=0.0), FedALA(mixed_layers=0), FedDBE(0.0, offset=False),
        FedCAC(0.0), FedSelect(rate=0.0), FedSelect(limit=0.0),
    ],
)  # fmt: skip
def test_the_simpler_method_that_it_names_gives_the_same_models(algorithm: Algorithm) -> None:
    result = federate(algorithm)
    (note,) = (note for note in result.data["notes"] if "amounts to" in note)
    simpler = note.split("amounts to ")[1].split()[0].lower()
    assert largest_difference(result, federate(simpler)) == 0.0


@pytest.mark.parametrize("name", ALGORITHMS)
def test_with_defaults_and_a_model_that_suits_it_no_method_amounts_to_another(name: str) -> None:
    layers = build("local", task("low-rank adapters" if "lora" in name else "batch norm")).setup.learner.layers
    assert ALGORITHMS[name]().same_as(layers) is None
