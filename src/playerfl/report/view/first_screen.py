"""What a reader sees first: the answer in one sentence, and what each picture shows, in its title."""

from __future__ import annotations

import math

from playerfl.report.compute.learnt import behind, judges_of
from playerfl.report.compute.ranking import Ranking
from playerfl.report.compute.report import Report
from playerfl.report.compute.sites import Difference, SiteComparison, SiteRow
from playerfl.report.compute.statistics import ENOUGH_RUNS
from playerfl.report.compute.tables import ScoreTable
from playerfl.report.formats import listed, noise, p_text, small, with_unit
from playerfl.report.view.answers import (
    Answer,
    answers,
    best_on,
    best_over_tasks,
    not_learnt_sentences,
    protocol_sentences,
    significance,
    tests,
    verdict,
)
from playerfl.wording import counted

# Longer lists of names do not fit into a title.
_NAMED = 2
_LONGEST_NAME = 30


def answer(report: Report, metric: str | None = None) -> str:
    """The answer with its uncertainty, in one sentence (default: by the metric to show first)."""
    table = report.table(metric or report.metric)
    if table is None:
        return "".join(protocol_sentences(report)[:1])
    ranking = report.table_ranking(table)
    if ranking and (overall := best_over_tasks(report, table)):
        sentence = overall[0].removesuffix(".")
        if test := ranking.friedman:
            one = verdict(test) == "differ significantly by only one of two tests"
            sentence += f"; as a whole, the methods {verdict(test)} ({tests(test) if one else p_text(test.p)})"
        return f"{sentence}."
    learnt = [task for task in table.tasks if task not in report.not_learnt]
    if not learnt:
        return " ".join(not_learnt_sentences(report))
    sentence = best_on(report, table, learnt[0], most_named=_NAMED + 1)
    runs = max(table.cells[name, learnt[0]].runs for name in table.algorithms if (name, learnt[0]) in table.cells)
    if 1 < runs < ENOUGH_RUNS and len(table.algorithms) > 1:
        sentence = f"{sentence.removesuffix('.')}; {counted(runs, 'run')} are a first look, not a result."
    return sentence


def other_answers(report: Report) -> list[Answer]:
    """All answers except the sentence at the top."""
    first = answer(report)
    rest = [
        Answer(one.question, tuple(s for s in one.sentences if not first.startswith(s.removesuffix("."))))
        for one in answers(report)
    ]
    return [one for one in rest if one.sentences]


def methods_finding(report: Report, table: ScoreTable, task: str) -> str:
    """The title of the picture of methods by score."""
    cells = {name: table.cells[name, task] for name in table.ranked if (name, task) in table.cells}
    where = f"On {task}, " if len(report.grid.tasks) > 1 else ""
    if task in report.not_learnt:
        # Where the picture shows a clear lead, the title must say in which metric there is none.
        nobody = behind(report.tables, task)
        titles = [small(judge.declared.title) for judge in nobody or judges_of(report.tables, task)]
        by = "" if table in nobody else f" in {listed(titles)}"
        return _title(f"{where}no method is clearly ahead of the {table.baseline_name.lower()}{by}")
    if len(cells) == 1:
        ((only, cell),) = cells.items()
        return _title(
            f"{where}{only} reaches a {small(table.declared.title)} of {with_unit(cell.value, table.declared)}"
        )
    best = [name for name, cell in cells.items() if cell.best]
    if not best:
        return _title(f"{where}every method diverged")
    if len(best) == len(cells):
        return _title(f"{where}{_few(best, 'methods')} score the same")
    sentence = f"{where}{_few(best, 'methods')} {'scores' if len(best) == 1 else 'score'} best"
    runs = max(cell.runs for cell in cells.values())
    if runs == 1:
        return _title(f"{sentence}, in one run of each method")
    within = noise({report.grid.splits(task)})
    ties = [name for name, cell in cells.items() if cell.tie]
    if not ties:
        return _title(
            f"{sentence}, beyond {within}" if runs >= ENOUGH_RUNS else f"{sentence} by the median of {runs} runs"
        )
    return _title(f"{sentence}; {_few(ties, 'others')} {'is' if len(ties) == 1 else 'are'} within {within}")


def sites_finding(report: Report, table: SiteComparison) -> str:
    """The title of the picture of gains and losses."""
    where = f" on {table.task}" if len(report.grid.tasks) > 1 else ""
    compared = [(row, row.to_local) for row in table.rows if row.to_local]
    if not compared:
        worst = min(table.rows, key=lambda row: _badness(row, table))
        return f"{table.algorithm}{where}: {_cut_off(worst.site)} has the worst {small(table.declared.title)}"
    gains = [(row, gained) for row, gained in compared if gained.value > 0]
    losses = [(row, gained) for row, gained in compared if gained.value < 0]
    if not gains and not losses:
        return f"{table.algorithm}{where}: no site gains or loses against training alone"
    nothing_sure = not any(clear(gained) for _, gained in compared)
    parts = []
    if gains:
        sure = "" if nothing_sure else _sure(gains)
        who = "the only site is" if len(compared) == 1 else f"{len(gains)} of {len(compared)} sites"
        parts.append(f"{who} better off than alone{sure}")
    if losses:
        names = _few([_cut_off(row.site) for row, _ in losses], "sites")
        sure = "" if nothing_sure else _sure(losses)
        parts.append(f"{names} worse off{'' if gains else ' than alone'}{sure}")
    doubt = "; all of this may be chance" if nothing_sure else ""
    return f"{table.algorithm}{where}: {', '.join(parts)}{doubt}"


def clear(gained: Difference) -> bool:
    """Whether a difference is more than noise: over runs, with Holm's correction, or over the site's test rows."""
    return gained.verdict != "unclear" or gained.beyond_rows


def ranks_finding(report: Report, ranking: Ranking) -> str:
    """The title of the diagram of mean ranks."""
    if ranking.over in report.not_learnt:
        sentence = f"{ranking.over} was not learnt, so no method is called best"
        return f"{sentence}; {words}" if (words := significance(ranking)) else sentence
    mean = ranking.rank_of
    lowest = min(mean.values())
    best = [name for name, rank in mean.items() if math.isclose(rank, lowest)]
    sentence = f"{_few(best, 'methods')} {'has' if len(best) == 1 else 'share'} the best mean rank"
    return f"{sentence}; {words}" if (words := significance(ranking)) else sentence


def _sure(moved: list[tuple[SiteRow, Difference]]) -> str:
    sure = sum(clear(gained) for _, gained in moved)
    if sure == 0:
        return " (may be chance)"
    # Test rows say nothing about other seeds.
    over_runs = any(gained.verdict != "unclear" for _, gained in moved)
    words = "clearly" if over_runs else "beyond test-row noise"
    return f" ({words})" if sure == len(moved) else f" ({sure} {words})"


def _badness(row: SiteRow, table: SiteComparison) -> float:
    return math.inf if math.isnan(row.score) else -row.score if table.declared.lower_is_better else row.score


def _few(names: list[str], plural: str) -> str:
    # Names that were cut off may look the same.
    return listed(names) if len(set(names)) == len(names) <= _NAMED else f"{len(names)} {plural}"


def _cut_off(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"


def _title(sentence: str) -> str:
    return sentence[0].upper() + sentence[1:] if sentence.startswith(("no ", "every ")) else sentence
