"""A long run of a tiny model with a run directory: does memory grow, do files pile up, does it become slower?

    python reliability/long_run.py [--rounds 5000] [--only stacked,loop]

FedAvg over 3 sites, a checkpoint on disk after every round, in a process of its own for each trainer. Speed is CPU
seconds a round, divided by those of a fixed piece of work done beside every round, since a busy machine changes both
alike; medians. The exit status is 1 if a promise is not kept: after the first 200 rounds memory grows by less than 2 %,
the last 500 rounds are within 5 % of the first 500, there are as many files as at the start, the checkpoint keeps its
size and the tables grow by the rows of a round.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

import playerfl
from playerfl.studies.memory import resident
from promises import alone, line

SETTLED = 200
PART = 500


@dataclass
class Watch:
    """What is measured after every round."""

    folder: Path
    seconds: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    files: list[dict[str, int]] = field(default_factory=list)
    since: float = 0.0

    def __call__(self, progress: Any) -> None:
        self.seconds.append(time.process_time() - self.since)
        self.memory.append(resident())
        # Every hundredth round: looking costs time, too.
        if progress.round % 100 == 0 and progress.round:
            self.files.append({file.name: file.stat().st_size for file in self.folder.rglob("*") if file.is_file()})
        begun = time.process_time()
        fixed_work()
        self.since = time.process_time()
        self.beside.append(self.since - begun)


MODEL = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5))
INPUTS = torch.ones(16, 13)


def fixed_work() -> None:
    """Some steps as small as those of the run."""
    for _ in range(10):
        MODEL.zero_grad()
        MODEL(INPUTS).square().mean().backward()


def watched(rounds: int, trainer: str) -> Watch:
    with tempfile.TemporaryDirectory() as folder:
        watch = Watch(Path(folder) / "run", since=time.process_time())
        settings = {"trainer": trainer, "data.sites": 3, "data.rows": 60, "training.batch_size": 16}
        playerfl.run("synthetic", "fedavg", rounds=rounds, settings=settings, out=watch.folder, listener=watch)
        watch.memory.append(resident())
        return watch


def report(rounds: int, trainer: str) -> bool:
    found = alone(watched, rounds, trainer)
    print(f"\n{trainer}: {rounds} rounds, {sum(found.seconds):.0f} s of CPU")
    # The last two are after the last round and after the result has been read back: neither is a round.
    memory, seconds = found.memory[:rounds], found.seconds[1:rounds]
    relative = [own / fixed for own, fixed in zip(seconds, found.beside[1:], strict=False)]
    part = min(PART, rounds // 3)
    begun, most = memory[SETTLED], max(memory[SETTLED:])
    growth = most / begun - 1
    ratio = median(relative[-part:]) / median(relative[:part])
    first, last = found.files[0], found.files[-1]
    grown = {name: size for name, size in last.items() if size > 1.01 * first.get(name, 0)}
    tables = {"scores.csv", "traffic.csv"}
    a_round = [sum(files[name] for name in tables) / (100 * (i + 1)) for i, files in enumerate(found.files)]
    checks = [
        line(
            f"memory, most after round {SETTLED} against round {SETTLED}",
            f"{begun / 2**20:.1f} -> {most / 2**20:.1f} MB, {growth:+.2%}",
            growth < 0.02,
        ),
        line(
            f"CPU a round against fixed work, last {part} rounds and first {part}",
            f"{median(relative[:part]):.2f} -> {median(relative[-part:]):.2f}, {ratio - 1:+.1%}",
            abs(ratio - 1) < 0.05,
        ),
        line("files", f"{len(first)} -> {len(last)}", len(first) == len(last)),
        line("files that grow", ", ".join(sorted(grown)), grown.keys() <= tables),
        line(
            "bytes a round in the tables, first 100 rounds and all",
            f"{a_round[0]:.0f}, {a_round[-1]:.0f}",
            a_round[-1] < 1.1 * a_round[0],
        ),
    ]
    size = last["checkpoint.safetensors"]
    line(
        "CPU a round", f"{1e3 * median(seconds[:part]):.1f} ms at first, {1e3 * median(seconds[-part:]):.1f} ms at last"
    )
    line("checkpoint, tables at the end", f"{size / 1e3:.0f} kB, {sum(last[name] for name in tables) / 1e6:.1f} MB")
    line("memory once the result has been read back", f"{found.memory[-1] / 2**20:.1f} MB")
    return all(checks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5000, help="at least 600")
    parser.add_argument("--only", default="stacked,loop", help="some of stacked, loop")
    arguments = parser.parse_args()
    held = [report(arguments.rounds, trainer) for trainer in arguments.only.split(",")]
    sys.exit(0 if all(held) else 1)


if __name__ == "__main__":
    main()
