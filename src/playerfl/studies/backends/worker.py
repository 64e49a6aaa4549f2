"""A worker process: takes groups from its parent, sends back their outcomes, and never outlives it.

Messages are pickled over stdin and stdout, which belong to parent and child alone.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import sys
import threading
import time
from pathlib import Path
from typing import IO, Any

_SECONDS_BETWEEN_REPORTS = 0.5


def main() -> None:
    # Ctrl-C in a terminal reaches every process of the group; the parent decides what to do.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    outgoing = os.fdopen(os.dup(1), "wb")
    # What a user's task prints must not end up between the messages.
    os.dup2(2, 1)
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(sys.stdin.buffer, inbox), daemon=True).start()

    from playerfl.runs.memory import keep_freed_memory
    from playerfl.runs.setup import Setups
    from playerfl.storage.locking import DirectoryLock
    from playerfl.studies.backends.group import run_group
    from playerfl.studies.backends.memory import resident, settle_imports

    keep_freed_memory()
    settle_imports()
    config = inbox.get()
    if config.unfinished:
        DirectoryLock(Path(config.unfinished)).take(shared=True)
    setups = Setups()
    last_report = time.monotonic()

    def progress(share: float) -> None:
        nonlocal last_report
        now = time.monotonic()
        if now - last_report >= _SECONDS_BETWEEN_REPORTS:
            last_report = now
            _send(outgoing, ("progress", share, resident()))

    while True:
        outcomes = run_group(inbox.get(), setups, config, progress)
        _send(outgoing, ("done", outcomes, resident()))


def _read(incoming: IO[bytes], inbox: queue.SimpleQueue[Any]) -> None:
    """Fills the inbox until the parent closes its end, deliberately or because it was killed."""
    while True:
        try:
            inbox.put(pickle.load(incoming))
        except (EOFError, OSError, pickle.UnpicklingError):
            os._exit(0)


def _send(outgoing: IO[bytes], message: Any) -> None:
    try:
        pickle.dump(message, outgoing)
        outgoing.flush()
    except OSError:
        os._exit(0)
