"""What a job does when sites, messages, the coordinator or files are lost."""

from __future__ import annotations

import csv
import random
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

import playerfl
from federations import quick_for, task
from flower.jobs import SITES, Job
from flower.killed_sites import MortalSites
from flower.loop_grid import unreachable
from flower.test_contract import assert_equals_in_process
from killing import contents
from playerfl.algorithms import ALGORITHMS
from playerfl.errors import ConfigError, RunDirectoryError
from playerfl.flower.coordinator.transport import TooFewSitesError
from playerfl.flower.wire.codec import decode_letter
from playerfl.storage import tensor_tree
from playerfl.studies.collecting import collect


def key_of(message: Message) -> str:
    return decode_letter(message.content).key


def participation(job: Job) -> list[dict[str, str]]:
    with (job.folder / "participation.csv").open(newline="") as table:
        return list(csv.DictReader(table))


class StoppedError(Exception):
    pass


class Accident:
    """Happens to one site's answers to one key, `times` times."""

    def __init__(self, site: str, key: str, times: int, make: Any) -> None:
        self.site, self.key, self.times, self.make = site, key, times, make

    def __call__(self, name: str, request: Message, reply: Message) -> Message | None:
        if name == self.site and key_of(request) == self.key and self.times > 0:
            self.times -= 1
            return self.make(request, reply)  # type: ignore[no-any-return]
        return reply


AWAY = [("0:prepare", "0:fit"), pytest.param(("0:fit", "1:evaluate+fit"), marks=pytest.mark.slow)]


def stop(*_: Any) -> Any:
    raise StoppedError


@pytest.mark.parametrize(
    "key", quick_for(["0:prepare", "0:fit", "1:evaluate+fit", "3:evaluate+finish"], "0:prepare", "1:evaluate+fit")
)
def test_an_answer_that_got_lost_is_given_again_without_training_again(key: str, tmp_path: Path) -> None:
    job = Job(tmp_path, "player_fl", task("batch norm"))
    job.tamper(Accident("site-1", key, 1, lambda request, _: unreachable(request)))
    assert_equals_in_process(job, job.run())
    assert any("tried again" in line for line in job.said)


@pytest.mark.parametrize("name", quick_for(["player_fl", "fedlama", "pfedla"], "player_fl"))
@pytest.mark.parametrize("key", quick_for(["0:fit", "2:evaluate+fit"], "2:evaluate+fit"))
def test_a_coordinator_that_dies_in_a_round_resumes_to_the_same_bits(name: str, key: str, tmp_path: Path) -> None:
    """When two sites have trained and one has not; those two then answer from what they stored."""
    job = Job(tmp_path, name, task("batch norm"))
    job.tamper(Accident("site-2", key, 1, stop))
    with pytest.raises(StoppedError):
        job.run()
    assert_equals_in_process(job, job.run())
    assert any("goes on after round" in line for line in job.said) or key == "0:fit"


def test_a_coordinator_that_dies_between_two_exchanges_of_one_step_resumes_too(tmp_path: Path) -> None:
    job = Job(tmp_path, "local_adaptation", selection="round_best")
    job.tamper(Accident("site-2", "3:finish", 1, stop))
    with pytest.raises(StoppedError):
        job.run(min_sites=3)
    assert_equals_in_process(job, job.run(min_sites=3))


def test_a_coordinator_that_dies_when_all_is_said_asks_nobody_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site asked to finish twice would tune twice."""
    job = Job(tmp_path, "local_adaptation")
    with monkeypatch.context() as patched, pytest.raises(StoppedError):
        patched.setattr("playerfl.runs.directory.RunDirectory.finish", stop)
        job.run()
    with pytest.raises(RunDirectoryError, match="continue it with  playerfl flower run"):
        playerfl.resume(job.folder, task=job.task)
    asked = len(job.grid.requests)
    assert_equals_in_process(job, job.run())
    assert len(job.grid.requests) == asked


def test_a_finished_job_is_not_run_again(tmp_path: Path) -> None:
    job = Job(tmp_path, "fedavg", rounds=1)
    job.run()
    before = len(job.grid.requests)
    job.run()
    assert len(job.grid.requests) == before
    assert "finished already" in job.said[-1]


@pytest.mark.parametrize("name", ["fedavg", "fedlama", "player_fl"])
def test_the_round_goes_on_without_a_site_that_is_gone(name: str, tmp_path: Path) -> None:
    """And it costs one deadline, not one a round. What is reported is the others'."""
    job = Job(tmp_path, name, rounds=3)

    def gone(site: str, request: Message, reply: Message) -> Message | None:
        if site == "site-1" and key_of(request).endswith("fit"):
            job.grid.offline.add("site-1")
            return unreachable(request)
        return reply

    job.tamper(gone)
    coordinator = job.run()
    assert coordinator.server is not None and coordinator.server.round == 3
    missed = [row for row in participation(job) if row["site"] == "site-1" and row["outcome"] != "answered"]
    # Three rounds and the last evaluation.
    assert [row["outcome"] for row in missed] == ["offline"] * 4
    assert job.clock.now < 2 * 6
    assert coordinator.transport.fingerprints.keys() == {"site-0", "site-2"}
    [result] = collect(job.folder).results
    assert result.site_scores.keys() == {"site-0", "site-2"}
    assert result.data["notes"] == ["site-1 has no scores to report, see participation.csv"]


