"""The report's figures, one panel per task. Each returns figure and axes and shows nothing."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from textwrap import fill
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from playerfl.paper.printed import Printed
from playerfl.report.compute.ranking import Ranking
from playerfl.report.compute.report import Report
from playerfl.report.compute.tables import ScoreTable
from playerfl.report.formats import interval_name, noise, small, table_title
from playerfl.report.plots.comparison import COLOURS, draw_profile
from playerfl.report.plots.multiverse import multiverse_figure
from playerfl.runs.measures.declared import Declared
from playerfl.wording import counted

Drawn = tuple[Figure, list[Axes]]
# As a line on white, Okabe and Ito's yellow is too faint.
_LINES = tuple(colour for colour in COLOURS if colour != "#F0E442")
_MOST_SITES = 24
# Methods that fit into a one-line legend and whose bands stay distinguishable.
_FEW = 6


def report_figures(report: Report) -> dict[str, Drawn]:
    """Every figure that these runs allow, by file name."""
    figures = _multiverses(report)
    if not report.grid.runs:
        return figures
    for table in report.tables:
        figures[f"scores_{table.name}" if table.kind == "score" else table.name] = table_figure(table, report.paper)
        for ranking in report.rankings[table.name]:
            if ranking.critical_difference is not None and len(ranking.algorithms) > 2:
                figures[_file_name(f"ranks_{table.name}_over_{ranking.over}")] = critical_difference_figure(ranking)
    for metric in report.grid.metrics:
        figures[f"curves_{metric}"] = curves_figure(report, metric)
    for task in report.grid.tasks:
        if len(report.grid.sites(task)) <= _MOST_SITES:
            figures[_file_name(f"site_curves_{task}")] = site_curves_figure(report, task, report.metric)
    if any(table.rows and table.rows[0].to_local for table in report.sites):
        figures[f"gains_{report.metric}"] = gains_figure(report, report.subject, report.metric)
    if report.layer_scores:
        figures["sensitivity"] = sensitivity_figure(report)
    return figures


def _multiverses(report: Report) -> dict[str, Drawn]:
    figures: dict[str, Drawn] = {}
    for number, multiverse in enumerate(report.multiverses, 1):
        name = _file_name(f"multiverse_{multiverse.name}")
        figures[f"{name}_{number}" if name in figures else name] = multiverse_figure(multiverse)
    return figures


def _file_name(text: str) -> str:
    return re.sub(r"[^\w.-]+", "-", text).strip("-.")


def _panels(count: int, *, width: float = 4.0, height: float = 3.2) -> tuple[Figure, list[Axes]]:
    across = min(count, 4)
    down = math.ceil(count / across)
    figure = Figure(figsize=(max(7.0, width * across), height * down + 0.4), layout="constrained")
    axes: list[Axes] = list(figure.subplots(down, across, squeeze=False).flat)
    for unused in axes[count:]:
        unused.set_visible(False)
    return figure, axes[:count]


def _look(algorithms: list[str], name: str) -> dict[str, str]:
    number = algorithms.index(name)
    return {"color": _LINES[number % len(_LINES)], "linestyle": ("-", "--", ":")[number // len(_LINES) % 3]}


def table_figure(table: ScoreTable, printed: Printed | None = None) -> Drawn:
    """Each method's value with its interval; what the paper prints, if given, as a hollow diamond."""
    figure, axes = _panels(len(table.tasks), height=0.26 * len(table.algorithms) + 1.2)
    scale = _scale(table.declared)[0] if table.kind == "score" else 1.0
    for panel, task in zip(axes, table.tasks, strict=True):
        for row, name in enumerate(table.algorithms):
            cell = table.cells.get((name, task))
            if cell is None:
                continue
            if not math.isfinite(cell.value):
                panel.text(0.02, row, "diverged", transform=panel.get_yaxis_transform(), va="center", fontsize=8)
                continue
            if not math.isnan(cell.low) and math.isfinite(cell.high - cell.low):
                panel.plot([scale * cell.low, scale * cell.high], [row, row], color=COLOURS[0], linewidth=1.5)
            panel.plot(scale * cell.value, row, "o", color=COLOURS[0], markersize=7 if cell.best else 5)
            theirs = printed.number(table.name, name, task) if printed else None
            if theirs is not None:
                panel.plot(theirs, row, "D", color=COLOURS[5], markersize=5, markerfacecolor="none")
        if task in table.majority:
            panel.axvline(scale * table.majority[task].value, color="0.4", linestyle=":", linewidth=1.2)
        panel.set_yticks(range(len(table.algorithms)), table.algorithms if panel is axes[0] or len(axes) > 4 else [])
        panel.set_ylim(len(table.algorithms) - 0.5, -0.5)
        panel.set_title(_plain(task), fontsize=10)
        panel.grid(axis="x", color="0.9")
        panel.set_axisbelow(True)
        panel.spines[["top", "right"]].set_visible(False)
    dotted = f"; dotted: {table.baseline_name.lower()}" if table.majority else ""
    _say_below(figure, table_title(table.kind, table.declared) + dotted)
    if printed and any(name == table.name for name, _, _ in printed.cells):
        marks = [
            Line2D([], [], marker=marker, color=colour, markerfacecolor=face, linestyle="")
            for marker, colour, face in (("o", COLOURS[0], COLOURS[0]), ("D", COLOURS[5], "none"))
        ]
        runs = min(cell.runs for cell in table.cells.values())
        words = [f"these runs ({interval_name(runs)})" if runs > 1 else "this run", "printed in the paper"]
        figure.legend(marks, words, loc="outside upper center", ncols=2, frameon=False, fontsize=9)
    return figure, axes


