"""Messages, moments and files that nobody planned for: an agent answers with a code, and tells nothing new."""

from __future__ import annotations

import errno
import random
import shutil
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from flower.attacks import SITE, ask, asked, audit, step
from flower.jobs import Job
from playerfl.algorithms import FedPer
from playerfl.flower.site.files import audit as audit_module
from playerfl.flower.site.files.audit import AuditLog
from playerfl.flower.wire.codec import decode_envelope, decode_response, envelope_parcel
from playerfl.flower.wire.envelopes import Envelope, Privacy
from playerfl.flower.wire.parcel import Parcel, from_bytes

ODD: tuple[Any, ...] = (
    True, 0, -1, 2**63, 10**400, 0.5, float("nan"), float("inf"), "", "\n", "../..", "x" * 10_000, "\u202ex\x00",
    b"bytes", [], [1], ["fit", 1], ["fit"] * 1000, [True],
)  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Job:
    job = Job(tmp_path_factory.mktemp("finished"), FedPer(2), rounds=3)
    job.run()
    return job


def log_of(job: Job) -> AuditLog:
    return AuditLog(job.home / SITE / "audit.jsonl")


def next_fit(job: Job) -> Envelope:
    """The request for round 3, which the server has not sent yet."""
    last = asked(job, "2:evaluate+fit")
    weights = last.request.download.weights  # type: ignore[union-attr]
    return step(last, "evaluate", "fit", round_=3, after="2:evaluate+fit", weights=weights)


def test_fields_of_other_types_and_sizes_get_a_code_and_nothing_else(running: Job) -> None:
    """Every field of an envelope in turn holds something else, in the middle of a job."""
    whole = envelope_parcel(next_fit(running))
    files = sorted(running.home.rglob("*"))
    sent = {entry["sha256"] for entry in audit(running, "left")}
    for field, usual in whole.configs["envelope"].items():
        for odd in ODD:
            if (type(odd), odd) == (type(usual), usual) or _is_harmless(field, odd):
                continue
            config = {**whole.configs["envelope"], field: odd}
            parcel = replace(whole, configs={**whole.configs, "envelope": config})
            response = decode_response(running.agent(SITE).answer(parcel))
            assert response.code is not None and response.reply is None, (field, odd)
    assert {entry["sha256"] for entry in audit(running, "left")} == sent
    assert sorted(running.home.rglob("*")) == files
    assert max(len(line) for line in log_of(running).path.read_bytes().splitlines()) < 4000


@pytest.mark.parametrize("what", ["arrays", "metrics", "configs", "setting", "field"])
def test_what_a_site_does_not_know_is_refused_and_not_ignored(what: str, running: Job) -> None:
    """A second envelope, a record of private layers or a setting beside the known ones was left unread."""
    whole = envelope_parcel(next_fit(running))
    envelope = whole.configs["envelope"]
    changes: dict[str, dict[str, Any]] = {
        "arrays": {"arrays": {**whole.arrays, "private": whole.arrays["weights"]}},
        "metrics": {"metrics": {"numbers": {"epochs": 5}}},
        "configs": {"configs": {**whole.configs, "envelope2": envelope}},
        "setting": {"configs": {**whole.configs, "envelope": {**envelope, "Verbs": ["finish"]}}},
        "field": {"configs": {**whole.configs, "envelope": {**envelope, "verbs\u200b": ["finish"]}}},
    }
    response = decode_response(running.agent(SITE).answer(replace(whole, **changes[what])))
    assert (response.code, response.reply) == ("version", None)


def _is_harmless(field: str, odd: Any) -> bool:
    """Values that a server may choose: no name, another kind of request, more sites per merge than agreed."""
    return (field, odd) in (("site", ""), ("hello", True), ("common", True), ("best-round", 0)) or (
        (field == "merge-sites" and type(odd) is int and odd > 3) or (field == "schema" and type(odd) is str)
    )


@pytest.mark.parametrize(
    "name",
    ["0.weight ", "0.weight\x00", "０.weight", "0．weight", "0.Weight", "module.0.weight", "control.0.weight", ""],
    ids=ascii,
)
def test_names_that_look_like_a_layers_are_not_one(name: str, running: Job) -> None:
    fit = next_fit(running)
    weights = {**fit.request.download.weights, name: torch.zeros(8, 6)}  # type: ignore[union-attr]
    response = ask(running, step(fit, "evaluate", "fit", round_=3, weights=weights))
    assert (response.code, response.reply) == ("pinned", None)


@pytest.mark.parametrize("seed", range(3))
def test_replayed_and_reordered_messages_tell_nothing_new(seed: int, finished: Job) -> None:
    """All messages of a job, to a site that has finished it, in any order."""
    envelopes = [decode_envelope(message.content) for name, message in finished.grid.requests if name == SITE]
    known = {entry["sha256"] for entry in audit(finished, "left")}
    rng = random.Random(seed)
    for envelope in rng.choices(envelopes, k=3 * len(envelopes)):
        ask(finished, envelope)
    assert {entry["sha256"] for entry in audit(finished, "left")} == known


