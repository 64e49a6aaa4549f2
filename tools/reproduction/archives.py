"""The archives of a protocol as one report, and what every section needs to know about them."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from playerfl.report.compute.collected import Collected
from playerfl.report.compute.ranking import Ranking
from playerfl.report.compute.report import Report, build_report
from playerfl.report.names import method_name
from playerfl.runs.api import limited_threads
from playerfl.studies.collecting import collect
from reproduction.markdown import ROOT

RESULTS = ROOT / "results"
DEFAULT, AUTHORS, NEWER = RESULTS / "2026.2", RESULTS / "authors-2024", RESULTS / "newer_methods"
METRICS = ("f1", "accuracy", "loss")
PRIMARY = "f1"
SUBJECT = method_name("player_fl")


@dataclass(frozen=True)
class Archives:
    """The archives of one protocol, as one report."""

    report: Report
    folders: dict[str, Path]
    """By task."""
    tuning_runs: dict[str, int]
    studies: dict[str, str]
    """The study file of each task, relative to the repository."""


@cache
def archives(home: Path) -> Archives:
    """Every archive directly below a folder."""
    results, folders, tuned = [], {}, {}
    for folder in sorted(path.parent for path in home.glob("*/archive.json")):
        # Reading takes many small steps, for which more threads only wait for each other.
        with limited_threads(1):
            collected = collect(folder)
        task = str(collected.results[0].experiment["task"])
        folders[task], tuned[task] = folder, collected.tuning_runs
        results += collected.results
    names = {task: _study_name(folder) for task, folder in folders.items()}
    # A multiverse may have the name of a study.
    files = (file for file in sorted((ROOT / "experiments").rglob("*.toml")) if "multiverse" not in file.stem)
    by_name = {_name_in(file): str(file.relative_to(ROOT)) for file in files}
    studies = {task: by_name.get(name, "") for task, name in names.items()}
    return Archives(build_report(Collected(results), paper=True), folders, tuned, studies)


def _study_name(folder: Path) -> str:
    return str(json.loads((folder / "archive.json").read_text(encoding="utf-8"))["study"])


def _name_in(file: Path) -> str:
    return str(tomllib.loads(file.read_text(encoding="utf-8")).get("name", ""))


def ranking_of(report: Report, table: str, over: str) -> Ranking | None:
    return next((ranking for ranking in report.rankings.get(table, []) if ranking.over == over), None)
