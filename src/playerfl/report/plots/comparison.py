"""Figures. Every function returns figure and axes and shows nothing."""

from __future__ import annotations

import io
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from playerfl.errors import ConfigError, one_of
from playerfl.layers.cut import Cut
from playerfl.report.compute.comparison import AlgorithmSummary
from playerfl.report.formats import small
from playerfl.runs.result import RunResult
from playerfl.storage.atomic_files import RERUN_HINT, write_atomically

# Okabe and Ito's palette: distinguishable with any kind of colour vision.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")

# Letters that fit below an axis side by side.
_ROOM = 40


def comparison_figure(results: Sequence[RunResult], summaries: Sequence[AlgorithmSummary]) -> tuple[Figure, list[Axes]]:
    """Left, if a run decided on a cut: the sensitivity profile with it. Right: each site's score as bars."""
    decided = next((result for result in results if result.cut is not None), None)
    figure = Figure(figsize=(11 if decided else 7, 4.2), layout="constrained")
    axes: list[Axes] = list(figure.subplots(1, 2 if decided else 1, squeeze=False)[0])
    if decided and decided.cut:
        draw_profile(axes[0], decided.cut, decided.layers.get("profiles", {}))
    draw_sites(axes[-1], summaries)
    return figure, axes


def draw_profile(axes: Axes, cut: Cut, profiles: dict[str, Any]) -> None:
    """Sensitivity by layer, relative to the first, for every site and all of them; the cut dashed.

    The curve is what the rule compares, so that it jumps where the model is cut.
    """
    summed = cut.rule == "cumulative_ratio"

    def relative(scores: NDArray[np.float64]) -> NDArray[np.float64]:
        drawn = np.cumsum(scores) if summed else scores
        return drawn / float(drawn[drawn > 0][0])

    positions = np.arange(1, len(cut.layers) + 1)
    for number, profile in enumerate(profiles.values()):
        axes.plot(
            positions,
            relative(np.mean(np.array(profile["batches"]), axis=0)),
            color="0.7",
            linewidth=1,
            label="one site" if number == 0 else None,
        )
    together = relative(np.array(list(cut.importance.values())))
    axes.plot(positions, together, color=COLOURS[0], marker="o", label="all sites")
    axes.axvline(cut.index + 0.5, color=COLOURS[5], linestyle="--", label="cut")
    axes.axvspan(0.5, cut.index + 0.5, color=COLOURS[2], alpha=0.08)
    axes.set_yscale("log")
    axes.set_xlim(0.5, len(cut.layers) + 0.5)
    crowded = len(cut.layers) * max(map(len, cut.layers)) > _ROOM
    axes.set_xticks(positions, cut.layers, rotation=30 if crowded else 0, ha="right" if crowded else "center")
    axes.set_ylabel(f"sensitivity{', summed from the input' if summed else ''} (first layer = 1)")
    axes.set_title(f"shared: {cut.index} layers, private: {len(cut.layers) - cut.index}", fontsize=11)
    axes.legend(frameon=False)


def draw_sites(axes: Axes, summaries: Sequence[AlgorithmSummary]) -> None:
    """One group of bars per site, one bar per algorithm."""
    declared = next(iter(summaries[0].metrics.values()))
    metric = declared.name
    sites = list(summaries[0].sites)
    width = 0.8 / len(summaries)
    for number, summary in enumerate(summaries):
        offset = (number - (len(summaries) - 1) / 2) * width
        axes.bar(
            np.arange(len(sites)) + offset,
            [summary.sites[site][metric] for site in sites],
            width,
            label=f"{summary.algorithm} (mean {summary.average[metric]:.3f})",
            color=COLOURS[number % len(COLOURS)],
            hatch=("", "//", "..")[number // len(COLOURS) % 3],
        )
    axes.set_xticks(np.arange(len(sites)), sites, rotation=30 if len(sites) > 8 else 0)
    better = "" if metric == "f1" else f" ({declared.direction} is better)"
    axes.set_ylabel(f"{small(declared.title)} on test data{better}")
    if declared.in_percent:
        axes.set_ylim(0, 1)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=min(3, len(summaries)), fontsize=9)


def partition_figure(description: Mapping[str, Any], title: str = "") -> tuple[Figure, Axes]:
    """How many examples of each class each site has: a bubble whose area is the number. Takes `RunResult.data`."""
    sites = list(description["sites"])
    totals = {site: _class_totals(parts) for site, parts in description["sites"].items()}
    classes = sorted({label for counts in totals.values() for label in counts}, key=float)
    largest = max((count for counts in totals.values() for count in counts.values()), default=1)
    figure = Figure(
        figsize=(max(5.0, 0.42 * len(classes) + 2.5), max(2.5, 0.5 * len(sites) + 1.5)), layout="constrained"
    )
    axes = figure.subplots()
    for row, site in enumerate(sites):
        columns = [classes.index(label) for label in totals[site]]
        sizes = [600 * count / largest for count in totals[site].values()]
        axes.scatter(columns, [row] * len(columns), s=sizes, color=COLOURS[0], alpha=0.8, linewidths=0)
    labels = [f"{site} ({sum(totals[site].values()):,})" for site in sites]
    axes.set_yticks(range(len(sites)), labels)
    axes.set_ylim(len(sites) - 0.4, -0.6)
    shown = range(0, len(classes), max(1, len(classes) // 31))
    axes.set_xticks(list(shown), [classes[i] for i in shown])
    axes.set_xlim(-0.8, len(classes) - 0.2)
    axes.set_xlabel(f"class (largest bubble: {largest:,} examples)")
    axes.set_title(title, fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _class_totals(parts: Mapping[str, Any]) -> dict[str, int]:
    totals: Counter[str] = Counter()
    for part in parts.values():
        totals.update(part.get("classes", {}))
    return totals


def save_comparison(results: Sequence[RunResult], summaries: Sequence[AlgorithmSummary], path: Path) -> Path:
    """Draws the comparison into a file."""
    figure, _ = comparison_figure(results, summaries)
    return save(figure, path)


def save(figure: Figure, path: Path) -> Path:
    """Writes a figure in the format its file name ends with."""
    check_figure_file(path)
    drawn = io.BytesIO()
    with warnings.catch_warnings():
        # A name in a script that the font lacks is drawn as boxes.
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        figure.savefig(drawn, dpi=150, format=path.suffix[1:].lower())
    write_atomically(path, drawn.getvalue(), RERUN_HINT)
    return path


def check_figure_file(path: Path) -> None:
    """Refuses a file name that is not a figure's, or a folder that does not exist."""
    formats = sorted(Figure().canvas.get_supported_filetypes())
    if path.suffix[1:].lower() not in formats:
        raise ConfigError(one_of(path.suffix[1:], formats, f"figure format in {path.name}:"))
    if not path.parent.is_dir():
        raise ConfigError(f"cannot write {path}: there is no folder {path.parent}; create it first")
