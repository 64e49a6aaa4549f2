"""What playerfl costs and saves: whole rounds against a bare PyTorch loop, interleaved, as ratios.

    python benchmarks/bench.py [--repeats 5] [--only rounds,stacked,probe,start,study,check]

Each row is playerfl's speed-up: the median over interleaved repeats, the smallest and the largest. Both sides do what
FedAvg does: load the common weights, train one epoch at each site, average, evaluate each site's validation and test
data. Each side has its own process, because what one leaves in the allocator would affect the other. Times are CPU
seconds of one thread, which other programs disturb less than wall time; start-up and studies use wall time. The exit
status is 1 if a row falls short of its promise.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Literal
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional as F

import data_check
import playerfl
from bounds import cpu_name, row
from playerfl.runs.api import run_experiments
from playerfl.runs.experiment import Experiment
from playerfl.runs.memory import keep_freed_memory
from playerfl.studies.backends.memory import large_pages, settle_imports
from playerfl.tasks.task import own_task
from works import Work, bare_loop, cnn28, cnn32, mlp, text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", default=",".join(PARTS), help=f"any of {', '.join(PARTS)}")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{cpu_name()} ({processor_family()}), {os.cpu_count()} cores, torch {torch.__version__}")
    print(f"1 thread, {arguments.repeats} repeats\n")
    held = [PARTS[part](arguments.repeats) for part in arguments.only.split(",")]
    sys.exit(0 if all(held) else 1)


def processor_family() -> str:
    """What decides how fast torch's matrix products are: MKL is at home on Intel's processors only, and its kernels for
    AMD's make no use of AVX-512, while the convolutions (oneDNN) and the loops of both sides do."""
    maker = "AMD" if "AMD" in cpu_name() else "Intel"
    return f"{maker} AVX-512" if torch.backends.cpu.get_cpu_capability() == "AVX512" else "AVX2"


@dataclass(frozen=True)
class Side:
    """What one process repeats."""

    work: str
    rounds: int
    how: Literal["usual", "tuned", "loop", "stacked"]
    """FedAvg as in a notebook, the same with our model, optimiser and layout, or playerfl's trainer of this name."""
    seeds: int = 1
    keep: bool = False
    """Whether runs have run directories."""

    def __call__(self) -> float:
        """CPU seconds of one repeat."""
        return cpu_seconds(prepared(self))


def speed_row(title: str, ours: Side, theirs: Side, repeats: int, bound: float | None) -> bool:
    """Our speed-up for the same work."""
    with own_process(as_worker=ours.how == "stacked") as our_process, own_process() as their_process:
        for process, side in ((our_process, ours), (their_process, theirs)):
            process.submit(replace(side, rounds=1)).result()
        ratios = []
        for _ in range(repeats):
            reference = their_process.submit(theirs).result() / theirs.seeds
            ratios.append(reference / (our_process.submit(ours).result() / ours.seeds))
    middle = statistics.median(ratios)
    return row(title, f"{middle:6.2f}  ({min(ratios):.2f} to {max(ratios):.2f})", middle, bound)


def own_process(*, as_worker: bool = False) -> ProcessPoolExecutor:
    """A process with one thread; `as_worker`: with the memory settings of a study's workers."""
    process = ProcessPoolExecutor(1, get_context("spawn"), initializer=begin, initargs=(as_worker,))
    with patch.dict(os.environ, large_pages() if as_worker else {}):
        process.submit(int).result()
    return process


def begin(as_worker: bool) -> None:
    torch.set_num_threads(1)
    if as_worker:
        keep_freed_memory()
        settle_imports()


