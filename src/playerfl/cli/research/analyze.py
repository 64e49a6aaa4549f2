"""`playerfl analyze`: how layers generalise, how good the recommended cut is, and whether it moves."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from playerfl.cli.options import DataDir, Json, Quiet, Settings, examples
from playerfl.errors import ConfigError
from playerfl.storage.atomic_files import RERUN_HINT, make_directory, write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from playerfl.runs.run import Listener
    from playerfl.tasks.task import Task
    from playerfl.weights import Weights

ANALYZE_EXAMPLES = examples(
    "analyze heart --seeds 3 --out heart-layers",
    "analyze fashion_mnist --set data.size=small --rounds 20",
    "analyze runs/compared/fedavg",
    "analyze heart --sweep --rounds 15 --seeds 5",
    "analyze heart --drift 5 --rounds 50",
)


def analyze(
    target: Annotated[str, typer.Argument(metavar="RUN_OR_TASK")],
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Train with every cut instead, to see how good the recommended one is.")
    ] = False,
    drift: Annotated[
        int | None,
        typer.Option(metavar="K", help="Measure sensitivity every K rounds instead, to see whether the cut moves."),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(help="Communication rounds (default: the task's, or the run's).")
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Number of seeds (default: 1; 3 with --sweep).")] = None,
    seed: Annotated[int | None, typer.Option(help="First seed (default: 0, or the run's).")] = None,
    federated: Annotated[
        str | None, typer.Option(help="Algorithm for federated training (default: fedavg, or the run's own models).")
    ] = None,
    rows: Annotated[int, typer.Option(help="Examples per site for the Hessian.")] = 256,
    probes: Annotated[int, typer.Option(help="Random vectors for Hutchinson's estimate.")] = 32,
    hessian: Annotated[
        str,
        typer.Option(
            help="Hessian method: auto, exact, hutchinson or repo_hv_nuclear (what the authors' code computes)."
        ),
    ] = "auto",
    cka: Annotated[str, typer.Option(help="CKA formula: centred, debiased, or printed (as in the paper).")] = "centred",
    maps: Annotated[str, typer.Option(help="How CKA treats convolution maps: flatten or mean.")] = "flatten",
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Directory for figures and JSON (default: TASK-analysis).")
    ] = None,
    settings: Settings = None,
    data_dir: DataDir = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Analyse layers as in the paper: gradient variance, Hessian, CKA and sensitivity at three points in training.

    RUN_OR_TASK is any task that `playerfl run` accepts, or the directory of a finished run. In the
    latter case, that run's settings are used, and its models for the point after federated training.
    """
    from playerfl.data.download.directory import use_data_directory

    if sweep and drift is not None:
        raise ConfigError("--sweep and --drift answer different questions; use one at a time")
    count = (3 if sweep else 1) if seeds is None else seeds
    if count < 1:
        raise ConfigError(f"--seeds must be at least 1, not {count}")
    if drift is not None and count > 1:
        raise ConfigError("--drift follows a single run; leave --seeds out")
    options = _options(rows, probes, hessian, cka, maps)
    with use_data_directory(data_dir):
        task, given, models, first = _target(target)
        chosen = {**given, **_settings(settings or [], rounds)}
        start = first if seed is None else seed
        every = range(start, start + count)
        place = out or Path(f"{Path(task.name).name.partition(':')[0]}-analysis")
        if sweep:
            make_directory(place)
            answer = _swept(task, chosen, every, quiet)
        elif drift is not None:
            make_directory(place)
            answer = _drifted(task, chosen, drift, start, quiet)
        else:
            changed = chosen != given or every != range(first, first + 1)
            third = _third_moment(target, models, federated, changed=changed)
            make_directory(place)
            answer = _analyzed(task, chosen, every, third, options, quiet)
    _write(place, answer)
    if as_json:
        from playerfl.report.compute.comparison import without_nan

        typer.echo(json.dumps(without_nan(answer.content), indent=1))
    else:
        answer.show()


@dataclass(frozen=True)
class Analysed:
    """The result of one of the three analyses: a JSON file, figures by name, and tables for the terminal."""

    name: str
    content: dict[str, Any]
    figures: Callable[[], Iterator[tuple[str, Figure]]]
    show: Callable[[], None]


def _settings(assignments: list[str], rounds: int | None) -> dict[str, Any]:
    from playerfl.runs.settings_table import parse_setting

    settings = dict(map(parse_setting, assignments))
    return settings if rounds is None else {**settings, "rounds": rounds}


def _target(target: str) -> tuple[Task, dict[str, Any], Mapping[str, Weights] | None, int]:
    """A task, the settings of a run, its models if they were trained together, and its seed."""
    from playerfl.tasks.load import load_task

    path = Path(target)
    if (path / "comparison.json").is_file():
        runs = sorted(str(folder.parent) for folder in path.glob("*/experiment.toml"))
        raise ConfigError(f"{target} holds several runs; choose one: {', '.join(runs)}")
    if not (path / "experiment.toml").is_file():
        return load_task(target), {}, None, 0
    from playerfl.runs.api import load_result

    result = load_result(path)
    kept = ("rounds", "bn_stats", "tie_policy", "granularity", "device", "threads", "training", "data")
    given = {key: result.experiment[key] for key in kept if key in result.experiment}
    models = None if result.algorithm == "local" else result.weights
    return load_task(result.experiment["task"]), given, models, int(result.experiment["seed"])


