"""From a computed report to its sections: the words and tables that every format shows."""

from __future__ import annotations

from playerfl.paper.section import comparison_sections, paper_section
from playerfl.report.compute.learnt import LEARNT_MARGIN
from playerfl.report.compute.report import Report
from playerfl.report.compute.statistics import ENOUGH_RUNS, RESAMPLES
from playerfl.report.formats import F1_CLASSES, SELECTIONS, listed
from playerfl.report.names import task_name
from playerfl.report.view import facts
from playerfl.report.view.first_screen import answer, other_answers
from playerfl.report.view.hospital import calibration_section, data_section
from playerfl.report.view.multiverse import multiverse_sections
from playerfl.report.view.parts import Block, Paragraph, Points, ReportView, Section
from playerfl.report.view.rank_section import rank_section
from playerfl.report.view.score_section import score_section
from playerfl.report.view.site_section import site_section, unseen_section
from playerfl.runs.measures.row_intervals import RESAMPLES as ROW_RESAMPLES
from playerfl.wording import counted

_LONGEST_LIST = 200


def view(report: Report, title: str) -> ReportView:
    """The whole report, in order."""
    sections = [_summary(report)]
    if report.missing or report.failed:
        sections.append(_missing(report))
    if report.grid.runs:
        scores, gains = score_section(report), site_section(report)
        sections += [data_section(report), gains, scores] if report.for_own_data else [scores, *_ranks(report), gains]
        if report.unseen:
            sections.append(unseen_section(report))
        if report.calibrations:
            sections.append(calibration_section(report))
        sections.append(Section("curves", "Learning curves", interactive=True))
        if report.layer_scores:
            sections.append(
                Section("layers", "Which layers to share: layer by layer, with other settings", interactive=True)
            )
        sections.append(_costs(report))
    sections += multiverse_sections(report)
    if report.paper is not None:
        sections += [*comparison_sections(report), paper_section(report.paper)]
    if report.grid.runs or not report.multiverses:
        sections.append(_methods(report))
    return ReportView(title, lead(report), answer(report), tuple(sections))


def _ranks(report: Report) -> list[Section]:
    return [rank_section(report)] if len(report.grid.algorithms) > 1 else []


def lead(report: Report) -> str:
    """What the report is about, in a sentence or two."""
    grid = report.grid
    tuned = counted(report.tuning_runs, "run" if not grid.runs else "more run")
    if not grid.runs and report.multiverses and not (report.missing or report.failed):
        return f"{_multiverse_sentences(report)} All scores are on held-out test data."
    if not grid.runs:
        done = f" Finished runs that choose learning rates: {report.tuning_runs:,}." if report.tuning_runs else ""
        return f"No run has finished yet; this report lists the missing runs.{done}"
    tuning = (
        f" {tuned} chose each method’s learning rate, with other seeds and on validation data, and are not counted."
        if report.tuning_runs
        else ""
    )
    # Tasks told apart by their settings have names that would fill the screen; the picker lists them.
    named = ", ".join(grid.tasks)
    tasks = f" ({named})" if len(named) <= _LONGEST_LIST else ""
    return (
        f"{counted(len(grid.runs), 'finished run')}: {counted(len(grid.algorithms), 'method')} on "
        f"{counted(len(grid.tasks), 'task')}{tasks}.{tuning} All scores are on held-out test data."
    )


def _multiverse_sentences(report: Report) -> str:
    parts = [
        f"{counted(len(m.methods), 'method')} on {task_name(m.task)} under {counted(len(m.protocols), 'protocol')}"
        for m in report.multiverses
    ]
    return f"{listed(parts)}."


def _summary(report: Report) -> Section:
    blocks = [Points(one.sentences, one.question) for one in other_answers(report)]
    # A report for readers with their own data has a section on them.
    sentences = report.notes if report.for_own_data else (*report.notes, *report.data_notes)
    notes = [Points(sentences, "Notes", note=True)] if sentences else []
    return Section("summary", "Summary", blocks=(*blocks, *notes))


def _missing(report: Report) -> Section:
    tuning = sum(gap.tuning for gap in (*report.missing, *report.failed))
    intro = f"Not finished: {counted(len(report.missing), 'run')}; failed: {counted(len(report.failed), 'run')}"
    intro += f"; {tuning} of these serve only to choose a learning rate. " if tuning else ". "
    intro += "The rest of this report covers the runs that finished." if report.grid.runs else ""
    blocks: list[Block] = []
    seeds = facts.seed_states(report)
    if seeds.items:
        blocks.append(Paragraph("Seeds: ■ finished, · not finished, ✕ failed, – not planned."))
        blocks.append(seeds.table("Seeds of every method"))
    blocks.append(facts.gaps(report, grouped=True).table("Why runs are missing"))
    return Section("missing", "Missing runs", intro.strip(), tuple(blocks), unfolded=not report.grid.runs)


def _costs(report: Report) -> Section:
    intro = (
        "Bytes of tensors to and from all sites together, medians over runs. “Never leaves a site” is the share of the "
        "model’s parameters that no site sends in any round: it shows what is exposed, but does not guarantee privacy. "
        "Runs side by side share one process and its wall time."
    )
    return Section(
        "cost", "Cost", intro, (facts.costs(report).table("Bytes, exposure and time", sortable=True, filtered=True),)
    )


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
        blocks.append(facts.runs(report).table("What was run", folded=True, filtered=True, remark=_software(report)))
    return Section("methods", "How the numbers were computed", blocks=tuple(blocks))


def _software(report: Report) -> str:
    versions = {}
    for key in ("playerfl", "torch", "python", "device"):
        values = sorted({str(run.result.environment[key]) for run in report.grid.runs if key in run.result.environment})
        if values:
            versions[key] = ", ".join(values)
    return "Software: " + ", ".join(f"{key} {value}" for key, value in versions.items()) + "." if versions else ""
