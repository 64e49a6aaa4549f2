"""A small part of `make fuzz`, with the same code: every reader reads some broken files."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

from fuzz import Field
from reader import Reader
from readers import READERS

# The readers that train or write a report take a while for each input.
SECONDS = 0.12
# As many as Hypothesis tries examples: fewer in `make quick`.
INPUTS = settings().max_examples


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_broken_files_are_refused_in_one_sentence(reader: Reader, tmp_path: Path) -> None:
    outcome = Field(reader, tmp_path / "field").run(INPUTS, seed=7, seconds=SECONDS)
    assert outcome.findings == {}
    assert outcome.inputs


def test_the_harness_finds_what_it_should(tmp_path: Path) -> None:
    """A reader that does everything wrong, to check that none of it passes."""
    import pickle
    import time

    from playerfl.errors import DataError

    elsewhere = Path(tempfile.gettempdir()) / "fuzz-elsewhere.txt"

    def read(folder: Path) -> object:
        content = (folder / "a.txt").read_bytes()
        if content == b"valid":
            return None
        match content[0] % 5:
            case 0:
                raise KeyError("a traceback")
            case 1:
                raise DataError("x" * 9000)
            case 2:
                return pickle.loads(b"cos\ngetcwd\n(tR.")
            case 3:
                return elsewhere.write_bytes(b"")
            case _:
                time.sleep(60)
                return None

    bad = Reader("bad", lambda folder: (folder / "a.txt").write_text("valid") and None, read)
    field = Field(bad, tmp_path / "field")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fuzz.SECONDS", 0.05)
        for number in range(5):
            field.try_input({"a.txt": bytes([number])})
    elsewhere.unlink()
    text = " ".join(field.outcome.findings)
    assert "KeyError" in text and "pickle.find_class" in text and "fuzz-elsewhere" in text and "Alarm" in text
    assert field.outcome.refused == 1, "a refusal is cut to a length that can be read"


def test_the_same_seed_breaks_the_same_way(tmp_path: Path) -> None:
    from random import Random

    reader = next(reader for reader in READERS if reader.name == "folder of npz sites")
    field = Field(reader, tmp_path / "field")
    assert field.random_input(Random(3)) == field.random_input(Random(3)) != field.random_input(Random(4))
