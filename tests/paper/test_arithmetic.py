"""The paper's tables, recomputed: the numbers that follow from the printed cells."""

from __future__ import annotations

import pytest

from playerfl.paper import facts as paper
from playerfl.paper.arithmetic import fits, recomputed

TABLES = {table.name: table for table in recomputed()}


@pytest.mark.parametrize(
    ("name", "p", "transposed"),
    [
        ("f1", 0.0126, 7e-10),
        ("accuracy", 0.0013, 7e-11),
        ("loss", 0.00097, 7e-12),
        ("fairness_f1", 0.60, 1e-9),
        ("fairness_accuracy", 0.032, 3e-10),
        ("fairness_loss", 0.107, 4e-10),
        ("incentive_f1", 0.067, 0.019),
        ("incentive_accuracy", 0.019, 0.0024),
        ("incentive_loss", 0.027, 0.083),
    ],
)
def test_p_values_that_follow_from_the_printed_cells(name: str, p: float, transposed: float) -> None:
    assert TABLES[name].friedman.p == pytest.approx(p, rel=0.02)
    assert TABLES[name].transposed.p == pytest.approx(transposed, rel=0.1)


@pytest.mark.parametrize("name", TABLES)
def test_ranks_and_tests_equal_the_recorded_recomputation(name: str) -> None:
    recorded, table = paper.facts()["recomputed"][name], TABLES[name]
    mean = dict(zip(table.ranking.algorithms, table.ranking.mean_ranks, strict=True))
    assert {k: round(float(v), 3) for k, v in mean.items()} == pytest.approx(
        recorded["mean_rank_average_ties"], abs=6e-4
    )
    assert table.friedman.chi2 == pytest.approx(recorded["friedman_algorithms_as_treatments"]["chi2"], abs=6e-4)
    assert table.friedman.f_p == pytest.approx(recorded["iman_davenport"]["p"], rel=1e-3)
    assert list(table.friedman.f_df) == recorded["iman_davenport"]["df"]


def test_printed_p_values_follow_from_the_cells_or_from_the_transposed_table() -> None:
    def which(chosen: object) -> set[str]:
        return {name for name, table in TABLES.items() if chosen(table)}  # type: ignore[operator]

    assert which(lambda t: t.agrees) == {"accuracy", "loss"}
    assert which(lambda t: t.explained_by_transposing) == TABLES.keys() - {"accuracy", "loss", "incentive_f1"}


def test_best_cells_without_bold_are_found() -> None:
    assert TABLES["f1"].missing_bold == ("pFedMe on EMNIST (66.2 +/- 0.7)", "pFedMe on Heart (42.5 +/- 0.8)")
    assert TABLES["accuracy"].missing_bold == ()


def test_only_two_methods_differ_significantly_from_player_fl_by_f1() -> None:
    table = TABLES["f1"]
    names = table.ranking.algorithms
    ours = names.index("PLayer-FL")
    assert table.ranking.critical_difference == pytest.approx(6.30, abs=0.005)
    assert table.ranking.nemenyi is not None and table.ranking.holm is not None
    assert {n for n, p in zip(names, table.ranking.nemenyi[ours], strict=True) if p < 0.05} == {"FedLAMA", "pFedLA"}
    assert all(table.ranking.holm[ours] > 0.05)
    assert "cannot give a p-value below" in table.ranking.holm_limit


@pytest.mark.parametrize(
    ("printed", "p", "is_it"), [("p<5e-3", 0.005, False), ("p=0.043", 0.0434, True), ("p=0.043", 0.067, False)]
)
def test_a_printed_p_value_fits_or_not(printed: str, p: float, is_it: bool) -> None:
    assert fits(printed, p) == is_it
