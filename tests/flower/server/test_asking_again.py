"""Nothing stalls: lost responses are asked for again, missing sites are named, a job can be stopped."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx
import pytest
from flwr.app import Message
from flwr.supercore.run import RunNotRunningException

from flower.accidents import Accident, key_of, nothing_arrives
from flower.jobs import SITES, Job
from playerfl.errors import ConfigError, PlayerflError
from playerfl.flower.server.job_status import STATUS, read_status, request_stop
from playerfl.flower.wire.codec import encode_response
from playerfl.flower.wire.envelopes import Privacy, Response


@pytest.mark.parametrize("key", ["hello", "0:fit", "1:evaluate+fit"])
def test_a_response_that_gets_lost_is_asked_for_again_long_before_the_deadline(key: str, tmp_path: Path) -> None:
    """As when the SuperLink answers a node with an error: nothing arrives, and nobody says so."""
    job = Job(tmp_path, "fedper", rounds=2)
    job.tamper(Accident("site-1", [key], nothing_arrives))
    job.run(deadline=3600.0)
    assert job.participation("late") == []
    assert 30 <= job.clock.now < 60
    assert any("site-1: asked again" in line for line in job.said)
    job.assert_equals_in_process()


def test_pauses_double_so_that_a_slow_site_is_not_flooded(tmp_path: Path) -> None:
    job = Job(tmp_path, "fedavg", rounds=1)
    job.tamper(Accident("site-1", ["0:fit"], nothing_arrives, times=1000))
    job.run(deadline=3600.0)
    asked = [name for name, request in job.grid.requests if (name, key_of(request)) == ("site-1", "0:fit")]
    # After 30, 90, 210, 450, 930 and 1890 seconds.
    assert len(asked) == 7
    assert [row["site"] for row in job.participation("late") if row["verbs"] == "fit"] == ["site-1"]


@pytest.mark.parametrize(("key", "named"), [("hello", False), ("hello", True), ("0:fit", True)])
def test_a_late_copy_of_a_response_harms_nobody(key: str, named: bool, tmp_path: Path) -> None:
    """The first response is late, the second one is there first: the copy is ignored, and the site stays.

    Nor is a node a second site of its name if it gives its name twice, because it was asked twice.
    """
    job = Job(tmp_path, "fedper", rounds=2)
    held: list[Message] = []

    def late(_: Message, response: Message) -> None:
        held.append(response)

    job.grid.named = named
    job.tamper(Accident("site-1", [key], late))
    pull = job.grid.pull_messages

    def pulled(numbers: Any) -> list[Message]:
        found = pull(numbers)
        if held and any(name == "site-1" for name, _ in job.grid.replies[-1:]):
            job.grid._ready[held[0].metadata.reply_to_message_id] = held.pop()
        return found

    job.grid.pull_messages = pulled  # type: ignore[method-assign]
    job.run(deadline=600.0)
    job.assert_equals_in_process()
    assert {row["outcome"] for row in job.participation()} == {"answered"}


def waiting(request: Message, _: Message) -> Message:
    return Message(encode_response(Response("site-1", "hello", code="waiting")), reply_to=request)


@pytest.mark.slow
def test_a_site_that_waits_for_a_person_is_waited_for_beyond_the_deadline(tmp_path: Path) -> None:
    job = Job(tmp_path, "fedper", rounds=1)
    shown: list[dict[str, Any]] = []

    def not_yet(request: Message, response: Message) -> Message:
        status = read_status(job.folder)
        assert status is not None
        shown.append(dict(status.missing))
        return waiting(request, response)

    job.tamper(Accident("site-1", ["hello"], not_yet, times=12))
    job.run(deadline=60.0, min_sites=3)
    assert job.clock.now > 600
    job.assert_equals_in_process()
    assert {row["outcome"] for row in job.participation()} == {"answered"}
    assert "approve" in shown[-1]["site-1"]["why"] and shown[-1]["site-1"]["since"].endswith("Z")


def test_a_job_that_can_go_on_does_not_wait_for_a_person_beyond_the_deadline(tmp_path: Path) -> None:
    job = Job(tmp_path, "fedper", rounds=1)
    job.tamper(Accident("site-1", ["hello"], waiting, times=10**6))
    job.run(deadline=60.0)
    assert job.clock.now < 200
    late = job.participation("late")
    assert {row["site"] for row in late} == {"site-1"} and "approve" in late[0]["reason"]


def make_busy(grid: Any, names: Iterable[str]) -> None:
    """Every third call is answered with 500 ("database is locked"), as Flower's server does under load."""
    calls = iter(range(10**6))
    for name in names:
        real = getattr(grid, name)

        def busy(*arguments: Any, real: Any = real) -> Any:
            if next(calls) % 3 == 0:
                request = httpx.Request("POST", "https://127.0.0.1")
                raise httpx.HTTPStatusError("500", request=request, response=httpx.Response(500, request=request))
            return real(*arguments)

        setattr(grid, name, busy)


