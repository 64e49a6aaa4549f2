"""The report on a folder of one's own: the data, who gains with intervals over patients, calibration, no ranks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import playerfl
from browser import Opened
from own_data import csv, table
from playerfl.report.compute.collected import Collected
from playerfl.report.compute.report import Report, build_report
from playerfl.report.view.facts import records
from playerfl.report.view.sections import view
from playerfl.report.write.documents import as_latex, as_markdown, as_page
from playerfl.runs.measures.baseline import baseline_scores
from playerfl.runs.result import RunResult

SETTINGS = {"metrics": ["auroc", "f1", "accuracy"], "training.batch_size": 16}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[RunResult]:
    folder = csv(tmp_path_factory.mktemp("hospitals"), north=table(90, 1), south=table(80, 2), west=table(70, 3))
    return [
        playerfl.run(str(folder), name, rounds=4, learning_rate=0.01, settings=SETTINGS)
        for name in ("local", "fedavg", "player_fl")
    ]


@pytest.fixture(scope="module")
def report(results: list[RunResult]) -> Report:
    return build_report(Collected(results))


def test_it_is_about_the_sites_and_has_no_ranks_or_tests(report: Report) -> None:
    anchors = [section.anchor for section in view(report, "x").sections]
    assert anchors == ["summary", "your-data", "sites", "tables", "calibration", "curves", "layers", "cost", "methods"]
    shown = as_markdown(report, "x")
    assert "mean rank" not in shown
    assert "ncentivised" not in shown
    assert "| site | training rows | validation rows | test rows | ill | well |" in shown
    assert "| Majority class (baseline) | 0.500 |" in shown
    assert "95 % interval over test rows" in shown
    assert "target: column 'outcome'" in shown
    assert as_latex(report, "x").count(r"\begin{document}") == 1


def test_other_tasks_and_many_runs_keep_the_usual_page(results: list[RunResult]) -> None:
    many = [_with_seed(run, seed) for seed in range(6) for run in results]
    usual = build_report(Collected(many))
    assert "tests" in [section.anchor for section in view(usual, "x").sections]


def _with_seed(run: RunResult, seed: int) -> RunResult:
    return replace(run, experiment={**run.experiment, "seed": seed})


def test_every_table_of_scores_has_a_baseline(report: Report, results: list[RunResult]) -> None:
    known = baseline_scores(results[0])
    assert known is not None
    rows = records(report)["sites"]
    assert {(row["site"], row["metric"]): row["baseline"] for row in rows} == {
        (site, metric): pytest.approx(value) for site, scores in known.items() for metric, value in scores.items()
    }
    page = as_markdown(report, "x")
    assert "| majority class | test rows | training rows |" in page
    # Both classes are about as frequent.
    (calibration,) = report.baseline_calibrations
    assert calibration.score("brier") == pytest.approx(0.25, abs=0.02)
    assert f"| Majority class (baseline) | {calibration.task} |" in page
    assert "that of the positive class (well)" in page


def test_calibration_is_in_the_tables(report: Report) -> None:
    rows = records(report)["calibration"]
    whole = [row for row in rows if row["site"] == "all sites" and row["algorithm"] == "PLayer-FL"]
    assert sum(int(row["rows"] or 0) for row in whole) == sum(report.grid.runs[0].result.test_rows.values())
    for row in rows:
        low, share, high = (float(row[key] or 0) for key in ("low", "came_true", "high"))
        assert 0 <= low <= share <= high <= 1


@pytest.mark.system
@pytest.mark.parametrize("width", [390, 1400])
def test_the_page_draws_calibration_and_fits(report: Report, browser: Any, tmp_path: Path, width: int) -> None:
    file = tmp_path / "report.html"
    file.write_text(as_page(report, "Hospitals"), encoding="utf-8")
    page = Opened(browser, file, width=width).unfold()
    assert page.complaints == []
    assert page.asked_the_network == []
    assert page.run("() => document.documentElement.scrollWidth") <= width
    assert page.run("() => document.querySelectorAll('#calibration-chart svg path').length") == 4
    page.page.select_option("#pick-calibration-site", "north")
    assert "north" in str(page.page.locator("#calibration-chart svg").get_attribute("aria-label"))
    assert "rows [" in page.text("#site-table")
    page.page.select_option("#pick-algorithm", "FedAvg")
    assert page.text("#calibration-finding").startswith("The probabilities of FedAvg are off by ")
    assert "of FedAvg (Wilson)" in page.text("#calibration-caption")
    page.page.select_option("#pick-metric", "accuracy")
    assert "Accuracy, %" in page.text("#site-table")
    axe = pytest.importorskip("axe_playwright_python", reason="needs axe: pip install 'playerfl[dev]'")
    script = (Path(axe.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
    found = page.run(f"() => {{ {script}; return axe.run().then(r => r.violations.map(v => v.id)); }}")
    assert found == []
