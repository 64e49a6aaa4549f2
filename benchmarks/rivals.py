"""playerfl against other frameworks on the same two workloads, on one core, in one interleaved run.

    make bench-rivals
    python benchmarks/rivals.py [--only flwr,fedlab] [--works cnn,mlp] [--repeats 3] [--core 0]

Needs the package registry the first time: each rival is installed into a separate environment in .venv-rivals (a
gigabyte and a few minutes each), which is reused while it is intact. Every run is a new process on one core with one
thread, between two runs of a bare PyTorch loop; ratios are relative to these. The workloads (FedAvg, AdamW 1e-3, one
local epoch, evaluation of every site's validation and test part each round) are in rivals/work.py; rivals/run_*.py
shows how each framework is configured. A rival is measured twice: in its best configuration with the training code
from its documentation, and with the optimisations that playerfl applies by itself (fused AdamW, channels-last
convolutions) added by hand.

The table goes to stdout, progress to stderr. The exit status is 0 if playerfl is ahead of every rival on every workload
by processor time, and otherwise 1, even if only because a rival could not be measured or a run did not learn what the
bare loop learns.
Rivals tuned by hand are compared in the last line but do not count, because their steps then run the same kernels as
playerfl's. On one core, wall time is processor time plus waiting: for messages, which is the framework's fault, or for
the core, which is not. playerfl never waits, so its lead in processor time is the smaller claim, and a busy machine
disturbs it less.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import json
import math
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent
ENVIRONMENTS = PROJECT / ".venv-rivals"
TIME_LIMIT = 1800.0
SEEDS_SIDE_BY_SIDE = 50
TUNED = ("--tuned",)


@dataclass(frozen=True)
class Rival:
    distribution: str
    version: str
    steps: tuple[tuple[str, ...], ...]
    """What pip installs, call by call, after torch."""

    @property
    def fingerprint(self) -> str:
        recipe = [sys.version, self.steps, (PROJECT / "constraints.txt").read_text(encoding="utf-8")]
        return hashlib.sha256(json.dumps(recipe).encode()).hexdigest()


RIVALS = {
    "flwr": Rival("flwr", "1.41.0", (("flwr[simulation]==1.41.0", "psutil"),)),
    "pfl": Rival("pfl", "0.6.0", (("pfl==0.6.0",),)),
    # Its requirements include torchvision, which would install another torch; the others are listed by hand.
    "fedlab": Rival(
        "fedlab",
        "1.3.0",
        (("numpy", "pandas", "scikit-learn", "pillow", "pynvml", "tqdm", "setuptools"), ("--no-deps", "fedlab==1.3.0")),
    ),
}


@dataclass(frozen=True)
class Contender:
    """A row of the table: a script, the Python that runs it, and its arguments."""

    title: str
    script: str
    python: Path
    flags: tuple[str, ...] = ()
    rival: str | None = None


@dataclass
class Measured:
    """One run of a contender."""

    seconds: float
    """Wall seconds per round and run: the median over rounds."""
    cpu: float
    """Processor seconds per round and run, over all its processes."""
    start_up: float
    """From the start of the process to the end of its first round, minus a typical round; for single runs only."""
    memory: float
    """Peak resident memory in MB, summed over its processes."""
    version: str
    losses: tuple[float, ...]
    """Mean validation loss after each round."""
    steps: int | None


class BrokenError(Exception):
    """An environment that cannot be built, or a failed run; the table shows the message."""


@dataclass
class Row:
    contender: Contender
    runs: list[Measured] = field(default_factory=list)
    wall_ratios: list[float] = field(default_factory=list)
    cpu_ratios: list[float] = field(default_factory=list)
    problem: str = ""

    def middle(self, what: str) -> float:
        return statistics.median(getattr(run, what) for run in self.runs)


def python_of(name: str, rival: Rival) -> Path:
    """The Python of a rival's environment, which is built if it is missing, out of date or broken."""
    home = ENVIRONMENTS / name
    python = home / "bin" / "python"
    stamp = home / ".complete"
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == rival.fingerprint and _works(python, rival):
        return python
    shutil.rmtree(home, ignore_errors=True)
    say(f"{name}: building {home.relative_to(PROJECT)} (a few minutes)")
    log = ENVIRONMENTS / f"{name}.log"
    log.parent.mkdir(exist_ok=True)
    log.unlink(missing_ok=True)
    _logged([sys.executable, "-m", "venv", str(home)], log)
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "-c", str(PROJECT / "constraints.txt")]
    # torch first, so that later packages do not install another build.
    for packages in (("torch",), *rival.steps):
        _logged([*pip, *packages], log)
    if not _works(python, rival):
        raise BrokenError(f"{rival.distribution} {rival.version} was installed but cannot be imported; see {log}")
    stamp.write_text(rival.fingerprint, encoding="utf-8")
    return python


