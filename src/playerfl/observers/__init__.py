"""Observers: listeners that write a run's progress for other tools to show."""

from __future__ import annotations

from playerfl.runs.run import Listener, Progress


def together(*listeners: Listener | None) -> Listener:
    """One listener that calls all of them.

    >>> seen = []
    >>> together(seen.append, None, seen.append)("progress")  # type: ignore[arg-type]
    >>> seen
    ['progress', 'progress']
    """

    def notify(progress: Progress) -> None:
        for listener in listeners:
            if listener is not None:
                listener(progress)

    return notify
