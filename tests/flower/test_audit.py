"""The audit log: a chain that shows any change, whoever writes to it and however it is interrupted."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from command_line import playerfl
from flower.attacks import SITE, ask, asked
from flower.jobs import Job
from playerfl.algorithms import FedPer
from playerfl.errors import RunDirectoryError
from playerfl.flower.site.attempts import Attempts
from playerfl.flower.site.audit import START, AuditLog
from playerfl.flower.site.open_site import OneLine


def filled(path: Path, lines: int = 4) -> AuditLog:
    log = AuditLog(path / "audit.jsonl")
    for number in range(lines):
        log.add("left", job="job", key=f"{number}:fit")
    return log


def test_every_line_has_the_hash_of_the_line_before(tmp_path: Path) -> None:
    entries = filled(tmp_path).entries()
    assert [entry["n"] for entry in entries] == [1, 2, 3, 4]
    assert [entry["previous"] for entry in entries] == [START, *(entry["hash"] for entry in entries[:-1])]


@pytest.mark.parametrize("change", ["edit", "remove", "swap", "insert", "first"])
def test_a_change_is_noticed(change: str, tmp_path: Path) -> None:
    log = filled(tmp_path)
    lines = log.path.read_text().splitlines()
    changed = {
        "edit": [lines[0], lines[1].replace("1:fit", "9:fit"), *lines[2:]],
        "remove": [lines[0], *lines[2:]],
        "swap": [lines[1], lines[0], *lines[2:]],
        "insert": [lines[0], lines[0], *lines[1:]],
        "first": lines[1:],
    }[change]
    log.path.write_text("\n".join(changed) + "\n")
    with pytest.raises(RunDirectoryError, match="was changed or damaged"):
        log.entries()


def test_an_unfinished_line_is_dropped_and_the_chain_goes_on(tmp_path: Path) -> None:
    log = filled(tmp_path)
    with log.path.open("ab") as file:
        file.write(b'{"n": 5, "event": "lef')
    assert len(log.entries()) == 4
    log.add("left", job="job")
    assert [entry["n"] for entry in log.entries()] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("blank", [b"\n", b"\n\n\n", b" \t\r\n\n", b"\n" * 2**21])
def test_blank_lines_at_the_end_do_no_harm(blank: bytes, tmp_path: Path) -> None:
    """Nothing leaves a site that cannot write its log, so an editor's blank line would stop it for good."""
    for lines in (0, 4):
        log = filled(tmp_path / str(lines), lines)
        log.path.parent.mkdir(exist_ok=True)
        with log.path.open("ab") as file:
            file.write(blank)
        assert len(log.entries()) == lines
        log.add("left", job="job")
        assert [entry["n"] for entry in log.entries()] == list(range(1, lines + 2))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"event": "left"', b'"event": "refused", "event": "left"'),
        (b'"event": "left"', b'"event":   "left"'),
        (b'"event": "left"', b'"event": "\\u006ceft"'),
        (b'"}\n', b'"}\r\n'),
        (b'"}\n', b'"}\n\n'),
    ],
)
def test_bytes_that_are_read_like_the_old_ones_are_noticed(old: bytes, new: bytes, tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.path.write_bytes(log.path.read_bytes().replace(old, new, 1))
    with pytest.raises(RunDirectoryError, match="was changed or damaged"):
        log.entries()


def test_a_server_that_keeps_asking_does_not_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(tmp_path, FedPer(), rounds=1)
    job.interrupt("site-2", "hello")
    hello = asked(job, "hello")
    monkeypatch.setattr(job.agent(SITE), "_refused", Attempts(5))
    for number in range(40):
        assert ask(job, replace(hello, version=f"{number}" + "A" * 4000)).code == "version"
    refused = [entry["detail"] for entry in AuditLog(tmp_path / SITE / "audit.jsonl").entries() if "detail" in entry]
    assert len(refused) == 6 and refused[-1] == "5 different refusals within a day; more of them are not recorded"


def test_a_message_writes_no_lines_of_its_own_into_the_log(tmp_path: Path) -> None:
    record = logging.makeLogRecord({"msg": "%s: refused", "args": ("x\n2026-11-18 INFO job: done\u2028\x1b[2J",)})
    try:
        raise ValueError("x\n2026-11-18 INFO job: done")
    except ValueError:
        record.exc_info = sys.exc_info()
    first, *others = OneLine("%(asctime)s %(message)s").format(record).splitlines()
    assert first.endswith("x\\n2026-11-18 INFO job: done\\u2028\\x1b[2J: refused")
    assert others and all(line.startswith("  ") for line in others)


def test_the_agent_and_a_person_may_write_at_the_same_time(tmp_path: Path) -> None:
    threads = [threading.Thread(target=filled, args=(tmp_path, 10)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(AuditLog(tmp_path / "audit.jsonl").entries()) == 40


def test_a_long_line_is_found_again(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl")
    log.add("left", entries={f"layer{i}.weight": ["float32", [i, i]] for i in range(60_000)})
    log.add("left", job="job")
    assert [entry["n"] for entry in log.entries()] == [1, 2]


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return playerfl(*arguments, cwd=Path())


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    job = Job(tmp_path_factory.mktemp("audited"), FedPer(2), rounds=1)
    job.run()
    return job


def test_the_command_answers_whether_a_layer_ever_left(job: Job) -> None:
    state = str(job.home / "site-1")
    private = run("flower", "audit", "--state", state, "--left", "6")
    assert private.returncode == 0 and "6 never left this site: none of 1 uploads" in private.stdout
    shared = run("flower", "audit", "--state", state, "--left", "0")
    assert shared.returncode == 1 and "0 left this site in 1 of 1 uploads" in shared.stdout
    tensor = run("flower", "audit", "--state", state, "--left", "2.bias")
    assert tensor.returncode == 1
    unknown = run("flower", "audit", "--state", state, "--left", "fc3")
    assert unknown.returncode == 2 and "unknown layer 'fc3'" in unknown.stderr


def test_the_command_verifies_the_chain_and_a_hash_noted_earlier(job: Job) -> None:
    state = str(job.home / "site-1")
    shown = run("flower", "audit", "--state", state, "--json")
    entries = json.loads(shown.stdout)
    assert f"last hash: {entries[-1]['hash']}" in shown.stderr
    assert run("flower", "audit", "--state", state, "--expect", entries[1]["hash"]).returncode == 0
    gone = run("flower", "audit", "--state", state, "--expect", "0" * 64)
    assert gone.returncode == 2 and "lines were removed or replaced" in gone.stderr


def test_jobs_in_words_and_decisions_by_command(job: Job) -> None:
    state = str(job.home / "site-2")
    shown = run("flower", "jobs", "--state", state).stdout
    assert "layers that leave this site: 0, 2; private: 4, 6" in shown
    assert "privacy: none: the server reads this site's uploads as they are" in shown
    assert run("flower", "stop", "job", "--state", state).stdout == "job: stopped\n"
    assert json.loads(run("flower", "jobs", "--state", state, "--json").stdout)[0]["status"] == "stopped"
    assert AuditLog(job.home / "site-2" / "audit.jsonl").entries()[-1]["event"] == "stopped"
    assert "did you mean 'job'" in run("flower", "approve", "jobb", "--state", state).stderr
    too_many = run("flower", "approve", "job", "--state", state, "--most-layers", "9")
    assert "between 0 and 4, not 9" in too_many.stderr
