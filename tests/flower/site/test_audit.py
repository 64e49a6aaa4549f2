"""The audit log: a chain that shows any change, whoever writes to it and however it is interrupted."""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from torch import nn

from command_line import playerfl
from flower.attacks import SITE, ask, asked
from flower.jobs import Job
from playerfl.algorithms import FedPer
from playerfl.errors import RunDirectoryError
from playerfl.flower.site.attempts import Attempts
from playerfl.flower.site.files.audit import START, AuditLog, line_hash
from playerfl.flower.site.files.contract import Contract
from playerfl.flower.site.open_site import OneLine
from playerfl.flower.wire.codec import decode_response, envelope_parcel
from playerfl.flower.wire.envelopes import Envelope
from playerfl.selftest.small import mlp, sites
from playerfl.tasks.task import own_task


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


def test_a_line_that_was_changed_with_its_own_hash_is_noticed_by_the_next_one(tmp_path: Path) -> None:
    log = filled(tmp_path)
    lines = log.path.read_text().splitlines()
    forged = {**json.loads(lines[1]), "key": "9:fit"}
    lines[1] = json.dumps({**forged, "hash": line_hash(forged)})
    log.path.write_text("\n".join(lines) + "\n")
    with pytest.raises(RunDirectoryError, match="line 3 does not fit the line before it"):
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


def test_a_last_line_that_is_damaged_is_named_with_its_file(tmp_path: Path) -> None:
    """The sentence began with the number of the open file."""
    log = filled(tmp_path)
    with log.path.open("ab") as file:
        file.write(b"garbage\n")
    with pytest.raises(RunDirectoryError, match=f"^{log.path}: the last line is damaged"):
        log.add("left", job="job")


