"""study: from a study file to its results; runs what is missing and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playerfl.algorithms import ALGORITHMS
from playerfl.data.download.directory import use_data_directory
from playerfl.errors import ConfigError, one_of
from playerfl.runs.experiment import read_toml
from playerfl.runs.result import RunResult
from playerfl.studies.backends.backend import Backend, Serial
from playerfl.studies.backends.group import Orders
from playerfl.studies.backends.processes import Processes, available_cores
from playerfl.studies.directory import Failure, StudyDirectory
from playerfl.studies.plan import Study
from playerfl.studies.scheduler import Campaign, Prepared, Watcher, prepare

BACKENDS = ("processes", "serial", "ray")


@dataclass(frozen=True)
class StudyResult:
    """What a study found out."""

    path: Path
    runs: dict[tuple[str, str], list[RunResult]]
    """The reported runs by task and algorithm, in the order of the study file."""
    chosen_rates: dict[tuple[str, str], float | None]
    """By task and algorithm; None where none could be chosen."""
    failures: list[Failure]

    @property
    def results(self) -> list[RunResult]:
        """All reported runs."""
        return [run for runs in self.runs.values() for run in runs]

    def __repr__(self) -> str:
        failed = f", {len(self.failures)} failures" if self.failures else ""
        return f"<StudyResult: {len(self.results)} runs{failed}, in {self.path}>"


def study(
    given: Path | str | Mapping[str, Any] | None = None,
    *,
    out: Path | str | None = None,
    workers: int | None = None,
    backend: str = "processes",
    ray_address: str | None = None,
    retry_failed: bool = False,
    data_dir: Path | str | None = None,
    quiet: bool = False,
    **settings: Any,
) -> StudyResult:
    """Runs a study, or what is missing of it, and gives its results.

    `given` is a study file, the directory of a study that was begun, or the same as a mapping; keyword arguments win
    over it: `study(name="two", tasks=["digits"], algorithms=["local", "fedavg"], seeds=3)`. Results are kept in `out`
    ("runs/NAME" if not given); calling again runs only what is not there yet.
    """
    from playerfl.cli.tables.study import shown_study

    plan, path = read_study(given or {}, out, settings)
    with use_data_directory(None if data_dir is None else Path(data_dir)), shown_study(quiet=quiet) as watch:
        found = conduct(
            prepare(plan),
            path,
            watch,
            workers=workers,
            backend=backend,
            ray_address=ray_address,
            retry_failed=retry_failed,
            data_dir=None if data_dir is None else Path(data_dir),
        )
    return result_of(found)


def read_study(
    given: Path | str | Mapping[str, Any], out: Path | str | None, settings: Mapping[str, Any] | None = None
) -> tuple[Study, Path]:
    """A study from a file, a directory or a mapping, with settings that win over it; and where it is kept."""
    begun = None
    if isinstance(given, Mapping):
        table = dict(given)
    else:
        begun = Path(given) if Path(given).is_dir() else None
        if begun and not (begun / "study.toml").is_file():
            raise ConfigError(f"{begun} is not the directory of a study: it has no study.toml; give a study file")
        table = read_toml(begun / "study.toml" if begun else Path(given))
    plan = Study.resolve({**table, **(settings or {})})
    return plan, Path(out) if out is not None else begun or Path("runs") / plan.name


def result_of(directory: StudyDirectory) -> StudyResult:
    """What is in a study's directory, read once."""
    rates = directory.chosen_rates
    runs = {
        (line.task, line.algorithm): directory.line_results(line, rates[line.task, line.algorithm])
        for line in directory.study.lines
    }
    return StudyResult(directory.path, runs, rates, directory.failures(rates))


def conduct(
    prepared: Prepared,
    path: Path,
    watch: Watcher = lambda status: None,
    *,
    workers: int | None = None,
    backend: str = "processes",
    ray_address: str | None = None,
    retry_failed: bool = False,
    data_dir: Path | None = None,
) -> StudyDirectory:
    """Runs what is missing of a study in its directory; every finished run is kept at once."""
    check_backend(prepared.study, backend, ray_address)
    if workers is not None and workers < 1:
        raise ConfigError(f"workers must be at least 1, not {workers}")
    directory = StudyDirectory.of(path, prepared.study, prepared.data)
    directory.begin()
    try:
        campaign = Campaign(directory, prepared, retry_failed=retry_failed)
        if campaign.left:
            orders = Orders(
                prepared.study.keep_weights,
                str((path / "unfinished").resolve()),
                prepared.study.checkpoint_seconds,
                None if data_dir is None else str(data_dir.resolve()),
            )
            threads = max(line.experiment.threads for line in prepared.study.lines)
            with _started(backend, workers, threads, orders, ray_address) as started:
                campaign.run(started, watch)
    finally:
        directory.end()
    return directory


def check_backend(study: Study, backend: str, ray_address: str | None = None) -> None:
    """Refuses what cannot run this study."""
    if backend not in BACKENDS:
        raise ConfigError(one_of(backend, BACKENDS, "backend"))
    if ray_address is not None and backend != "ray":
        raise ConfigError(f"a Ray address ({ray_address}) goes with the backend ray, not {backend}")
    for line in study.lines:
        name = line.experiment.algorithm["name"]
        if backend != "serial" and name in ALGORITHMS and ALGORITHMS[name].__module__.split(".")[0] != "playerfl":
            raise ConfigError(
                f"algorithm {name!r} was added to ALGORITHMS in this process, workers do not know it; "
                "keep it in a file and call it FILE.py:NAME, or take the backend serial"
            )


@contextmanager
def _started(
    name: str, workers: int | None, threads: int, orders: Orders, ray_address: str | None
) -> Iterator[Backend]:
    backend: Backend
    if name == "serial":
        backend = Serial(orders)
    elif name == "ray":
        from playerfl.studies.backends.ray_tasks import RayTasks

        backend = RayTasks(workers, threads, orders, ray_address)
    else:
        backend = Processes(workers or max(1, available_cores() // threads), orders, threads)
    try:
        yield backend
    finally:
        backend.close()
