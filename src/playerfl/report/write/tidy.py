"""The report as plain tables, one fact a row: what the CSV, Markdown, LaTeX and JSON forms are written from."""

from __future__ import annotations

from typing import Any

from playerfl.report.compute.cost import Cost
from playerfl.report.compute.report import Report

Row = dict[str, Any]


def tidy(report: Report) -> dict[str, list[Row]]:
    """Every table of the report by name; a row is a mapping from column to value."""
    return {
        "cells": _cells(report),
        "ranks": _ranks(report),
        "tests": _tests(report),
        "pairs": _pairs(report),
        "sites": _sites(report),
        "costs": [_cost(cost) for cost in report.costs],
        "curves": _curves(report),
        "cuts": _cuts(report),
        "missing": [
            {
                "state": state,
                "task": gap.task,
                "algorithm": gap.algorithm,
                "seed": gap.seed,
                "chooses_rate": gap.tuning,
                "reason": gap.reason,
            }
            for state, gaps in (("not finished", report.missing), ("failed", report.failed))
            for gap in gaps
        ],
        "paper_tests": _paper_tests(report),
        "paper_ranks": _paper_ranks(report),
    }


def _cells(report: Report) -> list[Row]:
    return [
        {
            "table": table.name,
            "task": task,
            "algorithm": algorithm,
            "value": cell.value,
            "low": cell.low,
            "high": cell.high,
            "runs": cell.runs,
            "best": cell.best,
            "tie": cell.tie,
            "ranked": algorithm in table.ranked,
            "paper": table.printed.get((algorithm, task), ""),
        }
        for table in report.tables
        for task in table.tasks
        for algorithm in table.algorithms
        if (cell := table.cells.get((algorithm, task)))
    ]


def _ranks(report: Report) -> list[Row]:
    return [
        {
            "table": name,
            "over": ranking.over,
            "algorithm": algorithm,
            "mean_rank": float(mean),
            "blocks": len(ranking.blocks),
            "blocks_left_out": " ".join(ranking.blocks_left_out),
        }
        for name, found in report.rankings.items()
        for ranking in found
        for algorithm, mean in zip(ranking.algorithms, ranking.mean_ranks, strict=True)
    ]


def _tests(report: Report) -> list[Row]:
    return [
        {
            "table": name,
            "over": ranking.over,
            "algorithms": test.treatments,
            "blocks": test.blocks,
            "chi2": test.chi2,
            "df": test.df,
            "p": test.p,
            "iman_davenport_f": test.f,
            "iman_davenport_p": test.f_p,
            "kendall_w": test.kendall_w,
            "critical_difference": ranking.critical_difference,
        }
        for name, found in report.rankings.items()
        for ranking in found
        if (test := ranking.friedman)
    ]


def _pairs(report: Report) -> list[Row]:
    rows = []
    for name, found in report.rankings.items():
        for ranking in found:
            if ranking.nemenyi is None or ranking.wilcoxon is None or ranking.holm is None or ranking.effect is None:
                continue
            for i, first in enumerate(ranking.algorithms):
                for j, second in enumerate(ranking.algorithms[i + 1 :], start=i + 1):
                    rows.append(
                        {
                            "table": name,
                            "over": ranking.over,
                            "algorithm": first,
                            "other": second,
                            "nemenyi_p": float(ranking.nemenyi[i, j]),
                            "wilcoxon_p": float(ranking.wilcoxon[i, j]),
                            "wilcoxon_holm_p": float(ranking.holm[i, j]),
                            "rank_biserial": float(ranking.effect[i, j]),
                        }
                    )
    return rows


def _sites(report: Report) -> list[Row]:
    rows = []
    for table in report.sites:
        for row in table.rows:
            found: Row = {
                "task": table.task,
                "algorithm": table.algorithm,
                "metric": table.metric,
                "site": row.site,
                "examples": row.examples,
                "score": row.score,
            }
            for name, difference in (("local", row.to_local), ("global", row.to_global)):
                found |= {
                    f"gain_on_{name}": difference and difference.value,
                    f"gain_on_{name}_low": difference and difference.low,
                    f"gain_on_{name}_high": difference and difference.high,
                    f"gain_on_{name}_runs": difference.runs if difference else 0,
                    f"gain_on_{name}_p": difference and difference.p,
                    f"verdict_on_{name}": difference.verdict if difference else "",
                }
            rows.append(found)
    return rows


def _cost(cost: Cost) -> Row:
    return dict(cost.__dict__)


def _curves(report: Report) -> list[Row]:
    return [
        {
            "task": curve.task,
            "algorithm": curve.algorithm,
            "metric": curve.metric,
            "split": curve.split,
            "round": round_,
            "median": float(curve.middle[i]),
            "lower_quartile": float(curve.low[i]),
            "upper_quartile": float(curve.high[i]),
            "diverged_runs": curve.diverged,
        }
        for curve in report.curves
        for i, round_ in enumerate(curve.rounds)
    ]


def _cuts(report: Report) -> list[Row]:
    return [
        {
            "task": own.task,
            "algorithm": own.algorithm,
            "seed": seed,
            "cut": cut,
            "layers": len(own.layers),
            "federated": " ".join(own.layers[:cut]),
            "paper": own.printed_cut,
        }
        for own in report.measured
        for seed, cut in own.cuts.items()
    ]


def _paper_tests(report: Report) -> list[Row]:
    return [
        {
            "table": table.name,
            "printed": table.printed_p,
            "p": table.friedman.p,
            "iman_davenport_p": table.friedman.f_p,
            "transposed_p": table.transposed.p,
            "agrees": table.agrees,
            "explained_by_transposing": table.explained_by_transposing,
        }
        for table in report.recomputed
    ]


def _paper_ranks(report: Report) -> list[Row]:
    return [
        {
            "table": table.name,
            "algorithm": algorithm,
            "printed": table.printed_ranks[algorithm],
            "recomputed": float(mean),
            "printed_minus_recomputed": table.printed_ranks[algorithm] - float(mean),
        }
        for table in report.recomputed
        for algorithm, mean in zip(table.ranking.algorithms, table.ranking.mean_ranks, strict=True)
    ]
