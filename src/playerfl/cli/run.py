"""`playerfl run`: one or more algorithms on a task, side by side."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from playerfl.cli.messages import say
from playerfl.cli.options import DataDir, Json, Quiet, Settings, StopAfter, examples
from playerfl.cli.watch import watched
from playerfl.data.download.directory import use_data_directory
from playerfl.errors import ConfigError, one_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from playerfl.engine.transport import Transport
    from playerfl.report.compute.comparison import AlgorithmSummary
    from playerfl.runs.directory import RunDirectory
    from playerfl.runs.experiment import Experiment
    from playerfl.runs.result import RunResult
    from playerfl.runs.run import Listener, Run

_ENGINES = ("in-process", "flower-simulation")

RUN_EXAMPLES = examples(
    "run digits --algorithm player_fl --rounds 30 --seed 0 --out runs/first",
    "run digits -a local -a fedavg -a player_fl --out runs/compared",
    "run digits -a fedper --set algorithm.personal_layers=2 --set training.batch_size=32",
    "run digits -a local -a player_fl --set player_fl.threshold=2",
    "run ./hospitals --model mymodel.py:make_model",
    "run ./hospitals -a local -a fedavg --set data.target=outcome",
    "run digits -a fedavg --tensorboard logs",
    "run --config experiment.toml --json > result.json",
    "run digits -a local -a fedavg --open",
    "run --resume runs/first",
)


def run(
    task: Annotated[str | None, typer.Argument()] = None,
    task_option: Annotated[
        str | None, typer.Option("--task", metavar="TASK", help="Same as the argument TASK.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py:NAME",
            help="A function that builds your own model, instead of the task's; it may take inputs and outputs.",
        ),
    ] = None,
    algorithm: Annotated[
        list[str] | None,
        typer.Option(
            "--algorithm",
            "-a",
            help="Algorithm (default: player_fl); can be repeated, to compare several side by side.",
        ),
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Communication rounds (default: the task's).")] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed for initial weights, batch order and dropout (default: 0).")
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="Learning rate of every site's optimiser (default: the task's).")
    ] = None,
    sites: Annotated[
        int | None, typer.Option(help="Number of sites, for tasks that partition their data (default: the task's).")
    ] = None,
    alpha: Annotated[
        float | None,
        typer.Option(help="Dirichlet label skew; a smaller value makes sites differ more (default: the task's)."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Run directory (default: the next free one under runs/).")] = None,
    settings: Settings = None,
    config: Annotated[Path | None, typer.Option(help="Experiment file (TOML); options override it.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Continue an interrupted run or comparison.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the runs in --out.")] = False,
    device: Annotated[str | None, typer.Option(help="auto (default), cpu, cuda or mps.")] = None,
    data_dir: DataDir = None,
    engine: Annotated[
        str, typer.Option(help="in-process, or flower-simulation (on Ray, one site per CPU).")
    ] = "in-process",
    tensorboard: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also write scores and the layer profile for TensorBoard.")
    ] = None,
    mlflow: Annotated[
        str | None,
        typer.Option(
            metavar="DIR|URL", help="Also write scores and the layer profile for MLflow, to a directory or a server."
        ),
    ] = None,
    stop_after: StopAfter = None,
    open_: Annotated[
        bool, typer.Option("--open", help="Open a page in your browser that shows the progress, and then the report.")
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train one or more algorithms on a task and show what each site gains.

    TASK is a name (see `playerfl list tasks`), a folder with one file per site, or FILE.py:NAME for a task of your
    own.
    """
    if task is not None and task_option is not None:
        raise ConfigError(f"give the task once, not as {task!r} and as --task {task_option!r}")
    given = {
        "task": task if task is not None else task_option,
        "model": model,
        "rounds": rounds,
        "seed": seed,
        "training.learning_rate": learning_rate,
        "data.sites": sites,
        "data.alpha": alpha,
        "device": device,
    }
    if resume is not None:
        if config or out or overwrite or algorithm or settings or any(v is not None for v in given.values()):
            raise ConfigError("--resume continues a run as it was started; give no other settings with it")
        home = resume
        experiments, places = _reopened(resume)
    else:
        experiments = _experiments(given, algorithm or [], settings or [], config)
        home = out or _next_free(Path("runs"), experiments)
        places = [*_places(experiments, home)]
    with use_data_directory(data_dir), watched(home, wanted=open_):
        observers = _observers(tensorboard, mlflow, stop_after)
        warnings = _show_check(experiments[0]) if resume is None and not quiet else []
        results = _run_all(experiments, places, home, engine, observers, overwrite=overwrite, quiet=quiet)
        _keep_warnings(results, warnings)
    _show(results, home, as_json=as_json)


