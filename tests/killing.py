"""kill -9 at random moments, then resume: what tests and reliability/kills.py share."""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest.mock import patch

from playerfl.cli import main as cli

# These depend on the clock, or on how often something was killed: they say nothing about the result.
OF_THE_CLOCK = {"timing.json", "timings.csv", "status.json", "participation.csv", "site.log", "comparison.png"}
OF_THE_CLOCK |= {"audit.jsonl", "last_line.json", "contract.json"}


def forked(work: Callable[[], int]) -> int:
    """Starts work in a forked child within milliseconds, so that a kill can hit any write; returns its process id."""
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        code = work()
    finally:
        os._exit(code)


def command(arguments: list[str]) -> int:
    """The command line in this process; returns its exit code."""
    try:
        with patch.object(sys, "argv", ["playerfl", *arguments]):
            cli.main()
    except SystemExit as left:
        return left.code if isinstance(left.code, int) else int(left.code is not None)
    return 0


def start(arguments: list[str]) -> int:
    """The command line in a forked process."""
    return forked(partial(command, arguments))


def undisturbed(arguments: list[str]) -> float:
    """Runs a command to its end; returns the seconds it took."""
    since = time.monotonic()
    code = ended(start(arguments))
    assert code == 0, f"playerfl {' '.join(arguments)} ended with {code}"
    return time.monotonic() - since


def ended(child: int) -> int:
    """Waits for a child: its exit code, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kill_after(child: int, seconds: float) -> bool:
    """Kills a child after some time; False if it had already ended successfully."""
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    code = ended(child)
    assert code in (0, -signal.SIGKILL), f"ended with {code}"
    return code != 0


def kill_and_resume(begin: Callable[[], list[str]], seconds: float, kills: int, rng: random.Random) -> int:
    """Starts and kills a command again and again, then lets it end; returns how often it was killed.

    `begin` gives the command that starts or resumes the work. Kills are spread over the time that the undisturbed
    work takes, so that the start, every round and the last writes are all hit.
    """
    done = 0
    for _ in range(kills):
        if not kill_after(start(begin()), rng.uniform(0, seconds)):
            return done
        done += 1
    undisturbed(begin())
    return done


def run_or_resume(run: list[str], out: Path) -> list[str]:
    """Resumes a run or a comparison, or starts it if it was killed before all of its runs had a directory."""
    names = [name for option, name in itertools.pairwise(run) if option == "-a"]
    places = [out / name for name in names] if len(names) > 1 else [out]
    begun = all((place / "experiment.toml").exists() for place in places)
    return ["run", "--resume", str(out), "-q"] if begun else [*run, "--out", str(out), "--overwrite"]


def contents(folder: Path) -> dict[str, bytes]:
    """Every file that depends on the result alone."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in OF_THE_CLOCK
    }
