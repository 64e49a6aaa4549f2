"""What was read is remembered for each file, but not beyond a change of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from playerfl.data.readers.remembered import remembered


def test_a_file_is_read_again_only_if_it_changed(tmp_path: Path) -> None:
    reads: list[str] = []

    @remembered(2)
    def read(path: Path, encoding: str) -> list[str]:
        reads.append(path.name)
        return path.read_text(encoding=encoding).splitlines()

    first, second = tmp_path / "a", tmp_path / "b"
    for file in (first, second):
        file.write_text("one")
    for _ in range(3):
        assert read(first, "ascii") == read(second, "ascii") == ["one"]
    assert reads == ["a", "b"]
    first.write_text("one\ntwo")
    assert read(first, "ascii") == ["one", "two"]
    assert read(second, "ascii") == ["one"]
    assert reads == ["a", "b", "a"]
    first.unlink()
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            read(first, "ascii")
