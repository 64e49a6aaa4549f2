"""Watcher: what is happening in a folder, from its files alone."""

from __future__ import annotations

import csv
import json
import os
import time
import tomllib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from playerfl.errors import PlayerflError
from playerfl.report.names import method_name, task_name
from playerfl.runs.directory import RunDirectory
from playerfl.studies.collecting import STUDY_FILE, folders, planned_places
from playerfl.studies.directory import RUN_FILES, StudyDirectory
from playerfl.time_left import TimeLeft, duration, left_text
from playerfl.wording import counted

_QUIET_SECONDS = 120.0
"""After this long without a new line in its files, a run no longer counts as in progress."""


@dataclass(frozen=True)
class SiteNews:
    """The outcome of the last request to a site of a job across institutions."""

    site: str
    outcome: str
    reason: str


@dataclass(frozen=True)
class Entry:
    """One run, or one line of a study: its progress, and its curve if it is a run."""

    title: str
    place: str
    done: int
    total: int
    unit: str
    state: str
    """finished, training, waiting, quiet or stopped."""
    words: str
    """The same in words, with the time left or the time since the last news."""
    curve: tuple[float, ...] = ()
    """The validation loss of every round so far: the mean over sites."""
    sites: tuple[SiteNews, ...] = ()

    @property
    def share(self) -> float:
        return self.done / self.total if self.total else 0.0


@dataclass(frozen=True)
class FolderStatus:
    """Everything that the page shows above the report."""

    entries: tuple[Entry, ...]
    failures: tuple[str, ...]
    finished: int
    """Finished runs: a larger number means that there is a new report."""
    gone: bool = False
    """Whether the folder was there before, and no longer is."""

    @property
    def over(self) -> bool:
        return bool(self.entries) and all(entry.state == "finished" for entry in self.entries)

    @property
    def headline(self) -> str:
        if self.gone:
            return "The folder is no longer there. If it comes back, so will its runs."
        if not self.entries:
            return "Waiting for the first run."
        done = sum(entry.state == "finished" for entry in self.entries)
        if self.over:
            failed = f"ended; {counted(len(self.failures), 'run')} failed" if self.failures else "finished"
            return f"Everything has {failed}."
        stopped = sum(entry.state == "stopped" for entry in self.entries)
        return f"{done} of {len(self.entries)} finished{f', {stopped} stopped' if stopped else ''}."


@dataclass
class _Study:
    """A study's plan, which is worked out once: the keys of every line's runs."""

    written: float
    directory: StudyDirectory
    lines: list[tuple[str, int, frozenset[str]]]


@dataclass
class Watcher:
    """Reads a folder again and again; remembers paces and plans in between."""

    home: Path
    clock: Callable[[], float] = time.time
    _paces: dict[str, TimeLeft] = field(default_factory=dict)
    _studies: dict[Path, _Study] = field(default_factory=dict)
    _seen: dict[Path, Entry] = field(default_factory=dict)
    _was_there: bool = False

    def look(self) -> FolderStatus:
        entries: list[Entry] = []
        failures: list[str] = []
        finished = 0
        for place in _study_places(self.home):
            try:
                lines = list(self._lines_of(place, failures))
            except (PlayerflError, OSError) as problem:
                failures.append(f"{place.name}: {problem}")
                continue
            entries += lines
            finished += sum(entry.done for entry in lines)
        for place, table in sorted(_run_places(self.home).items()):
            entry = self._run(place, table)
            entries.append(entry)
            finished += entry.state == "finished"
        # `playerfl run --open` serves the page before it makes the folder.
        is_there = self.home.is_dir()
        self._was_there |= is_there
        return FolderStatus(
            tuple(_told_apart(entries, self.home)), tuple(failures), finished, gone=self._was_there and not is_there
        )

    def _lines_of(self, place: Path, failures: list[str]) -> Iterator[Entry]:
        study = self._plan(place)
        ended, tried = study.directory.finished, study.directory.failed
        failures += _failure_texts(place)
        news = max(_written(place / name) for name in (RUN_FILES, "failed", "unfinished", STUDY_FILE))
        for title, total, keys in study.lines:
            done, failed = len(keys & ended), len(keys & tried)
            over = done + failed >= total
            if over and failed:
                state, words = "finished", f"{failed} failed; try again with  playerfl study {place} --retry-failed"
            else:
                state, words = self._state(f"{place}:{title}", done + failed, total, news, over=over)
            yield Entry(title, str(place), done, total, "runs", state, words)

    def _plan(self, place: Path) -> _Study:
        written = _written(place / STUDY_FILE)
        known = self._studies.get(place)
        if known is None or known.written != written:
            directory = StudyDirectory.open(place)
            lines = []
            tasks = {line.task for line in directory.study.lines}
            for line in directory.study.lines:
                # Which rate is reported is decided in between; the runs of the others are never started.
                runs = [*line.tuning, *(run for rate in line.rates for run in line.evaluation(rate))]
                keys = frozenset(directory.planned(run).key for run in runs)
                lines.append((_title(line.algorithm, line.task, tasks), len(line.tuning) + len(line.seeds), keys))
            known = self._studies[place] = _Study(written, directory, lines)
        return known

    def _run(self, place: Path, planned: dict[str, Any]) -> Entry:
        try:
            entry = self._seen[place] = self._read(place, planned)
            return entry
        except Exception:
            # A file may be half written at this moment; the next call reads it whole. One that is broken, in whatever
            # way, must not take the other runs off the page.
            return self._seen.get(place) or Entry(place.name, str(place), 0, 0, "rounds", "waiting", "not readable yet")

    def _read(self, place: Path, planned: dict[str, Any]) -> Entry:
        begun = (place / "experiment.toml").is_file()
        table = tomllib.loads((place / "experiment.toml").read_text(encoding="utf-8")) if begun else planned
        title = f"{_title(table['algorithm']['name'], str(table['task']))}, seed {table.get('seed', 0)}"
        total = int(table.get("rounds", 0))
        if not begun:
            return Entry(title, str(place), 0, total, "rounds", "waiting", "not started")
        directory = RunDirectory(place)
        # Before its end is looked up: a run that ends in between must not seem to have stopped early.
        stopped = not directory.in_use
        curve = tuple(_curve(place / "scores.csv"))
        news = max(_written(place / name) for name in ("scores.csv", "participation.csv", "experiment.toml"))
        done = total if directory.is_finished else len(curve)
        state, words = self._state(str(place), done, total, news, over=directory.is_finished)
        if stopped and not directory.is_finished:
            state, words = "stopped", f"stopped before its end; continue it with  {directory.continued_with}"
        elif state == "quiet":
            words += f"; if it has stopped, continue it with  {directory.continued_with}"
        return Entry(title, str(place), done, total, "rounds", state, words, curve, _site_news(place))

    def _state(self, key: str, done: int, total: int, news: float, *, over: bool) -> tuple[str, str]:
        if over:
            return "finished", "finished"
        left = self._paces.setdefault(key, TimeLeft(total, self.clock)).seconds(done)
        quiet = self.clock() - news
        if quiet > _QUIET_SECONDS:
            return "quiet", f"no news for {duration(quiet)}"
        return "training", left_text(left)


