"""collect: every run in a directory of any kind."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from playerfl.errors import ConfigError, RunDirectoryError
from playerfl.report.compute.collected import Collected, Gap
from playerfl.report.compute.multiverse import MULTIVERSE, read_multiverse
from playerfl.runs.api import COMPARISON
from playerfl.runs.directory import RunDirectory
from playerfl.runs.result import SCORE_COLUMNS, RunResult, no_model
from playerfl.studies.archive import ARCHIVE, read_archive
from playerfl.studies.directory import StudyDirectory

STUDY_FILE = "study.toml"
_NOT_OF_RUNS = ("contract.json", "model.json")
"""What a site agreed to, in its state of a job; the description of an exported model."""
_NO_MODEL = partial(no_model, "this result was read without its models; use playerfl.load_result for those")


def collect(path: Path | str) -> Collected:
    """The runs in a run directory, a comparison, a study, an archive, or a directory that holds any of these.

    A multiverse is read as its rankings: the runs below it, at every learning rate, are not for a report.

    Models are not read: a report needs none. Runs that are unfinished or unreadable are listed with the reason.
    """
    home = Path(path)
    if not home.is_dir():
        raise RunDirectoryError(
            f"{home} is not a directory; give the --out of `playerfl run`, or a directory that holds several"
        )
    results: list[RunResult] = []
    missing: list[Gap] = []
    failed: list[Gap] = []
    tuning_runs = 0
    notes: list[str] = []
    for place in (folder for folder in folders(home) if (folder / STUDY_FILE).is_file()):
        try:
            study = _of_study(StudyDirectory.open(place))
        except ConfigError as problem:
            raise ConfigError(
                f"cannot read the study {place}: {problem}. Files of your own, such as a method, are looked for where "
                "you are: run this where the study was started"
            ) from problem
        results += study.results
        missing += study.missing
        failed += study.failed
        tuning_runs += study.tuning_runs
        notes += study.notes
    for place in (folder for folder in folders(home) if (folder / ARCHIVE).is_file()):
        archive = read_archive(place)
        results += map(_readable, archive.results)
        tuning_runs += archive.tuning_runs
        notes += archive.notes
    multiverses = [read_multiverse(file) for folder in folders(home) if (file := folder / MULTIVERSE).is_file()]
    for place, planned in sorted(planned_places(home, failed).items()):
        if not (place / "experiment.toml").is_file():
            missing.append(_gap(planned, "not started"))
            continue
        try:
            directory = RunDirectory.open(place)
            table = directory.read_toml("experiment.toml")
            if directory.is_finished:
                results.append(_readable(directory.result(_NO_MODEL, with_weights=False)))
            else:
                missing.append(_gap(table, _how_far(directory, table)))
        except RunDirectoryError as problem:
            failed.append(_gap(planned or {"task": str(place)}, str(problem)))
    if not (results or missing or failed or multiverses):
        raise RunDirectoryError(f"there are no runs in {home}; `playerfl run … --out {home}` makes one")
    return Collected(results, missing, failed, tuning_runs, multiverses, tuple(notes))


def _of_study(study: StudyDirectory) -> Collected:
    """A study's reported runs, and what is missing, including runs that still wait for their learning rate."""
    finished, tried = study.finished, study.failed
    rates = study.chosen_rates
    failed = [
        Gap(f.task, f.algorithm, f.seed, f.reason, f.seed in study.study.tuning_seeds) for f in study.failures(rates)
    ]
    hopeless = {(gap.task, gap.algorithm) for gap in failed if gap.seed is None}
    results: list[RunResult] = []
    missing: list[Gap] = []
    tuning_runs = 0
    for line in study.study.lines:
        for experiment in line.tuning:
            key = study.planned(experiment).key
            tuning_runs += key in finished
            if key not in finished | tried:
                missing.append(_gap(experiment.model_dump(), "not run yet", tuning=True))
        rate = rates[line.task, line.algorithm]
        if rate is None and (line.task, line.algorithm) not in hopeless:
            table = line.experiment.model_dump()
            missing += [_gap({**table, "seed": seed}, "waits for its learning rate") for seed in line.seeds]
        for experiment in line.evaluation(rate) if rate is not None else ():
            key = study.planned(experiment).key
            if key in finished:
                try:
                    results.append(_readable(study.result(experiment)))
                except RunDirectoryError as problem:
                    failed.append(_gap(experiment.model_dump(), str(problem)))
            elif key not in tried:
                missing.append(_gap(experiment.model_dump(), "not run yet"))
    return Collected(results, missing, failed, tuning_runs, notes=tuple(study.all_tuning_notes()))


def _readable(result: RunResult) -> RunResult:
    """The same result, checked for the test scores that a report needs."""
    try:
        if all(result.site_scores.values()):
            return result
    except (AttributeError, LookupError, TypeError, ValueError) as problem:
        raise RunDirectoryError(f"{result.path} is not a valid run: {problem!r}") from problem
    raise RunDirectoryError(f"{result.path} lacks the test scores of a site")


def planned_places(home: Path, failed: list[Gap]) -> dict[Path, Mapping[str, Any]]:
    """Where runs are or should be; with their settings, if a comparison planned them."""
    places: dict[Path, Mapping[str, Any]] = {}
    for folder in folders(home):
        if (folder / "experiment.toml").is_file():
            places.setdefault(folder, {})
        elif (folder / COMPARISON).is_file():
            try:
                places |= {
                    folder / str(table["algorithm"]["name"]): table for table in _planned_tables(folder / COMPARISON)
                }
            except RunDirectoryError as problem:
                failed.append(_gap({"task": str(folder)}, str(problem)))
    return places


def folders(home: Path) -> Iterator[Path]:
    """The directory and those below it, except below a run, a study, an archive or a multiverse.

    A site's part in a job across institutions and an exported model have an experiment too, but the scores are
    elsewhere.
    """
    if any((home / name).is_file() for name in _NOT_OF_RUNS):
        return
    yield home
    if not any((home / name).is_file() for name in ("experiment.toml", STUDY_FILE, ARCHIVE, MULTIVERSE)):
        for folder in sorted(entry for entry in home.iterdir() if entry.is_dir() and not entry.name.startswith(".")):
            yield from folders(folder)


def _planned_tables(file: Path) -> list[dict[str, Any]]:
    # As tables, not experiments: reading a report must not need the task, let alone run its code.
    try:
        tables = [tomllib.loads(str(text)) for text in json.loads(file.read_text(encoding="utf-8"))["experiments"]]
        return [table for table in tables if table["algorithm"]["name"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as problem:
        raise RunDirectoryError(f"{file} cannot be read: {problem}") from problem


def _gap(table: Mapping[str, Any], reason: str, *, tuning: bool = False) -> Gap:
    algorithm = table.get("algorithm", {})
    return Gap(str(table.get("task", "?")), str(algorithm.get("name", "?")), table.get("seed"), reason, tuning)


def _how_far(directory: RunDirectory, table: Mapping[str, Any]) -> str:
    rows = directory.read_table("scores.csv", SCORE_COLUMNS) if directory.has("scores.csv") else []
    done = max((int(row[1]) for row in rows), default=0)
    return f"{done} of {table['rounds']} rounds done; continue it with  {directory.continued_with}"
