"""Messages of the command line; stdout is for results."""

from __future__ import annotations

import typer


def say(line: str) -> None:
    """Prints a line to stderr."""
    typer.echo(line, err=True)
