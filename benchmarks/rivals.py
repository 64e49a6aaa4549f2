"""playerfl against other frameworks on the same workloads, on one core, in one interleaved run.

    make bench-rivals
    python benchmarks/rivals.py [--quick] [--only flwr,fedlab] [--works cnn,mlp,seeds] [--repeats 2] [--core 0]
                                [--pfllib DIR] [--flbench DIR]

Needs the package registry the first time: each rival is installed into a separate environment in .venv-rivals (a
gigabyte and a few minutes each), which is reused while it is intact. PFLlib and FL-bench are not on the registry: give
the folders of their clones (or set PFLLIB and FLBENCH); without, they are left out. Every run is a new process on one
core with one thread. A run of a bare PyTorch loop comes before and after every three others; ratios are relative to
these. The workloads (FedAvg, AdamW 1e-3, one local epoch, evaluation of every site's validation and test part each
round) are in rivals/work.py; rivals/run_*.py shows how each framework is configured. In `seeds`, FedAvg is compared
with FedProx at two strengths, ten seeds each: the others loop over the 30 runs, playerfl runs them as a study. A rival
is measured twice: in its best configuration with the training code from its documentation, and (except in `seeds`) with
the optimisations that playerfl applies by itself (fused AdamW, channels-last convolutions) added by hand.

The table goes to stdout, progress to stderr. The exit status is 0 if playerfl's goals hold: every rival takes at least
1.5 (cnn), 2 (mlp) or 8 (seeds) times its processor time, and those tuned by hand no less than playerfl. It is 1 if one
does not, if a rival could not be measured, or if a run did not learn what the bare loop learns; a rival whose clone was
not given does not count. On one core, wall time is processor time plus waiting: for messages, which is the framework's
fault, or for the core, which is not. playerfl never waits, so its lead in processor time is the smaller claim, and a
busy machine disturbs it less.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from bounds import cpu_name
from playerfl.studies.backends.memory import large_pages
from rival_environments import RIVALS, BrokenError, date_of, how_to_get, python_of, say
from rival_table import GOALS, TUNED, Contender, Measured, Row, not_the_same, table, verdict

HERE = Path(__file__).resolve().parent
TIME_LIMIT = 1800.0
FEWER = {"mlp": ("--rounds", "6"), "seeds": ("--seeds", "1")}
"""What slow rivals do of a work."""
BETWEEN_BARE_LOOPS = 3
NO_BYTECODE = ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX")
"""Settings under which Python ignores the bytecode that pip installed, so that start-up would be compilation."""


def measure(contender: Contender, work: str, core: int) -> Measured:
    """Runs a contender once, alone on its core; leaves no process and no file behind."""
    script = HERE / "rivals" / contender.script
    command = [str(contender.python), str(script), work, *contender.flags]
    # A short path, because Ray puts its sockets there.
    with tempfile.TemporaryDirectory(prefix="rivals-") as folder, Path(folder, "log").open("w+") as log:
        quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
        one_thread = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        # Processes that a framework starts import the modules beside the script, too.
        places = {"FLWR_HOME": folder, "RAY_TMPDIR": folder, "PYTHONPATH": str(script.parent)}
        inherited = {name: value for name, value in os.environ.items() if name not in NO_BYTECODE}
        started = time.monotonic()
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**inherited, **quiet, **one_thread, **places, **contender.environment},
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
    seconds = result["wall"] / result["rounds"]
    return Measured(
        seconds=seconds,
        cpu=result["cpu"] / result["rounds"],
        start_up=result["first"] - started - seconds if len(result["losses"]) == 1 else math.nan,
        memory=memory / 1e6,
        version=result["version"].partition("+")[0],
        losses=tuple(tuple(losses) for losses in result["losses"]),
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


def contenders(
    work: str, pythons: dict[str, Path | BrokenError], clones: dict[str, Path], *, quick: bool = False
) -> list[Row]:
    """Every row except the bare loop's, in the order of the table."""
    this_python = Path(sys.executable)
    rows = [
        Row(Contender("bare loop, tuned", "run_bare.py", this_python, TUNED)),
        # A study starts its workers with these.
        Row(
            Contender("playerfl", "run_playerfl.py", this_python, environment=large_pages() if work == "seeds" else {})
        ),
    ]
    for name, python in pythons.items():
        slow = RIVALS[name].slow
        flags = ("--source", str(clones[name])) if name in clones else ()
        flags += FEWER.get(work, ()) if slow else ()
        version = date_of(clones[name]) if name in clones else ""
        for tuned in [(), TUNED] if work != "seeds" and not (quick and slow) else [()]:
            where = Path() if isinstance(python, BrokenError) else python
            title = f"{name}, tuned" if tuned else name
            row = Row(Contender(title, f"run_{name}.py", where, (*tuned, *flags), name, version, once=slow))
            row.problem = str(python) if isinstance(python, BrokenError) else ""
            rows.append(row)
    return rows


