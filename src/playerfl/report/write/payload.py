"""The numbers a page carries for its pictures, pickers and the threshold what-if."""

from __future__ import annotations

import json
import math
from typing import Any

from playerfl.report.compute.curves import Curve, thinned
from playerfl.report.compute.ranking import Ranking
from playerfl.report.compute.report import Report
from playerfl.report.compute.sites import LEVEL, Difference, SiteTable, runs_needed
from playerfl.report.compute.statistics import ENOUGH_RUNS
from playerfl.report.compute.what_if import BYTES_PER_PARAMETER, Measured
from playerfl.report.write.formats import SMALLEST_P, in_percent, metric_name
from playerfl.report.write.wording import left_out

# Numbers that all curves together may be; each takes some seven bytes.
_MOST_POINTS = 250_000
_POINTS = 100


def payload(report: Report) -> dict[str, Any]:
    """Everything the page's script draws from."""
    grid = report.grid
    gains: dict[str, Any] = {}
    for table in report.sites:
        gains.setdefault(table.task, {}).setdefault(table.algorithm, {})[table.metric] = _gains(report, table)
    return {
        "metric": report.metric,
        "metrics": {metric: {"name": metric_name(metric), "percent": in_percent(metric)} for metric in grid.metrics},
        "algorithms": grid.algorithms,
        "local": report.choices.baseline_local,
        "global": report.choices.baseline_global,
        "enoughRuns": ENOUGH_RUNS,
        "level": LEVEL,
        "smallestP": SMALLEST_P,
        "sites": {task: grid.sites(task) for task in grid.tasks},
        "gains": gains,
        "curves": _curves(report),
        "rankings": {name: [_ranking(r) for r in found] for name, found in report.rankings.items()},
        "whatIf": {own.task: _what_if(own) for own in report.measured},
    }


def _gains(report: Report, table: SiteTable) -> dict[str, Any]:
    names = {site: i for i, site in enumerate(report.grid.sites(table.task))}

    def four(found: Difference | None) -> list[float]:
        return [math.nan] * 4 if found is None else [_short(x) for x in (found.value, found.low, found.high, found.p)]

    first = table.rows[0]
    return {
        "runs": [0 if found is None else found.runs for found in (first.to_local, first.to_global)],
        "needed": runs_needed(len(table.rows)),
        "rows": [
            [names[row.site], row.examples, _short(row.score), *four(row.to_local), *four(row.to_global)]
            for row in table.rows
        ],
    }


def _curves(report: Report) -> dict[str, Any]:
    sites = sum(curve.sites.shape[0] for curve in report.curves if curve.split == "test")
    points = max(5, min(_POINTS, _MOST_POINTS // max(1, sites + 3 * len(report.curves))))
    found: dict[str, Any] = {}
    for curve in report.curves:
        place = found.setdefault(curve.task, {}).setdefault(curve.split, {}).setdefault(curve.metric, {})
        place[curve.algorithm] = _curve(curve, len(report.grid.results(curve.task, curve.algorithm)), points)
    return found


def _curve(curve: Curve, runs: int, points: int) -> dict[str, Any]:
    kept = thinned(curve.rounds, points)
    rounds = [curve.rounds[i] for i in kept]
    written: dict[str, Any] = {
        "r": rounds,
        "m": [_short(float(x)) for x in curve.middle[kept]],
        "l": [_short(float(x)) for x in curve.low[kept]],
        "h": [_short(float(x)) for x in curve.high[kept]],
        "t": curve.tuned,
        "n": runs,
        "d": curve.diverged,
    }
    if curve.split == "test":
        written |= {"sr": rounds, "s": [[_short(float(x)) for x in row[kept]] for row in curve.sites]}
    return written


def _ranking(ranking: Ranking) -> dict[str, Any]:
    test = ranking.friedman
    matrices = {name: getattr(ranking, name) for name in ("nemenyi", "wilcoxon", "holm", "effect")}
    return {
        "over": ranking.over,
        "algorithms": ranking.algorithms,
        "n": len(ranking.blocks),
        "mean": ranking.mean_ranks.tolist(),
        "cd": ranking.critical_difference,
        "cliques": ranking.cliques,
        "leftOut": left_out(ranking),
        "remark": ranking.remark,
        "friedman": test
        and {
            "chi2": test.chi2,
            "df": test.df,
            "p": test.p,
            "f": test.f,
            "fdf": test.f_df,
            "fp": test.f_p,
            "w": test.kendall_w,
        },
        **{
            name: None if matrix is None else [[_short(float(x)) for x in row] for row in matrix]
            for name, matrix in matrices.items()
        },
    }


def _what_if(own: Measured) -> dict[str, Any]:
    # Unrounded: the page must cut where Python does.
    return {
        "algorithm": own.algorithm,
        "layers": own.layers,
        "parameters": own.parameters,
        "runs": own.runs,
        "examples": own.num_examples,
        "settings": own.settings,
        "cuts": own.cuts,
        "leftOut": own.left_out,
        "printed": own.printed_cut,
        "bytes": BYTES_PER_PARAMETER,
    }


def _short(value: float) -> float:
    """Five significant digits, which is more than a page shows."""
    return float(f"{value:.5g}")


def embedded_json(tree: Any) -> str:
    """JSON that can stand inside a script element: nothing in it can end the element or start another.

    >>> embedded_json({"site": "</script>", "loss": float("inf"), "low": float("nan")})
    '{"site":"\\\\u003c/script\\\\u003e","loss":"inf","low":null}'
    """
    text = json.dumps(_plain(tree), separators=(",", ":"), allow_nan=False)
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
    return tree
