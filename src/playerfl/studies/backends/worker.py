"""A worker process: takes groups from its parent, sends back what became of them, and never outlives it.

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

_SECONDS_BETWEEN_BEATS = 0.5


def main() -> None:
    # A terminal's Ctrl-C reaches every process of the group; the parent decides what is done about it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    outgoing = os.fdopen(os.dup(1), "wb")
    # What a task prints must not end up between the messages.
    os.dup2(2, 1)
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(sys.stdin.buffer, inbox), daemon=True).start()

    from playerfl.runs.setup import Setups
    from playerfl.storage.locking import DirectoryLock
    from playerfl.studies.backends.group import run_group
    from playerfl.studies.backends.memory import keep_freed_memory, resident, settle_imports

    keep_freed_memory()
    settle_imports()
    orders = inbox.get()
    if orders.unfinished:
        DirectoryLock(Path(orders.unfinished)).take(shared=True)
    setups = Setups()
    beaten = time.monotonic()

    def heard(share: float) -> None:
        nonlocal beaten
        now = time.monotonic()
        if now - beaten >= _SECONDS_BETWEEN_BEATS:
            beaten = now
            _send(outgoing, ("heard", share, resident()))

    while True:
        cells = inbox.get()
        outcomes = run_group(cells, setups, orders, heard)
        _send(outgoing, ("done", outcomes, resident()))


def _read(incoming: IO[bytes], inbox: queue.SimpleQueue[Any]) -> None:
    """Fills the inbox until the parent closes its end, on purpose or because it was killed."""
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
