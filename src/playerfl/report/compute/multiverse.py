"""Multiverse: one ranking per protocol, as `playerfl multiverse` writes it, checked before it is used."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from playerfl.errors import RunDirectoryError

MULTIVERSE = "multiverse.json"
FORMAT: Literal["playerfl multiverse 1"] = "playerfl multiverse 1"
MEASURE = "measure"
# Columns of the table of protocols, which has one more for each factor.
PROTOCOL_COLUMNS = ("multiverse", "task", "protocol", "method", "score", "mean_rank", "rank")
# Far more than any multiverse writes; a larger file would only fill memory.
_MOST_BYTES = 64_000_000
# Shares may have been rounded to three digits.
_ROUNDING = 0.001
_USUAL = "player_fl"


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError(f"{text!r} has characters that cannot be shown")
    return text


def _identifier(name: str) -> str:
    # Factors become the heads of CSV columns, where a spreadsheet must not take them for formulas.
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise ValueError(f"{name!r} must be letters, digits, '.', '-' and '_'")
    if name in PROTOCOL_COLUMNS:
        raise ValueError(f"a factor cannot be called {name!r}: a column of the table of protocols has that name")
    return name


_Text = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_printable)]
_Name = Annotated[str, Field(min_length=1, max_length=60), AfterValidator(_identifier)]
_Count = Annotated[int, Field(ge=0, lt=2**31)]
_Rank = Annotated[int, Field(ge=1)]
_Number = Annotated[float, Field(allow_inf_nan=False)]
_MeanRank = Annotated[float, Field(ge=1, allow_inf_nan=False)]
_Share = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True)
class Factor:
    """A choice that every protocol makes."""

    name: _Name
    kind: Literal["trained", "computed"]
    """Whether its values are trained separately, or computed from the same runs."""
    values: Annotated[tuple[_Text, ...], Field(min_length=1, max_length=100)]


@dataclass(frozen=True)
class ProtocolRanking:
    """One combination of choices and the ranking it gives; numbers are in the order of the methods."""

    choices: tuple[_Count, ...]
    """For each factor, the position of the chosen value."""
    scores: tuple[_Number | None, ...]
    """None if the method diverged or has no result."""
    mean_ranks: tuple[_MeanRank, ...]
    """Over runs."""
    ranks: tuple[_Rank, ...]
    """Of the mean ranks: 1 is best, ties share the better rank."""


@dataclass(frozen=True)
class MethodSummary:
    """Where a method stands over all protocols. Shares are between 0 and 1."""

    method: _Text
    first: _Share
    top_three: _Share
    ahead_of: dict[_Text, _Share]
    median_rank: _MeanRank
    best_rank: _Rank
    worst_rank: _Rank
    decided_by: str
    """The factor that explains most of the variance of its rank."""
    decided_share: _Share


@dataclass(frozen=True)
class Multiverse:
    """The ranking of methods under every protocol: the content of a multiverse.json."""

    format: Literal["playerfl multiverse 1"]
    name: _Text
    task: _Text
    runs: _Count
    """Reported runs of each method under each way to train."""
    tuning_runs: _Count
    methods: Annotated[tuple[_Text, ...], Field(min_length=1, max_length=200)]
    factors: Annotated[tuple[Factor, ...], Field(min_length=1, max_length=40)]
    protocols: Annotated[tuple[ProtocolRanking, ...], Field(min_length=1)]
    summary: tuple[MethodSummary, ...]
    """In the order of the methods."""
    measures: dict[_Text, Literal["higher", "lower"]]
    """For each value of the factor `measure`, which way is better."""

    @property
    def subject(self) -> str:
        """The method that texts and figures are about: PLayer-FL, or else the first."""
        return _USUAL if _USUAL in self.methods else self.methods[0]

    @property
    def measure(self) -> int:
        """The position of the factor `measure`."""
        return next(i for i, factor in enumerate(self.factors) if factor.name == MEASURE)

    def of(self, method: str) -> MethodSummary:
        return self.summary[self.methods.index(method)]

    def ranks(self, method: str) -> list[int]:
        """The method's rank under each protocol."""
        position = self.methods.index(method)
        return [protocol.ranks[position] for protocol in self.protocols]

    def rival(self, method: str) -> str | None:
        """The best of the other methods, by median rank, then by how often it is first."""
        others = [line for line in self.summary if line.method != method]
        return min(others, key=lambda line: (line.median_rank, -line.first)).method if others else None

    def ordered(self, method: str) -> list[int]:
        """The positions of the protocols, from the method's best rank to its worst.

        Within a rank, the factor that matters most to the method comes first, so that its values form blocks.
        """
        ranks = self.ranks(method)
        deciding = [factor.name for factor in self.factors].index(self.of(method).decided_by)
        choices = [protocol.choices for protocol in self.protocols]
        return sorted(range(len(ranks)), key=lambda i: (ranks[i], choices[i][deciding], choices[i]))

    def median_ranks(self, method: str) -> list[list[float | None]]:
        """For each factor and value: the method's median rank over the protocols that choose it; None if none do."""
        ranks = self.ranks(method)
        by_value = [
            [[r for r, p in zip(ranks, self.protocols, strict=True) if p.choices[i] == j] for j in range(len(f.values))]
            for i, f in enumerate(self.factors)
        ]
        return [[float(statistics.median(some)) if some else None for some in of_factor] for of_factor in by_value]


