"""The errors a user can mend: each message names the value, what is allowed and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

_LONGEST = 1500


class PlayerflError(Exception):
    """Base of every error that comes from input rather than from a bug."""

    def __str__(self) -> str:
        """One line that a terminal can show, whatever was quoted in it from somebody's file."""
        text = super().__str__()
        if len(text) > _LONGEST:
            text = f"{text[: _LONGEST // 2]} … {text[-_LONGEST // 2 :]}"
        return "".join(c if c.isprintable() else " " if c.isspace() else ascii(c)[1:-1] for c in text)


class ConfigError(PlayerflError):
    """An unknown key, or a value that is not allowed."""


class DataError(PlayerflError):
    """A site's data cannot be used as it is."""


class LayerError(PlayerflError):
    """A layer list does not fit the model."""


class RunDirectoryError(PlayerflError):
    """A run directory cannot be read, written or trusted."""


class StorageError(RunDirectoryError):
    """Something cannot be written: there is no space, or no permission."""

    def __init__(self, problem: str, then: str = "") -> None:
        """`then`: what to do once there is space; only the caller's caller may know (see `storage_advice`)."""
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
    """Refuses a hyper-parameter that is negative, infinite or not a number."""
    if not 0 <= value < float("inf"):
        raise ConfigError(f"{name} must be at least 0 and finite, not {value}")
