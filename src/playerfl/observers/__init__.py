"""Observers: listeners that write a run's progress where other tools can show it."""

from __future__ import annotations

from playerfl.runs.run import Listener, Progress


def together(*listeners: Listener | None) -> Listener:
    """One listener that tells all of them.

    >>> seen = []
    >>> together(seen.append, None, seen.append)("news")  # type: ignore[arg-type]
    >>> seen
    ['news', 'news']
    """

    def tell(progress: Progress) -> None:
        for listener in listeners:
            if listener is not None:
                listener(progress)

    return tell
