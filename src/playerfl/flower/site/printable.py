"""Text that somebody else chose, made safe for a log or a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """Control characters as escapes: no part of it moves the cursor, or looks like a line of its own.

    >>> printable("naïve\\x1b[2J")
    'naïve\\\\x1b[2J'
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
