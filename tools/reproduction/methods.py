"""What a choice of methods gave on the tasks that were learnt, for docs/guide.md."""

from __future__ import annotations

from statistics import fmean

from playerfl.paper.rivals import TASKS
from playerfl.report.formats import number
from playerfl.report.names import method_name
from reproduction.archives import DEFAULT, METRICS, PRIMARY, archives, ranking_of
from reproduction.markdown import NAMES, table_of

METHODS = tuple(map(method_name, ("local", "fedavg", "ditto", "fedper", "fedrep", "fedbabu", "pfedme", "player_fl")))
METRIC_NAMES = {"f1": "F1", "accuracy": "accuracy", "loss": "loss"}


def methods_table() -> str:
    """Medians of macro-F1, mean ranks over tasks, and how often sites are better off than alone (mean over tasks)."""
    report = archives(DEFAULT).report
    table = report.table(PRIMARY)
    assert table is not None
    rankings = {metric: found for metric in METRICS if (found := ranking_of(report, metric, TASKS))}
    tasks = [task for task in table.tasks if task not in report.not_learnt]
    gains = [gain for gain in report.method_gains(PRIMARY) if gain.task in tasks]
    rows = []
    for method in METHODS:
        cells = [table.cells.get((method, task)) for task in tasks]
        better = [gain.ahead / (len(gain.sites) * gain.runs) for gain in gains if gain.algorithm == method]
        row = [method, *(number(cell.value, "score", table.declared) if cell else "–" for cell in cells)]
        row += [f"{ranking.rank_of[method]:.1f}" for ranking in rankings.values()]
        row.append(f"{fmean(better):.0%}".replace("%", " %") if better else "–")
        rows.append(row)
    heads = ["method", *(f"{NAMES.get(task, task)}, macro-F1 %" for task in tasks)]
    heads += [f"mean rank by {METRIC_NAMES[metric]}" for metric in rankings]
    return table_of([*heads, "sites better off than alone"], rows)
