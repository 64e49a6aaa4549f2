"""study: from a study file to its results; runs only what is missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playerfl.algorithms import ALGORITHMS
from playerfl.data.download.directory import use_data_directory
from playerfl.errors import ConfigError, one_of
from playerfl.runs.result import RunResult
from playerfl.runs.settings_table import read_toml
from playerfl.studies.backends.backend import Backend, Serial
from playerfl.studies.backends.group import WorkerConfig
from playerfl.studies.backends.processes import Processes, available_cores
from playerfl.studies.directory import Failure, StudyDirectory
from playerfl.studies.plan import Study
from playerfl.studies.scheduler import Scheduler, Status, StatusListener, prepare

BACKENDS = ("processes", "serial", "ray")


@dataclass(frozen=True)
class StudyResult:
    """The results of a study."""

    path: Path
    runs: dict[tuple[str, str], list[RunResult]]
    """The reported runs by task and algorithm, in the order of the study file."""
    chosen_rates: dict[tuple[str, str], float | None]
    """By task and algorithm; None if no rate could be chosen."""
    failures: list[Failure]
    tuning_notes: list[str]
    """Notes on chosen rates that are at the edge of their grid, or were close."""

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
    listener: StatusListener | None = None,
    **settings: Any,
) -> StudyResult:
    """Runs a study, or what is missing of it, and returns its results.

    `given` is a study file, the directory of an earlier study, or the same as a mapping; keyword arguments override
    it: `study(name="two", tasks=["digits"], algorithms=["local", "fedavg"], seeds=3)`. Results are saved in `out`
    (default: "runs/NAME"); calling it again runs only what is missing. `listener` is told the status every second or
    so, and can stop the study by raising `StopRun`.
    """
    from playerfl.cli.tables.study import shown_study

    plan, path = read_study(given or {}, out, settings)
    with shown_study(quiet=quiet) as shown:
        directory = run_study(
            plan,
            path,
            both(shown, listener),
            workers=workers,
            backend=backend,
            ray_address=ray_address,
            retry_failed=retry_failed,
            data_dir=None if data_dir is None else Path(data_dir),
        )
    return result_of(directory)


def both(shown: StatusListener, listener: StatusListener | None) -> StatusListener:
    """A listener that calls two, if there are two."""

    def notify(status: Status) -> None:
        shown(status)
        if listener is not None:
            listener(status)

    return notify


def read_study(
    given: Path | str | Mapping[str, Any], out: Path | str | None, settings: Mapping[str, Any] | None = None
) -> tuple[Study, Path]:
    """A study from a file, a directory or a mapping, overridden by settings; and its directory."""
    earlier = None
    if isinstance(given, Mapping):
        table = dict(given)
    else:
        earlier = Path(given) if Path(given).is_dir() else None
        if earlier and not (earlier / "study.toml").is_file():
            raise ConfigError(f"{earlier} is not the directory of a study: it has no study.toml; give a study file")
        table = Study.stored(earlier) if earlier else read_toml(Path(given))
    table |= settings or {}
    path = Path(out) if out is not None else earlier or Path("runs") / str(table.get("name"))
    if "protocol" not in table and (path / "study.toml").is_file():
        # A study that was begun under another protocol continues under it, even if the default has changed since.
        table["protocol"] = Study.stored(path)["protocol"]
    return Study.resolve(table), path


def result_of(directory: StudyDirectory) -> StudyResult:
    """The results in a study's directory."""
    rates = directory.chosen_rates
    runs = {
        (line.task, line.algorithm): directory.line_results(line, rates[line.task, line.algorithm])
        for line in directory.study.lines
    }
    return StudyResult(directory.path, runs, rates, directory.failures(rates), directory.all_tuning_notes())


def run_study(
    study: Study,
    path: Path,
    listener: StatusListener = lambda status: None,
    *,
    workers: int | None = None,
    backend: str = "processes",
    ray_address: str | None = None,
    retry_failed: bool = False,
    data_dir: Path | None = None,
) -> StudyDirectory:
    """Runs what is missing of a study in its directory; each run is saved as soon as it has finished."""
    check_backend(study, backend, ray_address)
    if workers is not None and workers < 1:
        raise ConfigError(f"workers must be at least 1, not {workers}")
    with use_data_directory(data_dir):
        prepared = prepare(study)
        directory = StudyDirectory.of(path, study, prepared.data)
        directory.begin()
        try:
            scheduler = Scheduler(directory, prepared, retry_failed=retry_failed)
            if scheduler.left:
                config = WorkerConfig(
                    study.keep_weights,
                    str((path / "unfinished").resolve()),
                    study.checkpoint_seconds,
                    None if data_dir is None else str(data_dir.resolve()),
                )
                threads = max(line.experiment.threads for line in study.lines)
                with _started(backend, workers, threads, config, ray_address) as started:
                    scheduler.run(started, listener)
        finally:
            directory.end()
    return directory


def check_backend(study: Study, backend: str, ray_address: str | None = None) -> None:
    """Rejects a backend that cannot run this study."""
    if backend not in BACKENDS:
        raise ConfigError(one_of(backend, BACKENDS, "backend"))
    if ray_address is not None and backend != "ray":
        raise ConfigError(f"a Ray address ({ray_address}) needs the backend ray, not {backend}")
    for line in study.lines:
        name = line.experiment.algorithm["name"]
        if backend != "serial" and name in ALGORITHMS and ALGORITHMS[name].__module__.split(".")[0] != "playerfl":
            raise ConfigError(
                f"algorithm {name!r} was added to ALGORITHMS in this process, so workers do not know it; "
                "put it in a file and call it FILE.py:NAME, or use the backend serial"
            )


@contextmanager
def _started(
    name: str, workers: int | None, threads: int, config: WorkerConfig, ray_address: str | None
) -> Iterator[Backend]:
    backend: Backend
    if name == "serial":
        backend = Serial(config)
    elif name == "ray":
        from playerfl.studies.backends.ray_tasks import RayTasks

        backend = RayTasks(workers, threads, config, ray_address)
    else:
        backend = Processes(workers or max(1, available_cores() // threads), config, threads)
    try:
        yield backend
    finally:
        backend.close()
