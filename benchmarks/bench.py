"""What playerfl costs and saves: whole rounds against a bare PyTorch loop, interleaved in one process, as ratios.

    python benchmarks/bench.py [--repeats 5] [--only rounds,stacked,probe,start,study]

A row says how many times as fast playerfl is: the median over interleaved repeats, the smallest and the largest.
Both sides do what FedAvg does: load the common weights, one epoch at each site, average, evaluate each site's
validation and test part. Times are CPU seconds of one thread, which other programs disturb less than the clock does;
start-up and studies go by the clock. The exit status is 1 if a row falls short of what is promised.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn import functional as F

import playerfl
from playerfl.experiment import Experiment
from playerfl.running import run_experiments
from playerfl.studies.memory import keep_freed_memory
from playerfl.tasks.task import own_task
from works import Work, bare_loop, cnn28, cnn32, mlp, text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", default=",".join(PARTS), help=f"some of {', '.join(PARTS)}")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()  # as the workers of a study do; good for the bare loops too
    print(f"{cpu_name()}, {os.cpu_count()} cores, torch {torch.__version__}, 1 thread, {arguments.repeats} repeats\n")
    held = [PARTS[part](arguments.repeats) for part in arguments.only.split(",")]
    sys.exit(0 if all(held) else 1)


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def row(title: str, shown: str, value: float, bound: float | None, *, most: bool = False) -> bool:
    """A line of the table; `most`: the bound is a limit from above."""
    if bound is None:
        print(f"{title:<78} {shown}", flush=True)
        return True
    holds = value <= bound if most else value >= bound
    promise = f"{'at most' if most else 'at least'} {bound:4.2f}  {'ok' if holds else 'NOT HELD'}"
    print(f"{title:<78} {shown:<26} {promise}", flush=True)
    return holds


def speed_row(
    title: str,
    ours: Callable[[], None],
    theirs: Callable[[], None],
    repeats: int,
    bound: float | None,
    scale: float = 1,
) -> bool:
    """How many times as fast ours is; `scale`: how much more work it does than theirs."""
    ratios = []
    for _ in range(repeats):
        reference = cpu_seconds(theirs)
        ratios.append(scale * reference / cpu_seconds(ours))
    middle = statistics.median(ratios)
    return row(title, f"{middle:6.2f}  ({min(ratios):.2f} to {max(ratios):.2f})", middle, bound)


def cpu_seconds(work: Callable[[], None]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def federation(
    work: Work, rounds: int, seeds: int = 1, trainer: str = "auto", keep: bool = False
) -> Callable[[], None]:
    """FedAvg by playerfl, several seeds side by side; `keep`: with run directories."""
    task = own_task(work.ours, work.sites)
    settings = {
        "rounds": rounds,
        "algorithm": "fedavg",
        "selection": "last",
        "device": "cpu",
        "trainer": trainer,
        "training": {"batch_size": work.batch, "learning_rate": 1e-3},
    }
    experiments = [Experiment.resolve({**settings, "seed": seed}, task) for seed in range(seeds)]

    def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            places = [Path(folder) / str(seed) if keep else None for seed in range(seeds)]
            run_experiments(experiments, places, task)

    return run


def rounds_rows(repeats: int) -> bool:
    print("whole rounds, one run, sites one by one (`loop`)")
    held = []
    for work, rounds, bound in ((cnn28(), 2, 1.8), (cnn32(), 2, 1.4), (text(), 3, 1.1), (mlp([200] * 4), 30, None)):
        ours = federation(work, rounds, trainer="loop")
        naive, tuned = (lambda w=work, r=rounds, t=t: bare_loop(w, r, tuned=t) for t in (False, True))  # type: ignore[misc]
        held.append(speed_row(f"{work.name}: against the usual loop", ours, naive, repeats, bound))
        tuned_bound = 1 / 1.15 if work.name == "MLP" else 1 / 1.05
        title = f"{work.name}: against a loop with our model, optimiser and layout"
        held.append(speed_row(title, ours, tuned, repeats, tuned_bound))
    return all(held)


def stacked_rows(repeats: int) -> bool:
    print(
        "\nwhole rounds of an MLP at 4 sites (303, 294, 123, 200 rows), runs side by side (`stacked`), per model-step"
    )
    work, held = mlp(), []
    for seeds, rounds, bound in ((1, 30, None), (10, 10, None), (50, 10, 9.0)):
        title = f"{4 * seeds} models: against the usual loop"
        ours, theirs = federation(work, rounds, seeds), lambda r=rounds: bare_loop(work, r)  # type: ignore[misc]
        held.append(speed_row(title, ours, theirs, repeats, bound, scale=seeds))
    kept, free = federation(work, 30, keep=True), federation(work, 30)
    title = "1 run with a checkpoint on disk after every round: against none"
    held.append(speed_row(title, kept, free, repeats, None))
    return all(held)


def probe_row(repeats: int) -> bool:
    """An epoch of FashionMNIST's network with and without the probe, batch by batch in turn."""
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
    # Neighbouring steps see the same machine, so the median of their ratios does not follow its drifts.
    ratio = statistics.median(b / a for a, b in zip(plain, probed, strict=True))
    print("\nthe probe")
    title = "FashionMNIST's network, batch 128: time with the probe / without (quickest steps)"
    return row(title, f"{ratio:6.3f}  ({min(probed) / min(plain):.3f})", ratio, 1.01, most=True)


