"""Malformed or malicious tables: one sentence each, and nothing is unpickled or allocated."""

from __future__ import annotations

import gzip
import io
import os
import struct
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from command_line import playerfl as command
from command_line import refused
from own_data import HEAD, ROWS, as_gzip, as_it_is, as_parquet, csv, load, sentence_of, set_cell, table, whole
from playerfl.data.readers import file_limits


def write(content: str | bytes, name: str = "south.csv") -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)

    return change


def cell(column: str, value: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        set_cell(folder, column, value)

    return change


def frames(**sites: pd.DataFrame) -> Callable[[Path], object]:
    return lambda folder: csv(folder, **sites)


SOUTH = table(seed=2)


@pytest.mark.parametrize(
    ("change", "options", "sentence"),
    [
        (frames(south=SOUTH.drop(columns="dose")), {}, "south.csv has no column 'dose', which north.csv has; add it,"),
        (frames(south=SOUTH.assign(height=3)), {}, "south.csv has a column 'height', which north.csv does not have;"),
        (cell("age", "old"), {}, "south.csv, column 'age', row 3: 'old' is text in a column of numbers; correct it"),
        (cell("age", "1_000"), {}, "south.csv, column 'age', row 3: '1_000' is text in a column of numbers"),
        (cell("age", "3,5"), {}, "'3,5' is a number with a comma; write decimals with a point"),
        (cell("age", "inf"), {}, "south.csv, column 'age', row 3: inf is too large"),
        (cell("age", "9" * 400), {}, "row 3: inf is too large"),
        (cell("age", "1e39"), {}, "row 3: 1e+39 is too large"),
        (cell("dose", "9" * 400), {}, "south.csv, column 'dose', row 3: "),
        (cell("ward", "x" * 10**6), {}, None),
        (
            frames(south=SOUTH.assign(ward=[f"bed {i}" for i in range(ROWS)])),
            {},
            "column 'ward' has 62 different text values, such as 'bed 0'; at most 50 categories are supported",
        ),
        (cell("outcome", "3"), {"kind": "number"}, "north.csv, column 'outcome', row 2: "),
        (frames(north=SOUTH[["outcome"]], south=SOUTH[["outcome"]]), {}, "no column besides the target 'outcome'"),
        (write(""), {}, "south.csv is empty; add data, or remove the file"),
        (write(HEAD), {}, "south.csv has no rows; add data"),
        (write(HEAD + "\n,,,,\n"), {}, "south.csv has no rows"),
        (write("\n1,2\n"), {}, "south.csv has an empty first row; put the column names there"),
        (write(HEAD + "1,2,lung,True,ill\n"), {}, "south: a site needs at least 3 examples"),
        (write(HEAD + "1,2,lung,True,ill\n1,2,lung,True,ill,6\n"), {}, "Expected 5 fields in line 3, saw 6"),
        (write(HEAD + "1,2,lung,True,ill,6\n"), {}, "south.csv has rows with more values than the 5 columns"),
        (write(HEAD + '1,2,"lung,True,ill\n'), {}, "south.csv cannot be read as a table: EOF inside string"),
        (write(HEAD.encode() + b"1,2,\xe4,True,ill\n"), {}, "south.csv is not UTF-8 text; save it as CSV in UTF-8"),
        (write(b"\xff\xfe" + HEAD.encode("utf-16-le")), {}, "south.csv is not UTF-8 text"),
        (write(",a,b\n0,1,2\n"), {}, "south.csv has no name for column 1; name it or remove it (pandas writes"),
        (write("a,b,a\n0,1,2\n"), {}, "south.csv has several columns called 'a'"),
        (write("a" * 2**22), {}, "south.csv has no line break in its first 4.0 MiB"),
        (write("a," * 100_001 + "\n"), {}, "south.csv has 100,002 columns; the limit is 100,000"),
        (write("x", "west.xlsx"), {}, "has west.xlsx, which cannot be read as a site; save it as .csv"),
        (write("x", "west.npz"), {}, "mixes .csv and .npz; use one format for all sites"),
        (lambda folder: (folder / "west").mkdir(), {}, "mixes .csv and folders"),
        (write("x", "north.csv.gz"), {}, "has two files for the site 'north', north.csv and north.csv.gz"),
        (write("x", "a\nb.csv"), {}, "has a site called 'a\\nb'; give it a printable name"),
        (lambda folder: os.mkfifo(folder / "west.csv"), {}, "west.csv is not a regular file"),
        (
            lambda folder: [file.unlink() for file in folder.iterdir()],
            {},
            "has no sites; put one file (.csv, .csv.gz, .parquet, .npz) or one folder of images",
        ),
        (as_it_is, {"target": "outcom"}, "data.target: unknown column 'outcom'; did you mean 'outcome'?"),
        (as_it_is, {"drop_columns": "doses"}, "data.drop_columns: unknown column 'doses'; did you mean 'dose'?"),
        (as_it_is, {"category_columns": "doses"}, "data.category_columns: unknown column 'doses'"),
        (as_it_is, {"drop_columns": list(table().columns)}, "north.csv has no columns left"),
    ],
)
def test_malformed_folders_give_one_sentence(
    folder: Path, change: Callable[[Path], object], options: dict[str, Any], sentence: str | None
) -> None:
    change(folder)
    if sentence is None:
        load(folder, **options)
    else:
        assert sentence in sentence_of(folder, **options)


@pytest.mark.parametrize("date", ["2024-01-31", "31.1.2024", "1/31/24", "2024-01-31 12:30:00", "2024-01-31T12:30Z"])
def test_dates_are_refused_with_their_place(folder: Path, date: str) -> None:
    csv(folder, north=table(seed=1).assign(ward=date), south=table(seed=2).assign(ward=date))
    assert sentence_of(folder).startswith(
        f"north.csv, column 'ward', row 2: {date!r} is a date; convert dates to a number"
    )
    assert load(folder, drop_columns="ward")


def test_a_target_without_two_values_or_with_too_many(folder: Path) -> None:
    csv(folder, north=table(seed=1).assign(outcome="ill"), south=table(seed=2).assign(outcome="ill"))
    assert "the target 'outcome' has the same value in every row" in sentence_of(folder)
    csv(folder, north=table(1001).assign(outcome=[f"patient {i}" for i in range(1001)]))
    assert "the target 'outcome' has 1,002 different values; at most 1,000 classes are supported" in sentence_of(folder)


def test_an_error_reaches_the_command_line_as_one_sentence(folder: Path) -> None:
    set_cell(folder, "age", "old")
    assert "south.csv, column 'age', row 3" in refused(command("run", "hospitals", cwd=folder.parent))
    assert "unknown key 'targt' in the data settings of task hospitals; did you mean 'target'?" in refused(
        command("run", "hospitals", "--set", "data.targt=age", cwd=folder.parent)
    )


def test_a_file_that_may_not_be_read_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    assert sentence_of(folder) == "cannot read north.csv: Permission denied"


def test_sizes_are_checked_before_a_file_is_opened(folder: Path) -> None:
    with (folder / "south.csv").open("r+b") as file:
        file.truncate(5 * 2**30)
    assert "south.csv is 5.0 GiB; the limit is 4.0 GiB, so split or shrink it" in sentence_of(folder)


def test_a_gzip_bomb_is_refused_while_it_unpacks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_limits, "_ALWAYS_UNPACKED", 2**20)
    as_gzip(folder)
    bomb = gzip.compress(HEAD.encode() + b"1,2,lung,True,ill\n" * 200_000)
    assert len(bomb) * 200 < 200_000 * 18
    (folder / "south.csv.gz").write_bytes(bomb)
    assert "south.csv.gz unpacks to more than" in sentence_of(folder)


