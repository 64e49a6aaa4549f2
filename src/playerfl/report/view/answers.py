"""The main results in plain sentences: which method is best, which sites gain, which layers are shared."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from playerfl.report.compute.grid import Splits
from playerfl.report.compute.learnt import criterion
from playerfl.report.compute.ranking import Ranking
from playerfl.report.compute.report import Report
from playerfl.report.compute.sites import SiteComparison, SiteRow, runs_needed
from playerfl.report.compute.statistics import ENOUGH_RUNS, Friedman
from playerfl.report.compute.tables import ScoreCell, ScoreTable
from playerfl.report.formats import (
    REACH,
    interval_name,
    listed,
    noise,
    number,
    p_text,
    share,
    small,
    with_unit,
)
from playerfl.report.names import task_name
from playerfl.report.view.multiverse import finding
from playerfl.wording import counted

_NAMED_SITES = 5
_NAMED_LAYERS = 6


@dataclass(frozen=True)
class Answer:
    """One question a reader has, and the sentences that answer it."""

    question: str
    sentences: tuple[str, ...]


def answers(report: Report) -> list[Answer]:
    """What readers should know if they read nothing else."""
    every = [
        Answer("Which method does best?", tuple(_best(report))),
        Answer("Which sites gain and which lose?", tuple(_gains(report))),
        Answer("Which layers are shared?", tuple(_layers(report))),
        Answer("Does this depend on the protocol?", tuple(protocol_sentences(report))),
        Answer("How certain is this?", tuple(_certainty(report))),
        Answer("What is missing?", tuple(_missing(report))),
    ]
    return [answer for answer in every if answer.sentences]


def _best(report: Report) -> list[str]:
    table = next((t for t in report.tables if (t.kind, t.metric) == ("score", report.metric)), None)
    if table is None:
        return []
    learnt = [task for task in table.tasks if task not in report.not_learnt]
    return [
        *best_over_tasks(report, table),
        *(best_on(report, table, task) for task in learnt),
        *not_learnt_sentences(report),
    ]


def not_learnt_sentences(report: Report) -> list[str]:
    """Why no method is called best on some tasks, and which tasks are not judged."""
    by_criterion: dict[str, list[str]] = {}
    for task in report.not_learnt:
        by_criterion.setdefault(criterion(report.tables, task), []).append(task)
    sentences = []
    for needed, tasks in by_criterion.items():
        them = "it" if len(tasks) == 1 else "them"
        ranks = f", and ranks over tasks leave {them} out" if len(report.grid.tasks) > 1 else ""
        sentences.append(
            f"Not learnt: {listed(tasks)}. No method is {needed} on {them}, so none is called best{ranks}."
        )
    if report.not_judged:
        sentences.append(
            f"Whether {listed(report.not_judged)} {'was' if len(report.not_judged) == 1 else 'were'} learnt is not "
            "judged: there is no baseline to compare the scores with."
        )
    return sentences


def leaders(report: Report, table: ScoreTable) -> list[str]:
    """The methods with the best mean rank over tasks, if there are several."""
    ranking = report.table_ranking(table)
    if ranking is None or ranking.over != "tasks" or len(ranking.blocks) < 2:
        return []
    mean = ranking.rank_of
    return [name for name, rank in mean.items() if math.isclose(rank, min(mean.values()))]


def best_over_tasks(report: Report, table: ScoreTable) -> list[str]:
    """The method with the best mean rank, if there are several tasks."""
    ranking, best = report.table_ranking(table), leaders(report, table)
    if ranking is None or not best:
        return []
    mean = ranking.rank_of
    lowest = mean[best[0]]
    has = "has the best mean rank" if len(best) == 1 else "tie for the best mean rank"
    others = [mean[report.subject]] if report.subject in mean and report.subject not in best else []
    # Different ranks must not look equal.
    digits = next((n for n in range(1, 4) if all(f"{rank:.{n}f}" != f"{lowest:.{n}f}" for rank in others)), 4)
    # The page's first line counts all tasks.
    over = f"Over {len(ranking.blocks)} tasks{' that were learnt' if ranking.not_learnt else ''}"
    sentence = f"{over}, {listed(best)} {has} by {small(table.declared.title)}: {lowest:.{digits}f}"
    sentence += f" ({len(ranking.algorithms)} methods)"
    sentence += "".join(f"; {report.subject} has {rank:.{digits}f}" for rank in others)
    return [sentence + "."]


def best_on(report: Report, table: ScoreTable, task: str, most_named: int = 99) -> str:
    """The best method on a task and how certain that is; a longer list of rivals than `most_named` is counted."""
    cells = {name: table.cells[name, task] for name in table.ranked if (name, task) in table.cells}
    name = small(table.declared.title)
    if len(cells) == 1:
        ((only, cell),) = cells.items()
        once = ", once" if cell.runs == 1 else ""
        value = f"On {task}, only {only} has been run{once}: {name} {with_unit(cell.value, table.declared)}"
        return f"{value}{f' ({over})' if (over := _interval(cell, table)) else ''}."
    best = [label for label, cell in cells.items() if cell.best]
    if not best:
        return f"On {task}, every method diverged."
    cell = cells[best[0]]
    value = with_unit(cell.value, table.declared)
    if len(best) == len(cells):
        return f"On {task}, all {len(best)} methods have the same {name}: {value}."
    if max(other.runs for other in cells.values()) == 1:
        have = "has" if len(best) == 1 else "have"
        which = "lowest" if table.lower_is_better else "highest"
        over_rows = f"; {over}" if (over := _interval(cell, table)) else ""
        return (
            f"On {task}, {listed(best)} {have} the {which} {name} ({value}{over_rows}), but with a single run per "
            "method this may be due to chance."
        )
    sentence = f"On {task}, {listed(best)} {'has' if len(best) == 1 else 'share'} the best {name}: {value}"
    sentence += f" ({over})" if (over := _interval(cell, table)) else ""
    ties = [label for label, other in cells.items() if other.tie]
    if ties:
        rivals = listed(ties) if len(ties) <= most_named else f"{len(ties)} other methods"
        sentence += f"; the difference from {rivals} is within {noise({report.grid.splits(task)})}"
    if report.subject in cells and report.subject not in (*best, *ties):
        # The pictures beside this sentence show this method.
        own = cells[report.subject].value
        has = f"has {with_unit(own, table.declared)}" if math.isfinite(own) else "diverged"
        sentence += f"; {report.subject} {has}"
    return sentence + "."


def _interval(cell: ScoreCell, table: ScoreTable) -> str:
    """The interval over runs, or else over test rows, in words; empty if there is neither."""
    over_runs = not math.isnan(cell.low)
    ends = (cell.low, cell.high) if over_runs else cell.rows
    if math.isnan(ends[0]):
        return ""
    over = interval_name(cell.runs) if over_runs else "95 % interval over test rows"
    return f"{over}: {' to '.join(number(end, 'score', table.declared) for end in ends)}"


def _gains(report: Report) -> list[str]:
    local, subject, grid = report.choices.baseline_local, report.subject, report.grid
    if local is None:
        return []
    sentences = []
    tasks = [task for task in grid.tasks if task not in report.not_learnt]
    # A task may be without this metric, or without runs of the baseline.
    every = [table for task in tasks if (table := report.site_table(task, subject, report.metric))]
    tables = [table for table in every if any(row.to_local for row in table.rows)]
    everyone = [row for table in tables for row in table.rows if row.to_local]
    if len(tables) > 1 and not grid.tasks_overlap:
        better = sum(row.to_local is not None and row.to_local.value > 0 for row in everyone)
        worse = sum(row.harmed for row in everyone)
        even = len(everyone) - better - worse
        counts = [f"{better} better off than training alone", f"{worse} worse off"]
        counts += [f"{even} the same"] if even else []
        sentences.append(
            f"Of {counted(len(everyone), 'site')} on {len(tables)} tasks, {subject} leaves {listed(counts)}."
        )
    if len(tables) == 1:
        # Readers who ask about harm also ask about the method they would choose.
        scores = next(t for t in report.tables if (t.kind, t.metric) == ("score", report.metric))
        only = tables[0].task
        best = [name for (name, task), cell in scores.cells.items() if (task, cell.best) == (only, True)]
        best = [name for name in best if name != subject]
        tables += [table for name in best[:1] if (table := report.site_table(only, name, report.metric))]
    return sentences + [_gains_on(report, table) for table in tables]


def _gains_on(report: Report, table: SiteComparison) -> str:
    gains = [row for row in table.rows if row.to_local and row.to_local.value > 0]
    harmed = [row for row in table.rows if row.harmed]
    surely = [row for row in harmed if row.to_local and row.to_local.verdict == "loses"]
    by_rows = [row for row in table.rows if row.to_local and row.to_local.beyond_rows]
    compared = sum(row.to_local is not None for row in table.rows)
    even = compared - len(gains) - len(harmed)
    sentence = f"On {table.task}, {table.algorithm} gives {len(gains)} of {counted(compared, 'site')} a better "
    sentence += f"{small(table.declared.title)} than training alone"
    sentence += f" and {even} the same" if even else ""
    if harmed:
        sentence += f"; {_sites(harmed)} {'is' if len(harmed) == 1 else 'are'} worse off "
        sentence += f"({_certain(harmed, surely, noise({report.grid.splits(table.task)}), by_rows)})"
    if surely or all(math.isnan(row.to_local.rows[0]) for row in table.rows if row.to_local):
        return sentence + "."
    if not by_rows:
        return f"{sentence}. At every site the 95 % interval over its test rows contains 0."
    return (
        f"{sentence}. At {_sites(by_rows)} the 95 % interval over the test rows excludes 0; another seed may still "
        "change this."
    )


def _certain(harmed: list[SiteRow], surely: list[SiteRow], noise: str, by_rows: list[SiteRow]) -> str:
    beyond_rows = [row for row in harmed if row in by_rows]
    if not surely and beyond_rows:
        rest = "" if len(beyond_rows) == len(harmed) else "; for the rest it may be due to chance"
        return f"{_sites(beyond_rows) + ' ' if rest else ''}beyond the noise of the test rows{rest}"
    if not surely:
        return "which may be due to chance"
    if len(surely) == len(harmed):
        return f"beyond {noise}"
    return f"{_sites(surely)} beyond {noise}; for the rest it may be due to chance"


def _sites(rows: list[SiteRow]) -> str:
    named = [row.site for row in rows[:_NAMED_SITES]]
    return listed(named) if len(rows) <= _NAMED_SITES else f"{', '.join(named)} and {len(rows) - len(named)} more"


def _layers(report: Report) -> list[str]:
    sentences = []
    for scores in report.layer_scores:
        if not scores.cuts:
            continue
        cut, runs = Counter(scores.cuts.values()).most_common(1)[0]
        total = len(scores.cuts)
        sent = share(sum(scores.parameters[:cut]) / sum(scores.parameters))
        shared, private = scores.layers[:cut], scores.layers[cut:]
        sentence = f"On {scores.task}, {scores.algorithm} shares {_layer_names(shared)} ({sent} of the parameters)"
        sentence += f" and keeps {_layer_names(private)} private" if private else ", the whole model"
        if private and scores.sends_private:
            sentence += ", but sites send the private layers too, because private_pull is above 0"
        sentence += f"; {runs} of {counted(total, 'run')} cut there" if total > 1 else ""
        printed = report.paper.cuts.get(scores.task) if report.paper else None
        if printed is not None and printed != cut:
            sentence += f". The paper cuts after layer {printed}"
        sentences.append(sentence + ".")
    return sentences


def _layer_names(names: Sequence[str]) -> str:
    return listed(names) if len(names) <= _NAMED_LAYERS else f"{len(names)} layers from {names[0]} to {names[-1]}"


def protocol_sentences(report: Report) -> list[str]:
    """What each multiverse says about the method it is about."""
    return [f"On {task_name(m.task)}, {finding(m, m.subject)}." for m in report.multiverses]


def _certainty(report: Report) -> list[str]:
    grid = report.grid
    runs = [len(results) for _, _, results in grid.cells()]
    sentences = []
    if runs and max(runs) == 1 and report.has_rows:
        sentences.append(
            "Each method ran once. Intervals are over test rows: they show how much a score would differ with other "
            "patients of the same sites, but not with another seed (playerfl run … --seed 1, saved in the same folder)."
        )
    elif runs and max(runs) == 1:
        sentences.append(
            "Each method ran once, so any difference may be due to chance. To get intervals, run more seeds "
            "(playerfl run … --seed 1) and save them in the same folder."
        )
    elif runs:
        sentences += reach(report)
        if min(runs) < ENOUGH_RUNS:
            sentences.append(
                f"Some scores are from only {counted(min(runs), 'run')}: their range is shown instead of an interval."
            )
        most = max((len(grid.sites(task)) for task in grid.tasks), default=1)
        if report.choices.baseline_local and min(runs) < runs_needed(most):
            sentences.append(
                f"With {counted(most, 'site')}, at least {runs_needed(most)} runs are needed to show that a single "
                "site gains or loses (Holm’s correction)."
            )
    for ranking in report.rankings.get(report.metric, []):
        if ranking.friedman is None or (len(grid.tasks) > 1) != (ranking.over == "tasks"):
            continue
        over_tasks = ranking.over == "tasks"
        blocks = f"{'' if over_tasks else 'the '}{len(ranking.blocks)} {ranking.block_name}"
        of = "" if over_tasks else REACH[grid.splits(ranking.over)]
        sentences.append(
            f"Over {blocks}, {significance(ranking)}"
            f"{'' if over_tasks else f'; this is about one dataset only, and accounts for {of}'}."
        )
    return sentences


def significance(ranking: Ranking) -> str:
    """Whether the ranked methods differ; empty if there is no test."""
    test = ranking.friedman
    if test is None:
        return ""
    return f"the {len(ranking.algorithms)} methods {verdict(test)} ({tests(test)})"


def verdict(test: Friedman) -> str:
    """What the two tests say, in words that fit both p-values."""
    if methods_differ(test):
        return "differ significantly"
    if test.p < 0.05 or test.f_p < 0.05:
        return "differ significantly by only one of two tests"
    return "do not differ significantly"


def tests(test: Friedman) -> str:
    """Both p-values."""
    return f"Friedman {p_text(test.p)}, Iman-Davenport {p_text(test.f_p)}"


def methods_differ(test: Friedman) -> bool:
    """Both tests must say so; where F is not computable (NaN), Friedman's p decides alone."""
    return test.p < 0.05 and not test.f_p >= 0.05


