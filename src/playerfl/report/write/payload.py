"""The numbers a page carries for its figures, pickers and the threshold what-if."""

from __future__ import annotations

import json
import math
from typing import Any

from playerfl.layers.cut import DEFAULT_THRESHOLDS, NEAR
from playerfl.layers.sensitivity import Normalise
from playerfl.report.compute.curves import Curve, thinned
from playerfl.report.compute.ranking import Ranking
from playerfl.report.compute.report import Report
from playerfl.report.compute.statistics import Array
from playerfl.report.compute.what_if import (
    BYTES_PER_PARAMETER,
    CombinedSites,
    LayerScores,
    Steps,
    alone,
    combined,
    decided,
)
from playerfl.report.formats import SMALLEST_P
from playerfl.report.view.first_screen import ranks_finding
from playerfl.report.view.parts import TableCell, TableView
from playerfl.report.view.rank_section import ranking_text
from playerfl.report.view.site_section import site_view
from playerfl.report.write.first_screen_payload import gains_payload, scores_payload, short
from playerfl.report.write.multiverse_payload import multiverse_payload
from playerfl.runs.measures.calibration import share_interval

# At most this many numbers in all curves together; each takes about six bytes.
_MOST_POINTS = 100_000
_POINTS = 100
# The page shows at most this many digits of a curve.
_CURVE_DIGITS = 4
# Whole numbers are written without a point and a zero: a page has tens of thousands of them.
_LARGEST_WHOLE = 1e9
# P-values, effects and ratios are shown with at most three digits.
_PAIR_DIGITS = 4
# At most this many sites in the chart of profiles.
_MOST_LINES = 60


def payload(report: Report) -> dict[str, Any]:
    """Everything the page's script draws from."""
    grid = report.grid
    sites: dict[str, Any] = {}
    # Tables differ in their columns (a task may have no baseline, a job no test rows), but few of them do.
    heads: list[list[tuple[str, bool]]] = []
    for table in report.sites:
        shown = site_view(report, table)
        titles = [(head.title, head.words) for head in shown.heads]
        if titles not in heads:
            heads.append(titles)
        drawn = _table(shown) | {"heads": heads.index(titles)} | gains_payload(report, table)
        sites.setdefault(table.task, {}).setdefault(table.algorithm, {})[table.metric] = drawn
    return {
        "metric": report.metric,
        "metrics": {
            metric: {"name": m.title, "percent": m.in_percent, "lower": m.lower_is_better}
            for metric, m in grid.declared.items()
        },
        "algorithms": grid.algorithms,
        "subject": report.subject,
        "baselines": report.choices.baselines,
        "notLearnt": report.not_learnt,
        "scores": scores_payload(report),
        "smallestP": SMALLEST_P,
        "sites": {task: grid.sites(task) for task in grid.tasks},
        "siteHeads": heads,
        "siteTables": sites,
        "calibration": _calibration(report),
        "curves": _curves(report),
        "rankings": {name: [_ranking(report, r) for r in rankings] for name, rankings in report.rankings.items()},
        "whatIf": {scores.task: _what_if(report, scores) for scores in report.layer_scores},
        "multiverses": [multiverse_payload(multiverse) for multiverse in report.multiverses],
    }


def _calibration(report: Report) -> dict[str, Any]:
    """Reliability curves by task, site and method."""
    tree: dict[str, Any] = {}
    for one in report.calibrations:
        ends = [share_interval(point.came_true, point.rows) for point in one.bins]
        tree.setdefault(one.task, {}).setdefault(one.site, {})[one.algorithm] = {
            "x": [short(point.predicted) for point in one.bins],
            "y": [short(point.came_true) for point in one.bins],
            "l": [short(low) for low, _ in ends],
            "h": [short(high) for _, high in ends],
            "n": [point.rows for point in one.bins],
        }
    return tree


def _table(shown: TableView) -> dict[str, Any]:
    return {"remark": shown.remark, "rows": [[_cell(cell) for cell in row] for row in shown.rows]}


def _cell(cell: TableCell) -> str | list[Any]:
    """Just the text, or [text, value, notes, tone] without trailing empty parts; a count is its own value."""
    is_count = cell.text.isascii() and cell.text.isdecimal()
    parts: list[Any] = [
        cell.text,
        "" if cell.value is None or is_count else short(cell.value),
        cell.notes,
        cell.tone,
    ]
    while not parts[-1] and parts[-1] != 0:
        parts.pop()
    return cell.text if len(parts) == 1 else parts