def test_a_busy_superlink_does_not_end_the_job(tmp_path: Path) -> None:
    job = Job(tmp_path, "fedper", rounds=2)
    make_busy(job.grid, ("get_nodes", "push_messages", "pull_messages"))
    job.run(deadline=3600.0)
    job.assert_equals_in_process()
    assert {row["outcome"] for row in job.participation()} == {"answered"}


def test_a_busy_superlink_does_not_end_a_secure_aggregation(tmp_path: Path) -> None:
    calm, busy = (Job(tmp_path / name, "fedper", rounds=1) for name in ("calm", "busy"))
    make_busy(busy.grid, ("get_nodes", "push_messages", "pull_messages"))
    for job in (calm, busy):
        job.run(deadline=3600.0, poll=0.01, privacy=Privacy(secure_range=8.0), min_sites=3)
    assert busy.fingerprints == calm.fingerprints
    assert any("the SuperLink" in line and "secure aggregation" in line for line in busy.said)


def test_a_job_can_be_stopped_while_a_secure_aggregation_waits_for_a_site(tmp_path: Path) -> None:
    calm, job = (Job(tmp_path / name, "fedper", rounds=1) for name in ("calm", "stopped"))
    secure: dict[str, Any] = {"deadline": 20.0, "poll": 0.01, "privacy": Privacy(secure_range=8.0), "min_sites": 3}

    def vanish(site: str, request: Message, response: Message) -> Message | None:
        if site != "site-1" or request.metadata.message_type != "train":
            return response
        request_stop(job.folder, final=False)
        return None

    job.tamper(vanish)
    job.run(**secure)
    status = read_status(job.folder)
    assert status is not None and status.state == "stopped"
    job.tamper(None)
    for one in (calm, job):
        one.run(**secure)
    assert job.fingerprints == calm.fingerprints


def test_a_job_can_be_stopped_while_a_secure_aggregation_waits_for_the_superlink(tmp_path: Path) -> None:
    """It was asked again until the deadline, an hour by default, with a line in the log for every time."""
    job = Job(tmp_path, "fedper", rounds=1)
    tried: list[None] = []

    def gone(*_: Any) -> Any:
        tried.append(None)
        if len(tried) == 20:
            request_stop(job.folder, final=False)
        raise httpx.ConnectError("refused")

    def leave(site: str, request: Message, response: Message) -> Message:
        if request.metadata.message_type == "train":
            job.grid.pull_messages = gone  # type: ignore[method-assign]
        return response

    job.tamper(leave)
    job.run(deadline=20.0, poll=0.01, privacy=Privacy(secure_range=8.0), min_sites=3)
    status = read_status(job.folder)
    assert status is not None and status.state == "stopped"
    assert sum("the SuperLink is busy" in line for line in job.said) == 1


def test_a_superlink_that_stays_away_ends_the_job(tmp_path: Path) -> None:
    job = Job(tmp_path, "fedper", rounds=1)

    def gone(*_: Any) -> Any:
        raise httpx.ConnectError("refused")

    job.grid.get_nodes = gone  # type: ignore[method-assign]
    with pytest.raises(PlayerflError, match=r"for 300 s \(ConnectError\); see its log .*submit the job again"):
        job.run(deadline=3600.0)
    assert 300 < job.clock.now < 400
    status = read_status(job.folder)
    assert status is not None and status.state == "failed" and "see its log" in status.detail


def test_the_status_names_who_is_missing_since_when_and_why(tmp_path: Path) -> None:
    job = Job(tmp_path, "fedper", rounds=1)
    job.grid.offline.add("site-2")
    seen: list[dict[str, Any]] = []

    def look(site: str, _: Message, response: Message) -> Message | None:
        table = json.loads((job.folder / STATUS).read_text())
        if table["missing"]:
            seen.append(table["missing"])
        return None if site == "site-1" and len(job.grid.requests) < 4 else response

    job.tamper(look)
    job.run(deadline=600.0)
    missing = seen[0]
    assert missing["site-2"]["why"] == "its node is offline"
    assert missing["site-1"]["asked"] >= 1 and missing["site-1"]["since"].startswith("20")
    finished = read_status(job.folder)
    assert finished is not None and not finished.missing


def stop_during(job: Job, key: str, *, final: bool) -> None:
    def wish(_: Message, response: Message) -> None:
        request_stop(job.folder, final=final)

    job.tamper(Accident("site-2", [key], wish))
    job.run()
    job.tamper(None)


