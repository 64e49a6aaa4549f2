"""Errors as sentences: those that a user can fix, and, for any other, where in a run it was raised."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from traceback import StackSummary, TracebackException, extract_tb

_LONGEST = 1500
_MOST_PLACES = 8
_PACKAGE = f"{Path(__file__).parent}{os.sep}"
_LIBRARIES = tuple({sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")})


class PlayerflError(Exception):
    """Base of every error that comes from input rather than from a bug.

    Its message names the value, what is allowed and what to do.
    """

    def __str__(self) -> str:
        """One line that a terminal can show, whatever it quotes from a user's file."""
        text = super().__str__()
        if len(text) > _LONGEST:
            text = f"{text[: _LONGEST // 2]} … {text[-_LONGEST // 2 :]}"
        return "".join(c if c.isprintable() else " " if c.isspace() else ascii(c)[1:-1] for c in text)


class ConfigError(PlayerflError):
    """An unknown key, or a value that is not allowed."""


class DataError(PlayerflError):
    """A site's data cannot be used as they are."""


class LayerError(PlayerflError):
    """A layer list does not fit the model."""


class RunDirectoryError(PlayerflError):
    """A run directory cannot be read, written or trusted."""


class StorageError(RunDirectoryError):
    """Something cannot be written: there is no space, or no permission."""

    def __init__(self, problem: str, then: str = "") -> None:
        """`then`: what to do once there is space, which only code further up may know (see `storage_advice`)."""
        super().__init__(f"{problem} and {then}" if then else problem)
        self.problem = problem


def one_of(value: object, allowed: Iterable[str], what: str) -> str:
    """Says that `value` is unknown, what is allowed and what was probably meant.

    >>> one_of("fedavgg", ["fedavg", "local"], "algorithm")
    "unknown algorithm 'fedavgg'; did you mean 'fedavg'? allowed: fedavg, local"
    """
    names = sorted(allowed)
    close = get_close_matches(str(value), names, n=1, cutoff=0.6)
    hint = f"; did you mean {close[0]!r}?" if close else ";"
    return f"unknown {what} {value!r}{hint} allowed: {', '.join(names) or 'none'}"


def at_least_zero(name: str, value: float) -> None:
    """Rejects a hyper-parameter that is negative, infinite or not a number."""
    if not 0 <= value < float("inf"):
        raise ConfigError(f"{name} must be at least 0 and finite, not {value}")


class _Place(str):
    """A note on an exception: which site (or the server) raised it, in which round of which algorithm."""


def note_place(problem: BaseException, place: str) -> None:
    """Adds a note to an exception saying where it was raised; its type and its traceback stay the same."""
    problem.add_note(_Place(place))


def sentence_of(problem: BaseException) -> str:
    """An exception as one sentence: where it was raised, if that is known, and what it says.

    >>> try:
    ...     1 / 0
    ... except ZeroDivisionError as problem:
    ...     note_place(problem, "site 'north' failed while training in round 2 of fedavg")
    ...     sentence_of(problem)
    "site 'north' failed while training in round 2 of fedavg: ZeroDivisionError: division by zero"
    """
    text = str(problem)
    if not isinstance(problem, PlayerflError):
        text = ": ".join([type(problem).__name__, " ".join(text.split())] if text else [type(problem).__name__])
    places = _places(problem)
    if len(places) > 1:
        # The stack failed as a whole, although each of its models can be trained alone, so the error names them all.
        more = [f"and {len(places) - _MOST_PLACES} more"] if len(places) > _MOST_PLACES else []
        places = [f"models trained together failed ({'; '.join([*places[:_MOST_PLACES], *more])})"]
    return ": ".join([*places, text])


def users_traceback(problem: BaseException) -> str | None:
    """The traceback of an exception from a site's or the server's work, cut down to the frames of the user's own code.

    None if it was raised elsewhere, or if there are no such frames, in which case the fault may be in playerfl.
    """
    if not _places(problem):
        return None
    shown = TracebackException.from_exception(problem)
    only_users = _keep_users_frames(shown)
    return "".join(shown.format()) if only_users else None


def described(problem: BaseException) -> str:
    """An exception that a user's code raised, in one line: its type, its message, and where in the user's file."""
    message = " ".join(str(problem).split())
    return f"{type(problem).__name__}{': ' if message else ''}{message}{users_line(problem)}"


def users_line(problem: BaseException) -> str:
    """The line of the user's file that an exception passed last, as " (mine.py, line 8)"; empty if there is none."""
    frames = [frame for frame in extract_tb(problem.__traceback__) if _is_users(frame.filename)]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


def _is_users(filename: str) -> bool:
    return not filename.startswith((_PACKAGE, *_LIBRARIES, "<frozen "))


def _places(problem: BaseException) -> list[str]:
    return [note for note in getattr(problem, "__notes__", ()) if isinstance(note, _Place)]


def _keep_users_frames(shown: TracebackException) -> bool:
    """Drops the frames of this package and of installed libraries; returns whether any others are left."""
    ours = [i for i, frame in enumerate(shown.stack) if frame.filename.startswith(_PACKAGE)]
    # The frames before our first one belong to the program that called us.
    within = shown.stack[ours[0] :] if ours else shown.stack
    kept = [frame for frame in within if _is_users(frame.filename)]
    shown.stack = StackSummary.from_list(kept)
    if shown.__notes__:
        # The sentence above the traceback begins with the place.
        shown.__notes__ = [note for note in shown.__notes__ if not isinstance(note, _Place)]
    for before in (shown.__cause__, shown.__context__):
        if before is not None:
            _keep_users_frames(before)
    return bool(kept)