def test_a_job_that_is_taken_up_does_not_wait_again_for_a_site_that_is_gone(tmp_path: Path) -> None:
    job = Job(tmp_path, "fedper")
    job.tamper(Accident("site-2", "1:evaluate+fit", 1, stop))
    job.grid.offline.add("site-1")
    with pytest.raises(StoppedError):
        job.run()
    waited = job.clock.now
    assert waited >= 6.0
    job.run()
    assert job.clock.now == waited


def test_a_site_that_is_lost_before_the_finish_is_not_reported(tmp_path: Path) -> None:
    """What it scored before cannot be compared with models that were tuned at the end."""
    job = Job(tmp_path, "local_adaptation", rounds=2)
    job.tamper(lambda site, request, reply: None if site == "site-1" and "finish" in key_of(request) else reply)
    job.run()
    [result] = collect(job.folder).results
    assert result.chosen_rounds == {"site-0": 2, "site-2": 2}
    assert result.site_scores.keys() == {"site-0", "site-2"}


@pytest.mark.parametrize("name", quick_for(ALGORITHMS, "fedlama", "ditto", "player_fl"))
@pytest.mark.parametrize("away", AWAY, ids=["first", "then"])
def test_a_site_that_comes_back_catches_up(name: str, away: tuple[str, ...], tmp_path: Path) -> None:
    """Whatever it missed, the first exchanges included, it trains again and ends with a model."""
    job = Job(tmp_path, name, rounds=3)

    def missing(site: str, request: Message, reply: Message) -> Message | None:
        return unreachable(request) if site == "site-1" and key_of(request) in away else reply

    job.tamper(missing)
    coordinator = job.run()
    assert coordinator.transport.fingerprints.keys() == set(SITES)
    rows = [row for row in participation(job) if row["site"] == "site-1"]
    assert {row["verbs"] for row in rows if row["outcome"] == "late"} == {
        key.partition(":")[2] for key in away if key != "0:prepare" or coordinator.algorithm.prepares
    }


def test_what_was_not_accepted_has_not_happened(tmp_path: Path) -> None:
    """A site that trained too late is taken back: its next round is that of one which never got the message."""
    late, never = Job(tmp_path / "late", "fedper"), Job(tmp_path / "never", "fedper")

    def lose(site: str, request: Message, reply: Message) -> Message | None:
        return None if site == "site-1" and key_of(request) == "1:evaluate+fit" else reply

    late.tamper(lose)
    app = never.grid.apps["site-1"]

    def deaf(message: Message, context: Any) -> Message:
        return unreachable(message) if key_of(message) == "1:evaluate+fit" else app(message, context)

    never.grid.apps["site-1"] = deaf  # type: ignore[assignment]
    assert late.run().transport.fingerprints == never.run().transport.fingerprints
    assert [row["outcome"] for row in participation(late) if row["round"] == "1"] == ["answered", "late", "answered"]


def test_too_few_sites_stop_the_job_and_it_can_go_on(tmp_path: Path) -> None:
    job = Job(tmp_path, "fedper")
    job.tamper(lambda site, request, reply: None if site != "site-0" and "1:" in key_of(request) else reply)
    with pytest.raises(TooFewSitesError, match=r"1 of 2 sites that a round needs .*site-1: it has not answered"):
        job.run()
    job.tamper(None)
    assert_equals_in_process(job, job.run())


def test_a_site_that_lost_its_state_says_so_and_does_not_start_afresh(tmp_path: Path) -> None:
    job = Job(tmp_path, "fedper")

    def wipe(site: str, request: Message, reply: Message) -> Message | None:
        if site == "site-1" and key_of(request) == "1:evaluate+fit":
            (job.home / "site-1" / "job" / "state.safetensors").unlink()
        return reply

    job.tamper(wipe)
    coordinator = job.run()
    lost = [row for row in participation(job) if row["outcome"] == "refused"]
    assert [(row["site"], row["round"]) for row in lost] == [("site-1", "2"), ("site-1", "3")]
    assert "has lost its state" in lost[0]["reason"]
    assert "site-1" not in coordinator.transport.fingerprints


