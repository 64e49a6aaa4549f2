"""The sections on single sites: who gains and who loses, and sites that took no part in training."""

from __future__ import annotations

from playerfl.report.compute.report import Report
from playerfl.report.compute.sites import SiteComparison, runs_needed
from playerfl.report.compute.statistics import ENOUGH_RUNS
from playerfl.report.view.answers import reach
from playerfl.report.view.gains import gains_view
from playerfl.report.view.parts import Section, TableView
from playerfl.report.view.site_facts import sites, unseen
from playerfl.wording import counted


def site_section(report: Report) -> Section:
    alone = report.choices.baseline_local or "training alone"
    averaged = report.choices.baseline_global or "FedAvg"
    compared = any(row.to_local or row.to_global for table in report.sites for row in table.rows)
    intro = "Each site’s score, on its own test data. "
    if compared:
        intro = (
            f"Each site’s difference from {alone} and from {averaged}: the median over runs with the same seed. "
            "Positive always means better for the site, even where a lower value is better (in percentage points for "
            "shares). "
        )
    if report.has_rows:
        intro += (
            "“rows” is the 95 % interval over the site’s test rows: how much the number would differ with other "
            "patients from the same site (not corrected for the number of sites). "
        )
    if report.most_runs > 1 and compared:
        intro += (
            f"“runs” is the 95 % interval over runs (the range where there are fewer than {ENOUGH_RUNS}). p is "
            "Wilcoxon’s over runs, with Holm’s correction over the sites; a site counts as gaining or harmed only if p "
            "is below 0.05. " + " ".join(reach(report))
        )
    tables = [report.site_table(task, report.subject, report.metric) for task in report.grid.tasks]
    blocks = [site_view(report, table) for table in tables if table]
    if report.most_runs > 1:
        every = (gains_view(report, task, report.metric) for task in report.grid.tasks)
        blocks += [table for table in every if table]
    title = "Which sites gain and which lose" if compared else "Scores by site"
    return Section("sites", title, intro, tuple(blocks), interactive=True)


def site_view(report: Report, table: SiteComparison) -> TableView:
    """The sites of a task under one algorithm, worst off first."""
    local = [row.to_local for row in table.rows if row.to_local]
    counts = [gained.runs for row in table.rows[:1] for gained in (row.to_local, row.to_global) if gained]
    sentences = []
    if local:
        worse = sum(gained.value < 0 for gained in local)
        are = "is" if worse == 1 else "are"
        sentences.append(
            f"{worse} of {counted(len(local), 'site')} {are} worse off than with {report.choices.baseline_local}."
        )
    if counts and max(counts) > 1:
        needed = runs_needed(len(table.rows))
        sentences.append(f"The differences are over {counted(min(counts), 'run')}.")
        if min(counts) < needed:
            sentences.append(
                f"With {counted(len(table.rows), 'site')}, a significant difference takes at least {needed} runs."
            )
    caption = f"{table.algorithm} on {table.task}, worst off first"
    return sites(report, [table]).table(caption, remark=" ".join(sentences), sortable=True)


def unseen_section(report: Report) -> Section:
    intro = (
        "These sites took no part in training. After the last round each received the common part of the model and "
        "tuned its own part on its training data (unseen_epochs); the scores are on its test data. They are in no "
        "other table."
    )
    return Section(
        "unseen",
        "Unseen sites",
        intro,
        (unseen(report).table("Scores of unseen sites", sortable=True, filtered=True),),
    )
