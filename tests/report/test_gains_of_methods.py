"""Who gains and who loses over all methods: mean gains over training alone, and which intervals exclude 0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from made_up_runs import made_up
from playerfl.report.compute.collected import Collected
from playerfl.report.compute.report import Report, build_report
from playerfl.report.view.facts import records
from playerfl.report.view.gains import gains_view
from playerfl.report.write.documents import as_markdown

SITES = ("east", "west")
Scores = Mapping[str, Sequence[tuple[float, float]]]
"""By method, for each run, macro-F1 at both sites."""


def report(scores: Scores, **options: object) -> Report:
    runs = [
        made_up(
            name,
            seed,
            sites=SITES,
            score=lambda site, round_, f1=f1: {"loss": 1 - f1[site], "f1": f1[site], "accuracy": 0.5},
        )
        for name, values in scores.items()
        for seed, f1 in enumerate(values, start=1)
    ]
    return build_report(Collected(runs), **options)  # type: ignore[arg-type]


SCORES: Scores = {
    "local": [(0.5, 0.5), (0.6, 0.6), (0.7, 0.7), (0.8, 0.8)],
    "player_fl": [(0.6, 0.4), (0.7, 0.7), (0.9, 0.6), (1.0, 0.9)],
    "fedavg": [(0.4, 0.5), (0.5, 0.6), (0.6, 0.7), (0.7, 0.8)],
}


def test_the_mean_is_paired_by_run_and_an_interval_decides() -> None:
    gains = {one.algorithm: one for one in report(SCORES).method_gains("f1")}
    assert list(gains) == ["FedAvg", "PLayer-FL"], "training alone gains nothing over itself"
    east, west = gains["PLayer-FL"].sites
    assert (east.site, east.value, east.low) == ("east", pytest.approx(0.15), pytest.approx(0.1))
    assert (west.value, west.clear) == (pytest.approx(0), False)
    assert (gains["PLayer-FL"].better, gains["PLayer-FL"].worse) == (1, 0)
    assert (gains["FedAvg"].better, gains["FedAvg"].worse) == (0, 1)
    by_loss = {one.algorithm: one for one in report(SCORES).method_gains("loss")}
    assert by_loss["FedAvg"].sites[0].value == pytest.approx(-0.1), "a higher loss is worse"


def test_the_table_and_the_records_say_the_same() -> None:
    made = report(SCORES)
    table = gains_view(made, "digits", "f1")
    assert table is not None
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["FedAvg", "−10.0", "+0.0", "0", "1", "0 of 8"],
        ["PLayer-FL", "+15.0", "+0.0", "1", "0", "6 of 8"],
    ]
    assert [row[1].bold for row in table.rows] == [True, True]
    rows = [row for row in records(made)["mean_gains"] if row["metric"] == "f1"]
    assert [(row["algorithm"], row["site"], row["clear"]) for row in rows][-2:] == [
        ("PLayer-FL", "east", True),
        ("PLayer-FL", "west", False),
    ]
    assert "What every method means for the sites of digits" in as_markdown(made, "x")


def test_without_training_alone_there_is_nothing_to_compare_with() -> None:
    made = report({name: values for name, values in SCORES.items() if name != "local"})
    assert made.method_gains("f1") == []
    assert gains_view(made, "digits", "f1") is None


def test_many_sites_are_only_counted() -> None:
    sites = [f"s{number}" for number in range(9)]
    runs = [made_up(name, seed, sites=sites) for name in ("local", "fedavg") for seed in (1, 2)]
    table = gains_view(build_report(Collected(runs)), "digits", "f1")
    assert table is not None
    assert [head.title for head in table.heads] == [
        "method",
        "sites that gain",
        "sites that lose",
        "better off, sites x runs",
    ]