@pytest.mark.parametrize(
    "damage", [None, {"scores": 3}, {"scores": [["round", 1]]}, {"info": []}, {"info": {"importance": [1, 0.5]}}],
    ids=str,
)  # fmt: skip
def test_a_damaged_state_counts_as_lost(tmp_path: Path, damage: dict[str, Any] | None) -> None:
    job = Job(tmp_path, "fedper", rounds=2)
    job.tamper(Accident("site-2", "1:evaluate+fit", 1, stop))
    with pytest.raises(StoppedError):
        job.run()
    file = job.home / "site-1" / "job" / "state.safetensors"
    if damage is None:
        file.write_bytes(b"\x80\x04 not a checkpoint")
    else:
        stored = tensor_tree.read(file)
        file.write_bytes(tensor_tree.encode({**stored, "reply": {**stored["reply"], **damage}}))
    job.run()
    assert {row["site"] for row in participation(job) if "lost its state" in row["reason"]} == {"site-1"}


def test_a_site_that_lost_its_state_may_be_readmitted(tmp_path: Path) -> None:
    job = Job(tmp_path, "player_fl")
    job.tamper(Accident("site-2", "2:evaluate+fit", 1, stop))
    with pytest.raises(StoppedError):
        job.run()
    (job.home / "site-1" / "job" / "state.safetensors").unlink()
    coordinator = job.run(readmit=("site-1",))
    assert coordinator.transport.fingerprints.keys() == set(SITES)
    assert not any(row["outcome"] == "refused" for row in participation(job))


def test_a_coordinator_without_its_checkpoint_cannot_start_sites_afresh(tmp_path: Path) -> None:
    job = Job(tmp_path, "fedper", rounds=4)
    job.tamper(Accident("site-2", "3:evaluate+fit", 1, stop))
    with pytest.raises(StoppedError):
        job.run()
    (job.folder / "checkpoint.safetensors").unlink()
    with pytest.raises(TooFewSitesError, match="belongs to another point of the job"):
        job.run()


def test_the_same_name_for_another_experiment_is_refused(tmp_path: Path) -> None:
    Job(tmp_path, "fedavg", rounds=1).run()
    with pytest.raises(ConfigError, match="was started with another experiment"):
        Job(tmp_path, "fedavg", rounds=2).run()


def test_another_version_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(tmp_path, "fedavg", rounds=1)
    monkeypatch.setattr("playerfl.flower.coordinator.coordinator.__version__", "0.0.0")
    with pytest.raises(TooFewSitesError, match="the site has another version of playerfl"):
        job.run()


def test_another_model_is_named(tmp_path: Path) -> None:
    job = Job(tmp_path, "fedavg", rounds=1)
    other = Job(tmp_path / "other", "fedavg", rounds=1, seed=1)
    job.sites["site-1"] = other.sites["site-1"]
    job.run()
    [row] = [row for row in participation(job) if row["verbs"] == "hello" and row["outcome"] == "refused"]
    assert row["site"] == "site-1" and "builds another model" in row["reason"]


def test_a_site_under_a_wrong_name_is_named(tmp_path: Path) -> None:
    job = Job(tmp_path, "fedavg", rounds=1)
    job.sites["site-1"] = job.sites["site-2"]
    job.run()
    assert {row["site"] for row in participation(job) if "goes by another name" in row["reason"]} == {"site-1"}


@pytest.mark.system
def test_sites_killed_at_random_moments_leave_the_files_of_an_undisturbed_job(tmp_path: Path) -> None:
    """Ten kills at most; reliability/kills.py does many more, of runs and studies too."""
    whole = MortalSites(Job(tmp_path / "whole", "player_fl"))
    assert_equals_in_process(whole.job, whole.run())
    kills = 0
    for attempt in range(8):
        # A machine that was busy before and is idle now answers before it is killed: then earlier.
        seconds = {letter: taken / 2**attempt for letter, taken in whole.seconds.items()}
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
    sent = b"".join(message.content["answer"].deflate() for _, message in job.grid.replies)
    assert b"4711" not in sent and b"secret" not in sent
    assert not any("4711" in line for line in job.said)
    assert "4711" not in (job.folder / "participation.csv").read_text()
    assert "patient 4711" in caplog.text
    assert any("could not do what was asked; its log says why" in line for line in job.said)


def test_a_full_disk_is_a_code_too_and_the_old_state_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from playerfl.flower.site import site

    job = Job(tmp_path, "fedper", rounds=2)
    write, full = site.write_atomically, {"site-1"}

    def limited(path: Path, data: bytes) -> None:
        if any(name in path.parts for name in full) and len(job.grid.requests) > 6:
            raise RunDirectoryError(f"cannot write {path}: No space left on device")
        write(path, data)

    monkeypatch.setattr(site, "write_atomically", limited)
    job.run()
    assert {row["round"] for row in participation(job) if "cannot write its state" in row["reason"]} == {"1", "2"}