def interleaved(work: str, rows: list[Row], repeats: int, core: int) -> list[Row]:
    """All rows, of which the bare loop's comes first; no run is far from one of the bare loop."""
    bare = Row(Contender("bare loop", "run_bare.py", Path(sys.executable)))
    queue = [row for repeat in range(repeats) for row in rows if not (repeat and row.contender.once)]
    begun, done = time.monotonic(), 0
    bare.runs.append(measure(bare.contender, work, core))
    for start in range(0, len(queue), BETWEEN_BARE_LOOPS):
        measured: list[tuple[Row, Measured]] = []
        for row in queue[start : start + BETWEEN_BARE_LOOPS]:
            done += 1
            if row.problem:
                continue
            try:
                measured.append((row, measure(row.contender, work, core)))
            except BrokenError as problem:
                row.problem = str(problem)
                say(f"{work}: {row.contender.title}: {problem}")
        bare.runs.append(measure(bare.contender, work, core))
        before, after = bare.runs[-2:]
        for row, run in measured:
            row.runs.append(run)
            row.wall_ratios.append(run.seconds / statistics.mean([before.seconds, after.seconds]))
            row.cpu_ratios.append(run.cpu / statistics.mean([before.cpu, after.cpu]))
        shown = ", ".join(f"{row.contender.title} {row.cpu_ratios[-1]:.2f}" for row, _ in measured)
        left = (time.monotonic() - begun) / done * (len(queue) - done) / 60
        say(f"{work} {done}/{len(queue)}: {shown}; about {left:.0f} min left")
    # Relative to its median, so that its spread shows the noise of the machine.
    bare.wall_ratios = [run.seconds / bare.middle("seconds") for run in bare.runs]
    bare.cpu_ratios = [run.cpu / bare.middle("cpu") for run in bare.runs]
    for row in rows:
        row.problem = row.problem or not_the_same(row, bare)
    return [bare, *rows]


def machine() -> str:
    import torch

    software = f"torch {torch.__version__}, Python {platform.python_version()}"
    return (
        f"{cpu_name()}, {os.cpu_count()} cores, 1 used, 1 thread, {torch.backends.cpu.get_cpu_capability()}, {software}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(RIVALS), help="rivals, separated by commas (default: %(default)s)")
    parser.add_argument("--works", default=",".join(GOALS), help="separated by commas (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="one repeat, and slow rivals only as their docs say")
    parser.add_argument(
        "--core", type=int, default=max(os.sched_getaffinity(0)), help="the core to run on (default: %(default)s)"
    )
    for name, rival in RIVALS.items():
        if rival.repository:
            parser.add_argument(f"--{name}", type=Path, default=os.environ.get(name.upper()), metavar="DIR")
    given = parser.parse_args()
    chosen, works = given.only.split(","), given.works.split(",")
    for name, allowed in [(name, list(RIVALS)) for name in chosen] + [(work, list(GOALS)) for work in works]:
        if name not in allowed:
            parser.error(f"{name!r} is not one of {', '.join(allowed)}")
    clones, left_out = {}, []
    for name in [name for name in chosen if RIVALS[name].repository]:
        clone = getattr(given, name)
        if clone is None:
            left_out.append(name)
        elif not (clone / RIVALS[name].proof).is_file():
            parser.error(f"{clone} is not a clone of {RIVALS[name].repository}: it has no {RIVALS[name].proof}")
        else:
            clones[name] = clone.resolve()
    # This process waits and measures on the other cores, if there are any.
    os.sched_setaffinity(0, os.sched_getaffinity(0) - {given.core} or {given.core})

    pythons: dict[str, Path | BrokenError] = {}
    for name in [name for name in chosen if name not in left_out]:
        try:
            pythons[name] = python_of(name, RIVALS[name])
        except BrokenError as problem:
            pythons[name] = problem
            say(f"{name}: {problem}")
    repeats = 1 if given.quick else given.repeats
    print(f"{machine()}, {repeats} repeat{'s' if repeats > 1 else ''}", flush=True)
    for name in left_out:
        print(f"{name}: {how_to_get(name)}", flush=True)
    held = []
    for work in works:
        rows = interleaved(work, contenders(work, pythons, clones, quick=given.quick), repeats, given.core)
        print(f"\n{work}\n\n{table(rows)}\n", flush=True)
        held.append(verdict(work, rows))
    sys.exit(0 if all(held) else 1)


if __name__ == "__main__":
    main()