def _title(algorithm: str, task: str, among: Collection[str] = ()) -> str:
    """What a report calls them; tasks of which two have the same short name keep the long one.

    >>> _title("player_fl threshold=2", "./hospitals"), _title("fedavg", "a/h", ("a/h", "b/h"))
    ('PLayer-FL threshold=2 on hospitals', 'FedAvg on a/h')
    """
    # A study's label of a method may have its settings after its name.
    name, *settings = algorithm.split(" ")
    short = task_name(task)
    alone = sum(task_name(other) == short for other in among) < 2
    return f"{' '.join([method_name(name), *settings])} on {short if alone else task}"


def _told_apart(entries: list[Entry], home: Path) -> Iterator[Entry]:
    """The same entries; those of one title also say where they are."""
    titles = [entry.title for entry in entries]
    for entry in entries:
        where = os.path.relpath(entry.place, home)
        yield replace(entry, title=f"{entry.title} ({where})") if titles.count(entry.title) > 1 else entry


def _study_places(home: Path) -> list[Path]:
    return [folder for folder in folders(home) if (folder / STUDY_FILE).is_file()] if home.is_dir() else []


def _run_places(home: Path) -> dict[Path, Any]:
    return dict(planned_places(home, [])) if home.is_dir() else {}


def _written(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def _curve(file: Path) -> Iterator[float]:
    """The mean validation loss over sites of every round; the last line may be half written."""
    losses: dict[int, list[float]] = {}
    if file.is_file():
        with file.open(newline="", encoding="utf-8") as table:
            for row in csv.reader(table):
                if len(row) == 6 and row[3] == "validation" and row[4] == "loss" and row[1].isdigit():
                    losses.setdefault(int(row[1]), []).append(float(row[5]))
    for round_ in sorted(losses):
        if round_ > 0:
            yield fmean(losses[round_])


def _site_news(place: Path) -> tuple[SiteNews, ...]:
    """The last line of every site in a job's participation.csv."""
    file = place / "participation.csv"
    if not file.is_file():
        return ()
    last: dict[str, SiteNews] = {}
    with file.open(newline="", encoding="utf-8") as table:
        for row in csv.DictReader(table):
            site, outcome = row.get("site"), row.get("outcome")
            if site and outcome:
                last[site] = SiteNews(site, outcome, row.get("reason") or "")
    return tuple(last[site] for site in sorted(last))


def _failure_texts(place: Path) -> Iterator[str]:
    for file in sorted((place / "failed").glob("*.json")):
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            run = content["experiment"]
            yield f"{_title(run['algorithm']['name'], run['task'])}, seed {run['seed']}: {content['reason']}"
        except Exception:
            yield f"{file} cannot be read"
