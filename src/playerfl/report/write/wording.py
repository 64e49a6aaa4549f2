"""The words that every form of a report shares."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from playerfl.paper.arithmetic import Recomputed
from playerfl.report.compute.ranking import Ranking
from playerfl.report.compute.report import Report
from playerfl.report.compute.statistics import ENOUGH_RUNS, RESAMPLES
from playerfl.report.compute.tables import Table
from playerfl.report.write.formats import counted, listed, p_said


def lead(report: Report) -> str:
    """What the report is about, in a sentence or two."""
    grid = report.grid
    tuned = counted(report.tuning_runs, "run" if not grid.runs else "more run")
    if not grid.runs:
        done = f" {tuned} to choose learning rates have finished." if report.tuning_runs else ""
        return f"No run has finished yet that could be reported: this says what is missing.{done}"
    tuning = (
        f" {tuned} chose each method’s learning rate, on other seeds and on validation data, and are not counted again."
        if report.tuning_runs
        else ""
    )
    return (
        f"{counted(len(grid.runs), 'finished run')}: {counted(len(grid.algorithms), 'method')} on "
        f"{counted(len(grid.tasks), 'task')} ({', '.join(grid.tasks)}).{tuning} Scores are of test data, on which no "
        "choice was made."
    )


def gaps_lead(report: Report) -> str:
    """How much is missing."""
    tuning = sum(gap.tuning for gap in (*report.missing, *report.failed))
    said = f"{counted(len(report.missing), 'run')} not finished, {counted(len(report.failed), 'run')} failed"
    said += f"; {tuning} of these would only choose a learning rate. " if tuning else ". "
    return said + ("Everything else here is about the runs that finished." if report.grid.runs else "")


def table_rule(report: Report) -> str:
    """How to read a cell."""
    average = "weighted by training examples" if report.choices.client_average == "samples" else "each the same"
    fair = (
        "Fairness and incentive are computed in each run; the cell is their median."
        if report.choices.per_run
        else "Fairness and incentive are computed from each site’s median over runs."
    )
    return (
        f"A cell is the median over runs of the average over sites ({average}), with its 95 % bootstrap interval "
        f"(“range” where fewer than {ENOUGH_RUNS} runs allow none) and the number of runs. Bold: the best value of a "
        "column. ≈: chance over seeds does not tell it from the best, that is, the interval of their difference, "
        "paired over seeds, holds 0 (not corrected for many comparisons; the tests below are). "
        f"{fair} Where the task is one of the paper’s, what it prints is shown, whatever these runs’ settings."
    )


def table_ranking(report: Report, table: Table) -> Ranking | None:
    """The ranking a table shows: over its tasks, or over the runs of the only one."""
    found = report.rankings[table.name]
    return next((ranking for ranking in found if (ranking.over == "tasks") == (len(table.tasks) > 1)), None)


def interval_head(table: Table) -> str:
    """What stands above the ends of intervals where they have a column of their own."""
    if ranges_only(table):
        return "range of runs"
    return (
        "95 % interval" if all(cell.runs >= ENOUGH_RUNS for cell in table.cells.values()) else "95 % interval or range"
    )


def ranges_only(table: Table) -> bool:
    """Whether a column's head says that its intervals are ranges, so that cells need not."""
    return len(table.tasks) == 1 and all(cell.runs < ENOUGH_RUNS for cell in table.cells.values())


def table_remarks(report: Report, table: Table) -> list[str]:
    """What must be known about a table's ranks."""
    ranking = table_ranking(report, table)
    found = []
    if set(table.ranked) < set(table.algorithms):
        found.append("The two baselines are shown for reference; as in the paper, this table does not rank them.")
    if table.kind == "fairness":
        found.append("Evenly bad is even, too: read this beside the scores.")
    if ranking is None:
        return found
    if ranking.over != "tasks":
        found.append("Mean rank over the runs, since there is one task only.")
        if table.kind != "score" and not report.choices.per_run:
            found.append(
                "Ranks are of each run’s own value, cells of the sites’ medians over runs (as in the paper), so the "
                "two may order methods differently; --per-run makes cells of runs, too."
            )
    return [*found, *left_out(ranking)]