def _third_moment(
    target: str, models: Mapping[str, Weights] | None, federated: str | None, *, changed: bool
) -> str | Mapping[str, Weights]:
    """The algorithm to train with, or the models of a finished run."""
    from playerfl.algorithms import ALGORITHMS
    from playerfl.errors import one_of

    if federated is not None and federated not in ALGORITHMS:
        raise ConfigError(one_of(federated, ALGORITHMS, "--federated"))
    if federated is not None or models is None:
        return federated or "fedavg"
    if changed:
        raise ConfigError(
            f"{target} already has models for its seed and settings; leave out --seed, --seeds, --rounds and "
            "--set, or give --federated fedavg to train new ones"
        )
    return models


def _options(rows: int, probes: int, hessian: str, cka: str, maps: str) -> Any:
    from playerfl.analysis.hessian import METHODS
    from playerfl.analysis.layer_analysis import AnalysisOptions
    from playerfl.errors import one_of

    for value, allowed, option in (
        (hessian, METHODS, "--hessian"),
        (cka, ("centred", "debiased", "printed"), "--cka"),
        (maps, ("flatten", "mean"), "--maps"),
    ):
        if value not in allowed:
            raise ConfigError(one_of(value, allowed, option))
    for number, least, option in ((rows, 1, "--rows"), (probes, 2, "--probes")):
        if number < least:
            raise ConfigError(f"{option} must be at least {least}, not {number}")
    return AnalysisOptions(rows=rows, probes=probes, method=hessian, formula=cka, maps=maps)  # type: ignore[arg-type]


def _analyzed(
    task: Task, settings: dict[str, Any], seeds: range, federated: Any, options: Any, quiet: bool
) -> Analysed:
    from playerfl.analysis.layer_analysis import analyze_layers
    from playerfl.cli.tables.analysis import print_analysis

    with _stages(quiet) as watch:
        analysis = analyze_layers(
            task, seeds=seeds, federated=federated, settings=settings, options=options, watch=watch
        )

    def figures() -> Iterator[tuple[str, Figure]]:
        from playerfl.analysis.figures import FIGURES, correlation_figure, overview_figure, quantity_figure

        yield "overview", overview_figure(analysis)[0]
        for quantity in FIGURES:
            yield quantity, quantity_figure(analysis, quantity)[0]
        yield "correlation", correlation_figure(analysis)[0]

    return Analysed("analysis", analysis.to_json(), figures, lambda: print_analysis(analysis))


def _swept(task: Task, settings: dict[str, Any], seeds: range, quiet: bool) -> Analysed:
    from playerfl.analysis.sweep import sweep_cuts
    from playerfl.cli.progress import step_counter
    from playerfl.cli.tables.analysis import print_sweep

    with ExitStack() as bars:
        sweep = sweep_cuts(
            task,
            seeds=seeds,
            settings=settings,
            watch=lambda total: bars.enter_context(step_counter("runs", total, quiet=quiet, lines=True)),
        )

    def figures() -> Iterator[tuple[str, Figure]]:
        from playerfl.analysis.figures import sweep_figure

        yield "sweep", sweep_figure(sweep)[0]

    return Analysed("sweep", sweep.to_json(), figures, lambda: print_sweep(sweep))


def _drifted(task: Task, settings: dict[str, Any], every: int, seed: int, quiet: bool) -> Analysed:
    from playerfl.analysis.drift import monitor_drift
    from playerfl.cli.progress import shown_progress
    from playerfl.cli.tables.analysis import print_drift
    from playerfl.runs.experiment import Experiment

    rounds = Experiment.resolve(
        {"task": task.name, **{k: v for k, v in settings.items() if k == "rounds"}}, task
    ).rounds
    if every >= rounds:
        raise ConfigError(f"--drift {every} measures only once in {rounds} rounds; give more rounds or a smaller K")
    with shown_progress({"player_fl": rounds}, quiet=quiet) as listener:
        drift = monitor_drift(task, every=every, seed=seed, settings=settings, listener=listener)

    def figures() -> Iterator[tuple[str, Figure]]:
        from playerfl.analysis.figures import drift_figure

        yield "drift", drift_figure(drift)[0]

    return Analysed("drift", drift.to_json(), figures, lambda: print_drift(drift))


@contextmanager
def _stages(quiet: bool) -> Iterator[Callable[[str, int], tuple[Listener | None, Callable[[], None]]]]:
    """A progress bar (or lines) for each stage, replacing that of the stage before."""
    from playerfl.cli.progress import step_counter
    from playerfl.runs.run import Progress

    with ExitStack() as bars:

        def watch(what: str, steps: int) -> tuple[Listener | None, Callable[[], None]]:
            bars.close()
            tick = bars.enter_context(step_counter(what, steps, quiet=quiet, lines=True))
            shown = 0

            def listen(progress: Progress) -> None:
                nonlocal shown
                for _ in range(shown, progress.round):
                    tick()
                shown = max(shown, progress.round)

            return listen, tick

        yield watch


def _write(out: Path, answer: Analysed) -> None:
    from playerfl.report.compute.comparison import without_nan

    written = [f"{answer.name}.json"]
    text = json.dumps(without_nan(answer.content), indent=1) + "\n"
    write_atomically(out / written[0], text.encode(), RERUN_HINT)
    try:
        from playerfl.report.plots.comparison import save

        for title, figure in answer.figures():
            save(figure, out / f"{title}.png")
            written.append(f"{title}.png")
    except ImportError:
        typer.echo("no figures were drawn: matplotlib is missing; pip install 'playerfl[report]'", err=True)
    typer.echo(f"saved in {out}: {', '.join(written)}", err=True)