def _works(python: Path, rival: Rival) -> bool:
    code = f"import torch, importlib.metadata as m; print(m.version({rival.distribution!r}))"
    try:
        done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=False)
    except OSError:
        return False
    return done.returncode == 0 and done.stdout.strip() == rival.version


def _logged(command: Sequence[str], log: Path) -> None:
    with log.open("a", encoding="utf-8") as out:
        done = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        errors = [line for line in log.read_text(encoding="utf-8").splitlines() if line.startswith("ERROR")]
        raise BrokenError(
            f"cannot be installed: {errors[-1] if errors else 'pip failed'} (see {log.relative_to(PROJECT)})"
        )


def measure(contender: Contender, work: str, core: int) -> Measured:
    """Runs a contender once, alone on its core; leaves no process and no file behind."""
    command = [str(contender.python), str(HERE / "rivals" / contender.script), work, *contender.flags]
    # A short path, because Ray puts its sockets there.
    with tempfile.TemporaryDirectory(prefix="rivals-") as folder, Path(folder, "log").open("w+") as log:
        quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
        one_thread = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        places = {"FLWR_HOME": folder, "RAY_TMPDIR": folder}
        started = time.monotonic()
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **quiet, **one_thread, **places},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: os.sched_setaffinity(0, {core}),
        )
        memory = _watched(process, started + TIME_LIMIT)
        log.seek(0)
        output = log.read().splitlines()
    results = [line.removeprefix("RESULT ") for line in output if line.startswith("RESULT ")]
    if process.returncode or not results:
        if time.monotonic() - started > TIME_LIMIT:
            raise BrokenError(f"run failed: not done after {TIME_LIMIT:.0f} s")
        if process.returncode < 0:
            raise BrokenError(f"run failed: killed by signal {-process.returncode}")
        raise BrokenError(f"run failed: {(output or ['without output'])[-1][:200]}")
    result = json.loads(results[-1])
    marks, runs = result["marks"], result["runs"]
    rounds = [after - before for before, after in itertools.pairwise(marks)]
    usual = statistics.median(rounds)
    return Measured(
        seconds=usual / runs,
        cpu=result["cpu"] / len(rounds) / runs,
        start_up=marks[0] - started - usual if runs == 1 else math.nan,
        memory=memory / 1e6,
        version=result["version"].partition("+")[0],
        losses=tuple(result["losses"]),
        steps=result["steps"],
    )


def _watched(process: subprocess.Popen[bytes], deadline: float) -> int:
    """Waits for a run to end, or ends it and its children at the deadline; returns its peak memory in bytes."""
    peak = 0
    seen: set[psutil.Process] = set()
    try:
        top = psutil.Process(process.pid)
        while process.poll() is None:
            if time.monotonic() > deadline:
                process.kill()
            with contextlib.suppress(psutil.NoSuchProcess):
                family = {top, *top.children(recursive=True)}
                seen |= family
                peak = max(peak, sum(_resident(member) for member in family))
            time.sleep(0.2)
    finally:
        # psutil compares start times too, so a process with a reused ID is left alone.
        for member in seen:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        psutil.wait_procs(seen, timeout=10)
        process.wait()
    return peak


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


