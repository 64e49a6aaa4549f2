"""`playerfl watch`: a page that shows runs, studies or a job in progress."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

import typer

from playerfl.cli.options import examples
from playerfl.errors import RunDirectoryError

WATCH_EXAMPLES = examples("watch runs", "watch runs/digits --port 8800 --open")
_SECONDS_FOR_THE_LAST_REPORT = 10.0


def watch(
    directory: Annotated[Path, typer.Argument(metavar="DIR")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1 (default: any free port).")] = 0,
    open_: Annotated[bool, typer.Option("--open", help="Also open the page in your browser.")] = False,
) -> None:
    """Show the runs in a folder, in progress or finished, on a page that refreshes itself, until Ctrl-C.

    DIR is a run directory, a comparison, a study, the folder of a job across institutions, or a folder that contains
    any of these. The page shows each run's progress, its curve so far, the time left, what failed, and the report on
    finished runs. It only reads files, needs no network, and can be opened only on this computer.
    """
    from playerfl.live.server import LiveServer

    if not directory.is_dir():
        raise RunDirectoryError(f"{directory} is not a directory; give the --out of a run or study that has begun")
    server = LiveServer(directory, title_of(directory), port)
    _announce(server.address, open_=open_)
    with suppress(KeyboardInterrupt):
        server.serve()


@contextmanager
def watched(directory: Path, *, wanted: bool) -> Iterator[None]:
    """Serves and opens the page while a command runs; at the end, waits until an open page has the last report."""
    if not wanted:
        yield
        return
    from playerfl.live.server import LiveServer, serving

    with serving(LiveServer(directory, title_of(directory))) as server:
        opened = _announce(server.address, open_=True)
        yield
        if opened:
            server.wait_for_readers(_SECONDS_FOR_THE_LAST_REPORT)


def _announce(address: str, *, open_: bool) -> bool:
    import webbrowser

    print(f"watching: {address}", file=sys.stderr, flush=True)
    opened = open_ and webbrowser.open(address)
    if open_ and not opened:
        print("no browser could be opened; open this address yourself", file=sys.stderr, flush=True)
    return opened


def title_of(directory: Path) -> str:
    return f"playerfl: {directory.resolve().name}"
