"""Progress on stderr: a live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from playerfl.runs.run import Listener, Progress
from playerfl.time_left import TimeLeft, duration, left_text

_SECONDS_BETWEEN_LINES = 5.0


@contextmanager
def shown_progress(rounds: Mapping[str, int], *, quiet: bool = False) -> Iterator[Listener | None]:
    """A listener that shows the progress of several runs."""
    if quiet:
        yield None
    elif sys.stderr.isatty():
        with _bars() as bars:
            yield _live(bars, rounds)
    else:
        yield _lines()


@contextmanager
def step_counter(what: str, total: int, *, quiet: bool = False, lines: bool = False) -> Iterator[Callable[[], None]]:
    """A function to call after each of `total` steps: shows a bar on a terminal; elsewhere nothing, or `lines`."""
    if not quiet and lines and not sys.stderr.isatty():
        yield _step_lines(what, total)
        return
    if quiet or not sys.stderr.isatty():
        yield lambda: None
        return
    columns = (TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bars(*columns, console=Console(stderr=True)) as bars:
        task = bars.add_task(what, total=total)
        yield lambda: bars.advance(task)


def _step_lines(what: str, total: int) -> Callable[[], None]:
    """One line for the first step, then one every few seconds, and one for the last."""
    pace = TimeLeft(total)
    pace.seconds(0)
    start, last = time.monotonic(), -math.inf
    done = 0

    def tick() -> None:
        nonlocal done, last
        done += 1
        now = time.monotonic()
        if done < total and now - last < _SECONDS_BETWEEN_LINES:
            return
        last = now
        left = left_text(pace.seconds(done)) if done < total else f"done in {duration(now - start)}"
        print(f"{what}: {done}/{total}, {left}", file=sys.stderr, flush=True)

    return tick


def _bars() -> Bars:
    return Bars(
        TextColumn("[bold]{task.description:<12}"),
        BarColumn(bar_width=28),
        MofNCompleteColumn(),
        TextColumn("rounds  {task.fields[loss]}"),
        TimeRemainingColumn(compact=True),
        TextColumn("left"),
        console=Console(stderr=True),
    )


def _live(bars: Bars, rounds: Mapping[str, int]) -> Listener:
    shown = {name: bars.add_task(name, total=total, loss="") for name, total in rounds.items()}

    def show(progress: Progress) -> None:
        loss = _loss(progress)
        fields = {"loss": loss} if loss else {}
        bars.update(shown[progress.algorithm], completed=progress.round, **fields)  # type: ignore[arg-type]

    return show


def _lines() -> Listener:
    """One line for the first round, then one every few seconds, and one for the last."""
    start = time.monotonic()
    last: dict[str, float] = {}
    paces: dict[str, TimeLeft] = {}

    def show(progress: Progress) -> None:
        now = time.monotonic()
        name = progress.algorithm
        due = name not in last or now - last[name] >= _SECONDS_BETWEEN_LINES or progress.done
        if progress.round == 0 or not due:
            return
        last[name] = now
        seconds = paces.setdefault(name, TimeLeft(progress.rounds)).seconds(progress.round)
        left = f"done in {duration(now - start)}" if progress.done else left_text(seconds)
        parts = (f"{name}: round {progress.round}/{progress.rounds}", _loss(progress), left)
        print(", ".join(part for part in parts if part), file=sys.stderr, flush=True)

    return show


def _loss(progress: Progress) -> str | None:
    """The training loss of this round; if nothing was trained, the validation loss after the last merge."""
    if not math.isnan(progress.train_loss):
        return f"training loss {progress.train_loss:.4f}"
    return None if math.isnan(progress.validation_loss) else f"validation loss {progress.validation_loss:.4f}"
