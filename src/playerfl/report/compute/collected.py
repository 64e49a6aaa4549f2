"""Collected: the runs to report, and those that are missing."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from playerfl.errors import ConfigError, one_of
from playerfl.paper import facts as paper
from playerfl.report.compute.multiverse import Multiverse
from playerfl.report.names import method_name
from playerfl.runs.result import RunResult

UNKNOWN = "?"
"""The algorithm of a run that cannot be read."""


@dataclass(frozen=True)
class Gap:
    """A run that is missing, and why."""

    task: str
    algorithm: str
    seed: int | None
    reason: str
    tuning: bool = False
    """Whether the run only helps to choose a learning rate and is not reported."""


@dataclass(frozen=True)
class Collected:
    """The finished runs, those that have not finished, and those that failed or cannot be read."""

    results: Sequence[RunResult] = ()
    missing: Sequence[Gap] = ()
    failed: Sequence[Gap] = ()
    tuning_runs: int = 0
    """Finished runs that chose learning rates; they use other seeds and are not reported."""
    multiverses: Sequence[Multiverse] = ()
    notes: tuple[str, ...] = ()
    """Close choices of learning rates, and what was left out on request."""

    def only(self, methods: Literal["paper"] | Sequence[str]) -> Collected:
        """The runs of these methods, named as in files or as in reports; "paper": those of the paper's tables."""
        present = dict.fromkeys(
            [run.algorithm for run in self.results]
            + [gap.algorithm for gap in (*self.missing, *self.failed) if gap.algorithm != UNKNOWN]
        )
        wanted = _of_the_paper(present) if methods == "paper" else [_known_method(name, present) for name in methods]
        if not wanted:
            raise ConfigError(f"name at least one method; there are {', '.join(present)}")
        kept = {*wanted, UNKNOWN}
        results = [run for run in self.results if run.algorithm in kept]
        others = [name for name in present if name not in kept]
        notes = []
        if others:
            runs = len(self.results) - len(results)
            notes.append(
                f"on request, only {len(set(wanted))} of {len(present)} methods are shown, ranked and tested; "
                f"{runs:,} finished runs of {', '.join(map(method_name, others))} are left out"
                + ("; the runs that chose learning rates are counted for all methods" if self.tuning_runs else "")
            )
        return replace(
            self,
            results=results,
            missing=[gap for gap in self.missing if gap.algorithm in kept],
            failed=[gap for gap in self.failed if gap.algorithm in kept],
            notes=(*self.notes, *notes),
        )


def _of_the_paper(present: Collection[str]) -> list[str]:
    names = [name for name in paper.table_algorithms() if name in present]
    if not names:
        raise ConfigError(f"none of the paper's methods is here; there are {', '.join(present)}")
    return names


def _known_method(name: str, present: Collection[str]) -> str:
    names = {**{method_name(known): known for known in present}, **{known: known for known in present}}
    if name not in names:
        raise ConfigError(one_of(name, present, "method"))
    return names[name]
