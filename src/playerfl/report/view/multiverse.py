"""A multiverse in words and tables: where each method stands over all protocols, and which choice decides it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from playerfl.report.compute.multiverse import MethodSummary, Multiverse, ProtocolRanking
from playerfl.report.compute.report import Report
from playerfl.report.formats import listed, percent
from playerfl.report.names import method_name, task_name
from playerfl.report.view.parts import NOTHING, Column, Facts, Section, TableCell, Value
from playerfl.wording import counted

TITLE = "Multiverse: which choices decide the ranking"
_HOW = (
    "A protocol is one combination of choices. Under each protocol, methods are ranked in every run (1 is best, ties "
    "share the average), then by the mean of these ranks; a method without a score is last. Shares count protocols; "
    "they are not probabilities, since protocols share runs. What a choice explains is the part of the variance of a "
    "method’s rank that lies between the mean ranks of its values."
)

# Below this share of the variance, it would be misleading to say that a choice matters.
_LITTLE = 0.1


def finding(multiverse: Multiverse, method: str) -> str:
    """What a multiverse says about one method, in one sentence."""
    line = multiverse.of(method)
    sentence = (
        f"{method_name(method)} ranks 1st in {percent(line.first)} of {counted(len(multiverse.protocols), 'protocol')} "
        f"and in the top three in {percent(line.top_three)}"
    )
    if line.best_rank == line.worst_rank:
        return f"{sentence}; no choice changes its rank"
    if line.decided_share < _LITTLE:
        return f"{sentence}; no single choice explains {percent(_LITTLE)} of the variance of its rank"
    return f"{sentence}; the choice of {factor_name(line.decided_by)} matters most"


def factor_name(name: str) -> str:
    """A factor's name in a sentence.

    >>> factor_name("optimiser_state")
    'optimiser state'
    """
    return name.replace("_", " ")


def rank_text(rank: float) -> str:
    """A rank or a median of ranks.

    >>> rank_text(2.0), rank_text(2.5)
    ('2', '2.5')
    """
    return f"{rank:g}"


def answer(multiverse: Multiverse) -> tuple[str, ...]:
    """The result in two or three sentences."""
    method = multiverse.subject
    line = multiverse.of(method)
    name = method_name(method)
    sentences = [f"On {task_name(multiverse.task)}, {finding(multiverse, method)}."]
    if line.best_rank < line.worst_rank:
        explains = f"{factor_name(line.decided_by)} explains {percent(line.decided_share)} of the variance"
        ahead = [f"{method_name(rival)} in {percent(share)}" for rival, share in line.ahead_of.items()]
        sentences.append(
            f"Its median rank is {rank_text(line.median_rank)} of {len(multiverse.methods)}, from {line.best_rank} to "
            f"{line.worst_rank}; the choice of {explains}"
            + (f", and it is ahead of {listed(ahead)} of protocols." if ahead else ".")
        )
    most = max(other.first for other in multiverse.summary)
    leaders = [method_name(other.method) for other in multiverse.summary if other.first == most]
    others = [leader for leader in leaders if leader != name]
    if others:
        sentences.append(f"Most often 1st: {listed(leaders)}, in {percent(most)} of protocols.")
    return tuple(sentences)


def multiverse_sections(report: Report) -> list[Section]:
    """One section for each multiverse."""
    several = len(report.multiverses) > 1
    return [
        Section(
            f"multiverse-{number}" if several else "multiverse",
            f"{TITLE} ({multiverse.name})" if several else TITLE,
            " ".join(answer(multiverse)),
            (_summaries([multiverse]).table(_caption(multiverse), remark=_HOW, sortable=True),),
            interactive=True,
            unfolded=not report.grid.runs,
        )
        for number, multiverse in enumerate(report.multiverses, 1)
    ]


def _caption(multiverse: Multiverse) -> str:
    return (
        f"Every method over {counted(len(multiverse.protocols), 'protocol')} on {task_name(multiverse.task)}, "
        f"{counted(multiverse.runs, 'run')} each"
    )


def multiverse_facts(report: Report) -> list[Facts[Any]]:
    """The same for CSV and JSON, with every protocol."""
    return [_summaries(report.multiverses), _protocols(report.multiverses)] if report.multiverses else []


@dataclass(frozen=True)
class _Line:
    """A method over all protocols of a multiverse."""

    multiverse: Multiverse
    summary: MethodSummary


def _summaries(multiverses: Sequence[Multiverse]) -> Facts[_Line]:
    # No method is compared with itself, so the longest list comes first to keep the order of the file.
    compared = sorted((line.ahead_of for m in multiverses for line in m.summary), key=len, reverse=True)
    rivals = list(dict.fromkeys(rival for ahead_of in compared for rival in ahead_of))
    lines = [_Line(multiverse, line) for multiverse in multiverses for line in multiverse.summary]

    def ahead(rival: str) -> Column[_Line]:
        def shown(line: _Line) -> TableCell:
            share = line.summary.ahead_of.get(rival)
            return NOTHING if share is None else TableCell(percent(share), share)

        title = f"ahead of {method_name(rival)}"
        return Column(f"ahead_of_{_column(rival)}", title, lambda line: line.summary.ahead_of.get(rival), shown)

    return Facts(
        "multiverse",
        [
            Column("multiverse", "", lambda line: line.multiverse.name),
            Column("task", "", lambda line: task_name(line.multiverse.task)),
            Column("method", "method", _method, words=True),
            Column("first", "1st", lambda line: line.summary.first, lambda line: _share(line.summary.first)),
            Column(
                "top_three", "top 3", lambda line: line.summary.top_three, lambda line: _share(line.summary.top_three)
            ),
            *map(ahead, rivals),
            Column("median_rank", "median rank", lambda line: line.summary.median_rank, _median_rank),
            Column("best_rank", "best", lambda line: line.summary.best_rank),
            Column("worst_rank", "worst", lambda line: line.summary.worst_rank),
            Column("decided_by", "decided most by", lambda line: line.summary.decided_by, _decided_by, words=True),
            Column(
                "decided_share",
                "which explains",
                lambda line: line.summary.decided_share,
                lambda line: _share(line.summary.decided_share),
            ),
        ],
        sorted(lines, key=lambda line: (line.multiverse.name, line.summary.median_rank, -line.summary.first)),
    )


def _method(line: _Line) -> str:
    return method_name(line.summary.method)


def _share(part: float) -> TableCell:
    return TableCell(percent(part), part)


def _median_rank(line: _Line) -> TableCell:
    return TableCell(rank_text(line.summary.median_rank), line.summary.median_rank)


def _decided_by(line: _Line) -> str:
    varies = line.summary.best_rank < line.summary.worst_rank
    return factor_name(line.summary.decided_by) if varies else "–"


def _column(method: str) -> str:
    """A method's name as part of a column's."""
    return "".join(character if character.isalnum() else "_" for character in method)


@dataclass(frozen=True)
class _Place:
    """A method under one protocol."""

    multiverse: Multiverse
    protocol: ProtocolRanking
    number: int
    method: int

    def choice(self, factor: str) -> Value:
        for choice, known in zip(self.protocol.choices, self.multiverse.factors, strict=True):
            if known.name == factor:
                return known.values[choice]
        return None


def _protocols(multiverses: Sequence[Multiverse]) -> Facts[_Place]:
    factors = dict.fromkeys(factor.name for multiverse in multiverses for factor in multiverse.factors)
    return Facts(
        "protocols",
        [
            Column("multiverse", "", lambda p: p.multiverse.name),
            Column("task", "", lambda p: task_name(p.multiverse.task)),
            Column("protocol", "", lambda p: p.number),
            *(Column(name, "", lambda p, name=name: p.choice(name)) for name in factors),  # type: ignore[misc]
            Column("method", "", lambda p: method_name(p.multiverse.methods[p.method])),
            Column("score", "", lambda p: p.protocol.scores[p.method]),
            Column("mean_rank", "", lambda p: p.protocol.mean_ranks[p.method]),
            Column("rank", "", lambda p: p.protocol.ranks[p.method]),
        ],
        [
            _Place(multiverse, protocol, number, method)
            for multiverse in multiverses
            for number, protocol in enumerate(multiverse.protocols, 1)
            for method in range(len(multiverse.methods))
        ],
    )
