"""The section of scores: methods × tasks, one table per measure, with what a reader must know about each."""

from __future__ import annotations

from dataclasses import replace

from playerfl.report.compute.grid import MAJORITY, TRAINING_MEAN
from playerfl.report.compute.ranking import Ranking
from playerfl.report.compute.report import Report
from playerfl.report.compute.statistics import ENOUGH_RUNS
from playerfl.report.compute.tables import ScoreTable
from playerfl.report.formats import interval_head, listed, noise, small, table_title
from playerfl.report.view import facts
from playerfl.report.view.parts import NOTHING, Head, Section, TableCell, TableView
from playerfl.report.view.rank_section import left_out

_SHOWN_SITES = 6
_OF_MORE = "with more than two classes"
_OF_CLASSES = f"{MAJORITY}: every site always predicts the most frequent class of its training data"
_OF_NUMBERS = f"{TRAINING_MEAN}: every site always predicts the mean of its training data"
BASELINES = {
    MAJORITY: f"{_OF_CLASSES}, with the classes’ frequencies as probabilities.",
    TRAINING_MEAN: f"{_OF_NUMBERS}.",
    f"{MAJORITY} or {TRAINING_MEAN.lower()}": f"{_OF_CLASSES}. {_OF_NUMBERS}.",
}
_LOSS_OF_FREQUENCIES = (
    "Its loss is that of predicting the class frequencies of the training data; it is missing where a site is tested "
    "on a class that it has not trained on, or where the task’s loss needs more than class scores."
)


def score_section(report: Report) -> Section:
    average = "weighted by training examples" if report.choices.client_average == "samples" else "unweighted"
    if report.for_own_data:
        runs = " (the median over runs)" if report.most_runs > 1 else ""
        intro = f"A cell is the average over sites ({average}){runs}. Bold: the best value of a column."
        shown = [table for table in report.tables if table.kind == "score"]
        return Section("tables", "Scores", intro, tuple(_score_table(report, table) for table in shown))
    fair = (
        "Fairness and incentive are computed per run; a cell is their median."
        if report.choices.per_run
        else "Fairness and incentive are computed from each site’s median over runs."
    )
    intro = (
        f"A cell is the median over runs of the average over sites ({average}), with its 95 % bootstrap interval "
        f"(“range” where there are fewer than {ENOUGH_RUNS} runs) and the number of runs. Bold: the best value of a "
        f"column. ≈: the difference from the best is within {_noise(report)}, that is, the interval of the paired "
        "difference contains 0 (not corrected for multiple comparisons; the tests below are). " + fair
    )
    if report.paper and report.paper.cells:
        intro += " “paper” is what the PLayer-FL paper prints for the task; these runs may have other settings."
    return Section("tables", "Tables", intro, tuple(_score_table(report, table) for table in report.tables))


def _noise(report: Report) -> str:
    return noise({report.grid.splits(task) for task in report.grid.tasks})


def _score_table(report: Report, table: ScoreTable) -> TableView:
    """Methods × tasks. With one task, each fact has its own column; with several, they are small lines in one cell."""
    scores = facts.scores(report, table)
    main, *details = [column for column in scores.columns if column.title]
    details = [column for column in details if any(column.cell(score).text for score in scores.items)]
    if report.most_runs == 1:
        details = [column for column in details if column.key != "runs"]
    by_place = {(score.algorithm, score.task): score for score in scores.items}
    ranking = report.table_ranking(table)
    mean = ranking.rank_of if ranking else {}
    single = len(table.tasks) == 1
    reference = {name: f"{name} (not ranked)" for name in table.algorithms if name not in table.ranked}
    reference |= {MAJORITY: f"{table.baseline_name} (baseline)"} if table.majority else {}
    # A rank over a single run says no more than the cells.
    ranked = bool(mean) and not (single and ranking and len(ranking.blocks) == 1)
    rows = []
    for name in (*table.ranked, *reference):
        row = [TableCell(reference.get(name, name))]
        for task in table.tasks:
            score = by_place.get((name, task))
            cells = [column.cell(score) if score else NOTHING for column in (main, *details)]
            if single:
                row += [cell if cell.text else NOTHING for cell in cells]
            else:
                notes = [c.note.format(cell.text) for c, cell in zip(details, cells[1:], strict=True) if cell.text]
                row.append(replace(cells[0], notes=tuple(notes)) if score else NOTHING)
        if ranked:
            row.append(TableCell(f"{mean[name]:.2f}", mean[name]) if name in mean else NOTHING)
        rows.append(tuple(row))
    extra = [interval_head(table) if column.title == "interval" else column.title for column in details]
    tasks = [f"{task} (not learnt)" if task in report.not_learnt else task for task in table.tasks]
    titles = [*tasks, *(extra if single else []), *(["mean rank"] if ranked else [])]
    return TableView(
        table_title(table.kind, table.declared),
        (Head("method", words=True), *map(Head, titles)),
        tuple(rows),
        reference_rows=len(reference),
        remark=" ".join(_remarks(report, table, ranking)),
        metric=table.metric,
        name=table.name,
        sortable=True,
        filtered=True,
    )


