"""A section for every task, under the default protocol and under the authors'."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from playerfl.paper.agreement import Agreement, agreements
from playerfl.paper.facts import learning_rates
from playerfl.paper.rivals import RIVALS, TASKS, duels
from playerfl.paper.section import rivals
from playerfl.report.compute.grid import MAJORITY
from playerfl.report.compute.learnt import LEARNT_MARGIN, judges_of
from playerfl.report.compute.report import Report
from playerfl.report.compute.statistics import ranks
from playerfl.report.compute.tables import ScoreTable
from playerfl.report.formats import interval_name, listed, number, p_text, signed, small, table_name, with_unit
from playerfl.report.view.answers import best_on, best_over_tasks, significance
from playerfl.report.view.gains import gains_view
from playerfl.report.view.parts import TableView
from playerfl.report.write.escaping import markdown
from reproduction.archives import AUTHORS, DEFAULT, METRICS, PRIMARY, SUBJECT, Archives, archives, ranking_of
from reproduction.markdown import NAMES, ROOT, filled, table_of

WIDTHS = {
    "small": "a quarter of the paper's layer widths",
    "tiny": "an eighth of the paper's layer widths",
}


def task_parts() -> str:
    """A section for every archive under the default protocol, after what all of them have in common."""
    every = archives(DEFAULT)
    parts = [*agreement_part(every), *over_tasks_part(every)]
    for task in every.report.grid.tasks:
        parts += [f"### {NAMES.get(task, task)}", *task_part(every, task)]
    return "\n\n".join(parts)


def authors_part() -> str:
    every = archives(AUTHORS)
    return "\n\n".join(part for task in every.report.grid.tasks for part in task_part(every, task))


def task_part(every: Archives, task: str) -> Iterator[str]:
    report = every.report
    folder = every.folders[task].relative_to(ROOT)
    yield filled(f"`playerfl report {folder} --paper` · `{every.studies.get(task, '')}`: {scale(every, task)}.")
    yield filled(" ".join(learnt_text(report, task)))
    yield score_table(report, task)
    ranking = ranking_of(report, PRIMARY, task)
    if ranking and ranking.friedman:
        yield filled(f"By macro-F1, {significance(ranking)}. {SUBJECT} and its rivals, by macro-F1 in points:")
    yield duel_table(report, task)
    gains = gains_view(report, task, PRIMARY)
    if gains:
        redrawn = " Every run draws its own sites, so a column is a different site in every run."
        text = "Who gains and who loses, compared with training alone: points of macro-F1, the mean over runs."
        yield filled(text + (redrawn if report.grid.redraws_sites(task) else ""))
        yield shown_table(gains)


def scale(every: Archives, task: str) -> str:
    """How much was trained: methods, runs, rounds, sites, rows, and how the learning rates were chosen."""
    grid = every.report.grid
    cells = [(name, runs) for of_task, name, runs in grid.cells() if of_task == task]
    runs = max(len(of_method) for _, of_method in cells)
    first = next(iter(cells[0][1].values()))
    experiment = first.experiment
    rows = [count for _, of_method in cells for run in of_method.values() for count in run.num_examples.values()]
    parts = [
        f"{len(cells)} methods, {runs} runs of {experiment['rounds']} rounds",
        f"{len(grid.sites(task))} sites with {min(rows):,} to {max(rows):,} training rows",
        f"batches of {experiment['training']['batch_size']}",
    ]
    parts += [WIDTHS[size]] if (size := experiment["data"].get("size")) in WIDTHS else []
    tuned = every.tuning_runs[task]
    parts.append(f"learning rates chosen by {tuned:,} more runs" if tuned else _untuned_rates(every.report, task))
    return ", ".join(parts)


def _untuned_rates(report: Report, task: str) -> str:
    dataset = report.grid.printed_name(task)
    printed = learning_rates(dataset) if dataset else {}
    runs = (run.result for run in report.grid.runs if run.task == task)
    used = {run.algorithm: run.experiment["training"]["learning_rate"] for run in runs}
    return "the printed learning rates" if used.items() <= printed.items() else "learning rates that were not tuned"


def learnt_text(report: Report, task: str) -> list[str]:
    """Whether the task was learnt, by the criterion fixed beforehand, and which method is best if it was."""
    by = []
    for table in judges_of(report.tables, task):
        best = max(
            (name for name in table.ranked if (name, task) in table.cells),
            key=lambda name: table.cells[name, task].value,
        )
        value, baseline = table.cells[best, task].value, table.majority[task].value
        by.append(
            f"the best {small(table.declared.title)} ({best}, {with_unit(value, table.declared)}) is "
            f"{abs(100 * (value - baseline)):.1f} points {'above' if value >= baseline else 'below'} the majority class"
        )
    if task in report.not_learnt:
        return [
            f"**By the criterion fixed beforehand, the task was not learnt**: no method is {100 * LEARNT_MARGIN:g} "
            f"points ahead in both measures; {listed(by)}. So it enters no ranks over tasks, and no method is called "
            "best."
        ]
    table = report.table(PRIMARY)
    text = f"The task was learnt: {listed(by)}."
    return [text, best_on(report, table, task)] if table else [text]


def score_table(report: Report, task: str, *, beside_paper: bool = True) -> str:
    """Our medians, intervals and mean ranks, next to the paper's values and their ranks."""
    tables = [table for metric in METRICS if (table := report.table(metric)) and task in table.tasks]
    printed = bool(beside_paper and report.paper and task in report.paper.tasks)
    heads, columns = ["method"], list[dict[str, str]]()
    for table in tables:
        unit = " %" if table.declared.in_percent else ""
        heads += [f"{small(table.declared.title)}{unit}", "rank", *(["paper", "rank"] if printed else [])]
        columns += [_values(table, task), _mean_ranks(report, table, task)]
        columns += list(_printed(report, table, task)) if printed else []
    runs = max(cell.runs for (_, of_task), cell in tables[0].cells.items() if of_task == task)
    names = [*tables[0].algorithms, MAJORITY]
    rows = [
        [name if name != MAJORITY else name.lower(), *(column.get(name, "") for column in columns)] for name in names
    ]
    caption = f"Medians with the {interval_name(runs)}, and mean ranks over runs"
    return f"{caption}{'; next to them, those of the paper' if printed else ''}:\n\n{table_of(heads, rows)}"


