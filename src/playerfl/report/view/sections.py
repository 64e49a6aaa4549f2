"""From a computed report to its sections: the words and tables that every format shows."""

from __future__ import annotations

from dataclasses import replace

from playerfl.paper.section import paper_section
from playerfl.report.compute.grid import MAJORITY, TRAINING_MEAN, task_name
from playerfl.report.compute.learnt import LEARNT_MARGIN
from playerfl.report.compute.ranking import Ranking
from playerfl.report.compute.report import Report
from playerfl.report.compute.sites import SiteTable, runs_needed
from playerfl.report.compute.statistics import ENOUGH_RUNS, RESAMPLES
from playerfl.report.compute.tables import ScoreTable
from playerfl.report.formats import (
    F1_CLASSES,
    REACH,
    SELECTIONS,
    counted,
    interval_head,
    listed,
    noise,
    p_said,
    ranges,
    small,
    table_title,
)
from playerfl.report.view import facts
from playerfl.report.view.answers import answers, reach
from playerfl.report.view.hospital import calibration_section, data_section
from playerfl.report.view.multiverse import multiverse_sections
from playerfl.report.view.parts import (
    NOTHING,
    Block,
    Head,
    Paragraph,
    Points,
    ReportView,
    Section,
    TableCell,
    TableView,
)
from playerfl.report.view.site_facts import sites, unseen
from playerfl.runs.measures.row_intervals import RESAMPLES as ROW_RESAMPLES

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


def view(report: Report, title: str) -> ReportView:
    """The whole report, in order."""
    sections = [_summary(report)]
    if report.missing or report.failed:
        sections.append(_missing(report))
    if report.grid.runs:
        scores, gains = _tables(report), _sites(report)
        sections += [data_section(report), gains, scores] if report.for_own_data else [scores, _tests(report), gains]
        if report.unseen:
            sections.append(_unseen(report))
        if report.calibrations:
            sections.append(calibration_section(report))
        sections.append(Section("curves", "Learning curves", interactive=True))
        if report.layer_scores:
            sections.append(Section("layers", "Which layers to share: try another threshold", interactive=True))
        sections.append(_costs(report))
    sections += multiverse_sections(report)
    if report.paper is not None:
        sections.append(paper_section(report.paper))
    if report.grid.runs or not report.multiverses:
        sections.append(_methods(report))
    return ReportView(title, lead(report), tuple(sections))


def lead(report: Report) -> str:
    """What the report is about, in a sentence or two."""
    grid = report.grid
    tuned = counted(report.tuning_runs, "run" if not grid.runs else "more run")
    if not grid.runs and report.multiverses and not (report.missing or report.failed):
        return f"{_multiverses_said(report)} All scores are on held-out test data."
    if not grid.runs:
        done = f" Finished runs that choose learning rates: {report.tuning_runs:,}." if report.tuning_runs else ""
        return f"No run has finished yet; this report lists the missing runs.{done}"
    tuning = (
        f" {tuned} chose each method’s learning rate, with other seeds and on validation data, and are not counted."
        if report.tuning_runs
        else ""
    )
    return (
        f"{counted(len(grid.runs), 'finished run')}: {counted(len(grid.algorithms), 'method')} on "
        f"{counted(len(grid.tasks), 'task')} ({', '.join(grid.tasks)}).{tuning} All scores are on held-out test data."
    )


def _multiverses_said(report: Report) -> str:
    parts = [
        f"{counted(len(m.methods), 'method')} on {task_name(m.task)} under {counted(len(m.protocols), 'protocol')}"
        for m in report.multiverses
    ]
    return f"{listed(parts)}."


def _summary(report: Report) -> Section:
    blocks = [Points(answer.sentences, answer.question) for answer in answers(report)]
    # A report for readers with their own data has a section on them.
    said = report.notes if report.for_own_data else (*report.notes, *report.data_notes)
    notes = [Points(said, "Notes", note=True)] if said else []
    return Section("summary", "Summary", blocks=(*blocks, *notes))