def read_multiverse(file: Path) -> Multiverse:
    """The content of a multiverse.json; RunDirectoryError if it is not what `playerfl multiverse` writes."""
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise ValueError(f"it has more than {_MOST_BYTES:,} bytes")
        # Strict: the text "3" is not the number 3. Keys that later versions add are ignored.
        read = _schema().validate_json(file.read_bytes(), strict=True)
        for problem in _contradictions(read):
            raise ValueError(problem)
    except OSError as problem:
        raise RunDirectoryError(f"{file} cannot be read: {problem.strerror}") from problem
    except ValidationError as problem:
        first = problem.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise RunDirectoryError(_refused(file, f"{place}: {first['msg']}" if place else first["msg"])) from problem
    except ValueError as problem:
        raise RunDirectoryError(_refused(file, str(problem))) from problem
    return read


@cache
def _schema() -> TypeAdapter[Multiverse]:
    return TypeAdapter(Multiverse)


def _refused(file: Path, why: str) -> str:
    return f"{file} is not what `playerfl multiverse` writes: {why}; run it again to continue where it stopped"


def _contradictions(read: Multiverse) -> Iterable[str]:
    """Contradictions between fields that are each valid on their own."""
    lists = {"methods": read.methods, "factors": [f.name for f in read.factors]}
    for what, names in {**lists, **{f"values of {f.name}": f.values for f in read.factors}}.items():
        if len(set(names)) < len(names):
            yield f"the {what} are not all different"
    measures = [factor.values for factor in read.factors if factor.name == MEASURE]
    if not measures or set(measures[0]) != read.measures.keys():
        yield f"measures must be the values of a factor called {MEASURE!r}"
    sizes = [len(factor.values) for factor in read.factors]
    count = len(read.methods)
    for number, protocol in enumerate(read.protocols):
        if len(protocol.choices) != len(sizes) or any(c >= n for c, n in zip(protocol.choices, sizes, strict=True)):
            yield f"protocols.{number} must choose one value of each of the {len(sizes)} factors"
        if {len(protocol.scores), len(protocol.mean_ranks), len(protocol.ranks)} != {count}:
            yield f"protocols.{number} must have one number for each of the {count} methods"
        if max(*protocol.ranks, *protocol.mean_ranks) > count:
            yield f"protocols.{number} ranks a method beyond {count}, the number of methods"
    if len({protocol.choices for protocol in read.protocols}) < len(read.protocols):
        yield "a protocol occurs twice"
    if tuple(line.method for line in read.summary) != read.methods:
        yield "the summary must have one entry for each method, in the same order"
    for line in read.summary:
        yield from _wrong_summary(read, line)


def _wrong_summary(read: Multiverse, line: MethodSummary) -> Iterable[str]:
    if line.decided_by not in [factor.name for factor in read.factors]:
        yield f"the rank of {line.method} is decided by {line.decided_by!r}, which is not a factor"
    if strangers := line.ahead_of.keys() - set(read.methods):
        yield f"{line.method} is compared with {min(strangers)!r}, which is not a method"
    ranks = read.ranks(line.method)
    counted = (sum(rank == 1 for rank in ranks), sum(rank <= 3 for rank in ranks))
    shares = (line.first, line.top_three)
    if (line.best_rank, line.worst_rank) != (min(ranks), max(ranks)) or any(
        abs(share - n / len(ranks)) > _ROUNDING for share, n in zip(shares, counted, strict=True)
    ):
        yield f"the summary of {line.method} does not follow from its ranks"
