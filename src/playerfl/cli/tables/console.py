"""Where tables for people are printed."""

from __future__ import annotations

from rich.console import Console


def wide_console(*, stderr: bool = False) -> Console:
    """As wide as the terminal. Piped output has no width of its own; narrow tables would be cut off."""
    console = Console(highlight=False, stderr=stderr)
    return console if console.is_terminal else Console(highlight=False, stderr=stderr, width=120)
