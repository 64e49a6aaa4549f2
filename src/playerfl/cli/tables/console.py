"""The console that tables are printed on."""

from __future__ import annotations

from rich.console import Console


def wide_console(*, stderr: bool = False) -> Console:
    """As wide as the terminal; 120 columns when piped, so that tables are not truncated."""
    console = Console(highlight=False, stderr=stderr)
    return console if console.is_terminal else Console(highlight=False, stderr=stderr, width=120)