def test_a_stopped_job_resumes_to_the_same_bits(tmp_path: Path) -> None:
    job = Job(tmp_path, "player_fl", rounds=2)
    stop_during(job, "1:evaluate+fit", final=False)
    status = read_status(job.folder)
    assert status is not None and (status.state, status.round) == ("stopped", 1)
    assert "playerfl flower run continues it" in status.detail
    job.run()
    job.assert_equals_in_process()


def test_a_job_that_was_ended_for_good_does_not_run_again(tmp_path: Path) -> None:
    job = Job(tmp_path, "fedper", rounds=2)
    stop_during(job, "0:fit", final=True)
    status = read_status(job.folder)
    assert status is not None and status.state == "ended"
    with pytest.raises(ConfigError, match="ended for good; start a new job under another name"):
        job.run()
    with pytest.raises(ConfigError, match="already ended"):
        request_stop(job.folder, final=False)


@pytest.mark.parametrize("ending", [KeyboardInterrupt, SystemExit, RunNotRunningException])
def test_a_job_whose_process_is_gone_was_interrupted(tmp_path: Path, ending: type[BaseException]) -> None:
    """So Flower ends a job whose SuperLink is killed. Unlike a job that failed, it is resumed."""
    job = Job(tmp_path, "fedper", rounds=2)
    states = []

    def look(_: Message, __: Message) -> None:
        status = read_status(job.folder)
        assert status is not None
        states.append(status.state)
        raise ending

    job.tamper(Accident("site-2", ["1:evaluate+fit"], look))
    with pytest.raises(ending):
        job.run()
    status = read_status(job.folder)
    assert states == ["running"] and status is not None and status.state == "interrupted"
    request_stop(job.folder, final=False)
    status = read_status(job.folder)
    assert status is not None and status.state == "stopped"
    job.tamper(None)
    job.run()
    job.assert_equals_in_process()


def test_all_sites_are_asked_for_a_status_that_version_0_1_wrote(tmp_path: Path) -> None:
    job = Job(tmp_path, "fedavg", rounds=1)
    job.run()
    table = json.loads((job.folder / STATUS).read_text())
    del table["missing"]
    (job.folder / STATUS).write_text(json.dumps(table))
    status = read_status(job.folder)
    assert status is not None and status.state == "finished" and set(status.sites) == set(SITES)


def test_a_site_gets_a_new_key_while_a_job_runs(tmp_path: Path) -> None:
    """Its old node is gone before it has responded; the new one, with another number and key, goes on in its place."""
    job = Job(tmp_path, "player_fl", rounds=2)

    def replaced(_: Message, __: Message) -> None:
        job.grid.numbers["site-1"] = 999

    job.tamper(Accident("site-1", ["1:evaluate+fit"], replaced))
    job.run(deadline=600.0, min_sites=3)
    job.assert_equals_in_process()
    assert {row["outcome"] for row in job.participation()} == {"answered"}
    assert job.clock.now < 60


@pytest.mark.slow
def test_a_piece_that_never_arrives_does_not_keep_the_server_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's grid waits two hours for it, in the middle of our loop; this fails if its function has moved."""
    import time

    import flwr.superlink.grid.http_grid as grid
    from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectUnavailableError

    from playerfl.flower.server.patience import limit_pulling

    def never(piece: str) -> bytes:
        raise ObjectUnavailableError(piece)

    monkeypatch.setattr(grid, "pull_objects", grid.pull_objects)
    for _ in range(2):
        limit_pulling(0.1, 10**6)
    began = time.monotonic()
    with pytest.raises(ObjectPullError):
        grid.pull_objects(["piece"], never, initial_backoff=0.05)
    assert time.monotonic() - began < 60


@pytest.mark.parametrize("what", ["size", "pieces"])
def test_a_response_that_is_far_too_large_is_not_fetched(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any size was taken into the server's memory, and any number of small pieces kept it from hearing other sites."""
    import time

    import flwr.superlink.grid.http_grid as grid
    from flwr.supercore.inflatable.inflatable_utils import ObjectPullError

    from playerfl.flower.server import patience

    monkeypatch.setattr(grid, "pull_objects", grid.pull_objects)
    monkeypatch.setattr(patience, "LEAST_SECONDS", 0.2)
    patience.limit_pulling(0.1, 10_000)
    fetched: list[str] = []

    def fetch(piece: str) -> bytes:
        fetched.append(piece)
        time.sleep(0.01)
        return bytes(1000 if what == "size" else 0)

    pieces = [str(number) for number in range(2000)]
    # As Flower's grid calls it.
    assert len(grid.pull_objects(object_ids=pieces[:5], pull_object_fn=fetch)) == 5
    with pytest.raises(ObjectPullError):
        grid.pull_objects(object_ids=pieces, pull_object_fn=fetch)
    assert len(fetched) < 1000
