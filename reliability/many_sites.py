"""Many sites in one process: do memory and time grow no faster than the number of sites?

    python reliability/many_sites.py [--sites 50,100,200,500] [--rounds 6]

PLayer-FL on synthetic sites of 60 rows with a run directory, in a separate process for each number and trainer. Time is
the median CPU time per round, without the first; memory is the peak beyond what the process holds before the data are
created. The exit status is 1 if a site costs more than 1.3 times as much among many sites as among few.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import playerfl
from playerfl.studies.backends.memory import peak, resident
from promises import alone, line

SLACK = 1.3


def cost(sites: int, trainer: str, rounds: int) -> tuple[float, float]:
    """CPU seconds per round, and bytes."""
    # A first run, so that everything that is loaded only once is in memory.
    settings = {"trainer": trainer, "data.rows": 60, "training.batch_size": 16}
    playerfl.run("synthetic", "player_fl", rounds=1, settings={**settings, "data.sites": 2})
    before = resident()
    moments: list[float] = []

    def listen(_: Any) -> None:
        moments.append(time.process_time())

    with tempfile.TemporaryDirectory() as folder:
        settings["data.sites"] = sites
        playerfl.run(
            "synthetic", "player_fl", rounds=rounds, settings=settings, out=Path(folder) / "run", listener=listen
        )
    # The first exchange is PLayer-FL's measured epoch, the last one the finish.
    seconds = [after - begun for begun, after in pairwise(moments[1:-1])]
    return median(seconds), peak() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", default="50,100,200,500")
    parser.add_argument("--rounds", type=int, default=6)
    arguments = parser.parse_args()
    held = True
    for trainer in ("stacked", "loop"):
        print(f"\n{trainer}")
        costs = {n: alone(cost, n, trainer, arguments.rounds) for n in map(int, arguments.sites.split(","))}
        for sites, (seconds, memory) in costs.items():
            line(
                f"{sites} sites",
                f"{1e3 * seconds:7.1f} ms per round ({1e3 * seconds / sites:.3f} per site), "
                f"{memory / 2**20:6.1f} MB ({memory / 2**10 / sites:.0f} kB per site)",
            )
        few, many = min(costs), max(costs)
        for what, i in (("time", 0), ("memory", 1)):
            ratio = (costs[many][i] / many) / (costs[few][i] / few)
            held &= line(f"{what} per site, {many} sites against {few}", f"{ratio:.2f}", ratio < SLACK)
    sys.exit(0 if held else 1)


if __name__ == "__main__":
    main()
