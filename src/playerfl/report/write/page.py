"""One self-contained HTML page: no network, works from a memory stick, readable on a phone and when printed."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from playerfl.paper import facts as paper
from playerfl.paper.arithmetic import Recomputed
from playerfl.report.compute.cost import Cost
from playerfl.report.compute.findings import findings
from playerfl.report.compute.missing_runs import MARKS, gap_lines, holes
from playerfl.report.compute.report import Report
from playerfl.report.compute.statistics import ENOUGH_RUNS
from playerfl.report.compute.tables import Table
from playerfl.report.write.formats import (
    KIND_NAMES,
    counted,
    duration,
    interval,
    metric_name,
    number,
    p_value,
    size,
    table_title,
)
from playerfl.report.write.payload import embedded_json, payload
from playerfl.report.write.wording import (
    gaps_lead,
    interval_head,
    lead,
    methods,
    paper_meaning,
    paper_title,
    printed_value,
    ranges,
    ranges_only,
    run_rows,
    software,
    table_ranking,
    table_remarks,
    table_rule,
)
from playerfl.version import __version__

# One after the other they are one script; the last one starts it.
_SCRIPTS = (
    "cut.js",
    "basics.js",
    "sorting.js",
    "chart.js",
    "ranks.js",
    "sites.js",
    "curves.js",
    "what_if.js",
    "page.js",
)


def page(report: Report, title: str) -> str:
    """The whole page as text."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    script = "\n".join(_asset(name) for name in _SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    template = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    ).from_string(_asset("page.html"))
    # Styles and script are ours; everything else is escaped by the template, or as JSON.
    return template.render(
        **_context(report, title),
        css=Markup(_asset("page.css")),
        script=Markup(script),
        script_hash=f"sha256-{digest}",
        data=Markup(embedded_json(payload(report))),
    )


def _asset(name: str) -> str:
    return (files("playerfl.report") / "assets" / name).read_text(encoding="utf-8")


def _context(report: Report, title: str) -> dict[str, Any]:
    grid, choices = report.grid, report.choices
    gaps = gap_lines(report)
    has_profiles = bool(report.measured)
    of_runs = [
        ("tables", "Tables"),
        ("tests", "Ranks and tests"),
        ("sites", "Who gains, who loses"),
        ("curves", "Learning curves"),
        *([("layers", "Which layers travel")] if has_profiles else []),
        ("cost", "Cost"),
    ]
    sections = [
        ("summary", "In short"),
        *([("missing", "What is missing")] if gaps else []),
        *(of_runs if grid.runs else []),
        ("paper", "The paper’s own arithmetic"),
        ("methods", "How this was made"),
    ]
    alone = choices.baseline_local or "training alone"
    averaged = choices.baseline_global or "FedAvg"
    return {
        "version": __version__,
        "title": title,
        "lead": lead(report),
        "has_runs": bool(grid.runs),
        "sections": sections,
        "findings": findings(report),
        "notes": report.notes,
        "gaps": [(state, gap, ranges(seeds)) for state, gap, seeds in gaps],
        "gaps_lead": gaps_lead(report),
        "holes": [(row, [(state, ranges(row.seeds(state))) for state in MARKS]) for row in holes(report)],
        "metrics": [(metric, metric_name(metric)) for metric in sorted(grid.metrics, key=lambda m: m != report.metric)],
        "tasks": grid.tasks,
        "algorithms": grid.algorithms,
        "subject": report.subject,
        "kinds": [(kind, KIND_NAMES[kind]) for kind in dict.fromkeys(table.kind for table in report.tables)],
        "table_rule": table_rule(report),
        "tables": [_table(report, table) for table in report.tables],
        "sites_lead": (
            f"For each site, the difference to {alone} and to {averaged}, paired over runs with the same seed, with "
            f"its 95 % interval (the range, where there are fewer than {ENOUGH_RUNS} runs). A site is called "
            "harmed, or a winner, only where Wilcoxon’s p over these runs, with Holm’s correction over the sites, is "
            "below 0.05. "
            "Chance here is that of seeds on the same data: other patients could tell otherwise."
        ),
        "has_profiles": has_profiles,
        "cost_lead": (
            "Bytes of tensors to and from all sites together, medians over runs. “Never leaves” is the share of the "
            "model’s parameters that no site sends in any round: it says what is exposed, and is no guarantee of "
            "privacy. Runs side by side share one process, and so the wall time."
        ),
        "costs": [_cost_row(cost) for cost in report.costs],
        "paper": _paper(report.recomputed),
        "methods": methods(report),
        "runs": run_rows(report),
        "software": software(report),
    }


