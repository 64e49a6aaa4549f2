"""The section of tests: whether the methods differ, which pairs do, and what the ranks leave out."""

from __future__ import annotations

from playerfl.report.compute.ranking import Ranking
from playerfl.report.compute.report import Report
from playerfl.report.formats import REACH, listed, p_text, ranges, small
from playerfl.report.view import facts
from playerfl.report.view.answers import reach
from playerfl.report.view.parts import Block, Paragraph, Section


def rank_section(report: Report) -> Section:
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


def ranking_text(report: Report, ranking: Ranking) -> str:
    """The tests of a ranking in sentences."""
    test, sentences = ranking.friedman, []
    if test:
        f = "not computable"
        if test.f == test.f:
            f = f"F({test.f_df[0]}, {test.f_df[1]}) = {test.f:.2f}, {p_text(test.f_p)}"
        sentences.append(
            f"Friedman: χ² = {test.chi2:.2f}, {test.df} degrees of freedom, {p_text(test.p)}. "
            f"Iman-Davenport: {f}. Kendall’s W = {test.kendall_w:.2f}."
        )
        if ranking.over != "tasks":
            of = REACH[report.grid.splits(ranking.over)]
            sentences.append(f"This is about {ranking.over} only, and accounts for {of}.")
    return " ".join([*sentences, *([ranking.remark] if ranking.remark else []), *left_out(ranking)])


def left_out(ranking: Ranking) -> list[str]:
    """The methods and blocks that a ranking leaves out: it needs every method in every block."""
    sentences = []
    if ranking.same_as:
        pairs = [f"{name} with {other}" for name, other in ranking.same_as.items()]
        sentences.append(f"Identical methods share one place: {listed(pairs)}.")
    if ranking.not_learnt:
        sentences.append(f"Ranks leave out tasks that were not learnt: {listed(ranking.not_learnt)}.")
    if ranking.left_out:
        sentences.append(f"Not ranked, because results are missing: {listed(ranking.left_out)}.")
    if ranking.blocks_left_out:
        total = len(ranking.blocks) + len(ranking.blocks_left_out)
        names = [name.removeprefix("seed ") for name in ranking.blocks_left_out]
        over_tasks = ranking.over == "tasks"
        which = listed(names) if over_tasks else f"seeds {ranges([int(seed) for seed in names])}"
        sentences.append(
            f"Ranks leave out {len(names)} of {total} {'tasks' if over_tasks else 'runs'} in which a ranked method has "
            f"no result: {which}."
        )
    return sentences