def cpu_seconds(work: Callable[[], None]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


@cache
def prepared(side: Side) -> Callable[[], None]:
    work = WORKS[side.work]()
    if side.how in ("usual", "tuned"):
        return lambda: bare_loop(work, side.rounds, tuned=side.how == "tuned")
    return federation(work, side)


def federation(work: Work, side: Side) -> Callable[[], None]:
    """FedAvg with playerfl, several seeds side by side."""
    task = own_task(work.ours, work.sites)
    settings = {
        "rounds": side.rounds,
        "algorithm": "fedavg",
        "selection": "last",
        "device": "cpu",
        "trainer": side.how,
        "training": {"batch_size": work.batch, "learning_rate": 1e-3},
    }
    experiments = [Experiment.resolve({**settings, "seed": seed}, task) for seed in range(side.seeds)]

    def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            places = [Path(folder) / str(seed) if side.keep else None for seed in range(side.seeds)]
            run_experiments(experiments, places, task)

    return run


WORKS: dict[str, Callable[[], Work]] = {
    "CNN 28": cnn28,
    "CNN 32": cnn32,
    "text transformer": text,
    "MLP": lambda: mlp([200] * 4),
    "hospitals": mlp,
}


def rounds_rows(repeats: int) -> bool:
    print("whole rounds, one run, sites one by one (`loop`)")
    held = []
    # Enough rounds for what a run does once (preparing the data, scoring every test row at the end) to matter little.
    for name, rounds, bound in (
        ("CNN 28", 6, 1.8),
        ("CNN 32", 6, 1.4),
        ("text transformer", 8, 1.1),
        ("MLP", 30, None),
    ):
        ours, usual, tuned = (Side(name, rounds, how) for how in ("loop", "usual", "tuned"))  # type: ignore[arg-type]
        held.append(speed_row(f"{name}: against the usual loop", ours, usual, repeats, bound))
        tuned_bound = 1 / 1.15 if name == "MLP" else 1 / 1.05
        title = f"{name}: against a loop with our model, optimiser and layout"
        held.append(speed_row(title, ours, tuned, repeats, tuned_bound))
    return all(held)


def stacked_rows(repeats: int) -> bool:
    print(
        "\nwhole rounds of an MLP at 4 sites (303, 294, 123, 200 rows), runs side by side (`stacked`), per model-step"
    )
    held = []
    # Batched products take half of a stack's time and hardly any of the usual loop's.
    most = {"AVX2": 9.0, "Intel AVX-512": 7.5, "AMD AVX-512": 5.4}[processor_family()]
    for seeds, rounds, bound in ((1, 30, None), (10, 20, None), (50, 20, most)):
        ours, usual = Side("hospitals", rounds, "stacked", seeds), Side("hospitals", rounds, "usual")
        held.append(speed_row(f"{4 * seeds} models: against the usual loop", ours, usual, repeats, bound))
    free = Side("hospitals", 30, "stacked")
    title = "1 run with a checkpoint on disk after every round: against one without"
    held.append(speed_row(title, replace(free, keep=True), free, repeats, None))
    return all(held)


def probe_row(repeats: int) -> bool:
    """An epoch of FashionMNIST's network with and without the probe, alternating batch by batch."""
    from playerfl.layers.probe import SensitivityProbe
    from playerfl.models.cnn import ConvNet

    model = ConvNet(1, (64, 128, 256), 100, 10, kernel=5, padding=2, pool_after=(1, 2, 3))
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    probe = SensitivityProbe(model)
    inputs, targets = torch.randn(128, 1, 28, 28), torch.randint(10, (128,))

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    step()
    plain, probed = [], []
    for _ in range(12 * repeats):
        plain.append(cpu_seconds(step))
        with probe.attach(optimizer):
            probed.append(cpu_seconds(step))
    # Neighbouring steps see the same load, so the median of their ratios is insensitive to drift.
    ratio = statistics.median(b / a for a, b in zip(plain, probed, strict=True))
    print("\nthe probe")
    title = "FashionMNIST's network, batch 128: time with the probe / without (quickest steps)"
    return row(title, f"{ratio:6.3f}  ({min(probed) / min(plain):.3f})", ratio, 1.01, most=True)


def start_rows(repeats: int) -> bool:
    """Wall seconds, in new processes, which find their bytecode compiled, as those of an installed package do.

    The processor time is shown with them: if it is much less, something else kept the machine busy.
    """
    cli = ["-m", "playerfl.cli.main"]
    archives = Path(__file__).resolve().parent.parent / "results" / "2026.1"
    with tempfile.TemporaryDirectory() as folder:
        compiled = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        compiled["PYTHONPYCACHEPREFIX"] = str(Path(folder) / "bytecode")

        def seconds(*arguments: str) -> Tensor:
            """Wall and processor time."""
            before, start = os.times(), time.perf_counter()
            subprocess.run([sys.executable, *arguments], check=True, capture_output=True, cwd=folder, env=compiled)
            wall, after = time.perf_counter() - start, os.times()
            children = (after.children_user + after.children_system, before.children_user + before.children_system)
            return torch.tensor([wall, children[0] - children[1]])

        def one_round(name: str) -> Tensor:
            """In addition to `import torch`, right before it."""
            alone = seconds("-c", "import torch")
            return seconds(*cli, "run", "digits", "-a", "fedavg", "--rounds", "1", "--out", name) - alone

        def bounded(title: str, most: float, command: Callable[[int], Tensor]) -> bool:
            # The median of each; before that, once for the bytecode.
            command(-1)
            wall, cpu = torch.stack([command(repeat) for repeat in range(repeats)]).quantile(0.5, dim=0).tolist()
            return row(title, f"{wall:6.2f}  (processor {cpu:.2f})", wall, most, most=True)

        print("\nstart-up, seconds")
        held = [
            bounded("playerfl --version", 0.5, lambda _: seconds(*cli, "--version")),
            bounded("playerfl run with one round, in addition to `import torch`", 0.5, lambda i: one_round(f"run{i}")),
            bounded("playerfl report of one run", 2.0, lambda _: seconds(*cli, "report", "run-1")),
            bounded(
                "playerfl report of the 1,120 runs in results/2026.1",
                10.0,
                lambda _: seconds(*cli, "report", str(archives), "--out", "all.html"),
            ),
        ]
    return all(held)


STUDY = {
    "name": "throughput",
    "tasks": ["synthetic"],
    "algorithms": ["local", "fedavg", "ditto", "player_fl"],
    "seeds": 100,
    "settings": {"rounds": 30},
}
STUDY_RUNS = 400


def study_seconds(workers: int) -> float:
    """Wall time, including the start-up of workers."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        playerfl.study(STUDY, out=Path(folder) / "study", workers=workers, quiet=True)
        return time.perf_counter() - start


def study_rows(repeats: int) -> bool:
    """Runs per minute of wall time, and the memory of parent and workers.

    Two workers are compared with two studies of one worker at the same time, which share nothing but the machine: cores
    that share a cache, memory or a power budget are slower together.
    """
    seconds: dict[str, list[float]] = {"1 worker": [], "2 workers": [], "2 studies of 1 worker at the same time": []}
    with own_process() as one, own_process() as other:
        for _ in range(repeats):
            start = time.perf_counter()
            for study in [process.submit(study_seconds, 1) for process in (one, other)]:
                study.result()
            both = (time.perf_counter() - start) / 2
            for name, taken in zip(seconds, (study_seconds(1), study_seconds(2), both), strict=True):
                seconds[name].append(taken)
    print(f"\na study of {STUDY_RUNS} runs (synthetic, 4 algorithms, 30 rounds)")
    for name, taken in seconds.items():
        slowest, middle, fastest = (60 * STUDY_RUNS / at(taken) for at in (max, statistics.median, min))
        row(f"{name}: runs per minute", f"{middle:6.0f}  ({slowest:.0f} to {fastest:.0f})", 0, None)
    this, worker = (
        resource.getrusage(who).ru_maxrss / 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    row("peak memory in MB: this process, its largest worker", f"{this:6.0f}  {worker:.0f}", 0, None)
    alone, two, most = seconds.values()
    speed_ups = [a / b for a, b in zip(alone, two, strict=True)]
    machine = [a / b for a, b in zip(alone, most, strict=True)]
    for title, ratios in (("2 workers against 1", speed_ups), ("2 studies at the same time against 1", machine)):
        row(title, f"{statistics.median(ratios):6.2f}  ({min(ratios):.2f} to {max(ratios):.2f})", 0, None)
    share = [a / b for a, b in zip(speed_ups, machine, strict=True)]
    middle = statistics.median(share)
    title = "2 workers, as a share of what this machine gives two studies"
    return row(title, f"{middle:6.2f}  ({min(share):.2f} to {max(share):.2f})", middle, 0.95)


def check_rows(_: int) -> bool:
    """Processor time, which is wall time on an idle machine, and memory; once, because it takes half a minute."""
    processor, wall, gib, _ = data_check.measured()
    print("\ndata check of 1,000,000 rows x 50 columns at 5 sites")
    held = row(f"seconds of processor time ({wall:.0f} s in all)", f"{processor:6.1f}", processor, 60, most=True)
    return row("peak memory in GiB", f"{gib:6.2f}", gib, 2, most=True) and held


PARTS: dict[str, Callable[[int], bool]] = {
    "rounds": rounds_rows,
    "stacked": stacked_rows,
    "probe": probe_row,
    "start": start_rows,
    "study": study_rows,
    "check": check_rows,
}


if __name__ == "__main__":
    main()
