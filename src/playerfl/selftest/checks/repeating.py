"""The same bits again: in one process, in a new one, over a wire, and after a kill."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from playerfl.runs.api import resume, run
from playerfl.runs.result import RunResult
from playerfl.runs.run import Progress
from playerfl.selftest.sources import clock_ahead, clock_readings, generators_used
from playerfl.selftest.subject import ROUNDS, TRAINING, BrokenError, Outcome, Subject
from playerfl.selftest.transports import WireTransport
from playerfl.tasks.task import Task

_NO_STATE = "keep what must last in client.memory or server.memory, never in the class, a global or a closure"
_STREAMS = (
    "draw random numbers only from client.stream(purpose), or at the server from generator_for(server.seed, purpose, "
    "server.round)"
)


def draws_from_its_own_streams(subject: Subject) -> str | None:
    """Random numbers come from its own streams, and the clock is not read."""
    with clock_readings(subject.file) as readings:
        used = generators_used(lambda: subject.run())
    if used:
        raise BrokenError(f"it uses the global generator of {' and of '.join(used)}; {_STREAMS}")
    if readings:
        return f"it reads the clock ({', '.join(readings)}); make sure that no result depends on the time"
    return None


def repeats(subject: Subject) -> str | None:
    """The same seed gives the same bits."""
    with subject.statics.as_imported():
        ended = subject.run("dropout")
        with clock_ahead(subject.namespace):
            where = Outcome.of(ended).differs_from(Outcome.of(subject.run("dropout")))
    fresh = vars(ended.experiment.build_algorithm())
    if changed := [name for name, value in fresh.items() if vars(ended.algorithm)[name] != value]:
        raise BrokenError(f"it changed self.{changed[0]} while it ran; {_NO_STATE}")
    if where:
        because = _reason(subject)
        raise BrokenError(f"two runs with the same seed differ {where}{because}; {_STREAMS}, and {_NO_STATE}")
    return f"{_touched(subject)}; {_NO_STATE}" if subject.statics.touched else None


def _touched(subject: Subject) -> str:
    return f"{' and '.join(subject.statics.touched)} changed while it ran" if subject.statics.touched else ""


def _reason(subject: Subject) -> str:
    """What the file does that may be the reason for a difference, in brackets."""
    with clock_readings(subject.file) as readings:
        subject.run()
    reasons = [_touched(subject), *(f"it reads {reading}" for reading in readings)]
    return f" ({'; '.join(filter(None, reasons))})" if any(reasons) else ""


def repeats_in_a_new_process(subject: Subject) -> None:
    """A new process, in which sets come in another order, gives the same bits."""
    if not subject.fresh_process:
        return
    with subject.statics.as_imported():
        here = Outcome.of(subject.run("dropout"))
    where = here.differs_from(subject.fresh_process.outcomes(subject.seconds)[subject.name])
    if where:
        raise BrokenError(
            f"in a new process the run differs {where}{_reason(subject)}; the order of a set of strings differs from "
            f"process to process, so sort it before you use it, and {_NO_STATE}"
        )


def remembers_what_can_be_stored(subject: Subject) -> None:
    """Memory holds only what a checkpoint can hold."""
    ended = subject.run()
    memories = {f"client.memory of {site}": client.memory for site, client in ended.clients.items()}
    for whose, memory in {"server.memory": ended.server.memory, **memories}.items():
        if problem := _unstorable(memory, ""):
            raise BrokenError(
                f"{whose}{problem}; use tensors, numbers, strings, lists, and dicts whose keys are strings"
            )


def _unstorable(tree: Any, path: str) -> str | None:
    if isinstance(tree, Mapping):
        odd = next((key for key in tree if not isinstance(key, str)), None)
        if odd is not None:
            return f"{path} has the key {odd!r}, which is {type(odd).__name__}, not a string"
        return next((p for key, value in tree.items() if (p := _unstorable(value, f"{path}[{key!r}]"))), None)
    if isinstance(tree, list):
        return next((p for i, value in enumerate(tree) if (p := _unstorable(value, f"{path}[{i}]"))), None)
    if tree is None or isinstance(tree, Tensor | bool | int | float | str):
        return None
    return f"{path} is of type {type(tree).__name__}, which cannot be stored in a checkpoint"


def survives_the_wire(subject: Subject) -> None:
    """Messages and memory that are serialised, and sites in reverse order, give the same bits."""
    for model in ("mlp", "batch norm", "low-rank adapters"):
        with subject.statics.as_imported():
            wired = Outcome.of(
                subject.run(model, transport=lambda run: WireTransport(run, subject.statics.as_imported))
            )
        where = Outcome.of(subject.run(model)).differs_from(wired)
        if where:
            raise BrokenError(
                f"with everything serialised, every site in a new process for every message and sites in reverse "
                f"order, the run differs {where} (model {model!r}){_reason(subject)}; {_NO_STATE}, and let nothing "
                "depend on which site comes first"
            )


def resumes(subject: Subject) -> None:
    """A run that is killed after any exchange resumes to the same bits."""
    with tempfile.TemporaryDirectory() as folder:
        whole: RunResult | None = None
        for left, result in resumed_everywhere(subject, subject.task(), Path(folder)):
            if whole is None:
                whole = result
            elif where := Outcome.of(whole).differs_from(Outcome.of(result)):
                because = _reason(subject)
                raise BrokenError(f"a run that was killed {left} and resumed differs {where}{because}; {_NO_STATE}")


def resumed_everywhere(subject: Subject, task: Task, folder: Path) -> Iterator[tuple[str, RunResult]]:
    """A whole run, then the same run resumed, in a new process, from what a kill after each exchange leaves."""
    directory, left = folder / "whole", dict[str, Path]()

    def keep(progress: Progress) -> None:
        when = f"after exchange {len(left) + 1} (round {progress.round})"
        left[when] = shutil.copytree(directory, folder / f"left-{len(left)}")

    with subject.statics.as_imported():
        result = run(task, subject.name, rounds=ROUNDS, settings=TRAINING, out=directory, listener=keep, device="cpu")
    yield "never", result
    for when, copied in left.items():
        with subject.statics.as_imported():
            yield when, resume(copied, task=task)
