"""Patience: how long the server waits for the pieces of one response. By itself, Flower waits two hours for a piece."""

from __future__ import annotations

import sys
from functools import partial

LEAST_SECONDS = 60.0
SLOWEST = 100_000
"""Bytes per second of the slowest connection over which a site still gets its response through."""
_GRID = "flwr.superlink.grid.http_grid"


def piece_seconds(deadline: float, num_bytes: int) -> float:
    """Seconds for all pieces of a response of this many bytes; at most a quarter of a round's deadline.

    >>> piece_seconds(3600.0, 40_000), piece_seconds(3600.0, 50_000_000), piece_seconds(100.0, 40_000)
    (60.4, 560.0, 25.0)
    """
    return min(deadline / 4, LEAST_SECONDS + num_bytes / SLOWEST)


def limit_waiting(seconds: float) -> None:
    """Makes Flower's grid give up on a response whose pieces do not arrive, so that its site is asked again.

    A busy SuperLink loses pieces, and a dishonest site may announce some that it never sends. While it waits
    for them, the server hears no other site.
    """
    grid = sys.modules.get(_GRID)
    pull = getattr(grid, "pull_objects", None)
    if grid is not None and pull is not None:
        grid.__dict__["pull_objects"] = partial(getattr(pull, "func", pull), max_time=seconds)
