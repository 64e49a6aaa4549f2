"""`python -m playerfl.flower.node`: the SuperNode and the relay in one process, started by `playerfl flower site`.

Usage: python -m playerfl.flower.node SECRET_FILE HOST:PORT OPTIONS-OF-FLOWER-SUPERNODE
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path


def main(secret_file: str, address: str, options: list[str]) -> None:
    """Runs until the SuperNode stops."""
    from playerfl.flower.node.spared_imports import import_supernode

    # Before anything else of Flower.
    flower_supernode = import_supernode()
    from playerfl.flower.client_app import app
    from playerfl.flower.node.ended_runs import forget_messages_of_ended_runs
    from playerfl.flower.node.pace import Pace, keep_pace
    from playerfl.flower.node.relay import relay_messages

    secret, pace = Path(secret_file).read_bytes(), Pace()
    keep_pace(pace)
    forget_messages_of_ended_runs()
    arguments = (address, secret, app, pace.message)
    threading.Thread(target=relay_messages, args=arguments, daemon=True, name="relay").start()
    sys.argv = [
        "flower-supernode",
        # The node itself starts no app; the relay takes its messages, and proves with the secret that it is the one.
        *("--isolation", "process", "--superexec-auth-secret-file", secret_file),
        *options,
    ]
    flower_supernode()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
