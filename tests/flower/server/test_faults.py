"""Jobs survive the loss of sites, messages, the server and files."""

from __future__ import annotations

import errno
import random
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

import playerfl
from federations import quick_for, task
from flower.accidents import Accident, StoppedError, key_of, lost, nothing_arrives, stop
from flower.jobs import SITES, Job
from flower.killed_sites import MortalSites
from flower.loop_grid import unreachable
from killing import contents
from playerfl.algorithms import ALGORITHMS
from playerfl.errors import ConfigError, RunDirectoryError, StorageError
from playerfl.flower.server.transport import TooFewSitesError
from playerfl.flower.site.files import job_folder
from playerfl.storage import tensor_tree
from playerfl.studies.collecting import collect

AWAY = [("0:prepare", "0:fit"), pytest.param(("0:fit", "1:evaluate+fit"), marks=pytest.mark.slow)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "key", quick_for(["0:prepare", "0:fit", "1:evaluate+fit", "3:evaluate+finish"], "0:prepare", "1:evaluate+fit")
)
def test_a_lost_response_is_sent_again_without_training_again(key: str, tmp_path: Path) -> None:
    job = Job(tmp_path, "player_fl", task("batch norm"))
    job.tamper(Accident("site-1", [key], lost))
    job.run()
    job.assert_equals_in_process()
    assert any("retrying" in line for line in job.said)


@pytest.mark.slow
@pytest.mark.parametrize("name", quick_for(["player_fl", "fedlama", "pfedla"], "player_fl"))
@pytest.mark.parametrize("key", quick_for(["0:fit", "2:evaluate+fit"], "2:evaluate+fit"))
def test_a_server_killed_within_a_round_resumes_to_the_same_bits(name: str, key: str, tmp_path: Path) -> None:
    """Two sites have trained and one has not; those two then respond with what they stored."""
    job = Job(tmp_path, name, task("batch norm"))
    job.interrupt("site-2", key)
    job.run()
    job.assert_equals_in_process()
    assert any("continues after round" in line for line in job.said) or key == "0:fit"


@pytest.mark.slow
def test_a_server_killed_between_two_exchanges_of_one_step_resumes_too(tmp_path: Path) -> None:
    job = Job(tmp_path, "local_adaptation", selection="round_best")
    job.interrupt("site-2", "3:finish", min_sites=3)
    job.run(min_sites=3)
    job.assert_equals_in_process()


