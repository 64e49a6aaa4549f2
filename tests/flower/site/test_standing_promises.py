"""What a site has promised holds later, too: with other data, another policy, without its state, before approval."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key
from typer.testing import CliRunner

from federations import task
from flower.attacks import SITE, ask, asked, audit, step
from flower.jobs import Job, site_setup
from playerfl.algorithms import FedPer
from playerfl.cli.main import app
from playerfl.errors import ConfigError, PlayerflError
from playerfl.federation.messages import Reply
from playerfl.flower.server.transport import TooFewSitesError
from playerfl.flower.site.describe import described
from playerfl.flower.site.files.contract import Contract
from playerfl.flower.site.policy import Policy
from playerfl.flower.wire.codec import decode_envelope, decode_response, envelope_parcel
from playerfl.flower.wire.envelopes import Envelope, Privacy
from playerfl.flower.wire.parcel import Parcel
from playerfl.flower.wire.secure import MODULUS, QUANTISATION
from playerfl.selftest.small import sites

SETUP = {
    Key.STAGE: "setup", Key.SAMPLE_NUMBER: 3, Key.SHARE_NUMBER: 3, Key.THRESHOLD: 2, Key.TARGET_RANGE: QUANTISATION,
    Key.MOD_RANGE: MODULUS, Key.CLIPPING_RANGE: 8.0, Key.MAX_WEIGHT: 100.0,
}  # fmt: skip


def with_other_rows(job: Job, rows: int | None = None) -> None:
    """The site's data change, as they do overnight: other values, or only so many rows."""
    data = sites(3)
    inputs, targets = data[SITE]
    data[SITE] = (inputs[:rows] + 0.01, targets[:rows])
    other = replace(task(sites=data), name=job.task.name)
    find = cache(lambda: site_setup(job.experiment, other, SITE))
    job.sites[SITE] = replace(job.sites[SITE], find_setup=lambda *_: find())


def next_fit(job: Job) -> Envelope:
    last = asked(job, "2:evaluate+fit")
    weights = last.request.download.weights  # type: ignore[union-attr]
    return step(last, "evaluate", "fit", round_=3, after="2:evaluate+fit", weights=weights)


def test_a_question_is_never_answered_differently(running: Job) -> None:
    """Only the last answer is kept. An earlier one was computed again, from whatever the data were by then."""
    first = asked(running, "1:evaluate+fit")
    [before] = [entry["sha256"] for entry in audit(running, "left") if entry["key"] == first.key]
    with_other_rows(running)
    assert ask(running, first).code == "pinned"
    assert "differently" in audit(running, "refused")[-1]["detail"]
    running.sites[SITE] = running.site(SITE)
    assert ask(running, first).reply
    assert audit(running, "left")[-1]["sha256"] == before


def test_a_question_is_not_answered_differently_after_the_state_was_lost(running: Job) -> None:
    (running.home / SITE / "job" / "state.safetensors").unlink()
    with_other_rows(running)
    assert ask(running, asked(running, "0:fit")).code == "pinned"


def test_equal_noise_does_not_cover_two_updates(tmp_path: Path) -> None:
    """A backup next to newer rows: with the same noise on both answers, their difference is that of the updates."""
    job = Job(tmp_path / "one", "fedper", rounds=2)
    job.deployment = replace(job.deployment, privacy=Privacy(clip=100.0, noise=0.1))
    job.interrupt("site-2", "hello")
    hello = asked(job, "hello")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    (tmp_path / "one" / SITE / ".agent" / "noise.key").write_bytes(bytes(32))
    (tmp_path / "two" / SITE / ".agent").mkdir(exist_ok=True)
    (tmp_path / "two" / SITE / ".agent" / "noise.key").write_bytes(bytes(32))
    copy = Job(tmp_path / "two", "fedper", rounds=2)
    with_other_rows(copy)
    initial = job.sites[SITE].find_setup(job.experiment, SITE).setup.initial
    question = step(replace(hello, schema=""), "fit", round_=0, weights=initial)
    one, two = (uploaded(ask(each, question).reply) for each in (job, copy))
    assert float((one - two).abs().max()) > 5


