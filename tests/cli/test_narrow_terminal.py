"""Tables on a terminal of 80 columns: nothing is cut, and what does not fit continues below."""

from __future__ import annotations

import pytest
from rich.console import Console

from made_up_runs import made_up
from playerfl.cli.tables import comparison, data_check, report
from playerfl.cli.tables.console import fitting_tables
from playerfl.data.check.result import DataCheck
from playerfl.report.compute.collected import Collected
from playerfl.report.compute.comparison import compare
from playerfl.report.compute.report import build_report

WIDTH = 80
RESULTS = [made_up(name, seed) for name in ("local", "fedavg", "player_fl") for seed in range(3)]


@pytest.fixture
def console(monkeypatch: pytest.MonkeyPatch) -> Console:
    narrow = Console(width=WIDTH, record=True, highlight=False, force_terminal=True, color_system=None)
    for module in (comparison, data_check, report):
        monkeypatch.setattr(module, "wide_console", lambda **_: narrow)
    return narrow


def check(shown: str, *words: str) -> None:
    assert max(map(len, shown.splitlines())) <= WIDTH
    assert "…" not in shown
    for word in words:
        assert word in shown


def test_a_comparison_fits(console: Console) -> None:
    comparison.print_comparison(compare(RESULTS[::3]), "last", {"f1": 0.1, "accuracy": 0.2, "loss": 1.0})
    check(console.export_text(), "accuracy", "fairness", "better off", "from sites", "vs fedavg")


def test_the_answers_of_a_report_fit(console: Console) -> None:
    report.print_report(build_report(Collected(RESULTS)))
    shown = console.export_text()
    check(shown.replace("… and", ""), "PLayer-FL", "worse off", "Which sites gain")
    assert "a first look, not a result" in " ".join(shown.split())


def test_columns_of_a_block_stay_together() -> None:
    blocks = [[("a" * 20, ["1"])], [("b" * 20, ["2"]), ("c" * 20, ["3"])]]
    names = ("name", ["x"])
    assert [len(table.columns) for table in fitting_tables("t", names, blocks, 100)] == [4]
    assert [len(table.columns) for table in fitting_tables("t", names, blocks, 60)] == [2, 3]


def test_losses_say_which_sign_is_better(console: Console) -> None:
    only_loss = [made_up(name, score=lambda site, _: {"loss": 1.0 + site}) for name in ("local", "player_fl")]
    comparison.print_comparison(compare(only_loss), "last")
    assert "A positive difference is better for the site" in console.export_text()


def test_the_target_is_on_one_line_above_a_narrow_table(console: Console) -> None:
    data_check.print_check(DataCheck("x", rows={"north": 9}, target="days until the next visit"))
    assert console.export_text().startswith("target: days until the next visit\n")