def reach(report: Report) -> list[str]:
    """What intervals and tests over runs account for, which depends on the recorded splits, not on the settings."""
    grid = report.grid
    tasks: dict[Splits, list[str]] = {}
    for task in grid.tasks:
        tasks.setdefault(grid.splits(task), []).append(task)
    sentence: dict[Splits, str] = {
        "fixed": "all runs share one split of the data: intervals and tests account for seeds only, not for other "
        "patients or sites",
        "per_run": "each run has its own split of the data: intervals and tests account for new patients and seeds, "
        "not for other sites",
        "mixed": "some runs share a split of the data and some do not: intervals and tests treat them as independent, "
        "so intervals are too narrow and p-values too small",
        "unknown": "the runs do not record their split of the data: intervals and tests may account for seeds only",
    }
    where = {splits: listed(names) for splits, names in tasks.items()}
    if len(tasks) == 1 and len(grid.tasks) > 1:
        where = dict.fromkeys(tasks, "every task")
    return [f"On {names}, {sentence[splits]}." for splits, names in where.items()]


def _missing(report: Report) -> list[str]:
    if not (report.missing or report.failed):
        return []
    rest = "this report covers the others." if report.grid.runs else "there is nothing to compare yet."
    return [
        f"Not finished: {counted(len(report.missing), 'run')}; failed: {counted(len(report.failed), 'run')}; {rest}"
    ]
