"""The paper's figures about layers. Every function returns the figure and its axes, and shows nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from playerfl.analysis.drift import Drift
from playerfl.analysis.layer_analysis import QUANTITIES, LayerAnalysis
from playerfl.analysis.moments import MOMENTS
from playerfl.analysis.sweep import RANDOM, Sweep, spread
from playerfl.layers.sensitivity import federation_sensitivity
from playerfl.report.plots.comparison import COLOURS

FIGURES = ("gradient_variance", "hessian", "cka", "sensitivity")
_SHORT = {"gradient_variance": "gradient\nvariance", "hessian": "Hessian", "cka": "CKA"}


def quantity_figure(analysis: LayerAnalysis, quantity: str) -> tuple[Figure, list[Axes]]:
    """One quantity per layer at the three moments: every site, their mean, and their range as a band."""
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
        _finish(row, analysis, quantity, legend=row is rows[0])
    for moment, one in zip(MOMENTS, rows[0], strict=True):
        one.set_title(moment, fontsize=11)
    figure.suptitle(analysis.task, fontsize=13)
    return figure, rows


def _draw(axes: Axes, analysis: LayerAnalysis, quantity: str, moment: str) -> None:
    curves = analysis.curves(quantity, moment)
    sites = sorted({site for _, site in curves})
    means = np.array([_mean([curve for (_, name), curve in curves.items() if name == site]) for site in sites])
    if not len(means):
        axes.text(0.5, 0.5, "needs at least two sites", transform=axes.transAxes, ha="center")
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
    if (means < 0).any():
        axes.plot([], [], "o", color="0.3", markerfacecolor="white", markersize=5, label="negative (absolute value)")
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


def _finish(row: Sequence[Axes], analysis: LayerAnalysis, quantity: str, *, legend: bool = True) -> None:
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
    row[0].set_ylabel(QUANTITIES[quantity].replace(", ", ",\n").replace(" / ", "\n/ "))
    if legend and row[-1].get_legend_handles_labels()[0]:
        row[-1].legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1))


def correlation_figure(analysis: LayerAnalysis) -> tuple[Figure, list[Axes]]:
    """Spearman's ρ of layer score and federation sensitivity with the other quantities, with 95 % intervals."""
    figure = Figure(figsize=(11, 3.8), layout="constrained")
    axes: list[Axes] = list(figure.subplots(1, len(MOMENTS), sharey=True))
    correlations = analysis.correlations()
    for moment, one in zip(MOMENTS, axes, strict=True):
        for offset, (measure, colour, marker) in zip(
            (-0.12, 0.12), (("score", COLOURS[0], "o"), ("sensitivity", COLOURS[1], "s")), strict=True
        ):
            for place, (_, rho) in enumerate(correlations[moment][measure].items()):
                if rho is None or math.isnan(rho.value):
                    continue
                # Identical curves have an interval of zero width, up to a rounding error of either sign.
                ends = [[max(rho.value - rho.low, 0.0)], [max(rho.high - rho.value, 0.0)]] if rho.curves > 1 else None
                label = {"score": "layer score s", "sensitivity": "federation sensitivity F"}[measure]
                one.errorbar(
                    place + offset, rho.value, ends, fmt=marker, color=colour, capsize=4,
                    label=label if place == 0 else None,
                )  # fmt: skip
        one.axhline(0, color="0.7", linewidth=1)
        one.set_xticks(range(len(_SHORT)), list(_SHORT.values()))
        one.set_xlim(-0.5, len(_SHORT) - 0.5)
        one.set_ylim(-1.1, 1.1)
        one.set_title(moment, fontsize=11)
        one.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("Spearman's ρ over layers")
    axes[0].legend(frameon=False, fontsize=8, loc="lower left")
    return figure, axes