def _show_check(experiment: Experiment) -> list[str]:
    """Checks a folder's data before training; other tasks are checked by `playerfl data check`.

    Returns the warnings, for the report.
    """
    from playerfl.tasks.load import load_task

    task = load_task(experiment.task)
    if task.check is None:
        return []
    from playerfl.cli.tables.data_check import print_short_check
    from playerfl.tasks.check import check_task

    check = check_task(task, experiment.data_options(task), experiment.training.batch_size)
    # What stops training is refused in one sentence as soon as the data are loaded.
    if not check.having("stop"):
        print_short_check(check)
    return [f"{f.text} [{f.setting}]" if f.setting else f.text for f in check.having("warning")]


def _keep_warnings(results: Sequence[RunResult], warnings: list[str]) -> None:
    from playerfl.runs.directory import RunDirectory

    for result in results:
        if warnings and result.path is not None:
            RunDirectory(result.path).note_warnings(warnings)


def _experiments(
    given: dict[str, Any], algorithms: list[str], settings: list[str], config: Path | None
) -> list[Experiment]:
    from playerfl.runs.experiment import Experiment
    from playerfl.runs.settings_table import read_toml, with_settings

    if len(set(algorithms)) != len(algorithms):
        raise ConfigError(f"each algorithm may be given only once, not {', '.join(algorithms)}")
    table = read_toml(config) if config else {}
    table = with_settings(table, {key: value for key, value in given.items() if value is not None})
    chosen = with_settings(
        table, [s for s in settings if s.partition("=")[0].strip() in ("algorithm", "algorithm.name")]
    )
    names = algorithms or [_name_in(chosen)]
    common, by_algorithm = _by_algorithm(settings, names)
    table = with_settings(table, common)
    if (
        len(algorithms) > 1
        and isinstance(table.get("algorithm"), dict)
        and (more := table["algorithm"].keys() - {"name"})
    ):
        raise ConfigError(
            f"algorithm.{min(more)} would be set for all {len(algorithms)} algorithms; name one of them, as in "
            f"--set {algorithms[-1]}.{min(more)}=…"
        )
    return [
        Experiment.resolve(with_settings({**table, "algorithm": _named(table, name)}, by_algorithm[name]))
        for name in names
    ]


