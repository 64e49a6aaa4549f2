"""Progress for people: a live display on a terminal, plain lines elsewhere. Always on stderr."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from playerfl.running import Listener, Progress

_SECONDS_BETWEEN_LINES = 5.0


@contextmanager
def shown_progress(rounds: Mapping[str, int], *, quiet: bool = False) -> Iterator[Listener | None]:
    """A listener that shows how far each of several runs is."""
    if quiet:
        yield None
    elif sys.stderr.isatty():
        with _bars() as bars:
            yield _live(bars, rounds)
    else:
        yield _lines()


@contextmanager
def counted(what: str, total: int, *, quiet: bool = False) -> Iterator[Callable[[], None]]:
    """A function to call after each of `total` things, shown as a bar on a terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda: None
        return
    columns = (TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bars(*columns, console=Console(stderr=True)) as bars:
        task = bars.add_task(what, total=total)
        yield lambda: bars.advance(task)


def _bars() -> Bars:
    return Bars(
        TextColumn("[bold]{task.description:<12}"),
        BarColumn(bar_width=28),
        MofNCompleteColumn(),
        TextColumn("rounds  loss {task.fields[loss]}  left"),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
        console=Console(stderr=True),
    )


def _live(bars: Bars, rounds: Mapping[str, int]) -> Listener:
    shown = {name: bars.add_task(name, total=total, loss="…") for name, total in rounds.items()}

    def show(progress: Progress) -> None:
        changes = {"completed": progress.round}
        loss = _loss(progress)
        bars.update(shown[progress.algorithm], **changes, **({"loss": loss} if loss else {}))  # type: ignore[arg-type]

    return show


def _lines() -> Listener:
    """A line for the first round, then one every few seconds, then one for the last."""
    start = time.monotonic()
    last: dict[str, float] = {}
    first_round: dict[str, tuple[int, float]] = {}

    def show(progress: Progress) -> None:
        now = time.monotonic()
        name = progress.algorithm
        begun, since = first_round.setdefault(name, (progress.round, now))
        due = name not in last or now - last[name] >= _SECONDS_BETWEEN_LINES or progress.done
        if not due or progress.round == 0:
            return
        last[name] = now
        if progress.done:
            left = f"done in {now - start:.0f} s"
        elif progress.round > begun:
            left = f"{(now - since) / (progress.round - begun) * (progress.rounds - progress.round):.0f} s left"
        else:
            left = "started"
        loss = _loss(progress)
        print(
            f"{name}: round {progress.round}/{progress.rounds}" + (f", loss {loss}" if loss else "") + f", {left}",
            file=sys.stderr,
            flush=True,
        )

    return show


def _loss(progress: Progress) -> str | None:
    """The training loss, or the validation loss of the last merge where nothing was trained."""
    value = progress.validation_loss if math.isnan(progress.train_loss) else progress.train_loss
    return None if math.isnan(value) else f"{value:.4f}"
