"""Disk full and read-only at every write: one sentence with the path, nothing corrupt, and the same bits afterwards."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from faulty_disk import FULL, READ_ONLY, FaultyDisk
from writing_commands import COMMANDS, made_before, playerfl, resumed, run


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("before")
    with made_before(folder):
        yield folder


def files_below(folder: Path, varies: tuple[str, ...]) -> dict[str, bytes]:
    """By path; nothing is said of the content of files that vary."""
    return {
        str(file.relative_to(folder)): b"" if file.name in varies else file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def begun(name: str, out: Path, before: Path) -> None:
    out.mkdir()
    command = COMMANDS[name]
    if command.begin:
        code, said = playerfl(*command.begin(out, before))
        assert code == 0, said


def undisturbed(name: str, before: Path, tmp_path: Path) -> tuple[dict[str, bytes], int]:
    """What a command leaves where nothing fails, and how often it writes."""
    # Removals count as writes on a read-only disk, so that there are as many at least as on a full one.
    disk = FaultyDisk(tmp_path / "broken", problem=READ_ONLY)
    begun(name, disk.home, before)
    with disk.mounted():
        code, said = playerfl(*COMMANDS[name].start(disk.home, before))
    assert code == 0, said
    found = files_below(disk.home, COMMANDS[name].varies)
    shutil.rmtree(disk.home)
    return found, disk.count


def check(name: str, before: Path, tmp_path: Path, problem: int, wanted: int | None = None, *, once: bool) -> None:
    """Lets a command fail at `wanted` of its writes, from the first to the last, or at each of them, and go on."""
    command = COMMANDS[name]
    whole, writes = undisturbed(name, before, tmp_path)
    assert writes > 3
    step = max(1, writes // wanted) if wanted else 1
    for number in range(1, writes + 1, step):
        out = tmp_path / "broken"
        begun(name, out, before)
        disk = FaultyDisk(out, number, problem, once=once)
        with disk.mounted():
            code, said = playerfl(*command.start(out, before))
        if not disk.failed:
            assert problem == FULL, "a full disk lets files go, so there are fewer writes that can fail"
            shutil.rmtree(out)
            break
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
commands = pytest.mark.parametrize("name", COMMANDS)


@problems
def test_some_writes_fail(problem: int, before: Path, tmp_path: Path) -> None:
    check("archive", before, tmp_path, problem, wanted=3, once=False)


@pytest.mark.slow
@problems
@commands
def test_every_write_fails(name: str, problem: int, before: Path, tmp_path: Path) -> None:
    check(name, before, tmp_path, problem, once=False)


@pytest.mark.slow
@commands
def test_every_write_fails_and_those_after_it_do_not(name: str, before: Path, tmp_path: Path) -> None:
    check(name, before, tmp_path, FULL, once=True)


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