def _by_algorithm(settings: list[str], algorithms: list[str]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The settings of all runs, and those that begin with an algorithm's name, by algorithm."""
    from playerfl.algorithms import ALGORITHMS
    from playerfl.runs.settings_table import parse_setting

    common: dict[str, Any] = {}
    by_algorithm: dict[str, dict[str, Any]] = {name: {} for name in algorithms}
    for key, value in map(parse_setting, settings):
        name = next((name for name in (*algorithms, *ALGORITHMS) if key.startswith(f"{name}.")), None)
        if name is None:
            common.pop(key, None)  # the last one wins
            common[key] = value
        elif name not in by_algorithm:
            raise ConfigError(f"{key} is a setting of {name}, which is not run here; add -a {name}")
        else:
            rest = key.removeprefix(f"{name}.")
            # How an algorithm trains may differ too; everything else is the same for all, or they cannot be compared.
            by_algorithm[name][rest if rest.startswith("training.") else f"algorithm.{rest}"] = value
    return common, by_algorithm


def _name_in(table: dict[str, Any]) -> str:
    given = table.get("algorithm", {})
    return str(given.get("name", "player_fl") if isinstance(given, dict) else given)


def _named(table: dict[str, Any], name: str) -> dict[str, Any]:
    options = table.get("algorithm", {})
    return {**(options if isinstance(options, dict) else {}), "name": name}


def _next_free(folder: Path, experiments: list[Experiment]) -> Path:
    names = "-".join(experiment.algorithm["name"] for experiment in experiments)
    stem = f"{experiments[0].task_file_name}-{names}-seed{experiments[0].seed}"
    number = 1
    while (folder / f"{stem}-{number}").exists():
        number += 1
    return folder / f"{stem}-{number}"


def _places(experiments: list[Experiment], home: Path) -> list[Path]:
    if len(experiments) == 1:
        return [home]
    return [home / experiment.algorithm["name"] for experiment in experiments]


def _reopened(path: Path) -> tuple[list[Experiment], list[RunDirectory | Path]]:
    """One run, or all runs of a comparison; those without a directory get one."""
    from playerfl.runs.api import read_comparison, reopen_directory

    compared = None if (path / "experiment.toml").exists() else read_comparison(path)
    if compared is None:
        experiment, directory = reopen_directory(path)
        return [experiment], [directory]
    places: list[RunDirectory | Path] = []
    with ExitStack() as failing:
        for place in _places(compared, path):
            if not (place / "experiment.toml").exists():
                places.append(place)
                continue
            directory = reopen_directory(place)[1]
            failing.enter_context(directory.unlocked_on_failure())
            places.append(directory)
    return compared, places


def _observers(tensorboard: Path | None, mlflow: str | None, stop_after: float | None) -> list[Listener]:
    observers: list[Listener] = []
    if tensorboard is not None:
        from playerfl.observers.tensorboard import TensorBoardObserver

        observers.append(TensorBoardObserver(tensorboard))
    if mlflow is not None:
        from playerfl.observers.mlflow import MLflowObserver

        observers.append(MLflowObserver(mlflow))
    if stop_after is not None:
        from playerfl.observers.stopping import TimeBudget

        observers.append(TimeBudget(60 * stop_after))
    return observers


def _run_all(
    experiments: list[Experiment],
    places: list[RunDirectory | Path],
    home: Path,
    engine: str,
    observers: list[Listener],
    *,
    overwrite: bool,
    quiet: bool,
) -> list[RunResult]:
    from playerfl.cli.progress import shown_progress
    from playerfl.observers import together
    from playerfl.runs.api import run_experiments
    from playerfl.runs.run import StopRun

    if engine not in _ENGINES:
        raise ConfigError(one_of(engine, _ENGINES, "engine"))

    try:
        with shown_progress({e.algorithm["name"]: e.rounds for e in experiments}, quiet=quiet) as listener:
            compared = home if len(experiments) > 1 else None
            listeners = together(listener, *observers)

            def work(transport_for: Callable[[Run], Transport] | None) -> list[RunResult]:
                return run_experiments(
                    experiments,
                    places,
                    None,
                    listeners,
                    overwrite=overwrite,
                    home=compared,
                    transport_for=transport_for,
                )

            if engine == "in-process":
                return work(None)
            from playerfl.flower.simulation import simulate

            return simulate(experiments, home, work)
    except (KeyboardInterrupt, StopRun) as stopped:
        say(f"{str(stopped) or 'interrupted'}; nothing is lost: continue with  playerfl run --resume {home}")
        sys.exit(130)


def _show(results: list[RunResult], home: Path, *, as_json: bool) -> None:
    from playerfl.report.compute import comparison
    from playerfl.report.compute.comparison import without_nan

    summaries = comparison.compare(results)
    if as_json:
        runs = [comparison.as_json(r, s) for r, s in zip(results, summaries, strict=True)]
        print(json.dumps(without_nan({"runs": runs}), indent=1))
    else:
        from playerfl.cli.tables.comparison import print_comparison, print_cut, print_unseen

        for result in results:
            print_cut(result)
        baseline = comparison.baseline_average(results[0])
        print_comparison(summaries, results[0].experiment["selection"], baseline)
        metrics = summaries[0].metrics
        print_unseen(
            [
                (result.algorithm, site, {metric: scores[metric] for metric in metrics})
                for result in results
                for site, scores in result.unseen_scores.items()
            ]
        )
    for note in dict.fromkeys(note for result in results for note in result.data["notes"]):
        say(f"note: {note}")
    for result in results:
        if result.diverged:
            say(f"note: {result.algorithm} diverged (its loss became NaN); try a smaller learning rate")
    # One method without a cut would be a figure of what the table says, and importing matplotlib takes longer than
    # a round.
    if len(results) > 1 or results[0].cut is not None:
        _draw(results, summaries, home / "comparison.png")
    say(f"results: {home}")


def _draw(results: list[RunResult], summaries: list[AlgorithmSummary], file: Path) -> None:
    try:
        from playerfl.report.plots.comparison import save_comparison
    except ImportError:
        say("no figure was drawn: matplotlib is missing; pip install 'playerfl[report]'")
    else:
        say(f"figure: {save_comparison(results, summaries, file)}")