def _missing(report: Report) -> Section:
    tuning = sum(gap.tuning for gap in (*report.missing, *report.failed))
    said = f"Not finished: {counted(len(report.missing), 'run')}; failed: {counted(len(report.failed), 'run')}"
    said += f"; {tuning} of these serve only to choose a learning rate. " if tuning else ". "
    said += "The rest of this report covers the runs that finished." if report.grid.runs else ""
    blocks: list[Block] = []
    seeds = facts.seed_states(report)
    if seeds.items:
        blocks.append(Paragraph("Seeds: ■ finished, · not finished, ✕ failed, – not planned."))
        blocks.append(seeds.table("Seeds of every method"))
    blocks.append(facts.gaps(report, grouped=True).table("Why runs are missing"))
    return Section("missing", "Missing runs", said.strip(), tuple(blocks))


def _tables(report: Report) -> Section:
    average = "weighted by training examples" if report.choices.client_average == "samples" else "unweighted"
    if report.for_own_data:
        runs = " (the median over runs)" if report.most_runs > 1 else ""
        said = f"A cell is the average over sites ({average}){runs}. Bold: the best value of a column."
        shown = [table for table in report.tables if table.kind == "score"]
        return Section("tables", "Scores", said, tuple(_score_table(report, table) for table in shown))
    fair = (
        "Fairness and incentive are computed per run; a cell is their median."
        if report.choices.per_run
        else "Fairness and incentive are computed from each site’s median over runs."
    )
    said = (
        f"A cell is the median over runs of the average over sites ({average}), with its 95 % bootstrap interval "
        f"(“range” where there are fewer than {ENOUGH_RUNS} runs) and the number of runs. Bold: the best value of a "
        f"column. ≈: the difference from the best is within {_noise(report)}, that is, the interval of the paired "
        "difference contains 0 (not corrected for multiple comparisons; the tests below are). " + fair
    )
    if report.paper and report.paper.cells:
        said += " “paper” is what the PLayer-FL paper prints for the task; these runs may have other settings."
    return Section("tables", "Tables", said, tuple(_score_table(report, table) for table in report.tables))


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
    )


def _remarks(report: Report, table: ScoreTable, ranking: Ranking | None) -> list[str]:
    """What a reader must know about a table's ranks."""
    said = []
    if set(table.ranked) < set(table.algorithms):
        said.append("The two baselines are shown for reference and not ranked.")
    if table.kind == "fairness":
        said.append("A method can be fair and uniformly bad: read this together with the scores.")
    if table.majority:
        said.append(BASELINES[table.baseline_name])
        if table.baseline_name != TRAINING_MEAN and table.kind == "score" and table.metric == "loss":
            said.append(_LOSS_OF_FREQUENCIES)
    if table.kind == "score":
        said += [*_averaging(report, table), *_undefined(report, table), *_tested(report, table)]
    if ranking is None or (len(table.tasks) == 1 and len(ranking.blocks) == 1):
        return said
    if ranking.over != "tasks":
        said.append("The mean rank is over runs, since there is only one task.")
        if table.kind != "score" and not report.choices.per_run:
            said.append(
                "Ranks compare single runs while cells use the sites’ medians over runs, so the two may order methods "
                "differently; --per-run computes the cells from single runs too."
            )
    return [*said, *left_out(ranking)]


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
    said = []
    for task in table.tasks:
        for site, why in report.grid.undefined(task, table.metric).items():
            said.append(f"{site} has no {small(table.declared.title)} ({why}) and is left out of averages.")
    more = len(said) - _SHOWN_SITES
    return said if more <= 0 else [*said[:_SHOWN_SITES], f"So are {more} more sites."]


def _tested(report: Report, table: ScoreTable) -> list[str]:
    """How many test rows the scores rest on."""
    if len(table.tasks) != 1:
        return []
    tested = [row for row in report.test_rows(table.tasks[0], table.metric) if row[1] is not None]
    if not tested:
        return []
    rows = ", ".join(f"{site} {count:,}" for site, count in tested[:_SHOWN_SITES])
    more = f" and {len(tested) - _SHOWN_SITES} more sites" if len(tested) > _SHOWN_SITES else ""
    return [f"Test rows: {sum(count or 0 for _, count in tested):,} ({rows}{more})."]