def _say_below(figure: Figure, text: str) -> None:
    """What the axes show; a remark after a semicolon has a line of its own."""
    width = int(11 * figure.get_figwidth())
    lines = [fill(part, width, break_on_hyphens=False) for part in _plain(text).split("; ")]
    figure.supxlabel("\n".join(lines), fontsize=10)


def _scale(metric: Declared) -> tuple[float, str]:
    """The factor by which a metric is drawn, and its name with the unit."""
    return (100.0, f"{metric.title}, %") if metric.in_percent else (1.0, metric.title)


def _plain(text: str) -> str:
    """Text that matplotlib does not parse as a formula."""
    return text.replace("$", r"\$")


def curves_figure(report: Report, metric: str) -> Drawn:
    """Learning curves: median over runs of the sites' average; the band holds the middle half of the runs."""
    tasks = report.grid.tasks
    figure, axes = _panels(len(tasks))
    names = report.grid.algorithms
    scale, label = _scale(report.grid.declared[metric])
    for panel, task in zip(axes, tasks, strict=True):
        diverged = 0
        for curve in report.curves:
            if (curve.task, curve.metric, curve.split) == (task, metric, "test"):
                diverged += curve.diverged
                look = _look(names, curve.algorithm)
                panel.plot(curve.rounds, scale * curve.middle, linewidth=1.6, label=_plain(curve.algorithm), **look)  # type: ignore[arg-type]
                band = (scale * curve.low, scale * curve.high)
                alpha = 0.13 if len(names) <= _FEW else 0.06
                panel.fill_between(curve.rounds, *band, color=look["color"], alpha=alpha, linewidth=0)
        panel.set_title(_plain(task) + (f" ({counted(diverged, 'run')} diverged)" if diverged else ""), fontsize=10)
        panel.set_xlabel("round")
        panel.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel(f"{label}, on test data")
    _legend(figure, axes)
    return figure, axes


def site_curves_figure(report: Report, task: str, metric: str) -> Drawn:
    """One panel per site: every method's test score by round, median over runs."""
    sites = report.grid.sites(task)
    figure, axes = _panels(len(sites), width=3.0, height=2.4)
    scale, label = _scale(report.grid.declared[metric])
    for row, (panel, site) in enumerate(zip(axes, sites, strict=True)):
        for curve in report.curves:
            if (curve.task, curve.metric, curve.split) == (task, metric, "test"):
                look = _look(report.grid.algorithms, curve.algorithm)
                panel.plot(curve.rounds, scale * curve.sites[row], linewidth=1.4, label=_plain(curve.algorithm), **look)  # type: ignore[arg-type]
        panel.set_title(_plain(site), fontsize=9)
        panel.spines[["top", "right"]].set_visible(False)
    _say_below(figure, "round")
    figure.supylabel(f"{label}, on test data", fontsize=10)
    _legend(figure, axes)
    return figure, axes


def _legend(figure: Figure, axes: list[Axes]) -> None:
    shown = {label: line for panel in axes for line, label in zip(*panel.get_legend_handles_labels(), strict=True)}
    few = len(shown) <= _FEW
    place: Literal["outside upper center", "outside right center"]
    place = "outside upper center" if few else "outside right center"
    if not few:
        figure.set_figheight(max(figure.get_figheight(), 0.21 * len(shown) + 0.3))
    figure.legend(shown.values(), shown.keys(), loc=place, ncols=len(shown) if few else 1, frameon=False, fontsize=9)