def start_rows(repeats: int) -> bool:
    """Seconds by the clock, in new processes."""

    def seconds(*arguments: str) -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
        return time.perf_counter() - start

    one_round = "import playerfl; playerfl.run('digits', 'fedavg', rounds=1)"
    version, torch_alone, run = (
        statistics.median(seconds(*arguments) for _ in range(repeats))
        for arguments in (["-m", "playerfl.cli", "--version"], ["-c", "import torch"], ["-c", one_round])
    )
    print("\nstart-up, seconds")
    first = row("playerfl --version", f"{version:6.2f}", version, 0.5, most=True)
    title = f"a run of one round over `import torch` ({torch_alone:.2f})"
    return row(title, f"{run - torch_alone:6.2f}", run - torch_alone, 1.0, most=True) and first


def study_rows(repeats: int) -> bool:
    """Runs a minute by the clock, workers' start included, and the memory of parent and workers together."""
    settings = {
        "name": "throughput",
        "tasks": ["synthetic"],
        "algorithms": ["local", "fedavg", "ditto", "player_fl"],
        "seeds": 100,
        "settings": {"rounds": 30},
    }
    found: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(repeats):
        for workers, rates in found.items():
            with tempfile.TemporaryDirectory() as folder:
                start = time.perf_counter()
                result = playerfl.study(settings, out=Path(folder) / "study", workers=workers, quiet=True)
                rates.append(60 * len(result.results) / (time.perf_counter() - start))
    ratios = [two / one for one, two in zip(found[1], found[2], strict=True)]
    print("\na study of 400 runs (synthetic, 4 algorithms, 30 rounds)")
    for workers, rates in found.items():
        shown = f"{statistics.median(rates):6.0f}  ({min(rates):.0f} to {max(rates):.0f})"
        row(f"{workers} worker{'s' if workers > 1 else ''}: runs a minute", shown, 0, None)
    own, worker = (resource.getrusage(who).ru_maxrss / 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    row("peak memory in MB: this process, its largest worker", f"{own:6.0f}  {worker:.0f}", 0, None)
    middle = statistics.median(ratios)
    shown = f"{middle:6.2f}  ({min(ratios):.2f} to {max(ratios):.2f})"
    return row("2 workers against 1", shown, middle, 1.8)


PARTS: dict[str, Callable[[int], bool]] = {
    "rounds": rounds_rows,
    "stacked": stacked_rows,
    "probe": probe_row,
    "start": start_rows,
    "study": study_rows,
}


if __name__ == "__main__":
    main()
