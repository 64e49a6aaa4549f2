"""The figure of the threshold study: which thresholds give the printed cut, task by task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from playerfl.paper.thresholds import RATIO_RULES, Case, Choice, common_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LEFT, _RIGHT = 0.5, 1e4
_TITLES = {"cumulative_ratio": "ratio of sensitivities $F_{p+1}/F_p$", "layer_ratio": "ratio of layers $s_{p+1}/s_p$"}


def draw_thresholds(cases: Sequence[Case], choice: Choice | None = None) -> tuple[Figure, Any]:
    """Per task and rule, a thin bar for every seed and a wide one where all agree. Returns figure and axes."""
    from matplotlib.figure import Figure

    tasks = list(dict.fromkeys(case.task for case in cases))
    figure = Figure(figsize=(9, 0.55 * len(tasks) + 1.6), layout="constrained")
    axes = figure.subplots(1, len(RATIO_RULES), sharey=True)
    for axis, rule in zip(axes, RATIO_RULES, strict=True):
        for place, task in enumerate(tasks):
            task_cases = [case for case in cases if case.task == task]
            spread = 0.3 / max(1, len(task_cases) - 1)
            for number, case in enumerate(task_cases):
                _bar(axis, case.interval(rule), place + spread * number - 0.15, 1.0, "#56b4e9")
            _bar(axis, common_interval(task_cases, rule), place, 6.0, "#0072b2")
            missed = sum(case.interval(rule) is None for case in task_cases)
            if missed:
                axis.text(_RIGHT, place, f"no t: {missed} of {len(task_cases)} ", ha="right", va="center", fontsize=8)
        common = common_interval(cases, rule)
        if common:
            axis.axvspan(max(common[0], _LEFT), min(common[1], _RIGHT), color="#009e73", alpha=0.25, lw=0)
        if choice and choice.rule == rule and choice.threshold:
            axis.axvline(choice.threshold, color="#d55e00", ls="--", lw=1)
        axis.set(xscale="log", xlim=(_LEFT, _RIGHT), xlabel="threshold t", title=_TITLES[rule])
        axis.grid(axis="x", alpha=0.3)
    axes[0].set_yticks(range(len(tasks)), tasks)
    axes[0].invert_yaxis()
    return figure, axes


def _bar(axis: Any, interval: tuple[float, float] | None, place: float, width: float, colour: str) -> None:
    if interval:
        ends = [max(interval[0], _LEFT), min(interval[1], _RIGHT)]
        axis.plot(ends, [place, place], color=colour, lw=width, solid_capstyle="butt")