def contenders(name_of_work: str, pythons: dict[str, Path | BrokenError]) -> list[Row]:
    """Every row except the bare loop's, in the order of the table."""
    this_python = Path(sys.executable)
    rows = [
        Row(Contender("bare loop, tuned", "run_bare.py", this_python, TUNED)),
        Row(Contender("playerfl", "run_playerfl.py", this_python)),
    ]
    if name_of_work == "mlp":
        side_by_side = ("--runs", str(SEEDS_SIDE_BY_SIDE))
        title = f"playerfl, {SEEDS_SIDE_BY_SIDE} seeds, per run"
        rows.append(Row(Contender(title, "run_playerfl.py", this_python, side_by_side)))
    for name, python in pythons.items():
        where = Path() if isinstance(python, BrokenError) else python
        for title, flags in ((name, ()), (f"{name}, tuned", TUNED)):
            row = Row(Contender(title, f"run_{name}.py", where, flags, name))
            row.problem = str(python) if isinstance(python, BrokenError) else ""
            rows.append(row)
    return rows


def interleaved(work: str, rows: list[Row], repeats: int, core: int) -> list[Row]:
    """All rows; every run is between two runs of the bare loop, whose row comes first."""
    bare = Row(Contender("bare loop", "run_bare.py", Path(sys.executable)))
    total, done, begun = repeats * sum(not row.problem for row in rows), 0, time.monotonic()
    bare.runs.append(measure(bare.contender, work, core))
    for _ in range(repeats):
        for row in rows:
            if row.problem:
                continue
            try:
                run = measure(row.contender, work, core)
            except BrokenError as problem:
                row.problem = str(problem)
                total -= 1
                continue
            bare.runs.append(measure(bare.contender, work, core))
            before, after = bare.runs[-2:]
            row.runs.append(run)
            row.wall_ratios.append(run.seconds / statistics.mean([before.seconds, after.seconds]))
            row.cpu_ratios.append(run.cpu / statistics.mean([before.cpu, after.cpu]))
            done += 1
            left = (time.monotonic() - begun) / done * (total - done) / 60
            say(f"{work} {done}/{total}: {row.contender.title} {row.wall_ratios[-1]:.2f}, {left:.0f} min left")
    # Relative to its median, so that its spread shows the noise of the machine.
    bare.wall_ratios = [run.seconds / bare.middle("seconds") for run in bare.runs]
    bare.cpu_ratios = [run.cpu / bare.middle("cpu") for run in bare.runs]
    for row in rows:
        row.problem = row.problem or not_the_same(row, bare)
    return [bare, *rows]


def not_the_same(row: Row, bare: Row) -> str:
    """How a contender's learning differs from the bare loop's; "" if steps and losses are the same.

    Rivals see the same batches from the same weights. After the first round only rounding differs, so that a wrong step
    would show; later rounds amplify it (channels-last convolutions and a different order of sites in the average round
    differently). playerfl draws its own batches, which would change the bare loop's loss by a few per cent too.
    """
    expected = bare.runs[0]
    for run in row.runs:
        if run.steps not in (None, expected.steps):
            return f"took {run.steps} steps, the bare loop {expected.steps}"
        for when, number, tolerance in (("first", 0, 0.001), ("last", -1, 0.05)):
            loss, reference = run.losses[number], expected.losses[number]
            if not abs(loss / reference - 1) <= (tolerance if row.contender.rival else 0.1):
                return f"validation loss {loss:.4f} after the {when} round, the bare loop {reference:.4f}"
    return ""


