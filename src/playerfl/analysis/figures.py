"""The paper's figures of layers. Every function returns figure and axes and shows nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from playerfl.analysis.layer_analysis import QUANTITIES, LayerAnalysis
from playerfl.analysis.moments import MOMENTS
from playerfl.report.figures import COLOURS

FIGURES = ("gradient_variance", "hessian", "cka", "sensitivity")
_SHORT = {"gradient_variance": "gradient\nvariance", "hessian": "Hessian", "cka": "CKA"}


def quantity_figure(analysis: LayerAnalysis, quantity: str) -> tuple[Figure, list[Axes]]:
    """One quantity by layer at the three moments: every site, their mean, and their range as a band."""
    figure = Figure(figsize=(12, 4), layout="constrained")
    axes: list[Axes] = list(figure.subplots(1, len(MOMENTS), sharey=True))
    for moment, one in zip(MOMENTS, axes, strict=True):
        _draw(one, analysis, quantity, moment)
        one.set_title(moment, fontsize=11)
    _finish(axes, analysis, quantity)
    return figure, axes


def overview_figure(analysis: LayerAnalysis) -> tuple[Figure, list[list[Axes]]]:
    """All four quantities at all three moments."""
    figure = Figure(figsize=(12, 12), layout="constrained")
    grid = figure.subplots(len(FIGURES), len(MOMENTS), sharey="row")
    rows = [list(row) for row in grid]
    for quantity, row in zip(FIGURES, rows, strict=True):
        for moment, one in zip(MOMENTS, row, strict=True):
            _draw(one, analysis, quantity, moment)
        _finish(row, analysis, quantity)
    for moment, one in zip(MOMENTS, rows[0], strict=True):
        one.set_title(moment, fontsize=11)
    figure.suptitle(analysis.task, fontsize=13)
    return figure, rows


def _draw(axes: Axes, analysis: LayerAnalysis, quantity: str, moment: str) -> None:
    curves = analysis.curves(quantity, moment)
    sites = sorted({site for _, site in curves})
    means = np.array([_mean([curve for (_, own), curve in curves.items() if own == site]) for site in sites])
    if not len(means):
        axes.text(0.5, 0.5, "no similarity with one site", transform=axes.transAxes, ha="center")
        return
    positions = np.arange(1, len(analysis.layers) + 1)
    known = np.isfinite(means).any(0)
    sizes = np.abs(means)
    colours = COLOURS if len(sites) <= len(COLOURS) else ("0.7",)
    for number, site in enumerate(sites):
        colour = colours[number % len(colours)]
        label = site if len(sites) <= len(COLOURS) else ("one site" if number == 0 else None)
        axes.plot(positions, sizes[number], color=colour, linewidth=1, alpha=0.8, label=label)
        below = means[number] < 0
        axes.plot(positions[~below], sizes[number][~below], "o", color=colour, markersize=3.5)
        axes.plot(positions[below], sizes[number][below], "o", color=colour, markerfacecolor="white", markersize=5)
    middle = np.abs(np.nanmean(means[:, known], axis=0))
    axes.plot(positions[known], middle, color="black", linewidth=2.2, label="mean of sites")
    axes.fill_between(
        positions[known], np.nanmin(sizes[:, known], 0), np.nanmax(sizes[:, known], 0), color="0.5", alpha=0.12,
        linewidth=0,
    )  # fmt: skip
    errors = analysis.errors(quantity, moment)
    for position, layer in zip(positions, analysis.layers, strict=True):
        if layer in errors:
            mean = abs(float(np.nanmean(means[:, position - 1])))
            low = min(errors[layer], 0.95 * mean)
            axes.errorbar(position, mean, [[low], [errors[layer]]], color="black", capsize=4, linewidth=1.2)


def _mean(curves: Sequence[Sequence[float]]) -> list[float]:
    return [sum(column) / len(column) for column in zip(*curves, strict=True)]


def _finish(row: Sequence[Axes], analysis: LayerAnalysis, quantity: str) -> None:
    long = sum(map(len, analysis.layers)) > 40
    for axes in row:
        if quantity == "cka":
            axes.set_ylim(0, 1.05)
        else:
            axes.set_yscale("log")
        axes.set_xlim(0.7, len(analysis.layers) + 0.3)
        axes.set_xticks(
            range(1, len(analysis.layers) + 1),
            analysis.layers,
            rotation=30 if long else 0,
            ha="right" if long else "center",
        )
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="0.92")
        axes.set_axisbelow(True)
    row[0].set_ylabel(QUANTITIES[quantity])
    row[-1].legend(frameon=False, fontsize=8, loc="best")


def correlation_figure(analysis: LayerAnalysis) -> tuple[Figure, list[Axes]]:
    """Spearman's ρ of layer score and federation sensitivity with the other quantities, with 95 % intervals."""
    figure = Figure(figsize=(11, 3.8), layout="constrained")
    axes: list[Axes] = list(figure.subplots(1, len(MOMENTS), sharey=True))
    found = analysis.correlations()
    for moment, one in zip(MOMENTS, axes, strict=True):
        for offset, (measure, colour, marker) in zip(
            (-0.12, 0.12), (("score", COLOURS[0], "o"), ("sensitivity", COLOURS[1], "s")), strict=True
        ):
            for place, (_, rho) in enumerate(found[moment][measure].items()):
                if rho is None or math.isnan(rho.value):
                    continue
                spread = [[rho.value - rho.low], [rho.high - rho.value]]
                label = {"score": "layer score s", "sensitivity": "federation sensitivity F"}[measure]
                one.errorbar(
                    place + offset, rho.value, spread, fmt=marker, color=colour, capsize=4,
                    label=label if place == 0 else None,
                )  # fmt: skip
        one.axhline(0, color="0.7", linewidth=1)
        one.set_xticks(range(len(_SHORT)), list(_SHORT.values()))
        one.set_ylim(-1.1, 1.1)
        one.set_title(moment, fontsize=11)
        one.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("Spearman's ρ over layers")
    axes[0].legend(frameon=False, fontsize=8, loc="lower left")
    return figure, axes
