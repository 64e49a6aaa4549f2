"""What was measured of each framework: the table, whether all did the same work, and whether playerfl's goals hold."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bounds import row as promise

TUNED = ("--tuned",)
GOALS = {"cnn": 1.5, "mlp": 2.0, "seeds": 8.0}
"""How many times playerfl's processor time every rival, as its documentation says, must take at least."""
TUNED_GOAL = 1.0
"""The same for a rival that was tuned by hand: it then runs the same kernels."""


@dataclass(frozen=True)
class Contender:
    """A row of the table: a script, the Python that runs it, and its arguments."""

    title: str
    script: str
    python: Path
    flags: tuple[str, ...] = ()
    rival: str | None = None
    version: str = ""
    """If the script cannot know it."""
    once: bool = False
    """Whether one repeat is enough."""
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Measured:
    """One run of a contender."""

    seconds: float
    """Wall seconds per round and run."""
    cpu: float
    """Processor seconds per round and run, over all its processes."""
    start_up: float
    """From the start of the process to the end of its first round, minus a typical round; for single runs only."""
    memory: float
    """Peak resident memory in MB, summed over its processes."""
    version: str
    losses: tuple[tuple[float, ...], ...]
    """Of every run, the mean validation loss after each round."""
    steps: int | None
    """Optimiser steps per round."""


@dataclass
class Row:
    contender: Contender
    runs: list[Measured] = field(default_factory=list)
    wall_ratios: list[float] = field(default_factory=list)
    cpu_ratios: list[float] = field(default_factory=list)
    problem: str = ""

    def middle(self, what: str) -> float:
        return statistics.median(getattr(run, what) for run in self.runs)


def not_the_same(row: Row, bare: Row) -> str:
    """How a contender's learning differs from the bare loop's; "" if steps and losses are the same.

    Rivals see the same batches from the same weights. After the first round only rounding differs, so that a wrong step
    would show; later rounds amplify it (channels-last convolutions and a different order of sites in the average round
    differently). playerfl draws its own batches, which would change the bare loop's loss by a few per cent too, so only
    its mean over runs is compared.
    """
    expected = bare.runs[0]
    for run in row.runs:
        if run.steps not in (None, expected.steps):
            return f"took {run.steps} steps per round, the bare loop {expected.steps}"
        pairs = list(zip(run.losses, expected.losses, strict=False))
        for when, number, tolerance in (("first", 0, 0.001), ("last", len(run.losses[0]) - 1, 0.05)):
            ends = [(losses[number], references[number]) for losses, references in pairs]
            if not row.contender.rival:
                ends, tolerance = [(statistics.mean(a for a, _ in ends), statistics.mean(b for _, b in ends))], 0.1
            for loss, reference in ends:
                if not abs(loss / reference - 1) <= tolerance:
                    return f"validation loss {loss:.4f} after the {when} round, the bare loop {reference:.4f}"
    return ""


def table(rows: list[Row]) -> str:
    head = ("framework", "version", "s/round", "wall ratio", "CPU ratio", "start-up s", "MB", "validation loss")
    lines = [head, tuple("---" for _ in head)]
    for row in rows:
        title = row.contender.title
        if row.problem:
            lines.append((title, row.problem, *[""] * 6))
            continue
        last = [losses[-1] for losses in row.runs[0].losses]
        lines.append(
            (
                title,
                row.contender.version or row.runs[0].version,
                f"{row.middle('seconds'):.4f}",
                spread(row.wall_ratios),
                spread(row.cpu_ratios),
                "" if math.isnan(row.middle("start_up")) else f"{row.middle('start_up'):.1f}",
                f"{row.middle('memory'):.0f}",
                f"{statistics.mean(last):.4f}",
            )
        )
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def spread(ratios: list[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def verdict(work: str, rows: list[Row]) -> bool:
    """Prints how far playerfl is ahead of each rival and whether that was the goal; a missing result is not a win."""
    playerfl = next(row for row in rows if row.contender.title == "playerfl")
    if playerfl.problem:
        print(f"{work}: no result for playerfl: {playerfl.problem}")
        return False
    held = []
    for row in rows:
        if not row.contender.rival:
            continue
        title = f"{work}: {row.contender.title}, processor time relative to playerfl's"
        goal = TUNED_GOAL if TUNED[0] in row.contender.flags else GOALS[work]
        if row.problem:
            held.append(promise(title, "no result", -math.inf, goal))
            continue
        cpu, wall = (
            statistics.median(getattr(row, ratios)) / statistics.median(getattr(playerfl, ratios))
            for ratios in ("cpu_ratios", "wall_ratios")
        )
        held.append(promise(title, f"{cpu:6.2f}  (wall {wall:.2f})", cpu, goal))
    return all(held)
