"""Markdown and LaTeX escape what they must; figures return themselves and show nothing."""

from __future__ import annotations

import csv
import math
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from command_line import printed_by
from made_up_runs import constant, made_up
from playerfl.report.compute.collected import Collected, Gap
from playerfl.report.compute.report import Report, build_report
from playerfl.report.plots.comparison import save
from playerfl.report.plots.report import report_figures
from playerfl.report.write.documents import as_latex, as_markdown
from playerfl.report.write.files import Place, write_report

NAMES = ("local", "fedavg", "ditto", "player_fl")
ODD = ("a|b", "<b>c</b>", "50 % & $x_1$", "[2mm] \\end{document}", "* ^~ {#} 医院")


@pytest.fixture(scope="module")
def report() -> Report:
    profile = {site: [1.0, 0.5, 40.0] for site in ODD}
    made = [
        made_up(name, seed, task=f"task_{t}", sites=ODD, scores_of_layers=profile if name == "player_fl" else None)
        for name in NAMES
        for seed in range(3)
        for t in range(2)
    ]
    return build_report(Collected(made, [Gap("task_0", "fedlp", 1, "not started")]))


@pytest.mark.slow
def test_markdown_escapes_markup_and_keeps_its_columns(report: Report) -> None:
    text = as_markdown(report, "A & B")
    assert "<b>" not in text
    assert "a\\|b" in text
    assert "&lt;b&gt;c&lt;/b&gt;" in text
    assert "not started" in text
    for block in text.split("\n\n"):
        rows = [line.replace("\\|", "") for line in block.splitlines() if line.startswith("|")]
        assert len({row.count("|") for row in rows}) <= 1


def test_latex_escapes_special_characters_and_is_well_formed(report: Report) -> None:
    text = as_latex(report, "A & B")
    assert "not started" in text
    assert r"\section*{A \& B}" in text
    assert r"50 \% \& \$x\_1\$" in text
    assert r"{}[2mm] \textbackslash{}end\{document\}" in text
    assert r"{}* \textasciicircum{}\textasciitilde{} \{\#\} [U+533B][U+9662]" in text
    assert all(character < "\u0180" for character in text)
    assert unclosed(text) == []
    for columns, body in re.findall(r"\\begin\{longtable\}\{([^\n]*)\}\n(.*?)\\end\{longtable\}", text, re.DOTALL):
        rows = [line for line in body.splitlines() if line.endswith(r" \\")]
        breaks = {len(re.findall(r"(?<!\\)&", row)) for row in rows}
        assert breaks == {len(columns.replace("p{80mm}", "p")) - 1}


@pytest.mark.system
def test_latex_compiles(report: Report, tmp_path: Path) -> None:
    booktabs = ["kpsewhich", "booktabs.sty"]
    if not shutil.which("kpsewhich") or subprocess.run(booktabs, capture_output=True, check=False).returncode:
        pytest.skip("needs LaTeX: apt-get install texlive-latex-recommended")
    (tmp_path / "report.tex").write_text(as_latex(report, "A & B"), encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "report.tex"]
    made = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    assert made.returncode == 0, made.stdout[-2000:]


def unclosed(text: str) -> list[str]:
    """Braces, formulas and environments that are opened and not closed, or closed out of order."""
    stack: list[str] = []
    for match in re.finditer(r"\\(begin|end)\{(\w+)\}|\\.|([{}$])", text):
        what, name, sign = match.groups()
        if what == "begin" or sign == "{" or (sign == "$" and stack[-1:] != ["$"]):
            stack.append(name or sign)
        elif (what or sign) and stack.pop() != (name or {"}": "{"}.get(sign, sign)):
            return [match.group()]
    return stack


FORMULAS = ("=1+1", "+cmd", "-2+3", "@SUM(A1)", "\t=1", "'quoted")


def test_csv_holds_no_formulas_and_numbers_stay_numbers(tmp_path: Path) -> None:
    made = [
        made_up(name, task="=task", sites=FORMULAS, score=constant(**{"loss": 0.5, "@metric": -0.25}))
        for name in ("local", "fedavg", "=algorithm")
    ]
    write_report(build_report(Collected(made, [Gap("x", "y", 0, "=why")])), Place("csv", tmp_path), "x")
    for file in tmp_path.iterdir():
        with file.open(newline="", encoding="utf-8") as table:
            for row in csv.reader(table):
                assert not [text for text in row if text.strip()[:1] in set("=+@")], file
    with (tmp_path / "sites.csv").open(newline="", encoding="utf-8") as table:
        rows = list(csv.DictReader(table))
    assert {row["site"] for row in rows} == {*(f"'{name}" for name in FORMULAS[:-1]), FORMULAS[-1]}
    assert {float(row["score"]) for row in rows if row["metric"] == "'@metric"} == {-0.25}


@pytest.fixture(scope="module")
def drawn(report: Report) -> dict[str, tuple[Figure, list[Axes]]]:
    return report_figures(report)


@pytest.mark.slow
def test_every_figure_is_returned_with_its_axes(drawn: dict[str, tuple[Figure, list[Axes]]], tmp_path: Path) -> None:
    expected = {"scores_f1", "fairness_f1", "incentive_f1", "ranks_f1_over_tasks", "curves_f1", "sensitivity"}
    assert expected <= drawn.keys()
    for figure, axes in drawn.values():
        assert isinstance(figure, Figure)
        assert all(isinstance(panel, Axes) for panel in axes)
    for ending in ("png", "svg", "pdf"):
        assert save(drawn["gains_f1"][0], tmp_path / f"x.{ending}").stat().st_size > 1000


@pytest.mark.slow
def test_figures_have_a_panel_per_task_and_name_methods_and_cut(drawn: dict[str, tuple[Figure, list[Axes]]]) -> None:
    _, axes = drawn["curves_f1"]
    assert [panel.get_title() for panel in axes] == ["task_0", "task_1"]
    assert {line.get_label() for line in axes[0].get_lines()} == {"Local", "FedAvg", "Ditto", "PLayer-FL"}
    assert "shared: 2 layers" in drawn["sensitivity"][1][0].get_title()


@pytest.mark.slow
def test_runs_that_diverged_are_drawn_without_complaint(tmp_path: Path) -> None:
    made = [made_up(name, seed) for name in NAMES for seed in range(2)]
    diverged = constant(loss=math.nan, f1=math.nan, accuracy=0.1)
    made += [made_up("fedprox", seed, score=diverged) for seed in range(2)]
    for name, (figure, _) in report_figures(build_report(Collected(made))).items():
        save(figure, tmp_path / f"{name}.svg")


@pytest.mark.system
def test_no_figure_opens_a_window() -> None:
    """Figures are made without pyplot, which would hold on to them and might show them."""
    check = "import sys, playerfl.report.plots.report; print('matplotlib.pyplot' in sys.modules)"
    assert printed_by(check) == "False"
