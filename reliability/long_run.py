"""A long run of a tiny model with a run directory: does memory grow, do files pile up, does it slow down?

    python reliability/long_run.py [--rounds 5000] [--only stacked,loop]

FedAvg over 3 sites with a checkpoint after every round, in a separate process for each trainer. Speed is the median CPU
time per round, relative to a round of a young run beside it (the same run, restarted every 50 rounds), because a busy
machine slows both. The exit status is 1 if a promise is broken: after the first 200 rounds memory grows by less than
2 %, the last 500 rounds are within 5 % of the first 500, the number of files and the size of the checkpoint
stay the same, and the tables grow only by the rows of each round.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from playerfl.learning.trainer import run_jobs
from playerfl.runs.api import run_experiments
from playerfl.runs.directory import RunDirectory
from playerfl.runs.environment import environment
from playerfl.runs.experiment import Experiment
from playerfl.runs.run import Run
from playerfl.runs.setup import prepare_setup
from playerfl.studies.backends.memory import resident
from playerfl.tasks.load import load_task
from promises import alone, line

SETTLED = 200
PART = 500
YOUNG = 50
TABLES = ("scores.csv", "traffic.csv")


class YoungRun:
    """A run that advances one round at a time and is restarted every 50 rounds."""

    def __init__(self, experiment: Experiment, folder: Path) -> None:
        self.experiment = experiment
        self.folder = folder
        self.setup = prepare_setup(experiment, load_task(experiment.task))
        self.exchanges = 0
        self._begin()

    def _begin(self) -> None:
        made_with = environment(self.experiment.device, self.experiment.threads)
        self.record = RunDirectory.create(self.folder, self.experiment.to_toml(), made_with, overwrite=True)
        self.work = Run(self.experiment, self.setup, self.record, self._count).rounds()
        self.jobs = self.work.send(None)
        self.age = 0

    def _count(self, _: Any) -> None:
        self.exchanges += 1

    def advance(self) -> float:
        """One more round, in CPU seconds."""
        if self.age == YOUNG:
            self.work.close()
            self.record.unlock()
            self._begin()
        self.age += 1
        begun, before = time.process_time(), self.exchanges
        while self.exchanges == before:
            self.jobs = self.work.send(run_jobs(self.jobs))
        return time.process_time() - begun


class Watch:
    """Measures after every round."""

    def __init__(self, folder: Path, part: int, young: YoungRun) -> None:
        self.folder = folder
        self.part = part
        self.young = young
        self.seconds: dict[int, float] = {}
        self.relative: dict[int, float] = {}
        """CPU seconds of the first and last rounds, and their ratio to those of a young run."""
        self.memory: dict[int, int] = {}
        self.files: dict[int, dict[str, int]] = {}
        self.since = time.process_time()

    def __call__(self, progress: Any) -> None:
        now, round_ = time.process_time(), progress.round
        if 1 < round_ <= self.part + 1 or round_ > progress.rounds - self.part:
            self.seconds.setdefault(round_, now - self.since)
            self.relative.setdefault(round_, self.seconds[round_] / self.young.advance())
        self.memory.setdefault(round_, resident())
        # Only every hundredth round, because looking costs time. The last round is followed by another exchange.
        if round_ and round_ % 100 == 0 and round_ not in self.files:
            self.files[round_] = {file.name: file.stat().st_size for file in self.folder.rglob("*") if file.is_file()}
        self.since = time.process_time()


def watched(rounds: int, trainer: str) -> dict[str, Any]:
    begun = time.process_time()
    settings = {
        "task": "synthetic",
        "algorithm": "fedavg",
        "rounds": rounds,
        "trainer": trainer,
        "data": {"sites": 3, "rows": 60},
        "training": {"batch_size": 16},
    }
    experiment = Experiment.resolve(settings)
    with tempfile.TemporaryDirectory() as folder:
        watch = Watch(Path(folder) / "run", min(PART, rounds // 3), YoungRun(experiment, Path(folder) / "young"))
        run_experiments([experiment], [watch.folder], listener=watch)
    return {**vars(watch), "young": None, "after": resident(), "cpu": time.process_time() - begun}


def report(rounds: int, trainer: str) -> bool:
    measured = alone(watched, rounds, trainer)
    print(f"\n{trainer}: {rounds} rounds, {measured['cpu']:.0f} s of CPU")
    part, memory, seconds, relative = (measured[name] for name in ("part", "memory", "seconds", "relative"))
    first_rounds, last_rounds = range(2, part + 2), range(rounds - part + 1, rounds + 1)
    begun, most = memory[SETTLED], max(held for round_, held in memory.items() if round_ >= SETTLED)
    early, late = (median(relative[r] for r in some) for some in (first_rounds, last_rounds))
    files = measured["files"]
    first, last = files[min(files)], files[max(files)]
    grown = {name for name, size in last.items() if size > 1.01 * first.get(name, 0)}
    a_round = [sum(files[round_][name] for name in TABLES) / round_ for round_ in (min(files), max(files))]
    checks = [
        line(
            f"memory at round {SETTLED}, peak after it",
            f"{begun / 2**20:.1f}, {most / 2**20:.1f} MB: {most / begun - 1:+.2%}",
            most / begun < 1.02,
        ),
        line(
            f"CPU per round relative to a young run, first {part} and last {part}",
            f"{early:.3f}, {late:.3f}: {late / early - 1:+.1%}",
            abs(late / early - 1) < 0.05,
        ),
        line(f"files at round {min(files)} and {max(files)}", f"{len(first)}, {len(last)}", len(first) == len(last)),
        line("files that grow", ", ".join(sorted(grown)), grown <= set(TABLES)),
        line(
            f"bytes of tables per round, at round {min(files)} and {max(files)}",
            f"{a_round[0]:.0f}, {a_round[1]:.0f}",
            a_round[1] < 1.1 * a_round[0],
        ),
    ]
    ms = [1e3 * median(seconds[r] for r in some) for some in (first_rounds, last_rounds)]
    line("CPU per round", f"{ms[0]:.1f}, {ms[1]:.1f} ms")
    size = sum(last[name] for name in TABLES)
    line("checkpoint, tables at the end", f"{last['checkpoint.safetensors'] / 1e3:.0f} kB, {size / 1e6:.1f} MB")
    line("memory after reading the result back", f"{measured['after'] / 2**20:.1f} MB")
    return all(checks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5000, help="at least 300")
    parser.add_argument("--only", default="stacked,loop", help="stacked, loop or both")
    arguments = parser.parse_args()
    held = [report(arguments.rounds, trainer) for trainer in arguments.only.split(",")]
    sys.exit(0 if all(held) else 1)


if __name__ == "__main__":
    main()
