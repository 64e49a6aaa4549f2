"""Time and memory of `playerfl data check` on 1,000,000 rows x 50 columns at 5 sites: `make bench`, or run it alone."""

from __future__ import annotations

import json
import os
import resource
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


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "sites"
        folder.mkdir()
        write_sites(folder)
        size = sum(file.stat().st_size for file in folder.iterdir())
        started = time.perf_counter()
        command = [sys.executable, "-m", "playerfl", "data", "check", str(folder), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ, cwd=place)
        seconds = time.perf_counter() - started
        gib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
        topics = sorted({finding["topic"] for finding in json.loads(done.stdout)["findings"]})
        print(
            f"data check: {SITES * ROWS:,} rows x {COLUMNS} columns at {SITES} sites ({size / 2**20:.0f} MiB of CSV): "
            f"{seconds:.1f} s (limit {MOST_SECONDS}), {gib:.2f} GiB (limit {MOST_GIB}); found: {', '.join(topics)}"
        )
        if seconds > MOST_SECONDS or gib > MOST_GIB:
            sys.exit(1)


if __name__ == "__main__":
    main()
