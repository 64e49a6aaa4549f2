"""The findings in plain sentences: who gains, who loses, which layers travel, how sure that is."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from playerfl.report.compute.report import Report
from playerfl.report.compute.sites import SiteRow, SiteTable, runs_needed
from playerfl.report.compute.statistics import ENOUGH_RUNS
from playerfl.report.compute.tables import Table
from playerfl.report.write.formats import counted, interval_name, listed, metric_name, number, p_said, with_unit
from playerfl.report.write.wording import table_ranking

_NAMED_SITES = 5


@dataclass(frozen=True)
class Finding:
    """One question a reader has, and the sentences that answer it."""

    question: str
    sentences: tuple[str, ...]


def findings(report: Report) -> list[Finding]:
    """What a reader who reads nothing else should know."""
    found = [
        Finding("Which method does best?", tuple(_best(report))),
        Finding("Who gains and who loses?", tuple(_who(report))),
        Finding("Which layers travel?", tuple(_layers(report))),
        Finding("How sure is this?", tuple(_sure(report))),
        Finding("What is missing?", tuple(_missing(report))),
    ]
    return [finding for finding in found if finding.sentences]


def _best(report: Report) -> list[str]:
    table = next((t for t in report.tables if (t.kind, t.metric) == ("score", report.metric)), None)
    if table is None:
        return []
    return [*_best_over_tasks(report, table), *(said for task in table.tasks if (said := _best_on(table, task)))]


def _best_over_tasks(report: Report, table: Table) -> list[str]:
    ranking = table_ranking(report, table)
    if ranking is None or ranking.over != "tasks":
        return []
    mean = dict(zip(ranking.algorithms, ranking.mean_ranks, strict=True))
    best = min(mean, key=mean.__getitem__)
    name = _short_name(table.metric)
    said = f"Over {len(ranking.blocks)} tasks, {best} has the best mean rank by {name}: {mean[best]:.1f}"
    if report.subject in mean and report.subject != best:
        said += f"; {report.subject} has {mean[report.subject]:.1f}"
    return [said + f" of {len(mean)}."]


def _short_name(metric: str) -> str:
    return metric_name(metric).lower().replace("f1", "F1")


def _best_on(table: Table, task: str) -> str:
    cells = {name: table.cells[name, task] for name in table.ranked if (name, task) in table.cells}
    name = _short_name(table.metric)
    if len(cells) == 1:
        ((only, cell),) = cells.items()
        return f"On {task} there is {only} alone: {name} {with_unit(cell.value, table.metric)}."
    best = [label for label, cell in cells.items() if cell.best]
    if not best:
        return f"On {task} every method diverged."
    cell = cells[best[0]]
    said = f"On {task}, {' and '.join(best)} has the best {name}: {with_unit(cell.value, table.metric)}"
    said = said.replace(" has ", " have ") if len(best) > 1 else said
    if not math.isnan(cell.low):
        low, high = (number(end, "score", table.metric) for end in (cell.low, cell.high))
        said += f" ({interval_name(cell.runs)} {low} to {high})"
    ties = [label for label, other in cells.items() if other.tie]
    if ties:
        said += f"; chance over seeds does not tell {listed(ties)} from it"
    return said + "."


def _who(report: Report) -> list[str]:
    local, subject, grid = report.choices.baseline_local, report.subject, report.grid
    if local is None:
        return []
    found = []
    tables = [report.site_table(task, subject, report.metric) for task in grid.tasks]
    everyone = [row for table in tables if table for row in table.rows if row.to_local]
    if len(tables) > 1 and everyone:
        better = sum(row.to_local is not None and row.to_local.value > 0 for row in everyone)
        worse = sum(row.harmed for row in everyone)
        found.append(
            f"Of {counted(len(everyone), 'site')} on {len(tables)} tasks, {subject} leaves {better} better off than "
            f"training alone and {worse} worse off."
        )
    if len(tables) == 1:
        # Whoever asks about harm asks about the method that would be chosen, too.
        scores = next(t for t in report.tables if (t.kind, t.metric) == ("score", report.metric))
        best = [name for (name, _), cell in scores.cells.items() if cell.best and name != subject]
        tables += [report.site_table(grid.tasks[0], name, report.metric) for name in best[:1]]
    found += [_gains_on(table) for table in tables if table and table.rows and table.rows[0].to_local]
    return found


def _gains_on(table: SiteTable) -> str:
    gains = [row for row in table.rows if row.to_local and row.to_local.value > 0]
    harmed = [row for row in table.rows if row.harmed]
    surely = [row for row in harmed if row.to_local and row.to_local.verdict == "loses"]
    even = len(table.rows) - len(gains) - len(harmed)
    said = f"On {table.task}, {table.algorithm} gives {len(gains)} of {counted(len(table.rows), 'site')} a better "
    said += f"{_short_name(table.metric)} than training alone"
    said += f" and {even} the same" if even else ""
    if harmed:
        said += f"; {_sites(harmed)} {'is' if len(harmed) == 1 else 'are'} worse off than alone"
        said += f" ({_beyond_chance(harmed, surely)})"
    return said + "."


def _beyond_chance(harmed: list[SiteRow], surely: list[SiteRow]) -> str:
    if not surely:
        return "which may be chance"
    if len(surely) == len(harmed):
        return "beyond chance over seeds"
    return f"{_sites(surely)} beyond chance over seeds, the rest may be chance"


def _sites(rows: list[SiteRow]) -> str:
    named = [row.site for row in rows[:_NAMED_SITES]]
    return listed(named) if len(rows) <= _NAMED_SITES else f"{', '.join(named)} and {len(rows) - len(named)} more"


def _layers(report: Report) -> list[str]:
    found = []
    for own in report.measured:
        if not own.cuts:
            continue
        cut, runs = Counter(own.cuts.values()).most_common(1)[0]
        total = len(own.cuts)
        share = sum(own.parameters[:cut]) / sum(own.parameters)
        stay = own.layers[cut:]
        said = (
            f"On {own.task}, {own.algorithm} sends {listed(own.layers[:cut])} ({100 * share:.0f} % of the parameters)"
        )
        said += f" and keeps {listed(stay)} at each site" if stay else ", that is everything"
        said += f"; {runs} of {counted(total, 'run')} cut there" if total > 1 else ""
        if own.printed_cut is not None and own.printed_cut != cut:
            said += f". The paper cuts after {counted(own.printed_cut, 'layer')}"
        found.append(said + ".")
    return found


def _sure(report: Report) -> list[str]:
    grid = report.grid
    runs = [len(grid.results(task, name)) for task in grid.tasks for name in grid.algorithms]
    present = [count for count in runs if count]
    found = []
    if present and max(present) == 1:
        found.append(
            "Each method ran once, so any difference may be chance. More seeds (playerfl run … --seed 1, 2, 3) "
            "into the same folder turn these numbers into intervals."
        )
    elif present:
        found.append(
            "Intervals and tests over seeds show how much a result moves from run to run on the same data, not how it "
            "would be with other sites or patients."
        )
        if min(present) < ENOUGH_RUNS:
            found.append(f"Some cells stand on {counted(min(present), 'run')} only: no interval, but the range seen.")
        most = max((len(grid.sites(task)) for task in grid.tasks), default=1)
        if report.choices.baseline_local and min(present) < runs_needed(most):
            found.append(
                f"Whether a single site gains or loses beyond chance takes {runs_needed(most)} runs or more with "
                f"{counted(most, 'site')} (Holm’s correction)."
            )
    for ranking in report.rankings.get(report.metric, []):
        if ranking.friedman is None or (len(grid.tasks) > 1) != (ranking.over == "tasks"):
            continue
        over_tasks = ranking.over == "tasks"
        blocks = f"{len(ranking.blocks)} tasks" if over_tasks else f"the {len(ranking.blocks)} runs on {ranking.over}"
        test = ranking.friedman
        # NaN, where F is not computable, leaves the decision to Friedman's own p.
        sure = test.p < 0.05 and not test.f_p >= 0.05
        found.append(
            f"Over {blocks}, the {len(ranking.algorithms)} methods {'differ' if sure else 'cannot be told apart'} "
            f"(Friedman {p_said(test.p)}, Iman-Davenport {p_said(test.f_p)})"
            f"{'' if over_tasks else ', on this dataset only: its runs share the data'}."
        )
    return found


def _missing(report: Report) -> list[str]:
    if not (report.missing or report.failed):
        return []
    rest = "this report is about the others." if report.grid.runs else "there is nothing to compare yet."
    return [
        f"{counted(len(report.missing), 'run')} not finished and {counted(len(report.failed), 'run')} failed; {rest}"
    ]
