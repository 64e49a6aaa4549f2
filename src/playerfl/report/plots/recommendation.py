"""The figure of a recommendation: the profile with its cut, how certain it is, and what other thresholds give."""

from __future__ import annotations

import math
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from playerfl.layers.recommendation import Recommendation
from playerfl.report.plots.comparison import COLOURS, draw_profile

# Letters of layer names that fit below an axis when slanted.
_ROOM = 90


def recommendation_figure(advice: Recommendation) -> tuple[Figure, list[Axes]]:
    """Left: sensitivity by layer. Middle: which evidence gives which cut. Right: thresholds and their cuts."""
    figure = Figure(figsize=(14 if advice.thresholds else 10, 4.4), layout="constrained")
    axes: list[Axes] = list(figure.subplots(1, 3 if advice.thresholds else 2))
    profiles = {
        site: {"batches": [list(scores.values())]}
        for site, scores in advice.importance.items()
        if all(map(math.isfinite, scores.values())) and any(scores.values())
    }
    _draw_sensitivity(axes[0], advice, profiles)
    axes[0].spines[["top", "right"]].set_visible(False)
    _draw_votes(axes[1], advice)
    if advice.thresholds:
        _draw_thresholds(axes[2], advice)
    others = "" if advice.verdict == "clear" else ", ".join(map(str, advice.alternatives))
    figure.suptitle(
        f"verdict: {advice.verdict}" + (f"; alternatives: after layer {others}" * bool(others)), fontsize=12
    )
    return figure, axes


def _draw_sensitivity(axes: Axes, advice: Recommendation, profiles: dict[str, Any]) -> None:
    draw_profile(axes, advice.cut, profiles)
    layers, index = advice.cut.layers, advice.cut.index
    ratio = advice.cut.ratios[index - 1] if 0 < index < len(layers) else None
    if ratio is not None:
        axes.text(index + 0.45, 0.5, f"× {ratio:.3g}", transform=axes.get_xaxis_transform(), color=COLOURS[5],
                  fontsize=9, ha="right")  # fmt: skip
    if sum(map(len, layers)) > _ROOM:
        # Long names would run into each other; the numbers are those of `playerfl layers`.
        steps = range(0, len(layers), max(1, len(layers) // 12))
        axes.set_xticks([i + 1 for i in steps], [str(i + 1) for i in steps], rotation=0, ha="center")
        axes.set_xlabel(f"layer, by number: 1 is {layers[0]}, {len(layers)} is {layers[-1]}", fontsize=8, wrap=True)


def _draw_votes(axes: Axes, advice: Recommendation) -> None:
    """One row of bubbles per kind of evidence: the area is the share of its answers that give this cut."""
    answers: list[tuple[str, list[int] | dict[int, float]]] = []
    if advice.bootstrap:
        answers.append(("batches", dict(advice.bootstrap)))
    if advice.without_site:
        answers.append(("one site left out", list(advice.without_site.values())))
        answers.append(("each site alone", list(advice.site_alone.values())))
    if len(advice.by_seed) > 1:
        answers.append(("seeds", list(advice.by_seed)))
    answers += [("rules", list(advice.rules.values())), ("normalisations", list(advice.normalisations.values()))]
    for row, (_, given) in enumerate(answers):
        shares = given if isinstance(given, dict) else {cut: given.count(cut) / len(given) for cut in set(given)}
        for cut, share in shares.items():
            colour = COLOURS[2] if cut == advice.cut.index else COLOURS[5]
            axes.scatter(cut, row, s=900 * share, color=colour, alpha=0.75, linewidths=0)
            axes.annotate(f"{share:.0%}", (cut, row), ha="center", va="center", fontsize=8)
    layers = len(advice.cut.layers)
    axes.axvline(advice.cut.index, color="0.8", zorder=0)
    axes.set_yticks(range(len(answers)), [name for name, _ in answers])
    axes.set_ylim(len(answers) - 0.4, -0.6)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    margin = max(0.5, 0.06 * layers)
    axes.set_xlim(1 - margin, layers + margin)
    axes.set_xlabel("shared layers")
    axes.set_title("which cut each kind of evidence gives", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_thresholds(axes: Axes, advice: Recommendation) -> None:
    ends = [step.high for step in advice.thresholds if math.isfinite(step.high)]
    used = advice.cut.threshold
    known = [*ends, *([used] if used else [])]
    left, right = min(known) / 3, max(known) * 3
    for step in advice.thresholds:
        low, high = max(step.low, left), min(step.high, right)
        if low < high:
            colour = COLOURS[2] if step.cut == advice.cut.index and step.transition else "0.6"
            axes.plot([low, high], [step.cut, step.cut], color=colour, linewidth=4, solid_capstyle="butt")
            if not step.transition:
                axes.text(high, step.cut - 0.12, "no transition ", fontsize=8, ha="right", va="top")
    if used:
        axes.axvline(used, color=COLOURS[5], linestyle="--", label=f"threshold used: {used:g}")
        axes.legend(frameon=False, loc="upper left", fontsize=9)
    axes.set_xscale("log")
    axes.set_xlim(left, right)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(0.5, len(advice.cut.layers) + 0.9)
    axes.set_xlabel(f"threshold of {advice.cut.rule}")
    axes.set_ylabel("shared layers")
    axes.set_title("the cut for every threshold", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
