"""Runs a multiverse: trains what is missing, evaluates every run under every protocol, and writes the rankings."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from playerfl.errors import ConfigError, RunDirectoryError
from playerfl.report.compute.multiverse import FORMAT, MULTIVERSE, Multiverse
from playerfl.runs.api import limited_threads
from playerfl.runs.settings_table import read_toml
from playerfl.storage.atomic_files import RERUN_HINT, make_directory, write_atomically
from playerfl.storage.csv_table import csv_text
from playerfl.studies.api import run_study
from playerfl.studies.directory import RUN_FILES, Failure, StudyDirectory
from playerfl.studies.multiverse.plan import HIGHER_IS_BETTER, Measure, MultiversePlan, Universe
from playerfl.studies.multiverse.ranking import Values, rank_protocols, summary
from playerfl.studies.multiverse.reading import read_run
from playerfl.studies.scheduler import Status, StatusListener
from playerfl.time_left import TimeLeft

_FILE = "multiverse.toml"


@dataclass(frozen=True)
class MultiverseResult:
    """The rankings of a multiverse, where they were written, and the runs that failed."""

    path: Path
    ranked: Multiverse
    failures: list[Failure]


def read_plan(file: Path, out: Path | None) -> tuple[MultiversePlan, Path]:
    """A multiverse's plan, from its file or from the directory of an earlier one, and its directory."""
    earlier = file if file.is_dir() else None
    if earlier and not (earlier / _FILE).is_file():
        raise ConfigError(f"{earlier} is not the directory of a multiverse: it has no {_FILE}; give a file")
    plan = MultiversePlan.resolve(read_toml(earlier / _FILE if earlier else file))
    return plan, out or earlier or Path("runs") / f"{plan.name}-multiverse"


def run_multiverse(
    plan: MultiversePlan,
    path: Path,
    listening: Callable[[Universe, int, float | None], AbstractContextManager[StatusListener]] = (
        lambda *_: nullcontext(_ignore)
    ),
    read: Callable[[int, int], None] = lambda done, total: None,
    *,
    workers: int | None = None,
    backend: str = "processes",
    retry_failed: bool = False,
    data_dir: Path | None = None,
) -> MultiverseResult:
    """Trains what is missing, one universe after the other, and writes the rankings.

    `listening` gives a listener while a universe is trained; it is called with the universe, its number (from 1) and
    the seconds left for it and all later ones at the pace so far. `read` is called with the number of universes read
    so far and their total.
    """
    import tomli_w

    make_directory(path)
    write_atomically(path / _FILE, tomli_w.dumps(plan.model_dump(mode="json")).encode(), RERUN_HINT)
    missing = [_missing_runs(universe, universe_path(path, universe)) for universe in plan.universes]
    left = TimeLeft(sum(missing))
    directories = []
    for number, universe in enumerate(plan.universes):
        with listening(universe, number + 1, left.seconds(sum(missing[:number]))) as listener:
            directories.append(
                run_study(
                    universe.study,
                    universe_path(path, universe),
                    listener,
                    workers=workers,
                    backend=backend,
                    retry_failed=retry_failed,
                    data_dir=data_dir,
                )
            )
    values = []
    # Confusion matrices are small: a second thread would only be waited for.
    with limited_threads(1):
        for universe, directory in zip(plan.universes, directories, strict=True):
            values.append(_values(plan, universe, directory))
            read(len(values), len(directories))
    if not any(values):
        raise RunDirectoryError(f"no run in {path} has finished, so there is nothing to rank")
    ranked = _ranked(plan, values)
    _write(ranked, path)
    return MultiverseResult(path, ranked, [failure for directory in directories for failure in directory.failures()])


def universe_path(path: Path, universe: Universe) -> Path:
    """The study directory of a universe."""
    return path / "universes" / universe.name


def _missing_runs(universe: Universe, path: Path) -> int:
    """About how many runs a universe still needs; runs that an earlier version of the file asked for count as done."""
    planned = sum(len(line.seeds) for line in universe.study.lines)
    return max(0, planned - sum(1 for _ in (path / RUN_FILES).glob("*")))


def _ignore(status: Status) -> None:
    """A listener for callers that show no progress."""


def _values(plan: MultiversePlan, universe: Universe, directory: StudyDirectory) -> Values:
    """What the finished runs of a universe would report, under every reading that a protocol asks for."""
    measures = _measures(plan)
    selections = plan.computed.selection
    return {
        (method, rate, int(run.experiment["seed"])): read_run(run, selections, measures)
        for (method, rate), line in zip(universe.lines, directory.study.lines, strict=True)
        for run in directory.line_results(line, rate)
    }


def _measures(plan: MultiversePlan) -> list[Measure]:
    """The measures that methods are ranked by, and those that rates are tuned by."""
    tuned: list[Measure] = [rates for rates in plan.computed.rates if rates != "printed"]
    return list(dict.fromkeys((*plan.computed.measure, *tuned)))


def _ranked(plan: MultiversePlan, values: Sequence[Values]) -> Multiverse:
    methods = tuple(plan.universes[0].methods)
    rankings = rank_protocols(plan, methods, values)
    return Multiverse(
        format=FORMAT,
        name=plan.name,
        task=plan.task,
        runs=plan.seeds,
        tuning_runs=plan.tuning_seeds,
        methods=methods,
        factors=plan.factors,
        protocols=tuple(rankings),
        summary=summary(methods, plan.factors, rankings),
        measures={m: "higher" if HIGHER_IS_BETTER[m] else "lower" for m in plan.computed.measure},
    )


def _write(ranked: Multiverse, path: Path) -> None:
    factors = ranked.factors
    rows = [
        (*(f.values[c] for f, c in zip(factors, protocol.choices, strict=True)), method, score, mean_rank, rank)
        for protocol in ranked.protocols
        for method, score, mean_rank, rank in zip(
            ranked.methods, protocol.scores, protocol.mean_ranks, protocol.ranks, strict=True
        )
    ]
    _write_table(path / "protocols.csv", (*(f.name for f in factors), "method", "score", "mean_rank", "rank"), rows)
    flat = []
    for line in ranked.summary:
        row = dict(vars(line))
        rivals = row.pop("ahead_of")
        flat.append({**row, **{f"ahead_of_{rival}": share for rival, share in rivals.items()}})
    columns = list(dict.fromkeys(name for row in flat for name in row))
    _write_table(path / "summary.csv", columns, [[row.get(name, "") for name in columns] for row in flat])
    write_atomically(path / MULTIVERSE, (json.dumps(asdict(ranked)) + "\n").encode(), RERUN_HINT)


def _write_table(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    write_atomically(path, csv_text([header, *rows]).encode(), RERUN_HINT)
