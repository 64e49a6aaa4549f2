"""Makes a command fail at each of its writes in turn, and continues it: every command that writes must survive this."""

from __future__ import annotations

import shutil
from pathlib import Path

from faulty_disk import FULL, READ_ONLY, FaultyDisk
from writing_commands import COMMANDS

PROBLEMS = {"full": (FULL, False), "read-only": (READ_ONLY, False), "full once": (FULL, True)}
"""The error of the disk, and whether only one write gets it."""


def files_below(folder: Path, varies: tuple[str, ...]) -> dict[str, bytes]:
    """The content of each file by path; b"" for files whose content varies."""
    return {
        str(file.relative_to(folder)): b"" if file.name in varies else file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def sweep(name: str, problem: str, before: Path, folder: Path, most: int | None = None) -> tuple[int, int]:
    """Makes each write of a command fail, or `most` of them spread evenly; returns how many failed, and of how many."""
    command, (says, once), out = COMMANDS[name], PROBLEMS[problem], folder / "out"

    def begin() -> None:
        out.mkdir()
        code, text = command.begin(out, before)
        assert code == 0, text

    disk = FaultyDisk(out, problem=says)
    begin()
    with disk.mounted():
        code, text = command.start(out, before)
    assert code == 0, text
    whole = files_below(out, command.varies)
    shutil.rmtree(out)
    assert disk.count > 3
    numbers = chosen(disk.count, most)
    for number in numbers:
        begin()
        faulty = FaultyDisk(out, number, says, once=once)
        with faulty.mounted():
            code, text = command.start(out, before)
        where = f"{name}, {problem}, write {number} of {disk.count}"
        assert faulty.failed, where
        if code != 0:
            sentence = text.strip().splitlines()[-1]
            assert code == 2, f"{where}: {text}"
            assert "Traceback" not in text, f"{where}: {text}"
            assert "cannot write" in sentence, f"{where}: {sentence}"
            assert str(out) in sentence, f"{where}: {sentence}"
            code, text = command.go_on(out, before)
            assert code == 0, f"after {where}: {text}"
        found = files_below(out, command.varies)
        assert found.keys() == whole.keys(), f"after {where}: {found.keys() ^ whole.keys()}"
        assert [file for file in found if found[file] != whole[file]] == [], f"after {where}"
        shutil.rmtree(out)
    return len(numbers), disk.count


def chosen(count: int, most: int | None) -> list[int]:
    """The writes that fail: all, or at most `most`, including the first and the last.

    >>> chosen(9, None) == [1, 2, 3, 4, 5, 6, 7, 8, 9], chosen(9, 3)
    (True, [1, 5, 9])
    """
    if most is None or most >= count:
        return list(range(1, count + 1))
    return [1 + round(place * (count - 1) / (most - 1)) for place in range(most)]