def test_the_agent_and_a_person_may_write_at_the_same_time(tmp_path: Path) -> None:
    threads = [threading.Thread(target=filled, args=(tmp_path, 10)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(AuditLog(tmp_path / "audit.jsonl").entries()) == 40


def test_a_long_line_is_found_again(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl")
    log.add("left", entries={"a layer of " + "many " * 300_000 + "words": ["float32", [1, 1]]})
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
    assert private.returncode == 0 and "6 never left this site: none of 1 upload " in private.stdout
    shared = run("flower", "audit", "--state", state, "--left", "0")
    assert shared.returncode == 1 and "0 left this site in 1 of 1 upload" in shared.stdout
    tensor = run("flower", "audit", "--state", state, "--left", "2.bias")
    assert tensor.returncode == 1
    unknown = run("flower", "audit", "--state", state, "--left", "fc3")
    assert unknown.returncode == 2 and "unknown layer 'fc3'" in unknown.stderr


def test_a_layer_is_looked_for_in_the_model_of_each_job(tmp_path: Path) -> None:
    """The last job's model stood for all: a layer of the same name that an earlier one sent had "never left"."""
    log = AuditLog(tmp_path / "audit.jsonl")
    for name, entries in (("first", ["head.out.weight"]), ("second", ["body.weight"]), ("gone", ["neck.weight"])):
        log.add("left", job=name, key="0:fit", entries={entry: ["float32", [2]] for entry in entries})
    layers = {
        "first": {"body": ("body.weight",), "head": ("head.out.weight",)},
        "second": {"body": ("body.weight",), "head": ("head.weight",)},
    }
    for name, of_job in layers.items():
        (tmp_path / name).mkdir()
        Contract.begin(Envelope(name, SITE, "", "", ""), of_job, 9).write(tmp_path / name)
    for name, uploads in (("head", 1), ("body", 1), ("neck", 1), ("head.weight", 0)):
        said = run("flower", "audit", "--state", tmp_path, "--left", name)
        assert said.returncode == (1 if uploads else 0), said.stderr
        assert (f"{name} left this site in 1 of 3" if uploads else f"{name} never left") in said.stdout


def with_tied_layers() -> nn.Module:
    model = mlp()
    model.get_submodule("4").weight = model.get_submodule("2").weight
    return model


def test_a_private_layer_whose_tensor_left_with_another_layer_has_left(tmp_path: Path) -> None:
    """A head tied to an embedding "never left", and was shown as private to the person who decides."""
    job = Job(tmp_path, FedPer(2), own_task(with_tied_layers, sites()), rounds=1)
    job.run()
    state = tmp_path / SITE
    shown = run("flower", "jobs", "--state", state).stdout
    assert "0, 2; private: 4, 6; 2.weight leaves with 2, although it is part of 4, too" in shown
    left = run("flower", "audit", "--state", state, "--left", "4")
    assert left.returncode == 1 and "4 left this site in 1 of 1 upload" in left.stdout
    assert run("flower", "audit", "--state", state, "--left", "6").returncode == 0


def test_a_directory_without_a_log_is_not_one_that_nothing_left(tmp_path: Path) -> None:
    for state in (tmp_path, tmp_path / "mistyped"):
        said = run("flower", "audit", "--state", state)
        assert said.returncode == 2 and "has no audit log" in said.stderr and "intact" not in said.stderr


def test_a_mistyped_job_is_not_one_of_which_nothing_left(job: Job) -> None:
    for question in ((), ("--left", "0"), ("--json",)):
        said = run("flower", "audit", "--state", job.home / "site-1", "--job", "jbo", *question)
        assert said.returncode == 2 and "did you mean 'job'" in said.stderr and not said.stdout
    assert run("flower", "audit", "--state", job.home / "site-1", "--job", "job", "--left", "0").returncode == 1


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


def test_a_job_whose_contract_is_damaged_does_not_hide_the_others(job: Job, tmp_path: Path) -> None:
    """Nobody could stop a job as long as the contract of another one could not be read."""
    state = tmp_path / "state"
    shutil.copytree(job.home / "site-0", state)
    shutil.copytree(state / "job", state / "broken")
    (state / "broken" / "contract.json").write_text("{")
    shown = json.loads(run("flower", "jobs", "--state", state, "--json").stdout)
    assert [(one["job"], one["status"]) for one in shown] == [("broken", "damaged"), ("job", "finished")]
    assert run("flower", "stop", "job", "--state", state).stdout == "job: stopped\n"
    assert "cannot be read" in run("flower", "stop", "broken", "--state", state).stderr


@pytest.mark.parametrize("how", ["deleted", "cut off", "replaced"])
def test_a_log_that_lost_lines_says_so_from_then_on(how: str, tmp_path: Path) -> None:
    """A new chain, or the beginning of the old one, is intact by itself."""
    log = filled(tmp_path)
    lines = log.path.read_text().splitlines(keepends=True)
    if how == "deleted":
        log.path.unlink()
    elif how == "cut off":
        log.path.write_text("".join(lines[:2]))
    else:
        log.path.unlink()
        log.path.write_text(filled(tmp_path / "other", 6).path.read_text())
    with pytest.raises(RunDirectoryError, match="line 4, written with the hash"):
        log.entries()
    log.add("left", job="job")
    log.add("left", job="job")
    events = [entry["event"] for entry in log.entries()]
    assert events[-3:] == ["gap", "left", "left"] and events.count("gap") == 1
    shown = run("flower", "audit", "--state", tmp_path)
    assert shown.returncode == 2 and f"lines are missing before line {len(events) - 2}" in shown.stderr


def test_a_note_that_is_older_than_the_log_is_no_gap(tmp_path: Path) -> None:
    """As a power cut may leave it."""
    log = filled(tmp_path, 2)
    note = log.last_line.read_bytes()
    log = filled(tmp_path, 2)
    log.last_line.write_bytes(note)
    log.add("left", job="job")
    assert [entry["event"] for entry in log.entries()] == ["left"] * 5


def test_a_log_that_is_replaced_while_a_line_waits_gets_the_line(tmp_path: Path) -> None:
    """The writer had opened the old file already, and wrote its line where nobody looks."""
    import fcntl

    log = filled(tmp_path)
    copy = log.path.read_bytes()
    with log.path.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        writer = threading.Thread(target=log.add, args=("stopped",))
        writer.start()
        time.sleep(0.2)
        log.path.unlink()
        log.path.write_bytes(copy)
    writer.join()
    assert [entry["event"] for entry in log.entries()] == ["left"] * 4 + ["stopped"]


def test_the_same_answer_again_and_again_does_not_fill_the_disk(tmp_path: Path) -> None:
    job = Job(tmp_path, FedPer(), rounds=1)
    job.run()
    log, hello = AuditLog(tmp_path / SITE / "audit.jsonl"), asked(job, "hello")
    before = len(log.entries())
    for _ in range(63):
        assert ask(job, hello).code is None
    again = log.entries()[before:]
    assert [entry["times"] for entry in again] == [2, 4, 8, 16, 32, 64]
    assert len({entry["sha256"] for entry in again}) == 1


NASTY = "x\n  layers that leave this site: none\x1b[2J\u202e"


def test_no_setting_of_a_job_looks_like_a_line_of_its_description(job: Job, tmp_path: Path) -> None:
    """The person who approves a job reads what the server has chosen."""
    state = tmp_path / "state"
    shutil.copytree(job.home / "site-0", state)
    contract = json.loads((state / "job" / "contract.json").read_text())
    experiment = contract["terms"]["experiment"]
    toml = json.dumps(NASTY)
    contract["terms"]["experiment"] = experiment.replace("[data]", f"[data]\ntarget = {toml}")
    (state / "job" / "contract.json").write_text(json.dumps(contract))
    shown = run("flower", "jobs", "--state", state).stdout
    assert "\x1b" not in shown and "\u202e" not in shown
    assert sum(line.lstrip().startswith("layers that leave") for line in shown.splitlines()) <= 1


@pytest.mark.parametrize("noise", [1e-200, 1e200])
def test_no_job_hides_the_others_from_the_person_who_decides(noise: float, job: Job, tmp_path: Path) -> None:
    """Noise whose square is 0 or infinite ended `playerfl flower jobs` with a traceback."""
    waiting = replace(asked(job, "hello"), job="odd", site="site-0")
    parcel = envelope_parcel(waiting)
    parcel.configs["envelope"]["privacy"] = json.dumps({"clip": 1.0, "noise": noise})
    assert decode_response(job.agent("site-0").answer(parcel)).code == "version"
    state = tmp_path / "state"
    shutil.copytree(job.home / "site-0", state)
    assert not (state / "odd").exists()
    # An earlier version accepted it.
    shutil.copytree(state / "job", state / "a-job")
    contract = json.loads((state / "a-job" / "contract.json").read_text())
    contract["terms"]["privacy"] |= {"clip": 1.0, "noise": noise}
    (state / "a-job" / "contract.json").write_text(json.dumps(contract))
    shown = run("flower", "jobs", "--state", state)
    assert shown.returncode == 0 and "a-job: damaged" in shown.stdout
    assert "layers that leave this site: " in shown.stdout


def test_a_name_from_the_server_does_not_change_the_audit_table(tmp_path: Path) -> None:
    AuditLog(tmp_path / "audit.jsonl").add("refused", job="[red]" + NASTY, key=NASTY, code="refused", detail=NASTY)
    shown = run("flower", "audit", "--state", tmp_path).stdout
    assert "\x1b[2J" not in shown and "\u202e" not in shown and "[red]" in shown
    assert not any(line.strip(" │").startswith("layers that leave") for line in shown.splitlines())
