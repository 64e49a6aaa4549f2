"""Every command that writes files, on small data, and the command that continues it after a failure."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import tomli_w
import typer
from matplotlib.figure import Figure

from data_files import heart
from playerfl.analysis import figures as analysis_figures
from playerfl.analysis import layer_analysis
from playerfl.cli import main as cli
from playerfl.data.download.sources import SOURCES, RemoteFile
from playerfl.errors import PlayerflError
from playerfl.flower.operate.launch import ServerHome
from playerfl.report.plots import comparison as report_figures
from playerfl.report.plots import recommendation as evidence_figure
from playerfl.report.plots import report as paper_figures
from settings_files import EXPERIMENT, study_settings
from web import serving

STUDY = {**study_settings(), "checkpoint_seconds": 0.0}
THRESHOLDS = {"modes": ["running"], "inits": ["default"], "seeds": 1, "tasks": ["heart"]}
SMALL = ("--set", "data.rows=12", "--set", "data.sites=2", "--set", "data.accept_small_sites=true")

Arguments = Callable[[Path, Path], tuple[object, ...]]
"""Gives a command, for the folder it writes to and the folder that was prepared beforehand."""
Work = Callable[[Path, Path], tuple[int, str]]
"""Does something in these folders; returns its exit code, and what it prints besides its results."""


def nothing(out: Path, before: Path) -> tuple[int, str]:
    return 0, ""


@dataclass(frozen=True)
class Writes:
    """Something that writes into a folder."""

    start: Work
    go_on: Work
    """Continues it after a failure."""
    begin: Work = nothing
    """Creates what is in the folder before it starts."""
    varies: tuple[str, ...] = ()
    """Files that hold times or keys: they must exist, whatever their content."""


def command(
    start: Arguments, go_on: Arguments | None = None, begin: Arguments | None = None, varies: tuple[str, ...] = ()
) -> Writes:
    """Without `go_on`, the same command continues it."""
    works = [lambda out, before, own=own: playerfl(*own(out, before)) for own in (start, go_on or start)]
    if begin:
        works.append(lambda out, before: playerfl(*begin(out, before)))
    return Writes(*works, varies=varies)


def called(work: Callable[[Path], object], varies: tuple[str, ...], begin: Work = nothing) -> Writes:
    """The work of a command that would run until it is stopped, or that needs other processes."""

    def told(out: Path, _: Path) -> tuple[int, str]:
        try:
            work(out)
        except PlayerflError as problem:
            return 2, str(problem)
        return 0, ""

    return Writes(told, told, begin, varies)


def playerfl(*arguments: object) -> tuple[int, str]:
    """Runs a command in this process; returns its exit code, and what it prints besides its results."""
    text = io.StringIO()
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(text),
        patch.object(sys, "argv", ["playerfl", *map(str, arguments)]),
        patch.object(cli, "app", _app()),
        pytest.raises(SystemExit) as left,
    ):
        cli.main()
    assert isinstance(left.value.code, int)
    return left.value.code, text.getvalue()


@cache
def _app() -> Any:
    """Built once, since building it takes most of a small command's time."""
    return typer.main.get_command(cli.app)


def run(out: Path, _: Path) -> tuple[object, ...]:
    return ("run", "synthetic", "-a", "player_fl", "--rounds", 2, "-q", *SMALL, "--out", out / "run")


def comparison(out: Path, _: Path) -> tuple[object, ...]:
    return ("run", "synthetic", "-a", "local", "-a", "fedavg", "--rounds", 1, "-q", *SMALL, "--out", out / "run")


def resumed(start: Arguments, *more: object) -> Arguments:
    """What the error message advises: --resume, if there is something to resume."""

    def go_on(out: Path, before: Path) -> tuple[object, ...]:
        begun = any((out / "run" / name).exists() for name in ("experiment.toml", "comparison.json"))
        return ("run", "--resume", out / "run", "-q", *more) if begun else (*start(out, before), *more)

    return go_on


def study(out: Path, before: Path) -> tuple[object, ...]:
    return ("study", before / "study.toml", "--out", out / "study", "--backend", "serial", "-q")


def report(*options: object) -> Arguments:
    return lambda out, before: ("report", before / "study", "--out", out / "report", *options)


def analyze(*options: object) -> Arguments:
    small = ("--seeds", 1, "-q", *SMALL)
    return lambda out, before: ("analyze", "synthetic", *options, *small, "--out", out / "analysis")


def job(out: Path) -> None:
    """The server of a job across institutions; its sites keep their state elsewhere."""
    from flower.jobs import Job

    Job(out.with_name("sites"), "fedavg", rounds=1).run(out / "jobs")


def new_sites(out: Path, _: Path) -> tuple[int, str]:
    shutil.rmtree(out.with_name("sites"), ignore_errors=True)
    return 0, ""