def _table(report: Report, table: Table) -> dict[str, Any]:
    ranking = table_ranking(report, table)
    mean = dict(zip(ranking.algorithms, ranking.mean_ranks, strict=True)) if ranking else {}
    rows = [
        {
            "name": name,
            "cells": [_cell(table, name, task) for task in table.tasks],
            "rank": f"{mean[name]:.2f}" if name in mean else "",
        }
        for name in table.algorithms
    ]
    groups = [
        {"reference": False, "rows": [row for row in rows if row["name"] in table.ranked]},
        {"reference": True, "rows": [row for row in rows if row["name"] not in table.ranked]},
    ]
    return {
        "name": table.name,
        "metric": table.metric,
        "title": table_title(table.kind, table.metric),
        "tasks": table.tasks,
        "groups": [group for group in groups if group["rows"]],
        "has_ranks": bool(mean),
        "remark": " ".join(table_remarks(report, table)),
        "one_task": len(table.tasks) == 1,
        "has_printed": bool(table.printed),
        "interval_head": interval_head(table),
    }


def _cell(table: Table, algorithm: str, task: str) -> dict[str, Any] | None:
    cell = table.cells.get((algorithm, task))
    if cell is None:
        return None
    return {
        "sort": repr(cell.value) if math.isfinite(cell.value) else "",
        "value": number(cell.value, table.kind, table.metric),
        "best": cell.best,
        "tie": cell.tie,
        "interval": interval(cell, table.kind, table.metric, name_range=not ranges_only(table)),
        "runs": counted(cell.runs, "run"),
        "count": cell.runs,
        "printed": printed_value(table, algorithm, task),
    }


def _cost_row(cost: Cost) -> dict[str, Any]:
    stays = cost.never_leaves
    shared = f" ({cost.side_by_side} side by side)" if cost.side_by_side > 1 else ""
    return {
        "task": cost.task,
        "algorithm": cost.algorithm,
        "cells": [
            (cost.down_per_round, size(cost.down_per_round)),
            (cost.up_per_round, size(cost.up_per_round)),
            (cost.down + cost.up, size(cost.down + cost.up)),
            ("" if stays is None else stays, "" if stays is None else f"{100 * stays:.1f} %"),
            (cost.seconds, duration(cost.seconds) + shared),
        ],
    }


def _paper(tables: Sequence[Recomputed]) -> dict[str, Any]:
    names = list(tables[0].printed_ranks)
    ranks = []
    for name in names:
        cells: list[dict[str, Any] | None] = []
        for table in tables:
            if name not in table.printed_ranks:
                cells.append(None)
                continue
            mean = float(table.ranking.mean_ranks[table.ranking.algorithms.index(name)])
            apart = table.printed_ranks[name] - mean
            cells.append(
                {
                    "recomputed": f"{mean:.2f}",
                    "printed": f"{table.printed_ranks[name]:.1f}",
                    "difference": f"{apart:+.2f}".replace("-", "−"),
                    "far": abs(apart) >= 0.5,
                }
            )
        ranks.append({"name": name, "cells": cells})
    odd = [
        f"{paper_title(table.name)}: best of its column and not in bold: {', '.join(table.missing_bold)}"
        for table in tables
        if table.missing_bold
    ]
    return {
        "tests": [
            {
                "title": paper_title(table.name),
                "printed": table.printed_p.replace("p<", "p < ").replace("p=", "p = "),
                "p": p_value(table.friedman.p),
                "chi2": f"{table.friedman.chi2:.2f} ({table.friedman.df})",
                "f_p": p_value(table.friedman.f_p),
                "meaning": paper_meaning(table),
            }
            for table in tables
        ],
        "titles": [paper_title(table.name) for table in tables],
        "ranks": ranks,
        "odd": [*odd, *paper.facts()["anomalies"]],
    }
