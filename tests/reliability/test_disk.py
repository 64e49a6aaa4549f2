"""Disk full and read-only at every write: one sentence with the path, nothing corrupt, and the same bits afterwards."""

from __future__ import annotations

import contextlib
import io
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import pytest
import tomli_w
from faulty_disk import FULL, READ_ONLY, FaultyDisk

from data_files import heart
from playerfl import cli

SMALL = ("--set", "data.rows=12", "--set", "data.sites=2", "--set", "data.accept_small_sites=true")
STUDY = {
    "name": "small",
    "tasks": ["synthetic"],
    "algorithms": ["local", "fedavg"],
    "learning_rates": [0.01, 0.001],
    "seeds": 1,
    "tuning_seeds": 1,
    "checkpoint_seconds": 0.0,
    "settings": {"rounds": 2, "data": {"rows": 12, "sites": 2, "accept_small_sites": True}},
}
THRESHOLDS = {"modes": ["running"], "inits": ["default"], "seeds": 1, "tasks": ["heart"]}


def playerfl(*arguments: object) -> tuple[int, str]:
    """A command in this process: its exit code, and what it says besides its results."""
    said = io.StringIO()
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(said),
        patch.object(sys, "argv", ["playerfl", *map(str, arguments)]),
        pytest.raises(SystemExit) as left,
    ):
        cli.main()
    assert isinstance(left.value.code, int)
    return left.value.code, said.getvalue()


@dataclass(frozen=True)
class Command:
    """Something that writes below a folder, and what goes on with it after a failure."""

    start: Callable[[Path, Path], tuple[object, ...]]
    """The arguments, from the folder that is written and a folder of things made before."""
    go_on: Callable[[Path, Path], tuple[object, ...]] | None = None
    varies: tuple[str, ...] = ()
    """Files that hold the time a run took."""

    def again(self, out: Path, before: Path) -> tuple[object, ...]:
        return self.go_on(out, before) if self.go_on else self.start(out, before)


def run(out: Path, _: Path) -> tuple[object, ...]:
    return ("run", "synthetic", "-a", "player_fl", "--rounds", 2, "-q", *SMALL, "--out", out / "run")


def resumed(start: Callable[[Path, Path], tuple[object, ...]]) -> Callable[[Path, Path], tuple[object, ...]]:
    """What the sentence says: --resume, where there is something to resume."""

    def go_on(out: Path, before: Path) -> tuple[object, ...]:
        begun = any((out / "run" / name).exists() for name in ("experiment.toml", "comparison.json"))
        return ("run", "--resume", out / "run", "-q") if begun else start(out, before)

    return go_on


COMMANDS: dict[str, Command] = {
    "run": Command(run, resumed(run), ("timing.json",)),
    "archive": Command(
        lambda out, before: (
            *("study", before / "study.toml", "--out", before / "study", "--backend", "serial", "-q"),
            *("--archive", out / "archive"),
        )
    ),
    "report as tables": Command(
        lambda out, before: ("report", before / "study", "--out", out / "report", "--format", "csv")
    ),
    "thresholds": Command(
        lambda out, before: (
            *("thresholds", before / "thresholds.toml", "--out", out / "found", "-q"),
            *("--data-dir", before / "data"),
        )
    ),
}


