"""Patience: how long the server fetches the pieces of one response, and how many bytes.

By itself, Flower waits two hours for a piece, and takes any number of bytes.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

from flwr.supercore.inflatable.inflatable_utils import ObjectPullError

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


def most_response_bytes(num_bytes: int) -> int:
    """The largest response of a site, for a model of this size: masked, a number of two bytes takes eight.

    >>> most_response_bytes(2**20) // 2**20
    80
    """
    return 16 * num_bytes + 2**26


def limit_pulling(seconds: float, most_bytes: int) -> None:
    """Makes Flower's grid give up on a response that takes too long or is too large, so that its site is asked again.

    A busy SuperLink loses pieces, and a dishonest site may announce some that it never sends, millions of them, or
    more than fits into memory. While it fetches them, the server hears no other site.
    """
    grid = sys.modules.get(_GRID)
    pull = getattr(grid, "pull_objects", None)
    if grid is None or pull is None:
        return
    pull = getattr(pull, "__wrapped__", pull)

    @wraps(pull)
    def pulled(object_ids: list[str], pull_object_fn: Callable[[str], bytes], **options: Any) -> dict[str, bytes]:
        # Four times as long for pieces that do arrive: masked, they are up to four times as large as the model.
        ends = time.monotonic() + max(4 * seconds, LEAST_SECONDS)
        arrived, counting = 0, threading.Lock()

        def fetched(piece: str) -> bytes:
            nonlocal arrived
            content = pull_object_fn(piece)
            with counting:
                arrived += len(content)
            if arrived > most_bytes or time.monotonic() > ends:
                raise ObjectPullError(piece, f"the response has more than {most_bytes:,} bytes, or takes too long")
            return content

        return pull(object_ids, fetched, max_time=seconds, **options)  # type: ignore[no-any-return]

    grid.__dict__["pull_objects"] = pulled