def left_out(ranking: Ranking) -> list[str]:
    """The methods and blocks that a ranking leaves out: it needs every method in every block."""
    said = []
    if ranking.same_as:
        pairs = [f"{name} with {other}" for name, other in ranking.same_as.items()]
        said.append(f"Identical methods share one place: {listed(pairs)}.")
    if ranking.not_learnt:
        said.append(f"Ranks leave out tasks that were not learnt: {listed(ranking.not_learnt)}.")
    if ranking.left_out:
        said.append(f"Not ranked, because results are missing: {listed(ranking.left_out)}.")
    if ranking.blocks_left_out:
        total = len(ranking.blocks) + len(ranking.blocks_left_out)
        names = [name.removeprefix("seed ") for name in ranking.blocks_left_out]
        over_tasks = ranking.over == "tasks"
        which = listed(names) if over_tasks else f"seeds {ranges([int(seed) for seed in names])}"
        said.append(
            f"Ranks leave out {len(names)} of {total} {'tasks' if over_tasks else 'runs'} in which a ranked method has "
            f"no result: {which}."
        )
    return said


def ranking_said(report: Report, ranking: Ranking) -> str:
    """The tests of a ranking in sentences."""
    test, said = ranking.friedman, []
    if test:
        f = "not computable"
        if test.f == test.f:
            f = f"F({test.f_df[0]}, {test.f_df[1]}) = {test.f:.2f}, {p_said(test.f_p)}"
        said.append(
            f"Friedman: χ² = {test.chi2:.2f}, {test.df} degrees of freedom, {p_said(test.p)}. "
            f"Iman-Davenport: {f}. Kendall’s W = {test.kendall_w:.2f}."
        )
        if ranking.over != "tasks":
            of = REACH[report.grid.splits(ranking.over)]
            said.append(f"This is about {ranking.over} only, and accounts for {of}.")
    return " ".join([*said, *([ranking.remark] if ranking.remark else []), *left_out(ranking)])


def _tests(report: Report) -> Section:
    tests, blocks = facts.tests(report), list[Block]()
    if tests.items:
        blocks.append(tests.table("Do the methods differ?"))
    else:
        blocks.append(
            Paragraph("No test: Friedman’s test needs at least three methods, and two tasks or two runs of a task.")
        )
    if any(ranking.over != "tasks" for ranking in tests.items):
        blocks.append(
            Paragraph(" ".join(["A test over the runs of one task is about that dataset only.", *reach(report)]))
        )
    for ranking in report.rankings.get(report.metric, [])[:1]:
        pairs = facts.pairs(report)
        shown = [pair for pair in pairs.items if pair.ranking is ranking]
        if shown and tests.items:
            caption = f"Pairs of methods by {small(report.declared.title)}, over {ranking.block_name}"
            blocks.append(pairs.table(caption, shown, remark=ranking.holm_limit))
    return Section("tests", "Tests of the ranks", blocks=tuple(blocks), interactive=True)


def _sites(report: Report) -> Section:
    alone = report.choices.baseline_local or "training alone"
    averaged = report.choices.baseline_global or "FedAvg"
    said = (
        f"Each site’s difference from {alone} and from {averaged}: the median over runs with the same seed. Positive "
        "always means better for the site, also where a lower value is better (in percentage points for shares). "
    )
    if report.has_rows:
        said += (
            "“rows” is the 95 % interval over the site’s test rows: how much the number would differ with other "
            "patients from the same site (not corrected for the number of sites). "
        )
    if report.most_runs > 1:
        said += (
            f"“runs” is the 95 % interval over runs (the range where there are fewer than {ENOUGH_RUNS}). p is "
            "Wilcoxon’s over runs, with Holm’s correction over the sites; a site counts as gaining or harmed only if p "
            "is below 0.05. " + " ".join(reach(report))
        )
    tables = [report.site_table(task, report.subject, report.metric) for task in report.grid.tasks]
    return Section(
        "sites",
        "Which sites gain and which lose",
        said,
        tuple(site_view(report, table) for table in tables if table),
        interactive=True,
    )


