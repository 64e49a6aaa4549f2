"""The table "which method for which data" is what the stored runs give."""

from __future__ import annotations

import sys

import pytest

from documented import ROOT

sys.path.append(str(ROOT / "tools"))
import which_method_table  # type: ignore[import-not-found]


@pytest.mark.slow
def test_the_table_on_the_page_is_that_of_the_archive() -> None:
    made = which_method_table.table(which_method_table.accuracies(which_method_table.ARCHIVE))
    page = which_method_table.PAGE.read_text(encoding="utf-8")
    assert made in page
    assert which_method_table.stored(page, made) == page


def test_the_best_is_bold_and_what_is_level_with_it_is_marked() -> None:
    best, level, behind = {1: 81.0, 2: 83.0}, {1: 79.0, 2: 84.0}, {1: 70.0, 2: 71.0}
    shown = which_method_table.table(
        {
            name: dict.fromkeys(which_method_table.SHIFTS, own)
            for name, own in zip("abc", (best, level, behind), strict=True)
        }
    )
    assert "| a | **82.0** (81–83) |" in shown
    assert "| b | 81.5 (79–84) ≈ |" in shown
    assert "| c | 70.5 (70–71) |" in shown
