"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def examples(*commands: str) -> str:
    """The end of a command's help; `commands` without the leading `playerfl`."""
    return "\n\n".join(["[bold]Examples[/bold]", *(f"playerfl {command}" for command in commands)])


DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", metavar="DIR", help="Data directory (default: $PLAYERFL_DATA, or your cache folder)."),
]
Sites = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="MODULE:NAME",
        help="Your sites: a function that returns a mapping from site names to (inputs, targets), a Dataset or a "
        "DataLoader.",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Any setting of an experiment file, e.g. training.batch_size=16; can be repeated.",
    ),
]
Workers = Annotated[int | None, typer.Option(help="Worker processes (default: one per core).", min=1)]
RetryFailed = Annotated[bool, typer.Option("--retry-failed", help="Also try failed runs again.")]
StopAfter = Annotated[
    float | None,
    typer.Option(metavar="MINUTES", min=0, help="Stop after this many minutes; you can continue later."),
]
Json = Annotated[bool, typer.Option("--json", help="Print the results as JSON on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Do not show progress.")]
Home = Annotated[Path, typer.Argument(metavar="HOME")]
