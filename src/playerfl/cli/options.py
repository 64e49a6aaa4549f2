"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", metavar="DIR", help="Data directory; $PLAYERFL_DATA or your cache if not given."),
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
    typer.Option("--set", metavar="KEY=VALUE", help="Any setting of an experiment file, e.g. training.batch_size=16."),
]
Json = Annotated[bool, typer.Option("--json", help="As JSON on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
Home = Annotated[Path, typer.Argument(metavar="HOME", help="The server's directory.")]