def uploaded(reply: Reply | None) -> torch.Tensor:
    assert reply is not None
    return torch.cat([tensor.flatten() for _, tensor in sorted(reply.upload.weights.items())])


@pytest.mark.parametrize("how", ["rows", "policy"])
def test_the_fewest_rows_hold_for_every_round(how: str, running: Job) -> None:
    """They were looked at when the job began, and never again."""
    if how == "rows":
        with_other_rows(running, 20)
    else:
        policy = Policy.of({"approval": "automatic", "jobs": {"least_sites": 1, "least_rows": 1000}})
        running.sites[SITE] = replace(running.sites[SITE], policy=policy)
    response = ask(running, next_fit(running))
    assert (response.code, response.reply) == ("refused", None)
    assert "training rows, but the policy asks for" in audit(running, "refused")[-1]["detail"]


def test_a_finished_job_without_its_state_does_not_start_again(tmp_path: Path) -> None:
    job = Job(tmp_path, FedPer(2), rounds=2)
    job.run()
    (job.home / SITE / "job" / "state.safetensors").unlink()
    response = ask(job, asked(job, "0:fit"))
    assert (response.code, response.reply) == ("finished", None)


def test_a_server_that_keeps_asking_a_site_without_its_state_does_not_fill_the_disk(running: Job) -> None:
    (running.home / SITE / "job" / "state.safetensors").unlink()
    for _ in range(5):
        assert ask(running, step(asked(running, "2:evaluate+fit"), "fit", round_=99, after="")).code == "pinned"
    assert len(audit(running, "restart")) == 0
    assert ask(running, asked(running, "0:fit")).reply
    assert len(audit(running, "restart")) == 1


@pytest.mark.parametrize("approved", [False, True])
def test_no_part_in_secure_aggregation_without_an_approved_job_that_uses_it(approved: bool, tmp_path: Path) -> None:
    """Keys left a site that had agreed to nothing, and each request for them was a line of the audit log."""
    job = Job(tmp_path, "fedper", rounds=2, policy=Policy.of({"jobs": {"least_sites": 1}}))
    job.deployment = replace(job.deployment, privacy=Privacy(secure_range=8.0), min_sites=3)
    job.wait_in_vain()
    if approved:
        job.policy = Policy.of({"approval": "automatic", "jobs": {"least_sites": 1}})
        job.sites[SITE] = job.site(SITE)
    answer = job.agent(SITE).answer(Parcel("secure", configs={RECORD_KEY_CONFIGS: SETUP}, node=7))
    assert ("response" in answer.configs) is not approved
    assert len(audit(job, "left")) == approved
    assert approved or audit(job, "refused")[-1]["code"] == "privacy"


def test_a_stage_that_cannot_be_read_is_in_the_audit_log(tmp_path: Path) -> None:
    job = Job(tmp_path, "fedper", rounds=2)
    job.deployment = replace(job.deployment, privacy=Privacy(secure_range=8.0), min_sites=3)
    job.interrupt("site-2", "hello")
    answer = job.agent(SITE).answer(Parcel("secure", node=7))
    assert decode_response(answer).code == "failed"
    assert [entry["code"] for entry in audit(job, "refused")] == ["failed"]


def test_a_damaged_contract_does_not_keep_other_jobs_from_starting(tmp_path: Path) -> None:
    job = Job(tmp_path, "fedper", rounds=1, policy=Policy.of({"jobs": {"least_sites": 1}}))
    job.wait_in_vain()
    (tmp_path / SITE / "old").mkdir()
    (tmp_path / SITE / "old" / "contract.json").write_text("{")
    assert ask(job, replace(asked(job, "hello"), job="new", schema="")).code == "waiting"
    assert job.sites[SITE].statuses() == {"job": "waiting", "new": "waiting"}


