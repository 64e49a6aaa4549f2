"""What leaves without noise is not covered by ε: a budget does not let it pass in silence, and people are told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flower.attacks import SITE, audit
from flower.jobs import Job
from playerfl.errors import ConfigError
from playerfl.flower.server.transport import TooFewSitesError
from playerfl.flower.site.describe import described
from playerfl.flower.site.files.contract import Contract
from playerfl.flower.site.policy import Policy
from playerfl.flower.wire.envelopes import Privacy

NOISY = Privacy(clip=1.0, noise=20.0)


def policy_with(budget: dict[str, Any] | None = None, sharing: dict[str, Any] | None = None) -> Policy:
    return Policy.of({"approval": "automatic", "budget": budget or {}, "sharing": sharing or {}})


def job_of(home: Path, algorithm: str, policy: Policy, privacy: Privacy = NOISY) -> Job:
    job = Job(home, algorithm, rounds=1, policy=policy)
    job.deployment = replace(job.deployment, privacy=privacy)
    return job


def words(job: Job, policy: Policy) -> str:
    contract = Contract.read(job.home / SITE / "job")
    assert contract is not None
    return "\n".join(described(contract, policy))


def test_a_budget_with_scores_is_a_contradiction_unless_the_policy_says_so() -> None:
    with pytest.raises(ConfigError, match=r"a budget cannot count scores.*scores = false in \[sharing\]"):
        policy_with({"epsilon": 1.0})
    assert policy_with({"epsilon": 1.0}, {"scores": False})
    assert policy_with({"epsilon": 1.0, "uncounted": ["scores"]})


@pytest.mark.parametrize(("algorithm", "numbers"), [("player_fl", "importance"), ("feddbe", "mean")])
def test_a_site_with_a_budget_refuses_measurements_unless_its_policy_accepts_them(
    algorithm: str, numbers: str, tmp_path: Path
) -> None:
    """They are computed from rows and leave as they are: ε over all uploads was not true."""
    strict = job_of(tmp_path / "strict", algorithm, policy_with({"epsilon": 9.0}, {"scores": False}))
    with pytest.raises(TooFewSitesError, match="policy or a person there refuses the job"):
        strict.run()
    assert numbers in audit(strict, "refused")[0]["detail"]
    assert audit(strict, "left") == []
    accepting = policy_with({"epsilon": 9.0, "uncounted": ["measurements"]}, {"scores": False})
    lenient = job_of(tmp_path / "lenient", algorithm, accepting)
    lenient.run()
    [measured] = [entry for entry in audit(lenient, "left") if entry["verbs"] == ["prepare"]]
    assert (measured["uncounted"], measured["epsilon"]) == ([numbers], 0.0)


@pytest.mark.slow
def test_a_method_without_measurements_needs_no_exception(tmp_path: Path) -> None:
    job = job_of(tmp_path, "fedper", policy_with({"epsilon": 9.0}, {"scores": False}))
    job.run()
    assert not any("uncounted" in entry for entry in audit(job, "left"))


def test_the_description_of_a_job_says_what_else_leaves(tmp_path: Path) -> None:
    """`scores = false` was described as scores of every round, and the measurements were not mentioned."""
    sharing = policy_with(None, {"data_check": "findings"})
    job = job_of(tmp_path, "player_fl", sharing)
    job.run()
    told = words(job, sharing)
    assert "4 numbers (importance), measured on this site's rows before the first round" in told
    assert "training, validation and test scores of every round" in told
    assert "names of columns and classes" in told and "how many warnings the data check has" in told
    assert "ε does not cover importance and scores, which leave without noise" in told
    quiet = words(job, policy_with(None, {"scores": False, "column_names": False}))
    assert "scores of every round" not in quiet and "ε does not cover importance, which" in quiet
    assert "kept here by the policy: scores, names of columns and classes, the data check" in quiet


def test_scores_in_a_noisy_job_are_marked_in_the_audit_log(tmp_path: Path) -> None:
    job = job_of(tmp_path, "fedper", policy_with())
    job.run()
    assert audit(job, "left")[-1]["uncounted"] == ["scores"]


@pytest.mark.parametrize(("privacy", "sent"), [(NOISY, False), (Privacy(clip=1.0), True)], ids=["noise", "none"])
def test_no_fingerprint_of_the_model_leaves_a_noisy_job(privacy: Privacy, sent: bool, tmp_path: Path) -> None:
    """It would confirm a guess of the rows that the model was trained on, whatever the noise."""
    job = job_of(tmp_path, "fedper", policy_with(), privacy)
    job.run()
    assert (SITE in job.fingerprints) == sent
    assert (job.home / SITE / "job" / "model.safetensors").exists()
    told = words(job, policy_with())
    assert ("a fingerprint of the finished model" in told) == sent