def gains_figure(report: Report, algorithm: str, metric: str) -> Drawn:
    """Each site's gain over training alone, worst off at the top, with its interval over seeds."""
    tables = [
        table
        for task in report.grid.tasks
        if (table := report.site_table(task, algorithm, metric)) and table.rows[0].to_local
    ]
    most = max(min(len(table.rows), 40) for table in tables)
    figure, axes = _panels(len(tables), height=0.24 * most + 1.3)
    declared = report.grid.declared[metric]
    scale = _scale(declared)[0]
    for panel, table in zip(axes, tables, strict=True):
        rows = table.rows[:40]
        for position, row in enumerate(rows):
            gain = row.to_local
            if gain is None or not math.isfinite(gain.value):
                continue
            marker, colour = ("v", COLOURS[5]) if gain.value < 0 else ("^", COLOURS[2])
            if gain.value == 0:
                marker, colour = "o", "0.4"
            face = "white" if gain.verdict == "unclear" else colour
            if math.isfinite(gain.high - gain.low):
                panel.plot([scale * gain.low, scale * gain.high], [position, position], color=colour, linewidth=1.5)
            panel.plot(scale * gain.value, position, marker, color=colour, markerfacecolor=face)
        panel.axvline(0, color="0.4", linewidth=1)
        panel.set_yticks(range(len(rows)), [_plain(row.site) for row in rows], fontsize=8)
        panel.set_ylim(len(rows) - 0.5, -0.5)
        more = f" (40 of {len(table.rows)} sites)" if len(table.rows) > 40 else ""
        panel.set_title(_plain(table.task) + more, fontsize=10)
        panel.spines[["top", "right"]].set_visible(False)
    unit = " points" if scale == 100.0 else ""
    better = f"{'lower ' if declared.lower_is_better else ''}{small(declared.title)}"
    baseline = report.choices.baseline_local
    unclear = noise({report.grid.splits(table.task) for table in tables})
    _say_below(figure, f"gain of {algorithm} over {baseline}: {better}{unit}; hollow marks: within {unclear}")
    return figure, axes


def sensitivity_figure(report: Report) -> Drawn:
    """Sensitivity by layer relative to the first, one panel per task, with the cut of the first run."""
    figure, axes = _panels(len(report.layer_scores))
    for panel, scores in zip(axes, report.layer_scores, strict=True):
        result = report.grid.results(scores.task, scores.algorithm)[min(scores.runs)]
        if result.cut is not None:
            draw_profile(panel, result.cut, _finite(result.layers.get("profiles", {})))
        panel.set_title(f"{_plain(scores.task)}\n{panel.get_title()}", fontsize=10)
    return figure, axes


def _finite(profiles: Mapping[str, Mapping[str, object]]) -> dict[str, Mapping[str, object]]:
    """Profiles with finite scores."""
    return {
        site: profile
        for site, profile in profiles.items()
        if np.isfinite(batches := np.array(profile["batches"], dtype=float)).all() and (batches > 0).any()
    }


def critical_difference_figure(ranking: Ranking) -> Drawn:
    """Mean ranks on a line; methods joined by a bar are closer than the critical difference (Demšar 2006)."""
    names, labels, mean = ranking.algorithms, ranking.labels, ranking.mean_ranks
    difference = ranking.critical_difference
    assert difference is not None
    count = len(names)
    order = np.argsort(mean, kind="stable")
    half = math.ceil(count / 2)
    bars = 0.22 * len(ranking.cliques)
    figure = Figure(figsize=(8, 1.5 + bars + 0.28 * half), layout="constrained")
    axes = figure.subplots()
    axes.set_xlim(1 - 0.45 * count, count + 0.45 * count)
    axes.set_ylim(-(bars + 0.45 + 0.3 * half), 1.05)
    axes.axis("off")
    axes.plot([1, count], [0, 0], color="black", linewidth=1)
    for tick in range(1, count + 1):
        axes.plot([tick, tick], [0, 0.08], color="black", linewidth=1)
        axes.text(tick, 0.14, str(tick), ha="center", va="bottom", fontsize=9)
    axes.plot([1, 1 + difference], [0.72, 0.72], color="black", linewidth=1.5, marker="|")
    axes.text(1 + difference / 2, 0.78, f"CD = {difference:.2f}", ha="center", va="bottom", fontsize=9)
    for number, members in enumerate(ranking.cliques):
        ends = mean[list(members)]
        axes.plot([ends.min() - 0.05, ends.max() + 0.05], [-0.18 - 0.22 * number] * 2, color="0.35", linewidth=4)
    for position, member in enumerate(order):
        left = position < half
        y = -(bars + 0.3 + 0.3 * (position if left else count - 1 - position))
        edge = 0.85 if left else count + 0.15
        axes.plot(
            [mean[member], mean[member], edge], [0, y, y], color=_look(list(names), names[member])["color"], linewidth=1
        )
        label = f"{_plain(labels[member])}  {mean[member]:.2f}"
        side, shift = ("right", -4) if left else ("left", 4)
        axes.annotate(label, (edge, y), xytext=(shift, 0), textcoords="offset points", ha=side, va="center", fontsize=9)
    return figure, [axes]
