"""Tables are read row by row, and every fault is one sentence that names its place."""

from __future__ import annotations

import csv
import gzip
import io
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from playerfl.data.readers import csv_tables
from playerfl.data.readers.csv_tables import read_rows
from playerfl.data.readers.file_limits import find_file
from playerfl.errors import DataError


def written(folder: Path, content: str | bytes, name: str = "table.csv") -> Path:
    path = folder / name
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


def refused(path: Path, message: str, columns: tuple[str, ...] = ("a", "b"), **options: Any) -> None:
    with pytest.raises(DataError, match=message) as problem:
        list(read_rows(path, columns, **options))
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize("name", ["table.csv", "table.csv.gz"])
def test_quoted_fields_keep_commas_quotes_and_line_ends(tmp_path: Path, name: str) -> None:
    rows = [["1", 'say "hi", twice'], ["2", "two\nlines\r\nthree"], ["3", ""], ["4", "trailing \\ backslash\\"]]
    text = io.StringIO()
    csv.writer(text).writerows([["a", "b"], *rows])
    read = list(read_rows(written(tmp_path, text.getvalue(), name), ("a", "b")))
    assert [[row["a"], row["b"]] for row in read] == rows
    assert [(row.number, row.line) for row in read] == [(1, 2), (2, 3), (3, 6), (4, 7)]


def test_columns_are_found_by_name_in_any_order_and_case(tmp_path: Path) -> None:
    path = written(tmp_path, "\ufeffb,other, A \r\n2,x,1\r\n\r\n")
    assert [dict(row) for row in read_rows(path, ("A", "B"))] == [{"A": "1", "B": "2"}]


def test_without_a_header_every_column_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, '"1","é"\n'.encode("latin-1"))
    read = list(read_rows(path, ("a", "b"), header=False, encoding="latin-1"))
    assert [(dict(row), row.number, row.line) for row in read] == [({"a": "1", "b": "é"}, 1, 1)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"table\.csv lacks the column a, b; it has no columns at all"),
        ("a,c\n1,2\n", r"table\.csv lacks the column b; it has a, c"),
        ('a,"c\nd"\n1,2\n', r"table\.csv lacks the column b; it has a, c d"),
        ("a,b\n1,2\n\n1,2,3\n", r"table\.csv, row 2 \(line 4\) has 3 columns instead of 2"),
        ('a,b\n1,"2\n2"\n1\n', r"table\.csv, row 2 \(line 4\) has 1 columns instead of 2"),
        (b"a,b\n1,\xff\n", r"table\.csv, near line 1: the byte 0xff is not utf-8 text; is it the original file\?"),
        ("a,b\n1," + "x" * 200_000, r"table\.csv, line 2: field larger than field limit \(131072\); is a quotation"),
        ('a,b\n1,2\n1,"' + "x\n" * 100_000, r"table\.csv, line 3: field larger than field limit"),
        ("a,b\n" + "1," * 600_000, r"table\.csv, line 2: the row is longer than 1,048,576 characters; is this a CSV"),
        ("a,b\n" + '"\n",' * 300_000, r"table\.csv, line \d+: the row is longer than 1,048,576 characters"),
    ],
    ids=["empty", "missing", "two-line title", "wide", "narrow", "encoding", "field", "quote", "line", "row of lines"],
)
def test_malformed_tables(tmp_path: Path, content: str | bytes, message: str) -> None:
    refused(written(tmp_path, content), message)


def test_a_header_too_long_to_show_is_cut_off(tmp_path: Path) -> None:
    path = written(tmp_path, ",".join(["x" * 1000] * 100) + "\n")
    with pytest.raises(DataError) as problem:
        list(read_rows(path, ("a",)))
    assert len(str(problem.value)) < 400


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a,b\n1,2\n", r"table\.csv\.gz cannot be read: Not a gzipped file .*; download it again"),
        (gzip.compress(b"a,b\n" + b"1,2\n" * 9999)[:-20], r"table\.csv\.gz cannot be read: .*; download it again"),
        (gzip.compress(b"a,b\n")[:10] + b"\xff" * 20, r"table\.csv\.gz cannot be read: .*; download it again"),
    ],
    ids=["not gzip", "cut off", "garbled"],
)
def test_broken_gzip_files(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "table.csv.gz"
    path.write_bytes(content)
    refused(path, message)


def test_an_endless_line_in_a_small_gzip_file_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "table.csv.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b"a,b\n")
        for _ in range(30):
            file.write(bytes(2**20))
    tracemalloc.start()
    refused(path, r"table\.csv\.gz, line 2: the row is longer than 1,048,576 characters")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * 2**20


@pytest.mark.slow
def test_a_gzip_file_of_endless_rows_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_tables, "_SUSPICIOUS_SIZE", 2**14)
    bomb = written(tmp_path, b"a,b\n" + b"1,2\n" * 40_000, "table.csv.gz")
    assert bomb.stat().st_size * 200 < 160_000
    refused(bomb, r"table\.csv\.gz unpacks to more than 200 times its size")
    assert len(list(read_rows(written(tmp_path, b"a,b\n" + b"1,2\n" * 40_000), ("a",)))) == 40_000


def test_a_missing_table_is_reported(tmp_path: Path) -> None:
    refused(tmp_path / "table.csv", r"table\.csv cannot be read: No such file or directory; download it again")
    with pytest.raises(DataError, match=r"has no one\.csv or two\.csv, plain or with \.gz; put it there"):
        find_file(tmp_path, "one.csv", "two.csv")


def test_the_first_table_that_is_there_is_found(tmp_path: Path) -> None:
    second = written(tmp_path, "", "two.csv")
    assert find_file(tmp_path, "one.csv", "two.csv") == second
    packed = written(tmp_path, "", "one.csv.gz")
    assert find_file(tmp_path, "one.csv", "two.csv") == packed
    plain = written(tmp_path, "", "one.csv")
    assert find_file(tmp_path, "one.csv", "two.csv") == plain


def test_errors_name_file_row_line_column_value_and_remedy(tmp_path: Path) -> None:
    row = next(read_rows(written(tmp_path, "a,b\nangry," + "x" * 90 + "\n"), ("a", "b")))
    assert row.one_of("a", {"angry": 3}) == 3
    with pytest.raises(DataError) as problem:
        row.one_of("a", {"happy": 0, "sad": 1})
    place = "table.csv, row 1 (line 2), column"
    assert str(problem.value) == f"{place} a: 'angry' is not allowed; allowed: happy, sad"
    assert str(row.error("b", "a number is needed")) == f"{place} b: '{'x' * 40}'… is not allowed; a number is needed"
