"""Disk faults: every write of every command that writes files fails in turn, and the command is continued.

    python reliability/disk.py [--most 8] [--only run,study] [--problems full]

The disk is full or read-only from some write onwards, or full for a single write. The command must cope, or end with
one sentence that names the file. Once continued, it must leave the same files, byte for byte, as an undisturbed
command. The exit status is 1 if any command did not.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import torch

sys.path[:0] = [str(Path(__file__).parents[1] / folder) for folder in ("tests", "tests/reliability")]

from sweeping import PROBLEMS, sweep
from writing_commands import COMMANDS, made_before


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--most", type=int, help="failing writes per command (default: all)")
    asked.add_argument("--only", help=f"commands, separated by commas: {', '.join(COMMANDS)}")
    asked.add_argument("--problems", help=f"separated by commas: {', '.join(PROBLEMS)}")
    options = asked.parse_args()
    torch.set_num_threads(1)
    lost = 0
    with tempfile.TemporaryDirectory() as home:
        before = Path(home) / "before"
        before.mkdir()
        with made_before(before):
            for name in options.only.split(",") if options.only else COMMANDS:
                for problem in options.problems.split(",") if options.problems else PROBLEMS:
                    lost += not _held(name, problem, before, options.most)
    sys.exit(1 if lost else 0)


def _held(name: str, problem: str, before: Path, most: int | None) -> bool:
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        try:
            failed, writes = sweep(name, problem, before, Path(folder), most)
        except AssertionError as problem_found:
            print(f"{name}, {problem}: BROKEN: {problem_found}", flush=True)
            return False
    seconds = time.process_time() - began
    print(f"{name}, {problem}: {failed} of {writes} writes failed, {seconds:.0f} s", flush=True)
    return True


if __name__ == "__main__":
    main()