def _remarks(report: Report, table: ScoreTable, ranking: Ranking | None) -> list[str]:
    """What a reader must know about a table's ranks."""
    sentences = []
    if set(table.ranked) < set(table.algorithms):
        sentences.append("The two baselines are shown for reference and not ranked.")
    if table.kind == "fairness":
        sentences.append("A method can be fair and uniformly bad: read this together with the scores.")
    if table.majority:
        sentences.append(BASELINES[table.baseline_name])
        if table.baseline_name != TRAINING_MEAN and table.kind == "score" and table.metric == "loss":
            sentences.append(_LOSS_OF_FREQUENCIES)
    if table.kind == "score":
        sentences += [*_averaging(report, table), *_undefined(report, table), *_tested(report, table)]
    if ranking is None or (len(table.tasks) == 1 and len(ranking.blocks) == 1):
        return sentences
    if ranking.over != "tasks":
        sentences.append("The mean rank is over runs, since there is only one task.")
        if table.kind != "score" and not report.choices.per_run:
            sentences.append(
                "Ranks compare single runs while cells use the sites’ medians over runs, so the two may order methods "
                "differently; --per-run computes the cells from single runs too."
            )
    return [*sentences, *left_out(ranking)]


def _averaging(report: Report, table: ScoreTable) -> list[str]:
    """What a metric is about where there are several classes."""
    averaging = table.declared.averaging
    if averaging.startswith(_OF_MORE) and all(report.grid.classes(task) == 2 for task in table.tasks):
        names = {name for task in table.tasks if (name := report.grid.positive_name(task))}
        return [f"The positive class is {listed(sorted(names))}."] if names else []
    if not averaging:
        return []
    about = averaging if averaging.startswith("with") else f"{table.declared.title} is {averaging}"
    return [f"{about[0].upper()}{about[1:]}."]


def _undefined(report: Report, table: ScoreTable) -> list[str]:
    """The sites without a value, which averages leave out."""
    sentences = []
    for task in table.tasks:
        for site, why in report.grid.undefined(task, table.metric).items():
            sentences.append(f"{site} has no {small(table.declared.title)} ({why}) and is left out of averages.")
    more = len(sentences) - _SHOWN_SITES
    return sentences if more <= 0 else [*sentences[:_SHOWN_SITES], f"So are {more} more sites."]


def _tested(report: Report, table: ScoreTable) -> list[str]:
    """How many test rows the scores are based on."""
    if len(table.tasks) != 1:
        return []
    tested = [row for row in report.test_rows(table.tasks[0], table.metric) if row[1] is not None]
    if not tested:
        return []
    rows = ", ".join(f"{site} {count:,}" for site, count in tested[:_SHOWN_SITES])
    more = f" and {len(tested) - _SHOWN_SITES} more sites" if len(tested) > _SHOWN_SITES else ""
    return [f"Test rows: {sum(count or 0 for _, count in tested):,} ({rows}{more})."]