def _values(table: ScoreTable, task: str) -> dict[str, str]:
    cells = {name: table.cells[name, task] for name in table.algorithms if (name, task) in table.cells}
    cells |= {MAJORITY: table.majority[task]} if task in table.majority else {}
    found = {}
    for name, cell in cells.items():
        value, low, high = (number(x, "score", table.declared) for x in (cell.value, cell.low, cell.high))
        found[name] = value if low == "–" else f"{value} ({low} to {high})"
    return found


def _mean_ranks(report: Report, table: ScoreTable, task: str) -> dict[str, str]:
    ranking = ranking_of(report, table.name, task)
    if ranking is None:
        return {}
    best = min(ranking.rank_of.values()) if task not in report.not_learnt else None
    return {name: f"**{rank:.2f}**" if rank == best else f"{rank:.2f}" for name, rank in ranking.rank_of.items()}


def _printed(report: Report, table: ScoreTable, task: str) -> tuple[dict[str, str], dict[str, str]]:
    """The paper's cells on our scale, and their ranks."""
    assert report.paper is not None
    names = [name for name in table.algorithms if (table.name, name, task) in report.paper.cells]
    values = [report.paper.number(table.name, name, task) or 0.0 for name in names]
    shown = {}
    for name, value in zip(names, values, strict=True):
        spread = re.findall(r"\+/- (\S+)", report.paper.cells[table.name, name, task])
        scaled = value / 100 if table.declared.in_percent else value
        width = f" ± {spread[0] if table.declared.in_percent else f'{float(spread[0]) / 100:.3f}'}" if spread else ""
        shown[name] = number(scaled, "score", table.declared) + width
    places = ranks(np.array([values]), lower_is_better=table.lower_is_better)[0] if names else []
    return shown, {name: f"{place:g}" for name, place in zip(names, places, strict=True)}


