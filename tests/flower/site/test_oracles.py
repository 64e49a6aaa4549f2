"""Oracles: whether an answer may leave depends on the rows, so a round has one question, not only one answer."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import playerfl.flower.site.site as site_module
from flower.attacks import SITE, ask, asked, audit, step
from flower.jobs import Job
from playerfl.flower.site.files.contract import Contract
from playerfl.flower.wire.envelopes import Envelope, Privacy


@pytest.fixture
def secure(tmp_path: Path) -> tuple[Job, Envelope]:
    """A job by secure aggregation, in which a site has answered round 0."""
    job = Job(tmp_path, "fedper", rounds=3)
    job.deployment = replace(job.deployment, privacy=Privacy(secure_range=8.0), min_sites=3)
    job.interrupt("site-2", "0:fit")
    assert ask(job, asked(job, "0:fit")).reply
    return job, asked(job, "0:fit")


def question(job: Job, last: Envelope, value: float) -> Envelope:
    """Round 1 with a weight of this value."""
    contract = Contract.read(job.home / SITE / "job")
    assert contract is not None
    initial = job.sites[SITE].find_setup(job.experiment, SITE).setup.initial
    layers = list(contract.layers.values())[: contract.cut]
    weights = {entry: initial[entry].clone() for entries in layers for entry in entries}
    weights["0.weight"].view(-1)[0] = value
    return step(last, "evaluate", "fit", round_=1, after="0:fit", weights=weights)


def test_a_refusal_is_the_only_answer_of_a_round(secure: tuple[Job, Envelope]) -> None:
    """Whether a value leaves the range of secure aggregation tells whether its update has crossed it: asked with many
    values, one round told an update to any digit, although the server should see sums only."""
    job, last = secure
    beyond = question(job, last, 8.5)
    assert ask(job, beyond).code == "privacy"
    assert [ask(job, question(job, last, value)).code for value in (8.4, 8.01, 0.5)] == ["pinned"] * 3
    assert "1:evaluate was already asked" in audit(job, "refused")[-1]["detail"]
    assert ask(job, beyond).code == "privacy"
    # Other verbs of the same round are the same step.
    alone = step(last, "fit", round_=1, after="0:fit", weights=question(job, last, 0.5).request.download.weights)  # type: ignore[union-attr]
    assert ask(job, alone).code == "pinned"


def test_a_failure_or_a_crash_is_the_only_answer_of_a_round(running: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    last = asked(running, "2:evaluate+fit")
    weights = last.request.download.weights  # type: ignore[union-attr]

    def fail(work: Any) -> None:
        work.close()
        raise RuntimeError("out of memory")

    def asking(scale: float) -> Envelope:
        scaled = {name: tensor * scale for name, tensor in weights.items()}
        return step(last, "evaluate", "fit", round_=3, after="2:evaluate+fit", weights=scaled)

    with monkeypatch.context() as patched:
        patched.setattr(site_module, "drive", fail)
        assert ask(running, asking(1.0)).code == "failed"
    assert ask(running, asking(2.0)).code == "pinned"
    reply = ask(running, asking(1.0)).reply
    assert reply and all(torch.isfinite(tensor).all() for tensor in reply.upload.weights.values())


def test_a_contract_of_an_earlier_version_is_read(running: Job) -> None:
    """It has no questions yet."""
    file = running.home / SITE / "job" / "contract.json"
    table = json.loads(file.read_text())
    assert table.pop("questions")
    file.write_text(json.dumps(table))
    assert ask(running, asked(running, "2:evaluate+fit")).reply
