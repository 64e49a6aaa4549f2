"""Limit cases again where batch-norm statistics never leave a site: each model must keep its own."""

from __future__ import annotations

import pytest

from algorithms.recorder import assert_same_models
from federations import federate, task
from playerfl.algorithms import (
    Algorithm,
    Ditto,
    FedAvg,
    FedLAMA,
    FedLP,
    FedPer,
    FedProx,
    FedRep,
    Local,
    LocalAdaptation,
    PLayerFL,
    PLayerFLFedProx,
    PLayerFLFedRep,
)

LIMITS: list[tuple[Algorithm, Algorithm]] = [
    (FedProx(mu=0.0), FedAvg()),
    (FedLP(keep=1.0), FedAvg()),
    (FedLAMA(tau=1, phi=1), FedAvg()),
    (LocalAdaptation(adapt_epochs=0), FedAvg()),
    (FedRep(personal_layers=0), FedAvg()),
    (PLayerFL(rule="fixed", fixed_cut=3), FedAvg()),
    (Ditto(lam=0.0), Local()),
    (FedLAMA(tau=4), Local()),
    (FedRep(personal_layers=3), Local()),
    (PLayerFL(rule="fixed", fixed_cut=0), Local()),
    (PLayerFL(rule="fixed", fixed_cut=0, first_epoch="restart"), Local()),
    (PLayerFL(rule="fixed", fixed_cut=1), FedPer(personal_layers=2)),
    (PLayerFLFedProx(rule="fixed", fixed_cut=2, mu=0.0), FedPer()),
    (PLayerFLFedRep(rule="fixed", fixed_cut=2), FedRep()),
]


@pytest.mark.parametrize(("left", "right"), LIMITS, ids=lambda a: type(a).__name__)
def test_a_limit_case_keeps_its_statistics_too(left: Algorithm, right: Algorithm) -> None:
    own = task("batch norm")
    assert_same_models(federate(left, own, bn_stats="local"), federate(right, own, bn_stats="local"))
