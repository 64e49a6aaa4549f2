"""Time and memory of `playerfl data check` on 1,000,000 rows x 50 columns at 5 sites: `make bench`, or run it alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd

SITES, ROWS, COLUMNS = 5, 200_000, 50
MOST_SECONDS, MOST_GIB = 60, 2


def write_sites(folder: Path, rows: int = ROWS) -> None:
    """45 measurements, 4 categories and an outcome; one site uses other units, and a code for missing values."""
    for number in range(SITES):
        rng = np.random.default_rng(number)
        columns = {f"lab{i}": rng.normal(10 * (i + 1), 1 + i, rows).round(3) for i in range(COLUMNS - 5)}
        columns |= {f"group{i}": rng.choice(["first", "second", "third"], rows) for i in range(4)}
        columns["lab0"] *= 18 if number == 0 else 1
        columns["lab1"][::1000] = -999
        pd.DataFrame(columns).assign(outcome=rng.integers(0, 2, rows)).to_csv(folder / f"site{number}.csv", index=False)


def measured() -> tuple[float, float, float, list[str]]:
    """Processor seconds, wall seconds, GiB at its largest, and the topics of what was found."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "sites"
        folder.mkdir()
        write_sites(folder)
        command = [sys.executable, "-m", "playerfl", "data", "check", str(folder), "--json"]
        started = time.perf_counter()
        with (Path(place) / "found.json").open("wb") as found:
            process = subprocess.Popen(command, stdout=found, cwd=place)
            _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - started
        if process.returncode != 0:
            sys.exit(f"data check failed with exit code {process.returncode}")
        findings = json.loads((Path(place) / "found.json").read_text())["findings"]
        topics = sorted({finding["topic"] for finding in findings})
        return used.ru_utime + used.ru_stime, seconds, used.ru_maxrss / 2**20, topics


if __name__ == "__main__":
    processor, wall, gib, topics = measured()
    print(f"{processor:.1f} s of processor time, {wall:.1f} s, {gib:.2f} GiB; found: {', '.join(topics)}")
    sys.exit(0 if processor <= MOST_SECONDS and gib <= MOST_GIB else 1)
