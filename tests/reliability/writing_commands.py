"""Every command that writes files, small, with what goes on with it after a failure."""

from __future__ import annotations

import contextlib
import io
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import tomli_w
from matplotlib.figure import Figure
from matplotlib.text import Text

from data_files import heart
from playerfl import cli
from playerfl.data.sources import SOURCES, RemoteFile
from settings_files import EXPERIMENT, study_settings
from web import serving

STUDY = {**study_settings(), "checkpoint_seconds": 0.0}
THRESHOLDS = {"modes": ["running"], "inits": ["default"], "seeds": 1, "tasks": ["heart"]}
SMALL = ("--set", "data.rows=12", "--set", "data.sites=2", "--set", "data.accept_small_sites=true")

Arguments = Callable[[Path, Path], tuple[object, ...]]
"""A command, from the folder that it writes to and the folder of what was made before."""


@dataclass(frozen=True)
class Command:
    """Something that writes below a folder."""

    start: Arguments
    go_on: Arguments | None = None
    """What takes it up after a failure, if it is not the same command."""
    begin: Arguments | None = None
    """What stands in the folder already, by a command that never fails."""
    varies: tuple[str, ...] = ()
    """Files that hold times or drawn keys: they must be there, whatever is in them."""

    def again(self, out: Path, before: Path) -> tuple[object, ...]:
        return (self.go_on or self.start)(out, before)


def playerfl(*arguments: object) -> tuple[int, str]:
    """A command in this process: its exit code, and what it says besides its results."""
    said = io.StringIO()
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(said),
        patch.object(sys, "argv", ["playerfl", *map(str, arguments)]),
        pytest.raises(SystemExit) as left,
    ):
        cli.main()
    assert isinstance(left.value.code, int)
    return left.value.code, said.getvalue()


def run(out: Path, _: Path) -> tuple[object, ...]:
    return ("run", "synthetic", "-a", "player_fl", "--rounds", 2, "-q", *SMALL, "--out", out / "run")


def comparison(out: Path, _: Path) -> tuple[object, ...]:
    return ("run", "synthetic", "-a", "local", "-a", "fedavg", "--rounds", 1, "-q", *SMALL, "--out", out / "run")


def resumed(start: Arguments, *more: object) -> Arguments:
    """What the sentence says: --resume, where there is something to resume."""

    def go_on(out: Path, before: Path) -> tuple[object, ...]:
        begun = any((out / "run" / name).exists() for name in ("experiment.toml", "comparison.json"))
        return ("run", "--resume", out / "run", "-q", *more) if begun else (*start(out, before), *more)

    return go_on


def study(out: Path, before: Path) -> tuple[object, ...]:
    return ("study", before / "study.toml", "--out", out / "study", "--backend", "serial", "-q")


def report(*options: object) -> Arguments:
    return lambda out, before: ("report", before / "study", "--out", out / "report", *options)


def analyze(*options: object) -> Arguments:
    small = ("--rounds", 1, "--seeds", 1, "-q", *SMALL)
    return lambda out, before: ("analyze", "synthetic", *options, *small, "--out", out / "analysis")


COMMANDS: dict[str, Command] = {
    "run": Command(run, resumed(run), varies=("timing.json",)),
    "run over another": Command(
        lambda out, before: (*run(out, before), "--overwrite"),
        lambda out, before: (*run(out, before), "--overwrite"),
        begin=run,
        varies=("timing.json",),
    ),
    "comparison": Command(comparison, resumed(comparison), varies=("timing.json",)),
    "study": Command(study, varies=("timings.csv",)),
    "archive": Command(
        lambda out, before: (
            *("study", before / "study.toml", "--out", before / "study", "--backend", "serial", "-q"),
            *("--archive", out / "archive"),
        )
    ),
    "report as a page": Command(report("--figures", "png")),
    "report as tables": Command(report("--format", "csv")),
    "report in LaTeX": Command(report("--format", "latex")),
    "probe": Command(
        lambda out, before: (
            *("probe", "synthetic", "-q", *SMALL),
            *("--out", out / "probe", "--figure", out / "picture.png"),
        )
    ),
    "analyze": Command(analyze("--rows", 4, "--hessian", "repo_hv_nuclear", "--probes", 1)),
    "analyze --sweep": Command(analyze("--sweep")),
    "analyze --drift": Command(analyze("--drift", 1)),
    "thresholds": Command(
        lambda out, before: (
            *("thresholds", before / "thresholds.toml", "--out", out / "found", "-q"),
            *("--data-dir", before / "data"),
        )
    ),
    "data plot": Command(lambda out, before: ("data", "plot", "synthetic", *SMALL, "--out", out / "sites.png")),
    "data fetch": Command(lambda out, before: ("data", "fetch", "cifar10", "-q", "--data-dir", out / "data")),
    "flower keys": Command(
        lambda out, before: ("flower", "keys", "north", "--out", out / "keys"), varies=("north.key", "north.pub")
    ),
    "flower files": Command(
        lambda out, before: ("flower", "files", out / "conf", "--home", before, "--name", "fl.example.org")
    ),
    "flower init": Command(
        lambda out, before: ("flower", "init", out / "job", "--config", before / "experiment.toml")
    ),
}


@contextmanager
def made_before(folder: Path) -> Iterator[None]:
    """What commands start from: a finished study, settings, data here and data on the web.

    Figures are not drawn, which would take nearly all of the time: a file holds the figure's words instead.
    """
    (folder / "study.toml").write_text(tomli_w.dumps(STUDY))
    (folder / "thresholds.toml").write_text(tomli_w.dumps(THRESHOLDS))
    (folder / "experiment.toml").write_text(EXPERIMENT)
    heart(folder / "data")
    with pytest.MonkeyPatch.context() as changed, serving() as web:
        changed.setattr(Figure, "savefig", _words)
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
        code, said = playerfl(*study(folder, folder))
        assert code == 0, said
        yield


def _words(figure: Figure, file: Any, **_: object) -> None:
    file.write("\n".join(text.get_text() for text in figure.findobj(Text)).encode())

