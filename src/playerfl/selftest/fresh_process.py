"""A run in a new process in which sets come in another order: `python -m playerfl.selftest.fresh_process NAME`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence

from playerfl.algorithms import ALGORITHMS
from playerfl.runs.api import limited_threads
from playerfl.selftest.small import mlp, sites
from playerfl.selftest.subject import BrokenError, Outcome, Subject
from playerfl.tasks.load import names_object

_TRIES = 30


class FreshProcess:
    """The same run in a new process, which works while the other checks run."""

    def __init__(self, names: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, *names],
            env={**os.environ, "PYTHONHASHSEED": other_hash_seed()},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def outcomes(self, seconds: float) -> dict[str, Outcome]:
        """What the runs gave, by name of the algorithm."""
        try:
            output, problems = self._process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise BrokenError(f"a run in a new process did not finish within {seconds:g} s") from None
        if self._process.returncode:
            last = (problems.strip().splitlines() or ["it printed nothing"])[-1]
            raise BrokenError(f"it fails in a new process, where sets are in a different order: {last}")
        by_name = json.loads(output.splitlines()[-1])
        return {name: Outcome([tuple(row) for row in one["rows"]], one["models"]) for name, one in by_name.items()}

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def can_be_found(name: str) -> bool:
    """Whether another process finds the algorithm of this name: not one that was only registered in this one."""
    return names_object(name) or (name in ALGORITHMS and ALGORITHMS[name].__module__.startswith("playerfl."))


def other_hash_seed() -> str:
    """A seed of Python's string hashes for which sets of sites and of entries begin and end differently from here."""
    strings = [list(sites()), list(mlp().state_dict())]
    here = [list(set(names)) for names in strings]
    program = f"import json; print(json.dumps([list(set(names)) for names in {strings!r}]))"
    for seed in map(str, range(1, _TRIES)):
        output = subprocess.run(
            [sys.executable, "-S", "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        there = json.loads(output)
        if all(one[0] != other[0] and one[-1] != other[-1] for one, other in zip(here, there, strict=True)):
            return seed
    return "1"


def main(names: Sequence[str]) -> None:
    with limited_threads(1):
        outcomes = {name: Outcome.of(Subject(name).run("dropout")) for name in names}
    sys.stdout.write(json.dumps({name: {"rows": o.rows, "models": o.models} for name, o in outcomes.items()}))


if __name__ == "__main__":
    main(sys.argv[1:])