@pytest.mark.parametrize(
    "content",
    [b"no gzip", gzip.compress(HEAD.encode(), mtime=0)[:-9], b"\x1f\x8b\x08\x00" + b"x" * 40],
    ids=["not gzip", "cut off", "foreign"],
)
def test_a_damaged_gzip_file_is_named(folder: Path, content: bytes) -> None:
    as_gzip(folder)
    (folder / "south.csv.gz").write_bytes(content)
    assert sentence_of(folder).startswith("south.csv.gz is damaged or not a gzip file (")


def test_a_table_too_large_for_memory_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_limits, "LARGEST_ARRAY", 1000)
    assert "north.csv would become 60 rows of 5 inputs, 2,400 bytes; the limit is 1,000 bytes" in sentence_of(folder)


def npz(folder: Path, seed: int = 0, **changes: Any) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(ROWS, 4))
    return {"x": x, "y": (x[:, 0] > 0).astype(int), **changes}


@pytest.fixture
def arrays(tmp_path: Path) -> Path:
    for i, site in enumerate(("north", "south")):
        np.savez(tmp_path / f"{site}.npz", **npz(tmp_path, i))
    return tmp_path


def test_arrays_are_read_compressed_or_not(arrays: Path) -> None:
    before = load(arrays)
    assert before.notes[0] == "target: column 'y' (the array y)"
    assert before["north"].train.inputs.shape[1] == 4
    np.savez_compressed(arrays / "south.npz", **npz(arrays, 1, x=np.asfortranarray(npz(arrays, 1)["x"])))
    assert torch.equal(whole(load(arrays)["south"]), whole(before["south"]))
    np.savez(arrays / "north.npz", **npz(arrays, 0, y=np.where(npz(arrays, 0)["y"], "ill", "well")))
    np.savez(arrays / "south.npz", **npz(arrays, 0, y=np.where(npz(arrays, 1)["y"], "ill", "well")))
    assert load(arrays).notes[1] == "kind: 2 classes (0 = ill, 1 = well)"


