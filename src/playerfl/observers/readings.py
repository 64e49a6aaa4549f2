"""Readings: what any tracker shows about one exchange."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from playerfl.runs.run import Progress

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def run_name(progress: Progress) -> str:
    """A name that is unique among runs side by side."""
    # A task may be a path; only its last part goes into the name.
    task = Path(progress.experiment.task).name
    return f"{task}-{progress.algorithm}-seed{progress.experiment.seed}"


def hyper_parameters(progress: Progress) -> dict[str, Any]:
    """Every setting of the experiment by dotted name.

    Lists become text, since trackers accept only numbers and strings.
    """
    return dict(_flat(progress.experiment.model_dump(mode="json")))


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key}", value if isinstance(value, bool | int | float | str) else str(value)


def scalars(progress: Progress) -> Iterator[tuple[str, float, int]]:
    """Name, value and round: each site's scores, then their average weighted by training examples.

    After a finishing phase the names begin with "finish".
    """
    groups: dict[tuple[str, str, str, int], list[tuple[float, int]]] = {}
    for site in sorted(progress.scores):
        for score in progress.scores[site]:
            stage = "" if score.stage == "round" else f"{score.stage}/"
            yield f"{stage}{score.split}/{score.metric}/{site}", score.value, score.round
            key = (stage, score.split, score.metric, score.round)
            groups.setdefault(key, []).append((score.value, progress.num_examples[site]))
    for (stage, split, metric, round_), scores in groups.items():
        total = sum(size for _, size in scores)
        yield f"{stage}{split}/{metric}/average", sum(value * size for value, size in scores) / total, round_


def profile_figure(progress: Progress) -> Figure | None:
    """A figure of the layer profile with the cut; None until there is one, or without matplotlib."""
    decision = progress.layers["decision"]
    if decision is None:
        return None
    try:
        from matplotlib.figure import Figure

        from playerfl.report.plots.comparison import draw_profile
    except ImportError:
        return None
    from playerfl.layers.cut import Cut

    figure = Figure(figsize=(6, 4), layout="constrained")
    draw_profile(figure.subplots(), Cut.from_json(decision), progress.layers["profiles"])
    return figure
