from __future__ import annotations

import pytest

from playerfl.algorithms import FedAvg, FedProx
from playerfl.federation.client import Client
from playerfl.learning.job import Pull
from playerfl.selftest import identities as selftest
from playerfl.weights import Weights


@pytest.mark.slow
def test_every_identity_holds() -> None:
    findings = selftest.check()
    assert len(findings) > 60
    assert [f"{f.identity.left.name}: {f.difference}" for f in findings if not f.holds] == []


@pytest.mark.slow
def test_a_wrong_baseline_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pull that ignores mu."""

    async def client_train(self: FedProx, client: Client, received: Weights) -> None:
        await client.train(pull=Pull(received, 0.1))

    monkeypatch.setattr(FedProx, "client_train", client_train)
    wrong = selftest.Identity(selftest.Side("FedProx(μ=0)", FedProx(0.0)), selftest.Side("FedAvg", FedAvg()))
    monkeypatch.setattr(selftest, "identities", lambda: iter([wrong]))
    (finding,) = selftest.check()
    assert not finding.holds
    assert finding.difference > 1e-6


def test_a_diverged_run_does_not_count_as_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    diverged = (("training.optimizer", "sgd"), ("training.learning_rate", 1e30))
    side = selftest.Side("FedAvg", FedAvg(), settings=diverged)
    monkeypatch.setattr(selftest, "identities", lambda: iter([selftest.Identity(side, side)]))
    assert not selftest.check()[0].holds