class Harm:
    """Leaves a trace when it is unpickled."""

    trace: Path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.trace),)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"x": np.zeros((ROWS, 2, 2))},
            "south.npz has x of kind float64 and shape (60, 2, 2); it must hold numbers, rows by inputs",
        ),
        ({"x": np.zeros((ROWS, 2), dtype=complex)}, "south.npz has x of kind complex128"),
        ({"x": np.full((ROWS, 2), "a")}, "south.npz has x of kind <U1"),
        ({"x": np.zeros((ROWS, 2), dtype="datetime64[D]")}, "south.npz has x of kind datetime64[D]"),
        ({"y": np.zeros((ROWS, 2))}, "south.npz has y of kind float64 and shape (60, 2)"),
        ({"y": np.zeros(3)}, "south.npz has 60 rows in x but 3 in y; both need the same number"),
        ({"x": np.zeros((0, 4)), "y": np.zeros(0)}, "south.npz has no rows"),
        ({"x": np.zeros((ROWS, 3))}, "south.npz has no column 'x3', which north.npz has"),
        ({"x": np.full((ROWS, 4), np.inf)}, "south.npz, column 'x0', row 1: inf is too large"),
        ({"x": np.full((ROWS, 4), np.nan)}, "south.npz, column 'x0', row 1: the value is missing"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(arrays: Path, changes: dict[str, Any], sentence: str) -> None:
    np.savez(arrays / "south.npz", **npz(arrays, 1, **changes))
    assert sentence in sentence_of(arrays)


def test_objects_are_never_unpickled(arrays: Path) -> None:
    Harm.trace = arrays / "harmed"
    harmful = np.empty(ROWS, dtype=object)
    harmful[:] = [Harm() for _ in range(ROWS)]
    np.savez(arrays / "south.npz", **npz(arrays, 1, y=harmful))
    assert "south.npz holds Python objects in 'y', which could run code when read" in sentence_of(arrays)
    assert not Harm.trace.exists()


def member(shape: tuple[int, ...], content: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    """An array file with any header."""
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY" + version + struct.pack("<H", len(header)) + header + content


def zipped(path: Path, x: bytes, compression: int = zipfile.ZIP_STORED) -> None:
    y = io.BytesIO()
    np.save(y, np.arange(ROWS) % 2)
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("x.npy", x)
        archive.writestr("y.npy", y.getvalue())


@pytest.mark.parametrize(
    ("x", "sentence"),
    [
        (member((10**12, 4), b"few bytes"), "says that x has the shape (1000000000000, 4), but holds 9 bytes of it"),
        (member((-3, -8), b"\0" * 192), "says that x has the shape (-3, -8)"),
        (member((ROWS, 4), b"\0" * 100), "says that x has the shape (60, 4), but holds 100 bytes"),
        (member((ROWS, 4), b"", b"\x02\x00"), "has the array 'x' in an unusual format"),
        (b"\x93NUMPY\x01\x00\xff\xff{", "has a damaged array 'x'"),
        (b"\x93NUMPY\x01\x00\x90\x01" + b"(" * 400, "has a damaged array 'x'"),
        (b"not an array", "has a damaged array 'x'"),
        (b"", "has a damaged array 'x'"),
    ],
)
def test_a_header_that_lies_is_refused_before_memory_is_taken(arrays: Path, x: bytes, sentence: str) -> None:
    zipped(arrays / "south.npz", x)
    assert sentence in sentence_of(arrays)


@pytest.mark.slow
def test_a_zip_bomb_is_refused_before_it_is_unpacked(arrays: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_limits, "_ALWAYS_UNPACKED", 2**20)
    zipped(arrays / "south.npz", member((2**20, 8), b"\0" * 2**26), zipfile.ZIP_DEFLATED)
    assert (arrays / "south.npz").stat().st_size < 2**17
    assert "south.npz unpacks x from" in sentence_of(arrays)
    assert "far more than its size suggests" in sentence_of(arrays)


def test_a_zip_directory_that_lies_is_refused(arrays: Path) -> None:
    """A wrong checksum, a truncated archive, or other arrays than x and y."""
    np.savez(arrays / "south.npz", **npz(arrays, 1))
    whole_file = bytearray((arrays / "south.npz").read_bytes())
    at = whole_file.index(b"PK\x01\x02")
    whole_file[at + 16 : at + 20] = b"\0\0\0\0"
    (arrays / "south.npz").write_bytes(whole_file)
    assert "south.npz cannot be read as an npz file (Bad CRC-32" in sentence_of(arrays)
    (arrays / "south.npz").write_bytes(b"PK\x03\x04 nothing else")
    assert "south.npz cannot be read as an npz file" in sentence_of(arrays)
    np.savez(arrays / "south.npz", inputs=np.zeros((ROWS, 4)))
    assert "south.npz has no array 'x', only inputs; write it with np.savez(file, x=inputs, y=targets)" in (
        sentence_of(arrays)
    )


def test_parquet_dates_and_lists_are_refused_unless_left_out(folder: Path) -> None:
    pytest.importorskip("pyarrow", reason="parquet files need pyarrow")
    as_parquet(folder)
    frame = table(seed=2).assign(admitted=pd.Timestamp("2024-01-31"), scans=pd.Series([np.arange(2)] * ROWS))
    frame.to_parquet(folder / "south.parquet")
    assert "south.parquet, column 'admitted', row 1: dates and times (timestamp" in sentence_of(folder)
    assert "south.parquet, column 'scans', row 1: values of kind list<" in sentence_of(folder, drop_columns="admitted")
    assert load(folder, drop_columns=["admitted", "scans"])["south"].train.inputs.shape[1] == 5


def test_damaged_parquet_files_and_bombs_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow", reason="parquet files need pyarrow")
    as_parquet(folder)
    content = (folder / "south.parquet").read_bytes()
    for damaged in (b"PAR1 nothing PAR1", content[: len(content) // 2], content.replace(b"\x15", b"\xff")):
        (folder / "south.parquet").write_bytes(damaged)
        assert sentence_of(folder).startswith("south.parquet cannot be read as a parquet file")
    (folder / "south.parquet").write_bytes(content)
    with monkeypatch.context() as patched:
        patched.setattr(file_limits, "LARGEST_ARRAY", 1000)
        assert "north.parquet would become 60 rows" in sentence_of(folder)
    monkeypatch.setattr(file_limits, "_ALWAYS_UNPACKED", 2**16)
    pd.DataFrame(np.zeros((200_000, 5)), columns=list("abcde")).to_parquet(folder / "south.parquet")
    assert "south.parquet unpacks from" in sentence_of(folder)


def test_a_missing_package_is_named_with_the_remedy(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in folder.iterdir():
        file.rename(file.with_suffix(".parquet"))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "needs pyarrow; pip install 'playerfl[parquet]'" in (sentence_of(folder))
