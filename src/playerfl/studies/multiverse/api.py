"""Runs a multiverse: trains what is missing, evaluates every run under every protocol, and writes the rankings."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playerfl.errors import ConfigError, RunDirectoryError
from playerfl.report.compute.multiverse import FORMAT, MULTIVERSE
from playerfl.runs.experiment import read_toml
from playerfl.storage.atomic_files import RERUN_HINT, make_directory, write_atomically
from playerfl.storage.csv_table import csv_text
from playerfl.studies.api import run_study
from playerfl.studies.directory import Failure, StudyDirectory
from playerfl.studies.multiverse.plan import HIGHER_IS_BETTER, Measure, MultiversePlan, Universe
from playerfl.studies.multiverse.ranking import Ranking, Values, rank_protocols, summary
from playerfl.studies.multiverse.reading import read_run
from playerfl.studies.scheduler import Status, StatusListener

_FILE = "multiverse.toml"


@dataclass(frozen=True)
class MultiverseResult:
    """The rankings of a multiverse."""

    path: Path
    multiverse: MultiversePlan
    methods: tuple[str, ...]
    rankings: list[Ranking]
    failures: list[Failure]

    @property
    def summary(self) -> list[dict[str, Any]]:
        """One row per method; see `summary`."""
        return summary(self.methods, self.multiverse.factors, self.rankings)


def read_plan(file: Path, out: Path | None) -> tuple[MultiversePlan, Path]:
    """A multiverse, read from its file or from the directory of an earlier one, and its directory."""
    earlier = file if file.is_dir() else None
    if earlier and not (earlier / _FILE).is_file():
        raise ConfigError(f"{earlier} is not the directory of a multiverse: it has no {_FILE}; give a file")
    multiverse = MultiversePlan.resolve(read_toml(earlier / _FILE if earlier else file))
    return multiverse, out or earlier or Path("runs") / f"{multiverse.name}-multiverse"


def run_multiverse(
    multiverse: MultiversePlan,
    path: Path,
    listening: Callable[[Universe, int], AbstractContextManager[StatusListener]] = lambda *_: nullcontext(_ignore),
    read: Callable[[int, int], None] = lambda done, total: None,
    *,
    workers: int | None = None,
    backend: str = "processes",
    data_dir: Path | None = None,
) -> MultiverseResult:
    """Trains what is missing, one universe after the other, and writes the rankings.

    `listening` gives a listener while a universe is trained; `read` is called with the number of universes read so far
    and their total.
    """
    import tomli_w

    make_directory(path)
    write_atomically(path / _FILE, tomli_w.dumps(multiverse.model_dump(mode="json")).encode(), RERUN_HINT)
    directories = []
    for number, universe in enumerate(multiverse.universes, start=1):
        with listening(universe, number) as listener:
            place = path / "universes" / universe.name
            directories.append(
                run_study(universe.study, place, listener, workers=workers, backend=backend, data_dir=data_dir)
            )
    values = []
    for universe, directory in zip(multiverse.universes, directories, strict=True):
        values.append(_values(multiverse, universe, directory))
        read(len(values), len(directories))
    methods = tuple(multiverse.universes[0].methods)
    if not any(values):
        raise RunDirectoryError(f"no run in {path} has finished, so there is nothing to rank")
    failures = [failure for directory in directories for failure in directory.failures()]
    result = MultiverseResult(path, multiverse, methods, rank_protocols(multiverse, methods, values), failures)
    _write(result)
    return result


def _ignore(status: Status) -> None:
    """A listener for callers that show no progress."""


def _values(multiverse: MultiversePlan, universe: Universe, directory: StudyDirectory) -> Values:
    """What the finished runs of a universe would report, under every reading that a protocol asks for."""
    measures = _measures(multiverse)
    selections = multiverse.computed.selection
    return {
        (method, rate, int(run.experiment["seed"])): read_run(run, selections, measures)
        for (method, rate), line in zip(universe.lines, directory.study.lines, strict=True)
        for run in directory.line_results(line, rate)
    }


def _measures(multiverse: MultiversePlan) -> list[Measure]:
    """The measures that methods are ranked by, and those that rates are tuned by."""
    tuned: list[Measure] = [rates for rates in multiverse.computed.rates if rates != "printed"]
    return list(dict.fromkeys((*multiverse.computed.measure, *tuned)))


def _write(result: MultiverseResult) -> None:
    factors, methods = result.multiverse.factors, result.methods
    rows = [
        (*(f.values[c] for f, c in zip(factors, ranking.choices, strict=True)), method, score, mean_rank, rank)
        for ranking in result.rankings
        for method, score, mean_rank, rank in zip(
            methods, ranking.scores, ranking.mean_ranks, ranking.ranks, strict=True
        )
    ]
    _write_table(
        result.path / "protocols.csv", (*(f.name for f in factors), "method", "score", "mean_rank", "rank"), rows
    )
    flat = [
        {**row, **{f"ahead_of_{rival}": share for rival, share in row["ahead_of"].items()}} for row in result.summary
    ]
    columns = [name for name in dict.fromkeys(name for row in flat for name in row) if name != "ahead_of"]
    _write_table(result.path / "summary.csv", columns, [[row.get(name, "") for name in columns] for row in flat])
    content = {
        "format": FORMAT,
        "name": result.multiverse.name,
        "task": result.multiverse.task,
        "runs": result.multiverse.seeds,
        "tuning_runs": result.multiverse.tuning_seeds,
        "methods": methods,
        "factors": [vars(factor) for factor in factors],
        "protocols": [
            {**vars(ranking), "scores": [None if math.isnan(score) else score for score in ranking.scores]}
            for ranking in result.rankings
        ],
        "summary": result.summary,
        "measures": {m: "higher" if HIGHER_IS_BETTER[m] else "lower" for m in result.multiverse.computed.measure},
    }
    write_atomically(result.path / MULTIVERSE, (json.dumps(content) + "\n").encode(), RERUN_HINT)


def _write_table(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    write_atomically(path, csv_text([header, *rows]).encode(), RERUN_HINT)