def test_the_agent_accepts_messages_of_the_policys_servers_only(running: Job) -> None:
    """With two services, the agent does not connect to the server itself, and its policy was not looked at."""
    accepted = Policy.of({"approval": "automatic", "jobs": {"least_sites": 1}, "servers": ["fl.example.org:443"]})
    running.sites[SITE] = replace(running.sites[SITE], policy=accepted)
    parcel = envelope_parcel(next_fit(running))
    for server in ("", "evil.example.org:443", "fl.example.org:444"):
        response = decode_response(running.agent(SITE).answer(replace(parcel, server=server)))
        assert (response.code, response.reply) == ("refused", None)
        assert "does not accept this server" in audit(running, "refused")[-1]["detail"]
    secure = running.agent(SITE).answer(Parcel("secure", configs={RECORD_KEY_CONFIGS: SETUP}, server="evil:1"))
    assert decode_response(secure).code == "refused"
    assert decode_response(running.agent(SITE).answer(replace(parcel, server="fl.example.org:443"))).reply


@pytest.mark.parametrize(("participation", "merged"), [(1.0, 2), (0.5, 2), (0.3, 1)])
def test_a_server_promises_no_more_sites_per_merge_than_train_in_a_round(
    participation: float, merged: int, tmp_path: Path
) -> None:
    """With a third of three sites in a round, every merge was one site's upload, although two were promised."""
    policy = Policy.of({"approval": "automatic", "jobs": {"least_sites": 2}})
    job = Job(tmp_path, "fedavg", rounds=2, policy=policy, participation=participation)
    if merged >= 2:
        job.run()
    else:
        with pytest.raises(TooFewSitesError, match="policy or a person there refuses the job"):
            job.run()
        assert "merges at least 1 site," in audit(job, "refused")[-1]["detail"]
    assert decode_envelope(job.grid.requests[0][1].content).merge_sites == merged
    if participation < 1:
        with pytest.raises(ConfigError, match=r"needs at least 3 sites in every round"):
            job.run(job="other", min_sites=3, privacy=Privacy(secure_range=8.0))


def test_an_approval_that_cannot_be_recorded_is_none(tmp_path: Path) -> None:
    job = Job(tmp_path, "fedper", rounds=1, policy=Policy.of({"jobs": {"least_sites": 1}}))
    job.wait_in_vain()
    (tmp_path / SITE / "audit.jsonl").unlink()
    (tmp_path / SITE / "audit.jsonl").mkdir()
    done = CliRunner().invoke(app, ["flower", "approve", "job", "--state", str(tmp_path / SITE)])
    assert isinstance(done.exception, PlayerflError)
    assert job.sites[SITE].statuses() == {"job": "waiting"}
    done = CliRunner().invoke(app, ["flower", "refuse", "job", "--state", str(tmp_path / SITE)])
    assert isinstance(done.exception, PlayerflError)
    assert job.sites[SITE].statuses() == {"job": "refused"}


def test_a_policy_of_an_earlier_version_calls_its_servers_coordinators() -> None:
    earlier = Policy.of({"coordinators": ["fl.example.org:443"]})
    assert earlier.servers == ["fl.example.org:443"]
    assert Policy.of(earlier.model_dump(mode="json", exclude_none=True)) == earlier


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ({"servers": ["fl.example.org"]}, "servers are written as NAME:PORT, not 'fl.example.org'"),
        ({"servers": ["https://fl.example.org:443"]}, "servers are written as NAME:PORT"),
        ({"sharing": {"column_names": False, "data_check": "columns"}}, "shares names of columns"),
    ],
)
def test_a_policy_that_contradicts_itself_is_refused(table: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        Policy.of(table)


def test_no_setting_pushes_the_others_off_the_screen(tmp_path: Path) -> None:
    """A quarter of a million characters in one option, before the line with the layers that leave."""
    job = Job(tmp_path, "fedper", rounds=1, policy=Policy.of({"jobs": {"least_sites": 1}}))
    job.wait_in_vain()
    contract = Contract.read(tmp_path / SITE / "job")
    assert contract is not None
    endless = contract.terms.experiment.replace("[data]", f'[data]\ntarget = "{"x" * 200_000}"')
    endless = endless if endless != contract.terms.experiment else f'{endless}\n[data]\ntarget = "{"x" * 200_000}"\n'
    lines = described(replace(contract, terms=replace(contract.terms, experiment=endless)), job.policy)
    assert max(map(len, lines)) < 1000
    assert any("target = 'xxx" in line and "200,002 characters" in line for line in lines)