@pytest.mark.slow
def test_a_server_killed_after_the_last_exchange_sends_no_more_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site asked twice to finish would tune twice."""
    job = Job(tmp_path, "local_adaptation")
    with monkeypatch.context() as patched, pytest.raises(StoppedError):
        patched.setattr("playerfl.runs.directory.RunDirectory.write_ending", stop)
        job.run()
    with pytest.raises(RunDirectoryError, match="continue it with  playerfl flower run"):
        playerfl.resume(job.folder, task=job.task)
    asked = len(job.grid.requests)
    job.run()
    job.assert_equals_in_process()
    assert len(job.grid.requests) == asked


def test_a_finished_job_does_not_run_again(tmp_path: Path) -> None:
    job = Job(tmp_path, "fedavg", rounds=1)
    job.run()
    before = len(job.grid.requests)
    job.run()
    assert len(job.grid.requests) == before
    assert "already finished" in job.said[-1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "fedlama", "player_fl"])
def test_rounds_continue_without_a_site_that_is_gone(name: str, tmp_path: Path) -> None:
    """It costs a single deadline, not one per round. The report covers the other sites."""
    job = Job(tmp_path, name, rounds=3)

    def gone(site: str, request: Message, reply: Message) -> Message | None:
        if site == "site-1" and key_of(request).endswith("fit"):
            job.grid.offline.add("site-1")
            return unreachable(request)
        return reply

    job.tamper(gone)
    job.run()
    # Three rounds and the last evaluation.
    assert [row["site"] for row in job.participation("offline")] == ["site-1"] * 4
    assert job.clock.now < 2 * 6
    assert job.fingerprints.keys() == {"site-0", "site-2"}
    [result] = collect(job.folder).results
    assert result.site_scores.keys() == {"site-0", "site-2"}
    assert result.data["notes"] == ["site-1 has no scores to report; see participation.csv"]


def test_a_resumed_job_does_not_wait_again_for_a_site_that_is_gone(tmp_path: Path) -> None:
    job = Job(tmp_path, "fedper")
    job.grid.offline.add("site-1")
    job.interrupt("site-2", "1:evaluate+fit")
    waited = job.clock.now
    assert waited >= 6.0
    job.run()
    assert job.clock.now == waited


@pytest.mark.slow
def test_a_site_lost_before_the_finish_is_not_reported(tmp_path: Path) -> None:
    """Its earlier scores cannot be compared with those of models tuned at the end."""
    job = Job(tmp_path, "local_adaptation", rounds=2)
    job.tamper(lambda site, request, reply: None if site == "site-1" and "finish" in key_of(request) else reply)
    job.run()
    [result] = collect(job.folder).results
    assert result.chosen_rounds == {"site-0": 2, "site-2": 2}
    assert result.site_scores.keys() == {"site-0", "site-2"}


@pytest.mark.slow
@pytest.mark.parametrize("name", quick_for(ALGORITHMS, "fedlama", "ditto", "player_fl"))
@pytest.mark.parametrize("away", AWAY, ids=["first", "then"])
def test_a_site_that_comes_back_catches_up(name: str, away: tuple[str, ...], tmp_path: Path) -> None:
    """Whatever it missed, even the first exchanges, it trains again and ends with a model."""
    missed_rounds = sum(key.endswith("fit") for key in away)
    job = Job(tmp_path, name, rounds=missed_rounds + 1)
    job.tamper(Accident("site-1", away, lost, times=1000))
    job.run()
    assert job.fingerprints.keys() == set(SITES)
    missed = {(row["site"], row["verbs"]) for row in job.participation("late")}
    prepares = job.experiment.build_algorithm().prepares
    assert missed == {("site-1", key.partition(":")[2]) for key in away if key != "0:prepare" or prepares}


@pytest.mark.slow
def test_what_was_not_accepted_is_undone(tmp_path: Path) -> None:
    """A site that trained too late continues like one that never got the message."""
    late, never = Job(tmp_path / "late", "fedper"), Job(tmp_path / "never", "fedper")
    late.tamper(Accident("site-1", ["1:evaluate+fit"], nothing_arrives, times=1000))
    app = never.grid.apps["site-1"]

    def deaf(message: Message, context: Any) -> Message:
        return unreachable(message) if key_of(message) == "1:evaluate+fit" else app(message, context)

    never.grid.apps["site-1"] = deaf  # type: ignore[assignment]
    late.run()
    never.run()
    assert late.fingerprints == never.fingerprints
    assert [row["outcome"] for row in late.participation() if row["round"] == "1"] == ["answered", "late", "answered"]


@pytest.mark.slow
def test_too_few_sites_stop_the_job_which_can_be_resumed(tmp_path: Path) -> None:
    job = Job(tmp_path, "fedper")
    job.tamper(lambda site, request, reply: None if site != "site-0" and "1:" in key_of(request) else reply)
    with pytest.raises(TooFewSitesError, match=r"needs 2 sites, but only 1 responded .*site-1: it did not respond"):
        job.run()
    job.tamper(None)
    job.run()
    job.assert_equals_in_process()


@pytest.mark.slow
def test_a_site_that_lost_its_state_says_so_and_does_not_restart(tmp_path: Path) -> None:
    job = Job(tmp_path, "fedper")

    def wipe(_: Message, response: Message) -> Message:
        (job.home / "site-1" / "job" / "state.safetensors").unlink()
        return response

    job.tamper(Accident("site-1", ["1:evaluate+fit"], wipe))
    job.run()
    lost = job.participation("refused")
    assert [(row["site"], row["round"]) for row in lost] == [("site-1", "2"), ("site-1", "3")]
    assert "has lost its state" in lost[0]["reason"]
    assert "site-1" not in job.fingerprints


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage", [None, {"scores": 3}, {"scores": [["round", 1]]}, {"info": []}, {"info": {"importance": [1, 0.5]}}],
    ids=str,
)  # fmt: skip
def test_a_damaged_state_counts_as_lost(tmp_path: Path, damage: dict[str, Any] | None) -> None:
    job = Job(tmp_path, "fedper", rounds=2)
    job.interrupt("site-2", "1:evaluate+fit")
    file = job.home / "site-1" / "job" / "state.safetensors"
    if damage is None:
        file.write_bytes(b"\x80\x04 not a checkpoint")
    else:
        stored = tensor_tree.read(file)
        file.write_bytes(tensor_tree.encode({**stored, "reply": {**stored["reply"], **damage}}))
    job.run()
    assert {row["site"] for row in job.participation() if "lost its state" in row["reason"]} == {"site-1"}


@pytest.mark.slow
def test_a_site_that_lost_its_state_may_be_readmitted(tmp_path: Path) -> None:
    job = Job(tmp_path, "player_fl")
    job.interrupt("site-2", "2:evaluate+fit")
    (job.home / "site-1" / "job" / "state.safetensors").unlink()
    job.run(readmit=("site-1",))
    assert job.fingerprints.keys() == set(SITES)
    assert job.participation("refused") == []


@pytest.mark.slow
def test_a_server_without_its_checkpoint_cannot_restart_sites(tmp_path: Path) -> None:
    job = Job(tmp_path, "fedper", rounds=4)
    job.interrupt("site-2", "3:evaluate+fit")
    (job.folder / "checkpoint.safetensors").unlink()
    with pytest.raises(TooFewSitesError, match="is from a different point in the job"):
        job.run()


@pytest.mark.slow
def test_a_checkpoint_keeps_the_keys_of_version_0_1_and_a_foreign_one_is_refused(tmp_path: Path) -> None:
    job = Job(tmp_path, "fedper")
    job.interrupt("site-2", "2:evaluate+fit")
    file = job.folder / "checkpoint.safetensors"
    saved = tensor_tree.read(file)
    keys = {"server", "accepted", "fingerprints", "away", "examples", "layers", "notes", "done", "seconds", "tables"}
    assert saved.keys() == keys
    file.write_bytes(tensor_tree.encode({key: value for key, value in saved.items() if key != "accepted"}))
    with pytest.raises(RunDirectoryError, match=r"does not belong to job job .*start the job under another name"):
        job.run()


def test_a_job_name_cannot_be_reused_for_another_experiment(tmp_path: Path) -> None:
    Job(tmp_path, "fedavg", rounds=1).run()
    with pytest.raises(ConfigError, match="was started with a different experiment"):
        Job(tmp_path, "fedavg", rounds=2).run()


def test_a_different_version_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(tmp_path, "fedavg", rounds=1)
    monkeypatch.setattr("playerfl.flower.server.job.__version__", "0.0.0")
    with pytest.raises(TooFewSitesError, match="the site has a different version of playerfl"):
        job.run()


@pytest.mark.parametrize(
    ("seed", "name", "reason"),
    [(1, "site-1", "builds a different model"), (0, "site-2", "started under a different name")],
)
def test_a_site_with_a_different_model_or_name_is_refused(seed: int, name: str, reason: str, tmp_path: Path) -> None:
    job = Job(tmp_path, "fedavg", rounds=1)
    job.sites["site-1"] = Job(tmp_path / "other", "fedavg", rounds=1, seed=seed).sites[name]
    job.run()
    refused = job.participation("refused")
    assert {row["site"] for row in refused} == {"site-1"}
    assert refused[0]["verbs"] == "hello" and reason in refused[0]["reason"]


@pytest.mark.system
def test_sites_killed_at_random_moments_leave_the_files_of_an_undisturbed_job(tmp_path: Path) -> None:
    """At most ten kills; reliability/kills.py does many more, of runs and studies too."""
    whole = MortalSites(Job(tmp_path / "whole", "player_fl"))
    whole.run()
    whole.job.assert_equals_in_process()
    kills = 0
    for attempt in range(8):
        # On a machine that is less busy now, a site may respond before it is killed; later attempts kill earlier.
        seconds = {envelope: taken / 2**attempt for envelope, taken in whole.seconds.items()}
        job = Job(tmp_path / f"broken-{attempt}", "player_fl")
        broken = MortalSites(job, random.Random(20261115 + attempt), 10, seconds)
        broken.run()
        kills += broken.kills
        assert contents(job.home) == contents(whole.job.home)
        if kills:
            break
    assert kills


def test_nothing_of_an_exception_leaves_a_site(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    job = Job(tmp_path, "fedavg", rounds=1)

    def broken(*_: Any) -> Any:
        raise ValueError("patient 4711 in /srv/secret has NaN")

    object.__setattr__(job.sites["site-1"], "find_setup", broken)
    job.run()
    sent = b"".join(message.content["response"].deflate() for _, message in job.grid.replies)
    assert b"4711" not in sent and b"secret" not in sent
    assert not any("4711" in line for line in job.said)
    assert "4711" not in (job.folder / "participation.csv").read_text()
    assert "patient 4711" in caplog.text
    assert any("could not do what was asked; see its log" in line for line in job.said)


@pytest.mark.slow
def test_a_full_disk_at_a_site_is_a_code_and_keeps_the_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(tmp_path, "fedper", rounds=2)
    write = job_folder.write_atomically

    def limited(path: Path, data: bytes) -> None:
        if "site-1" in path.parts and len(job.grid.requests) > 6:
            raise RunDirectoryError(f"cannot write {path}: No space left on device")
        write(path, data)

    monkeypatch.setattr(job_folder, "write_atomically", limited)
    job.run()
    assert {row["round"] for row in job.participation() if "cannot write its state" in row["reason"]} == {"1", "2"}


@pytest.mark.parametrize("place", ["playerfl.engine.spool.tempfile.TemporaryFile", "playerfl.runs.directory.os.fsync"])
def test_a_full_disk_at_the_server_advises_to_submit_the_job_again(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("playerfl.engine.spool.HELD_BYTES", 0)
    job = Job(tmp_path, "fedavg", rounds=1)
    # Once all sites have written their own files: in this test, they share the server's disk.
    job.tamper(Accident("site-2", ["0:fit"], lambda _, reply: monkeypatch.setattr(place, full) or reply))  # type: ignore[func-returns-value]
    with pytest.raises(StorageError, match=r"free some space .*and submit the job again with playerfl flower run$"):
        job.run()