def sweep_figure(sweep: Sweep) -> tuple[Figure, list[Axes]]:
    """Left: the score of every cut over seeds. Right: what each way of choosing loses relative to the best cut."""
    figure = Figure(figsize=(12, 4.4), layout="constrained")
    axes: list[Axes] = list(figure.subplots(1, 2))
    cuts = sorted({score.cut for score in sweep.scores})
    for split, colour, marker in (("validation", COLOURS[0], "o"), ("test", COLOURS[1], "s")):
        by_cut = [[getattr(sweep.of(seed)[cut], split) for seed in sweep.seeds] for cut in cuts]
        means, spreads = [float(np.mean(v)) for v in by_cut], [spread(v) for v in by_cut]
        axes[0].errorbar(cuts, means, spreads, fmt=f"-{marker}", color=colour, capsize=3, label=split)
    marks = [cut for way, by_seed in sweep.chosen.items() if way.startswith("recommended") for cut in by_seed.values()]
    for cut in sorted(set(marks)):
        axes[0].axvline(cut, color=COLOURS[2], linewidth=8 * marks.count(cut) / len(marks), alpha=0.25,
                        label="recommended cut" if cut == min(marks) else None)  # fmt: skip
    names = ["none", *sweep.layers]
    axes[0].set_xticks(cuts, [f"{cut}\n{names[cut]}" for cut in cuts], fontsize=9)
    axes[0].set_xlabel("shared layers (up to and including)")
    axes[0].set_ylabel("macro-F1, mean over sites" if sweep.metric == "f1" else "minus loss, mean over sites")
    axes[0].set_title(f"{sweep.task}: every cut, {sweep.rounds} rounds, {len(sweep.seeds)} seeds", fontsize=11)
    axes[0].legend(frameon=False, fontsize=9)
    regrets = sweep.regrets()
    for number, regret in enumerate(regrets):
        for offset, values, colour in ((-0.18, regret.validation, COLOURS[0]), (0.18, regret.test, COLOURS[1])):
            axes[1].barh(number + offset, float(np.mean(values)), 0.34, xerr=spread(values) or None, color=colour,
                         error_kw={"capsize": 3, "linewidth": 1})  # fmt: skip
    labels = [f"{r.way}{'' if r.way == RANDOM else f' ({_cuts(r.cuts)})'}" for r in regrets]
    axes[1].set_yticks(range(len(regrets)), labels, fontsize=9)
    axes[1].invert_yaxis()
    axes[1].axvline(0, color="0.5", linewidth=1)
    axes[1].set_xlabel("regret: best cut on validation minus this one")
    axes[1].set_title("what each way of choosing a cut loses", fontsize=11)
    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _cuts(cuts: Sequence[int]) -> str:
    return ", ".join(map(str, sorted(set(cuts))))


def drift_figure(drift: Drift) -> tuple[Figure, list[Axes]]:
    """Left: sensitivity per layer, one line per measured round. Right: the cut that each round would choose."""
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    axes: list[Axes] = list(figure.subplots(1, 2))
    positions = np.arange(1, len(drift.layers) + 1)
    rounds = list(drift.rounds)
    for place, (round_, recommendation) in enumerate(drift.rounds.items()):
        curve = np.array(list(federation_sensitivity(recommendation.cut.importance).values()))
        shade = 0.75 - 0.75 * place / max(len(rounds) - 1, 1)
        ends = place in (0, len(rounds) - 1)
        axes[0].plot(
            positions,
            100 * curve / curve[curve > 0][0],
            color=str(shade) if place else COLOURS[0],
            linewidth=2 if ends else 1,
            marker="o",
            markersize=3,
            label=f"round {round_}" if ends else None,
        )
    axes[0].axvline(drift.cuts[rounds[0]] + 0.5, color=COLOURS[5], linestyle="--", label="first cut")
    axes[0].set_yscale("log")
    axes[0].set_xticks(positions, drift.layers)
    axes[0].set_ylabel("federation sensitivity,\n% of the first layer")
    axes[0].legend(frameon=False, fontsize=9)
    agreement = [recommendation.agreement or 0.0 for recommendation in drift.rounds.values()]
    axes[1].plot(rounds, list(drift.cuts.values()), color=COLOURS[0], drawstyle="steps-mid")
    axes[1].scatter(rounds, list(drift.cuts.values()), s=[12 + 50 * share for share in agreement], color=COLOURS[0])
    axes[1].set_yticks(range(1, len(drift.layers) + 1))
    axes[1].set_ylim(0.5, len(drift.layers) + 0.5)
    axes[1].set_xlabel("round (larger dots: more resampled batches agree)")
    axes[1].set_ylabel("shared layers")
    axes[1].set_title(f"{drift.task}: {drift.share_that_stays:.0%} of later measurements keep the cut", fontsize=11)
    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
    return figure, axes