@pytest.fixture(scope="session")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished study to archive and report, and the files of a study and of thresholds."""
    folder = tmp_path_factory.mktemp("before")
    (folder / "study.toml").write_text(tomli_w.dumps(STUDY))
    (folder / "thresholds.toml").write_text(tomli_w.dumps(THRESHOLDS))
    heart(folder / "data")
    code, said = playerfl("study", folder / "study.toml", "--out", folder / "study", "--backend", "serial", "-q")
    assert code == 0, said
    return folder


def files_below(folder: Path, varies: tuple[str, ...]) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.name not in varies
    }


def undisturbed(name: str, before: Path, tmp_path: Path) -> tuple[dict[str, bytes], int]:
    """What a command leaves where nothing fails, and how often it writes."""
    disk = FaultyDisk(tmp_path / "whole")
    disk.home.mkdir()
    with disk.mounted():
        code, said = playerfl(*COMMANDS[name].start(disk.home, before))
    assert code == 0, said
    return files_below(disk.home, COMMANDS[name].varies), disk.count


def check(name: str, before: Path, tmp_path: Path, problem: int, wanted: int) -> None:
    """Lets a command fail at some of its writes, from the first to the last, and go on."""
    command = COMMANDS[name]
    whole, writes = undisturbed(name, before, tmp_path)
    assert writes > 3
    step = max(1, writes // wanted)
    for number in range(1, writes + 1, step):
        out = tmp_path / "broken"
        out.mkdir()
        disk = FaultyDisk(out, number, problem)
        with disk.mounted():
            code, said = playerfl(*command.start(out, before))
        assert disk.failed
        if code != 0:
            assert code == 2, f"write {number}: {said}"
            assert "Traceback" not in said
            sentence = said.strip().splitlines()[-1]
            assert "cannot write" in sentence
            assert str(out) in sentence, sentence
        code, said = playerfl(*command.again(out, before))
        assert code == 0, f"after write {number}: {said}"
        found = files_below(out, command.varies)
        assert found.keys() == whole.keys(), f"after write {number}"
        assert [file for file in found if found[file] != whole[file]] == [], f"after write {number}"
        shutil.rmtree(out)


problems = pytest.mark.parametrize("problem", [FULL, READ_ONLY], ids=["full", "read-only"])


@problems
def test_some_writes_of_an_archive_fail(problem: int, before: Path, tmp_path: Path) -> None:
    """The others draw figures again and again, which takes a while."""
    check("archive", before, tmp_path, problem, wanted=3)


@pytest.mark.slow
@problems
@pytest.mark.parametrize("name", COMMANDS)
def test_writes_fail_from_the_first_to_the_last(name: str, problem: int, before: Path, tmp_path: Path) -> None:
    check(name, before, tmp_path, problem, wanted=8)


@problems
def test_a_site_across_institutions_answers_with_a_code_and_goes_on(problem: int, tmp_path: Path) -> None:
    """Every write of a letter's work fails once; asked again, the site gives the answer it would have given."""
    from flower_files import letters, site_of

    _, letter = letters(tmp_path)
    whole = FaultyDisk(tmp_path / "whole")
    with whole.mounted():
        answer = site_of(whole.home).answer(letter)
    assert answer.code is None
    for number in range(1, whole.count + 1):
        disk = FaultyDisk(tmp_path / f"broken-{number}", number, problem)
        site = site_of(disk.home)
        with disk.mounted():
            assert site.answer(letter).code == "storage", f"write {number}"
        assert str(site.answer(letter)) == str(answer), f"after write {number}"
        assert files_below(disk.home, ()) == files_below(whole.home, ()), f"after write {number}"


@pytest.mark.slow
def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    """A filesystem of 64 KiB, where this process may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    try:
        made = subprocess.run(mount, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no mount command here")
    if made.returncode:
        pytest.skip(f"a small filesystem cannot be mounted here: {made.stderr.strip()}")
    try:
        code, said = playerfl(*run(disk, tmp_path))
        assert code == 2
        assert "No space left on device; free some space and continue with --resume" in said
        assert "Traceback" not in said
        subprocess.run(["mount", "-o", "remount,size=8m", str(disk)], check=True)
        code, said = playerfl(*resumed(run)(disk, tmp_path))
        assert code == 0, said
        assert playerfl(*run(tmp_path, tmp_path))[0] == 0
        varies = ("timing.json",)
        assert files_below(disk / "run", varies) == files_below(tmp_path / "run", varies)
    finally:
        subprocess.run(["umount", str(disk)], check=True)