def duel_table(report: Report, over: str, names: Sequence[str] = RIVALS) -> str:
    """Without the first column, which says what the differences are over."""
    items = [duel for duel in duels(report, names) if (duel.over, duel.table) == (over, PRIMARY)]
    table = rivals(report).table("", items)
    return shown_table(replace(table, heads=table.heads[1:], rows=tuple(row[1:] for row in table.rows)))


def agreement_part(every: Archives) -> list[str]:
    found = {(one.task, one.table): one for one in agreements(every.report)}
    tasks = [task for task in every.report.grid.tasks if (task, PRIMARY) in found]
    if not tasks:
        return []
    text = (
        "Spearman's ρ over the methods that the paper compares, with 95 % bootstrap intervals over runs: of our "
        "medians with the printed values, and of our mean ranks over runs with the ranks of the printed values. The "
        "intervals account for our runs, not for the choice of methods or for the paper's own noise."
    )
    heads = ["task", *(f"{table_name(metric)}: {of}" for metric in METRICS for of in ("values", "ranks"))]
    rows = [
        [
            NAMES.get(task, task),
            *(_rho(found[task, metric], of) for metric in METRICS for of in ("values", "ranks")),
        ]
        for task in tasks
    ]
    return ["### Do the results agree with the paper?", filled(text), table_of(heads, rows)]


def _rho(one: Agreement, of: str) -> str:
    rho = getattr(one, of)
    return f"{signed(rho.value, 2)} ({signed(rho.low, 2)} to {signed(rho.high, 2)})"


def over_tasks_part(every: Archives) -> list[str]:
    """Medians and mean ranks over the tasks that were learnt, if there are several."""
    report, table = every.report, every.report.table(PRIMARY)
    ranking = ranking_of(report, PRIMARY, TASKS)
    if table is None or ranking is None or len(ranking.blocks) < 2:
        return []
    by_metric = {metric: found for metric in METRICS if (found := ranking_of(report, metric, TASKS))}
    heads = ["method", *(NAMES.get(task, task) for task in ranking.blocks)]
    heads += [f"rank, {small(table_name(metric))}" for metric in by_metric]
    best = {metric: min(found.rank_of.values()) for metric, found in by_metric.items()}
    rows = []
    for name in table.algorithms:
        cells = [table.cells.get((name, task)) for task in ranking.blocks]
        row = [number(cell.value, "score", table.declared) if cell else "–" for cell in cells]
        places = [(metric, found.rank_of.get(name)) for metric, found in by_metric.items()]
        row += ["–" if r is None else f"**{r:.1f}**" if r == best[metric] else f"{r:.1f}" for metric, r in places]
        rows.append([name, *row])
    tests = {metric: found.friedman for metric, found in by_metric.items() if found.friedman}
    tested = [f"{small(table_name(metric))} {p_text(t.p)} and {p_text(t.f_p)}" for metric, t in tests.items()]
    text = [*best_over_tasks(report, table)]
    text += [f"Friedman's and Iman-Davenport's tests over tasks: {listed(tested)}."] if tested else []
    text += [f"Nemenyi's critical difference is {ranking.critical_difference:.1f}."]
    return [
        "### Over the tasks that were learnt",
        filled("Medians of macro-F1 in %, and mean ranks over tasks:"),
        table_of(heads, rows),
        filled(" ".join(text)),
        filled(f"{SUBJECT} and its rivals over tasks, by macro-F1 in points:"),
        duel_table(report, TASKS),
    ]


def shown_table(table: TableView) -> str:
    """A table of a report in Markdown."""
    # A cell cannot begin a list, so its sign needs no escape.
    texts = [[(markdown(cell.text).removeprefix("\\"), cell.bold) for cell in row] for row in table.rows]
    rows = [[f"**{text}**" if bold else text for text, bold in row] for row in texts]
    return table_of([head.title for head in table.heads], rows, [head.words for head in table.heads])
