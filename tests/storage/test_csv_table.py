"""A table cannot make a spreadsheet run anything, and reads back as it was."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from playerfl.runs.directory import SCORE_COLUMNS, RunDirectory
from playerfl.storage.csv_table import csv_text, plain_cell

FORMULAS = ["=HYPERLINK(0)", "+1+1", "-2+3", "@SUM(A1)", "\t=1", "\r=1", " =1", "＝1+1", "-", "=", "-1\n"]


@pytest.mark.parametrize("text", FORMULAS)
def test_no_cell_starts_like_a_formula_and_all_read_back(text: str) -> None:
    [[cell]] = csv.reader(io.StringIO(csv_text([[text]]), newline=""))
    assert cell[0] == "'" and plain_cell(cell) == text


@pytest.mark.parametrize("text", ["north", "it's", "'quoted'", "-0.5", "+1e9", "", "a=b", "-inf"])
def test_other_cells_are_written_as_they_are(text: str) -> None:
    [row] = csv.reader(io.StringIO(csv_text([[text, "x"]]), newline=""))
    assert row[0] == text and plain_cell(text) == text


def test_a_site_named_like_a_formula_keeps_its_name_in_a_run_directory(tmp_path: Path) -> None:
    rows = [("round", 1, "=cmd|' /C calc'!A0", "test", "loss", -0.25)]
    (tmp_path / "scores.csv").write_text(csv_text([SCORE_COLUMNS, *rows]), newline="")
    assert ",=cmd" not in (tmp_path / "scores.csv").read_text()
    assert RunDirectory(tmp_path).read_table("scores.csv", SCORE_COLUMNS) == rows