def site_view(report: Report, table: SiteTable) -> TableView:
    """The sites of a task under one algorithm, worst off first."""
    local = [row.to_local for row in table.rows if row.to_local]
    counts = [gained.runs for row in table.rows[:1] for gained in (row.to_local, row.to_global) if gained]
    said = []
    if local:
        worse = sum(gained.value < 0 for gained in local)
        said.append(
            f"{worse} of {counted(len(local), 'site')} are worse off than with {report.choices.baseline_local}."
        )
    if counts and max(counts) > 1:
        needed = runs_needed(len(table.rows))
        said.append(f"The differences are over {counted(min(counts), 'run')}.")
        if min(counts) < needed:
            said.append(
                f"With {counted(len(table.rows), 'site')}, a significant difference takes at least {needed} runs."
            )
    caption = f"{table.algorithm} on {table.task}, worst off first"
    return sites(report, [table]).table(caption, remark=" ".join(said), sortable=True)


def _unseen(report: Report) -> Section:
    said = (
        "These sites took no part in training. After the last round each received the common part of the model and "
        "tuned its own part on its training data (unseen_epochs); the scores are on its test data. They are in no "
        "other table."
    )
    return Section("unseen", "Unseen sites", said, (unseen(report).table("Scores of unseen sites", sortable=True),))


def _costs(report: Report) -> Section:
    said = (
        "Bytes of tensors to and from all sites together, medians over runs. “Never leaves a site” is the share of the "
        "model’s parameters that no site sends in any round: it shows what is exposed, but does not guarantee privacy. "
        "Runs side by side share one process and its wall time."
    )
    return Section("cost", "Cost", said, (facts.costs(report).table("Bytes, exposure and time", sortable=True),))


def _methods(report: Report) -> Section:
    selections = {str(run.result.experiment["selection"]) for run in report.grid.runs}
    lines = [
        f"Selection: {'; '.join(SELECTIONS[name] for name in sorted(selections))}." if selections else "",
        "A method that tunes after the last round reports its tuned model.",
        f"Macro-F1 averages over {F1_CLASSES[report.f1_labels]}.",
        f"Intervals over runs: percentile bootstrap, {RESAMPLES:,} resamples with a fixed seed. One run has no "
        f"interval; with fewer than {ENOUGH_RUNS} runs, their range is shown instead.",
        f"Intervals over test rows: percentile bootstrap of each site’s rows, {ROW_RESAMPLES:,} resamples, the same "
        "for all methods; rows that belong together (visits of one patient) are drawn together, if the data say so. "
        "There are none for metrics of your own, for studies, and for jobs across institutions."
        if report.has_rows
        else "",
    ]
    of_methods = [
        "Fairness is the population variance over sites of scores between 0 and 1, or of the losses.",
        "Incentive is the share of sites strictly better off than under both baselines; a tie does not count. "
        "For FedAvg, it uses one global model per run.",
        f"A task counts as learnt if one method is at least {100 * LEARNT_MARGIN:g} points of accuracy and of macro-F1 "
        "ahead of the majority class; without these metrics, if it is that far ahead of the baseline in the first one "
        f"that has a scale, or has an error {100 * LEARNT_MARGIN:g} % smaller. Other tasks are left out of ranks over "
        "tasks.",
        "Ranks: 1 is best, ties share the average; methods that give identical numbers in all runs of a task share one "
        "place. Friedman’s test is corrected for ties; its treatments are the methods.",
    ]
    lines += [] if report.for_own_data else of_methods
    lines += [
        "A score that is not a number counts as worse than any number.",
        "Formulas and sources: docs/report.md of playerfl.",
    ]
    blocks: list[Block] = [Points(tuple(filter(None, lines)))]
    if report.grid.runs:
        blocks.append(facts.runs(report).table("What was run", folded=True, remark=_software(report)))
    return Section("methods", "How the numbers were computed", blocks=tuple(blocks))


def _software(report: Report) -> str:
    versions = {}
    for key in ("playerfl", "torch", "python", "device"):
        values = sorted({str(run.result.environment[key]) for run in report.grid.runs if key in run.result.environment})
        if values:
            versions[key] = ", ".join(values)
    return "Software: " + ", ".join(f"{key} {value}" for key, value in versions.items()) + "." if versions else ""