def left_out(ranking: Ranking) -> list[str]:
    """What a ranking could not count, since it needs every method in every block."""
    found = []
    if ranking.left_out:
        found.append(f"Not ranked, because results are missing: {listed(ranking.left_out)}.")
    if ranking.blocks_left_out:
        total = len(ranking.blocks) + len(ranking.blocks_left_out)
        seeds = [name.removeprefix("seed ") for name in ranking.blocks_left_out]
        names = listed(seeds) if ranking.over == "tasks" else f"seeds {ranges([int(seed) for seed in seeds])}"
        what = "tasks" if ranking.over == "tasks" else "runs"
        found.append(f"Ranks leave out {len(seeds)} of {total} {what} in which a ranked method has no result: {names}.")
    return found


def printed_value(table: Table, algorithm: str, task: str) -> str:
    """The paper's cell with its unit: its losses are in hundredths."""
    printed = table.printed.get((algorithm, task), "").replace("+/-", "±")
    return f"{printed} ×10⁻²" if printed and table.name == "loss" else printed


def paper_title(name: str) -> str:
    """A printed table's name for people.

    >>> paper_title("incentive_f1"), paper_title("loss")
    ('Incentive, F1', 'Loss')
    """
    words = [{"f1": "F1"}.get(word, word) for word in name.split("_")]
    words[0] = words[0][0].upper() + words[0][1:]
    return ", ".join(words)


def paper_meaning(table: Recomputed) -> str:
    """What the comparison of printed and recomputed p-value says."""
    if table.agrees:
        return "follows from the printed cells"
    if table.explained_by_transposing:
        return (
            "does not follow; consistent with the transposed table, with datasets as treatments: "
            f"{p_said(table.transposed.p)}"
        )
    return "does not follow, transposed or not"


def methods(report: Report) -> list[str]:
    """What a careful reader asks, one line each."""
    selections = {str(run.result.experiment["selection"]) for run in report.grid.runs}
    reported = {
        "client_best": "each site reports the round with its lowest validation loss",
        "round_best": "all sites report the round with the lowest validation loss over all of them",
        "last": "all sites report the last round",
    }
    return [
        f"Selection: {'; '.join(reported[name] for name in sorted(selections))}. A method that tunes after the last "
        "round reports its tuned model.",
        "Macro-F1 is over the classes present at a site, in the truth or in the predictions.",
        f"Intervals: percentile bootstrap over runs, {RESAMPLES:,} resamples, the same each time. One run gives none, "
        f"and that of fewer than {ENOUGH_RUNS} is called what it is, a range.",
        "A site gains or loses beyond chance where Wilcoxon’s signed-rank p over seeds, with Holm’s correction over "
        "the sites of the task, is below 0.05.",
        "Fairness is the population variance over sites, of scores between 0 and 1 (losses as they are).",
        "Incentive is the share of sites strictly better than under both baselines; equal is not better.",
        "Ranks: the best has 1, ties share the average. Friedman’s test is corrected for ties; its treatments are the "
        "algorithms.",
        "A score that is not a number counts as worse than any number.",
        "Formulas and sources: docs/report.md of playerfl.",
    ]


def run_rows(report: Report) -> list[dict[str, Any]]:
    """One line for each cell: how many runs, which seeds, which settings."""
    found = []
    for task, algorithm, results in report.grid.cells():
        experiment = next(iter(results.values())).experiment
        own = {k: v for k, v in experiment["algorithm"].items() if k != "name" and v is not None}
        found.append(
            {
                "task": task,
                "algorithm": algorithm,
                "runs": len(results),
                "seeds": ranges(sorted(results)),
                "rounds": experiment["rounds"],
                "rate": f"{experiment['training']['learning_rate']:g}" if "training" in experiment else "",
                "settings": ", ".join(f"{key} = {json.dumps(value)}" for key, value in own.items()),
            }
        )
    return found


def ranges(numbers: Sequence[int]) -> str:
    """Numbers in short.

    >>> ranges([0, 1, 2, 5, 7, 8])
    '0–2, 5, 7–8'
    """
    parts: list[list[int]] = []
    for value in numbers:
        if parts and value == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], value]
        else:
            parts.append([value])
    return ", ".join("–".join(str(end) for end in part) for part in parts)


def software(report: Report) -> str:
    """What the runs were made with."""
    found = {}
    for key in ("playerfl", "torch", "python", "device"):
        values = sorted({str(run.result.environment[key]) for run in report.grid.runs if key in run.result.environment})
        if values:
            found[key] = ", ".join(values)
    return "Made with " + ", ".join(f"{key} {value}" for key, value in found.items()) + "." if found else ""
