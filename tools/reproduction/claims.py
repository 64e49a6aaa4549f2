"""The claims about other methods: what each study measured, what it could have shown, and the verdict."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from playerfl.paper.rivals import RIVALS, TASKS, Duel, duels
from playerfl.report.compute.multiverse import Multiverse, read_multiverse
from playerfl.report.compute.statistics import ENOUGH_RUNS
from playerfl.report.compute.tables import ScoreTable
from playerfl.report.formats import difference, number, p_text, percent
from playerfl.report.names import method_name
from playerfl.wording import counted
from reproduction.archives import AUTHORS, DEFAULT, PRIMARY, RESULTS, SUBJECT, archives, ranking_of
from reproduction.markdown import NAMES, table_of


@cache
def multiverses() -> tuple[Multiverse, ...]:
    return tuple(map(read_multiverse, sorted((RESULTS / "multiverse").glob("*/multiverse.json"))))


def claims_part() -> str:
    """The claims about other methods: what each study measured, what it could have shown, and the verdict."""
    rows = [["the best mean rank", *_best_rank()]]
    rows += [[f"better than {_RIVAL_WORDS[rival]}", *_better_than(rival)] for rival in RIVALS]
    return table_of(["claim about PLayer-FL (macro-F1)", "what was measured", "verdict"], rows)


_RIVAL_WORDS = {
    "local": "training alone (Local)",
    "fedavg": "FedAvg",
    "fedper": "keeping only the last layer private (FedPer)",
    "player_fl_random": "cutting at a random layer",
}
_PROTOCOLS = ((DEFAULT, ""), (AUTHORS, ", authors' protocol"))


def _best_rank() -> tuple[str, str]:
    measured, first, behind = list[str](), list[str](), list[str]()
    for home, protocol in _PROTOCOLS:
        report = archives(home).report
        for over in (*report.grid.tasks, TASKS):
            ranking = ranking_of(report, PRIMARY, over)
            if (
                ranking is None
                or over in report.not_learnt
                or SUBJECT not in ranking.rank_of
                or len(ranking.blocks) < 2
            ):
                continue
            ordered = sorted(ranking.rank_of.items(), key=lambda item: item[1])
            mean = ranking.rank_of[SUBJECT]
            place = 1 + sum(rank < mean for rank in ranking.mean_ranks)
            where = f"{_where(home, over)}{protocol}"
            leader = f"; {ordered[0][0]} {ordered[0][1]:.1f}" if place > 1 else ""
            measured.append(f"{where}: {_ordinal(place)} of {len(ranking.algorithms)} ({mean:.1f}{leader})")
            (first if place == 1 else behind).append(f"{where} ({_scale(home, over)})")
    for many in multiverses():
        line = many.of(many.subject)
        measured.append(
            f"{_many(many)}: first in {percent(line.first)}, top three in {percent(line.top_three)}, median rank "
            f"{line.median_rank:g} of {len(many.methods)}"
        )
    text = [f"first: {', '.join(first)}" if first else "", f"not first: {', '.join(behind)}" if behind else ""]
    return _lines(measured), _lines([one for one in text if one])


def _better_than(rival: str) -> tuple[str, str]:
    measured, verdicts = list[str](), dict[str, list[str]]()
    for home, protocol in _PROTOCOLS:
        report = archives(home).report
        table = report.table(PRIMARY)
        for duel in duels(report):
            if (duel.table, duel.rival) != (PRIMARY, method_name(rival)) or table is None:
                continue
            where = f"{_where(home, duel.over)}{protocol}"
            measured.append(f"{where}: {_duel_text(duel, table)}")
            verdicts.setdefault(duel.verdict, []).append(f"{where} ({_scale(home, duel.over)})")
    for many in multiverses():
        share = many.of(many.subject).ahead_of.get(rival)
        if share is not None:
            measured.append(f"{_many(many)}: ahead in {percent(share)}")
    return _lines(measured), _lines([f"{verdict}: {', '.join(where)}" for verdict, where in verdicts.items()])


def _lines(text: list[str]) -> str:
    """Several lines of one cell."""
    return "<br>".join(text)


def _duel_text(duel: Duel, table: ScoreTable) -> str:
    if not (duel.ahead or duel.behind):
        return "the same in every run"
    gap, low, high = (difference(x, table.declared) or "–" for x in (duel.difference, duel.low, duel.high))
    p = f", {p_text(duel.p)}" if duel.blocks >= ENOUGH_RUNS else f", ahead in {duel.ahead} of {duel.blocks}"
    return f"{gap} ({low} to {high}{p}; could have shown {number(duel.detectable, 'score', table.declared)})"


def _where(home: Path, over: str) -> str:
    ranking = ranking_of(archives(home).report, PRIMARY, over)
    return f"over {counted(len(ranking.blocks) if ranking else 0, 'task')}" if over == TASKS else NAMES.get(over, over)


def _scale(home: Path, over: str) -> str:
    """How much was trained on a task; for ranks over tasks, how many there are."""
    if over == TASKS:
        return "one value per task"
    runs = next(runs for task, _, runs in archives(home).report.grid.cells() if task == over)
    return f"{len(runs)} runs of {next(iter(runs.values())).experiment['rounds']} rounds"


def _many(many: Multiverse) -> str:
    return f"{NAMES.get(many.task, many.task)} over {len(many.protocols)} protocols"


def _ordinal(place: int) -> str:
    """A place in words.

    >>> [_ordinal(place) for place in (1, 2, 3, 4, 11)]
    ['1st', '2nd', '3rd', '4th', '11th']
    """
    return f"{place}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(place if place < 20 else place % 10, 'th') }"