def table(rows: list[Row]) -> str:
    head = ("framework", "version", "s/round", "wall ratio", "CPU ratio", "start-up s", "MB", "validation loss")
    lines = [head, tuple("---" for _ in head)]
    for row in rows:
        title = row.contender.title
        if row.problem:
            lines.append((title, row.problem, *[""] * 6))
            continue
        lines.append(
            (
                title,
                row.runs[0].version,
                f"{row.middle('seconds'):.4f}",
                spread(row.wall_ratios),
                spread(row.cpu_ratios),
                "" if math.isnan(row.middle("start_up")) else f"{row.middle('start_up'):.1f}",
                f"{row.middle('memory'):.0f}",
                f"{row.runs[0].losses[-1]:.4f}",
            )
        )
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def spread(ratios: list[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def verdict(work: str, rows: list[Row]) -> tuple[bool, str]:
    """Whether playerfl, one run at a time, beats every rival, and by how much at least."""
    playerfl = next(row for row in rows if row.contender.title == "playerfl")
    rivals = [row for row in rows if row.contender.rival]
    missing = [row.contender.title for row in (playerfl, *rivals) if row.problem]
    if missing:
        return False, f"{work}: cannot tell whether playerfl is ahead: no result for {', '.join(missing)}"

    def lead(row: Row, ratios: str) -> float:
        return statistics.median(getattr(row, ratios)) / statistics.median(getattr(playerfl, ratios))

    def closest(flags: tuple[str, ...]) -> tuple[float, str]:
        group = [row for row in rivals if row.contender.flags == flags]
        first = min(group, key=lambda row: lead(row, "cpu_ratios"))
        wall = min(lead(row, "wall_ratios") for row in group)
        least = lead(first, "cpu_ratios")
        return least, f"by a factor of at least {least:.2f} ({first.contender.rival}; by wall time {wall:.2f})"

    least, said = closest(())
    _, tuned = closest(TUNED)
    whether = "ahead" if least > 1 else "NOT ahead"
    return least > 1, f"{work}: playerfl is {whether} of every rival {said}; of those tuned by hand {tuned}"


def machine() -> str:
    import torch

    model = platform.processor() or platform.machine()
    information = Path("/proc/cpuinfo")
    if information.is_file():
        names = [line for line in information.read_text(encoding="utf-8").splitlines() if line.startswith("model name")]
        model = names[0].partition(":")[2].strip() if names else model
    software = f"torch {torch.__version__}, Python {platform.python_version()}"
    return f"{model}, {os.cpu_count()} cores, 1 used, 1 thread, {torch.backends.cpu.get_cpu_capability()}, {software}"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(RIVALS), help="rivals, separated by commas (default: %(default)s)")
    parser.add_argument("--works", default="cnn,mlp", help="separated by commas (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--core", type=int, default=max(os.sched_getaffinity(0)), help="the core to run on (default: %(default)s)"
    )
    given = parser.parse_args()
    chosen, works = given.only.split(","), given.works.split(",")
    for name, allowed in [(name, list(RIVALS)) for name in chosen] + [(work, ["cnn", "mlp"]) for work in works]:
        if name not in allowed:
            parser.error(f"{name!r} is not one of {', '.join(allowed)}")
    # This process waits and measures on the other cores, if there are any.
    os.sched_setaffinity(0, os.sched_getaffinity(0) - {given.core} or {given.core})

    pythons: dict[str, Path | BrokenError] = {}
    for name in chosen:
        try:
            pythons[name] = python_of(name, RIVALS[name])
        except BrokenError as problem:
            pythons[name] = problem
            say(f"{name}: {problem}")
    print(f"{machine()}, {given.repeats} repeats", flush=True)
    ahead = True
    for work in works:
        rows = interleaved(work, contenders(work, pythons), given.repeats, given.core)
        won, said = verdict(work, rows)
        ahead = ahead and won
        print(f"\n{work}\n\n{table(rows)}\n\n{said}", flush=True)
    sys.exit(0 if ahead else 1)


if __name__ == "__main__":
    main()