@pytest.mark.parametrize("seed", range(3))
def test_messages_of_a_job_in_any_order_are_answered_once_each(seed: int, finished: Job, tmp_path: Path) -> None:
    """A site that hears them for the first time, in another order: each round and verb has at most one answer."""
    fresh = Job(tmp_path, FedPer(2), rounds=3)
    envelopes = [decode_envelope(message.content) for name, message in finished.grid.requests if name == SITE]
    rng = random.Random(seed)
    for envelope in rng.choices(envelopes, k=6 * len(envelopes)):
        ask(fresh, envelope)
    answers: dict[tuple[Any, str], set[str]] = {}
    for entry in audit(fresh, "left"):
        for verb in entry["verbs"]:
            answers.setdefault((entry["round"], verb), set()).add(entry["sha256"])
    assert all(len(hashes) == 1 for hashes in answers.values()), answers


def test_the_same_question_from_many_threads_is_answered_once(running: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    import playerfl.flower.site.site as module

    trained, drive = [], module.drive

    def counting(work: Any) -> Any:
        trained.append(1)
        return drive(work)

    monkeypatch.setattr(module, "drive", counting)
    question = b"".join(envelope_parcel(next_fit(running)).pieces())
    answers: list[Parcel] = []

    def ask() -> None:
        answers.append(running.agent(SITE).answer(from_bytes(question)))

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(trained) == 1 and len({answer.sha256() for answer in answers}) == 1


def test_a_second_job_of_the_same_name_is_not_the_first_one(finished: Job, tmp_path: Path) -> None:
    other = Job(tmp_path, FedPer(1), rounds=3)
    other.interrupt("site-2", "0:fit")
    for key in ("hello", "0:fit"):
        response = ask(finished, asked(other, key))
        assert (response.code, response.reply, response.introduction) == ("pinned", None, None)


def test_a_copy_of_the_directory_answers_the_same_question_with_the_same_noise(tmp_path: Path) -> None:
    job = Job(tmp_path / "one", "fedper", rounds=2)
    job.deployment = replace(job.deployment, privacy=Privacy(clip=1.0, noise=1.0))
    job.interrupt("site-2", "0:fit")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    copy = Job(tmp_path / "two", "fedper", rounds=2)
    first = asked(job, "0:fit")
    reply = ask(job, first).reply
    assert reply
    weights = {name: tensor.clone() for name, tensor in reply.upload.weights.items()}
    question = step(first, "evaluate", "fit", round_=1, after="0:fit", weights=weights)
    answers = [ask(one, question).reply for one in (job, copy)]
    assert answers[0] and answers[1]
    for name, tensor in answers[0].upload.weights.items():
        assert torch.equal(tensor, answers[1].upload.weights[name])


def test_a_clock_that_goes_backwards_does_not_break_the_log(running: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    class Backwards(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime(2020, 1, 1, tzinfo=UTC) - timedelta(days=len(audit(running, "left")))

    monkeypatch.setattr(audit_module, "datetime", Backwards)
    assert ask(running, next_fit(running)).reply
    assert audit(running, "left")[-1]["time"].startswith("2019")


@pytest.mark.parametrize("after", [0, 1])
def test_a_disk_that_is_full_while_the_audit_line_is_written_delays_the_answer(
    after: int, running: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a line is dropped, and the same bytes leave as soon as there is space."""
    question = next_fit(running)
    sync, calls = audit_module.os.fsync, []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) > after:
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(descriptor)

    with monkeypatch.context() as patched:
        patched.setattr(audit_module.os, "fsync", full)
        assert ask(running, question).code == "storage"
    first, second = ask(running, question), ask(running, question)
    assert first.reply and second.reply
    hashes = [entry["sha256"] for entry in audit(running, "left") if entry["key"] == question.key]
    assert len(set(hashes)) == 1


def test_a_log_that_disappears_while_the_agent_runs_begins_with_a_gap(running: Job) -> None:
    before = log_of(running).entries()[-1]
    log_of(running).path.unlink()
    assert ask(running, next_fit(running)).reply
    first, second = log_of(running).entries()
    assert (first["event"], second["event"]) == ("gap", "left")
    assert before["hash"] in first["detail"]


def test_a_link_in_the_place_of_a_job_does_not_lead_elsewhere(tmp_path: Path) -> None:
    job = Job(tmp_path, "fedavg", rounds=1)
    job.interrupt("site-2", "hello")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "rows.csv").write_text("age\n70\n")
    (job.home / SITE / "linked").symlink_to(elsewhere)
    (job.home / SITE / "dangling").symlink_to(tmp_path / "nowhere")
    for name in ("linked", "dangling"):
        assert ask(job, replace(asked(job, "hello"), schema="", job=name)).code == "refused"
    assert [file.name for file in elsewhere.iterdir()] == ["rows.csv"] and not (tmp_path / "nowhere").exists()