COMMANDS: dict[str, Writes] = {
    "run": command(run, resumed(run), varies=("timing.json",)),
    "run over another": command(
        lambda out, before: (*run(out, before), "--overwrite"),
        begin=run,
        varies=("timing.json",),
    ),
    "comparison": command(comparison, resumed(comparison), varies=("timing.json",)),
    "study": command(study, varies=("timings.csv",)),
    "archive": command(
        lambda out, before: (
            *("study", before / "study.toml", "--out", before / "study", "--backend", "serial", "-q"),
            *("--archive", out / "archive"),
        )
    ),
    "report as a page": command(report("--figures", "png")),
    "report as tables": command(report("--format", "csv")),
    "report in LaTeX": command(report("--format", "latex")),
    "probe": command(
        lambda out, before: (
            *("probe", "synthetic", "-q", *SMALL),
            *("--out", out / "probe", "--figure", out / "picture.png"),
        )
    ),
    "analyze": command(analyze("--rounds", 1, "--rows", 4, "--hessian", "hutchinson", "--probes", 2)),
    "analyze --sweep": command(analyze("--sweep", "--rounds", 1)),
    "analyze --drift": command(analyze("--drift", 1, "--rounds", 2)),
    "thresholds": command(
        lambda out, before: (
            *("paper", "thresholds", before / "thresholds.toml", "--out", out / "found", "-q"),
            *("--data-dir", before / "data"),
        )
    ),
    "data plot": command(lambda out, before: ("data", "plot", "synthetic", *SMALL, "--out", out / "sites.png")),
    "data fetch": command(lambda out, before: ("data", "fetch", "cifar10", "-q", "--data-dir", out / "data")),
    "flower keys": command(
        lambda out, before: ("flower", "keys", "north", "--out", out / "keys"), varies=("north.key", "north.pub")
    ),
    "flower files": command(
        lambda out, before: ("flower", "files", out / "conf", "--home", before, "--name", "fl.example.org")
    ),
    "flower init": command(lambda out, before: ("flower", "init", out / "job", "--config", before / "experiment.toml")),
    "flower up": called(
        lambda out: ServerHome(out / "server").prepare((), 8000), varies=("server.key", "server.pem", "ca.crt")
    ),
    "flower run": called(job, ("timing.json", "status.json", "participation.csv"), new_sites),
}


ONCE = {
    layer_analysis: ("analyze_layers",),
    analysis_figures: (
        *("overview_figure", "quantity_figure", "correlation_figure"),
        *("sweep_figure", "drift_figure"),
    ),
    report_figures: ("comparison_figure", "partition_figure"),
    evidence_figure: ("recommendation_figure",),
    paper_figures: ("report_figures",),
}


@contextmanager
def made_before(folder: Path) -> Iterator[None]:
    """What commands start from: a finished study, settings, local data and data on the web.

    Nothing is synced and no figure is drawn, since that would take nearly all of the time: a figure's file holds its
    labels, and the figures and the analysis, which are always the same, are made only once.
    """
    (folder / "study.toml").write_text(tomli_w.dumps(STUDY))
    (folder / "thresholds.toml").write_text(tomli_w.dumps(THRESHOLDS))
    (folder / "experiment.toml").write_text(EXPERIMENT)
    heart(folder / "data")
    with pytest.MonkeyPatch.context() as changed, serving() as web:
        changed.setattr(Figure, "savefig", _words)
        for module, names in ONCE.items():
            for name in names:
                changed.setattr(module, name, _once(getattr(module, name)))
        changed.setattr(os, "fsync", lambda _: None)
        changed.setenv("no_proxy", "127.0.0.1")
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            archive.writestr("in/packed.bin", b"1,2,3\n" * 20)
        plain = b"4,5,6\n" * 20
        files = (
            RemoteFile("plain.bin", *web.put("plain", plain), len(plain)),
            RemoteFile("packed.zip", *web.put("packed", packed.getvalue()), len(packed.getvalue()), ("in/packed.bin",)),
        )
        offered = replace(SOURCES["cifar10"], files=files, layouts=(("plain.bin", "packed.bin"),), other_places=())
        changed.setitem(SOURCES, "cifar10", offered)
        code, text = playerfl(*study(folder, folder))
        assert code == 0, text
        yield


def _once(work: Callable[..., Any]) -> Callable[..., Any]:
    """A function that returns its first result again for the same strings among its arguments."""
    found: dict[tuple[str, ...], Any] = {}

    def first(*given: Any, **named: Any) -> Any:
        words = tuple(value for value in given if isinstance(value, str))
        if words not in found:
            found[words] = work(*given, **named)
        return found[words]

    return first


def _words(figure: Figure, file: Any, **_: object) -> None:
    words = [(axes.get_title(), axes.get_xlabel(), axes.get_ylabel()) for axes in figure.axes]
    file.write(repr(words).encode())