def _curves(report: Report) -> dict[str, Any]:
    sites = sum(curve.sites.shape[0] for curve in report.curves if curve.split == "test")
    points = max(5, min(_POINTS, _MOST_POINTS // max(1, sites + 3 * len(report.curves))))
    tree: dict[str, Any] = {}
    for curve in report.curves:
        by_algorithm = tree.setdefault(curve.task, {}).setdefault(curve.split, {}).setdefault(curve.metric, {})
        by_algorithm[curve.algorithm] = _curve(curve, len(report.grid.results(curve.task, curve.algorithm)), points)
    return tree


def _curve(curve: Curve, runs: int, points: int) -> dict[str, Any]:
    kept = thinned(curve.rounds, points)

    def values(row: Array) -> list[float]:
        return [short(float(x), _CURVE_DIGITS) for x in row[kept]]

    return {
        "r": [curve.rounds[i] for i in kept],
        "m": values(curve.middle),
        "l": values(curve.low),
        "h": values(curve.high),
        "t": None if curve.tuned is None else short(curve.tuned, _CURVE_DIGITS),
        "n": runs,
        "d": curve.diverged,
        **({"s": [values(row) for row in curve.sites]} if curve.split == "test" else {}),
    }


def _ranking(report: Report, ranking: Ranking) -> dict[str, Any]:
    matrices = {name: getattr(ranking, name) for name in ("nemenyi", "wilcoxon", "holm", "effect")}
    return {
        "over": ranking.over,
        "algorithms": ranking.algorithms,
        "labels": ranking.labels,
        "n": len(ranking.blocks),
        "mean": ranking.mean_ranks.tolist(),
        "cd": ranking.critical_difference,
        "cliques": ranking.cliques,
        "finding": ranks_finding(report, ranking),
        "text": ranking_text(report, ranking),
        "holmLimit": ranking.holm_limit,
        **{
            # The upper triangle, row by row: the rest mirrors it.
            name: None
            if matrix is None
            else [short(float(x), _PAIR_DIGITS) for i, row in enumerate(matrix) for x in row[i + 1 :]]
            for name, matrix in matrices.items()
        },
    }


def _what_if(report: Report, scores: LayerScores) -> dict[str, Any]:
    return {
        "algorithm": scores.algorithm,
        "layers": scores.layers,
        "parameters": scores.parameters,
        "thresholds": DEFAULT_THRESHOLDS,
        "near": NEAR,
        "settings": scores.settings,
        "cuts": scores.cuts,
        "sendsPrivate": scores.sends_private,
        "leftOut": scores.left_out,
        "remark": report.paper.cut_text(scores.task) if report.paper else "",
        "bytes": BYTES_PER_PARAMETER,
        "runs": {
            seed: {
                "sites": scores.sites[seed],
                "profiles": [
                    [short(value) for value in importance.values()]
                    for importance in list(sites.values())[:_MOST_LINES]
                    if all(map(math.isfinite, importance.values())) and any(importance.values())
                ],
                "alone": [_steps(steps) for steps in alone(sites)],
                "combined": {
                    f"{normalise} {reduction}": _combined(together)
                    for (normalise, reduction), together in _ways(scores, seed).items()
                },
            }
            for seed, sites in scores.runs.items()
        },
    }


def _ways(scores: LayerScores, seed: int) -> dict[tuple[Normalise, str], CombinedSites | str]:
    if seed in scores.together:
        return decided(scores.together[seed], scores.settings)
    return combined(scores.runs[seed], scores.num_examples[seed])


def _combined(together: CombinedSites | str) -> dict[str, Any] | str:
    if isinstance(together, str):
        return together
    return {
        "importance": [short(value) for value in together.importance],
        "ratios": {rule: [r if r is None else short(r) for r in row] for rule, row in together.ratios.items()},
        # Unrounded: the page must cut where Python does.
        "steps": _steps(together.steps, exact=True),
        "without": [_steps(steps) for steps in together.without],
        "warnings": together.warnings,
    }


def _steps(steps: Steps | None, *, exact: bool = False) -> list[Any] | None:
    """Layer ratio, cumulative ratio, largest jump; each ratio rule as [ratio, cut, ratio, cut, …]."""
    if steps is None:
        return None
    rules = (steps.layer_ratio, steps.cumulative_ratio)
    return [
        *([x for ratio, cut in rule for x in (ratio if exact else short(ratio, _PAIR_DIGITS), cut)] for rule in rules),
        steps.max_jump,
    ]


def embedded_json(tree: Any) -> str:
    """JSON for a script element: nothing in it can end the element or start another.

    >>> embedded_json({"site": "</script>", "loss": float("inf"), "low": float("nan")})
    '{"site":"\\\\u003c/script\\\\u003e","loss":"inf","low":null}'
    >>> embedded_json([26.0, 0.5, 1e300])
    '[26,0.5,1e+300]'
    """
    text = json.dumps(_plain(tree), separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _plain(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {str(key): _plain(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_plain(value) for value in tree]
    if isinstance(tree, float) and not math.isfinite(tree):
        return None if math.isnan(tree) else "inf" if tree > 0 else "-inf"
    if isinstance(tree, float) and tree.is_integer() and abs(tree) < _LARGEST_WHOLE:
        return int(tree)
    return tree
