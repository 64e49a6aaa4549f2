"""`playerfl report` as a new user meets it."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import playerfl
from playerfl.cli.main import app
from playerfl.errors import ConfigError, PlayerflError

runner = CliRunner()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("runs")
    for seed in range(2):
        for algorithm in ("local", "fedavg", "player_fl"):
            playerfl.run("synthetic", algorithm, rounds=2, seed=seed, out=home / f"{algorithm}-{seed}")
    return home


def report(*arguments: str | Path) -> str:
    result = runner.invoke(app, ["report", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.slow
def test_a_page_is_written_and_its_path_is_printed(runs: Path, tmp_path: Path) -> None:
    place = Path(report(runs, "--out", tmp_path / "board.html").strip())
    text = place.read_text(encoding="utf-8")
    assert place == tmp_path / "board.html"
    assert text.startswith("<!doctype html>")
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in text
    assert report(runs).strip() == str(runs / "report" / "report.html")
    assert (runs / "report" / "report.html").read_text(encoding="utf-8") == text


@pytest.mark.slow
def test_markdown_and_latex_hold_the_nine_tables(runs: Path, tmp_path: Path) -> None:
    markdown = Path(report(runs, "--format", "md", "--out", tmp_path / "x.md").strip()).read_text(encoding="utf-8")
    assert markdown.count("\n| method | synthetic") == 9
    # Fairness and incentive rank a single method here.
    assert markdown.count("| mean rank |") == 3
    assert "player_fl" not in markdown.split("## Tables")[1].split("## Ranks")[0]
    latex = Path(report(runs, "--out", tmp_path / "x.tex").strip()).read_text(encoding="utf-8")
    assert latex.count("mean rank \\\\") == 3
    assert latex.count("\\begin{longtable}") == latex.count("\\end{longtable}")
    assert "\\textbf{" in latex


@pytest.mark.slow
def test_csv_is_a_folder_of_tidy_tables(runs: Path, tmp_path: Path) -> None:
    folder = Path(report(runs, "--format", "csv", "--out", tmp_path).strip())
    assert folder == tmp_path / "tables"
    with (folder / "cells.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    cell = next(row for row in rows if (row["table"], row["algorithm"]) == ("f1", "PLayer-FL"))
    assert float(cell["low"]) <= float(cell["value"]) <= float(cell["high"])
    assert cell["runs"] == "2"


def test_json_goes_to_stdout_and_writes_nothing(runs: Path) -> None:
    before = sorted(runs.rglob("*"))
    content = json.loads(report(runs, "--json"))
    assert {row["algorithm"] for row in content["cells"]} == {"Local", "FedAvg", "PLayer-FL", "Majority class"}
    assert {row["algorithm"] for row in content["cells"] if row["baseline"]} == {"Majority class"}
    assert sorted(runs.rglob("*")) == before


@pytest.mark.slow
def test_figures_are_drawn_in_the_given_formats(runs: Path, tmp_path: Path) -> None:
    report(runs, "--out", tmp_path / "page.html", "--figures", "png", "--figures", "svg")
    made = {file.name for file in (tmp_path / "figures").iterdir()}
    assert {"scores_f1.png", "scores_f1.svg", "curves_loss.png", "sensitivity.png", "gains_f1.png"} <= made


def test_baselines_and_metric_are_used(runs: Path) -> None:
    content = json.loads(report(runs, "--baseline-global", "player_fl", "--metric", "loss", "--json"))
    assert content["cells"][0]["table"] == "loss"
    incentive = [row for row in content["cells"] if row["table"] == "incentive_f1" and not row["baseline"]]
    assert {row["algorithm"] for row in incentive} == {"FedAvg"}


def test_only_the_named_methods_are_shown(runs: Path) -> None:
    content = json.loads(report(runs, "--methods", "local, PLayer-FL", "--json"))
    assert {row["algorithm"] for row in content["runs"]} == {"Local", "PLayer-FL"}
    content = json.loads(report(runs, "--methods", "paper", "--json"))
    assert {row["algorithm"] for row in content["runs"]} == {"Local", "FedAvg", "PLayer-FL"}


@pytest.mark.slow
def test_f1_over_other_classes_is_computed_from_the_matrices(runs: Path, tmp_path: Path) -> None:
    results = [playerfl.load_result(folder) for folder in sorted(runs.glob("fedavg-*"))]
    found = json.loads(report(runs, "--f1-labels", "all", "--json"))
    means = []
    for result in results:
        shares = {site: n / sum(result.num_examples.values()) for site, n in result.num_examples.items()}
        means.append(sum(shares[site] * score for site, score in result.f1("all").items()))
    cells = {(row["table"], row["algorithm"]): row["value"] for row in found["cells"]}
    assert cells["f1", "FedAvg"] == pytest.approx(sum(means) / 2)  # the median of two runs
    usual = json.loads(report(runs, "--json"))
    assert [row for row in found["cells"] if "f1" not in row["table"]] == [
        row for row in usual["cells"] if "f1" not in row["table"]
    ]
    for labels, text in (("true", "those that are only predicted do not count"), ("all", "does not have counts as 0")):
        place = report(runs, "--f1-labels", labels, "--out", tmp_path / "x.md").strip()
        assert text in Path(place).read_text(encoding="utf-8")


def test_runs_without_matrices_are_one_sentence() -> None:
    old = Path(__file__).parents[1] / "written_by_0_1" / "archive"
    assert json.loads(report(old, "--f1-labels", "true_or_predicted", "--json"))["cells"]
    with pytest.raises(ConfigError, match="has no confusion matrices to compute F1 over other classes from; run it"):
        runner.invoke(app, ["report", str(old), "--f1-labels", "true"], catch_exceptions=False)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--metric", "auc"), "unknown metric"),
        (("--baseline-local", "nobody"), "unknown baseline"),
        (("--methods", "nobody"), "unknown method 'nobody'; allowed: fedavg, local, player_fl"),
        (("--methods", ""), "name at least one method; there are "),
        (("--format", "csv", "--out", "x.csv"), "give a folder"),
        (("--out", "x.pdf"), r"must end with \.html or \.htm or \.md or \.tex"),
        (("--format", "latex", "--out", "x.md"), r"must end with \.tex"),
    ],
)
def test_bad_input_is_one_sentence(runs: Path, arguments: tuple[str, ...], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        runner.invoke(app, ["report", str(runs), *arguments], catch_exceptions=False)


def test_a_folder_without_runs_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(PlayerflError, match="there are no runs"):
        runner.invoke(app, ["report", str(tmp_path)], catch_exceptions=False)
