"""`playerfl analyze`: how layers generalise, whether the cut is the best one, and whether it stays."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from playerfl.cli.options import DataDir, Json, Quiet
from playerfl.errors import ConfigError
from playerfl.storage.atomic_files import RERUN_HINT, make_directory, write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from playerfl.runs.run import Listener
    from playerfl.tasks.task import Task
    from playerfl.weights import Weights

ANALYZE_EXAMPLES = """
[bold]Examples[/bold]

  playerfl analyze heart --seeds 3 --out heart-layers

  playerfl analyze fashion_mnist --set data.size=small --rounds 20

  playerfl analyze runs/compared/fedavg

  playerfl analyze heart --sweep --rounds 15 --seeds 5

  playerfl analyze heart --drift 5 --rounds 50
"""


def analyze(
    target: Annotated[str, typer.Argument(metavar="RUN_OR_TASK")],
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Train at every cut instead; regret of the chosen one.")
    ] = False,
    drift: Annotated[
        int | None, typer.Option(metavar="K", help="Measure sensitivity every K rounds instead: does the cut move?")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Communication rounds.")] = None,
    seeds: Annotated[int | None, typer.Option(help="How many seeds; 1, or 3 with --sweep, if not given.")] = None,
    seed: Annotated[int | None, typer.Option(help="The first of the seeds.")] = None,
    federated: Annotated[
        str | None, typer.Option(help="The algorithm of the third moment; fedavg, or a run's own models, if not given.")
    ] = None,
    rows: Annotated[int, typer.Option(help="Examples of each site for the Hessian.")] = 256,
    probes: Annotated[int, typer.Option(help="Random vectors of Hutchinson's estimate.")] = 32,
    hessian: Annotated[str, typer.Option(help="auto, exact, hutchinson or repo_hv_nuclear.")] = "auto",
    cka: Annotated[str, typer.Option(help="centred, debiased or printed (the paper's formula).")] = "centred",
    maps: Annotated[str, typer.Option(help="Convolution maps in CKA: flatten or mean.")] = "flatten",
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where figures and JSON go; TASK-analysis else.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any setting of an experiment file, e.g. data.size=small."),
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Look at layers as the paper does: gradient variance, Hessian, CKA and sensitivity, at three moments of training.

    RUN_OR_TASK is whatever `playerfl run` takes, or the directory of a finished run: its settings are taken, and its
    models for the moment after federated training. --sweep and --drift ask other questions instead.
    """
    from playerfl.data.download.directory import use_data_directory

    if sweep and drift is not None:
        raise ConfigError("--sweep and --drift are two questions; ask one at a time")
    count = (3 if sweep else 1) if seeds is None else seeds
    if count < 1:
        raise ConfigError(f"--seeds must be at least 1, not {count}")
    if drift is not None and count > 1:
        raise ConfigError("--drift follows one run; leave --seeds out")
    options = _options(rows, probes, hessian, cka, maps)
    with use_data_directory(data_dir):
        task, given, models, first = _target(target)
        own = {**given, **_settings(settings or [], rounds)}
        start = first if seed is None else seed
        every = range(start, start + count)
        place = out or Path(f"{Path(task.name).name.partition(':')[0]}-analysis")
        if sweep:
            make_directory(place)
            content, figures, show = _swept(task, own, every, quiet)
        elif drift is not None:
            make_directory(place)
            content, figures, show = _drifted(task, own, drift, start, quiet)
        else:
            third = _third_moment(target, models, federated, changed=own != given or every != range(first, first + 1))
            make_directory(place)
            content, figures, show = _analyzed(task, own, every, third, options, quiet)
    _keep(place, content, figures)
    if as_json:
        from playerfl.report.compute.comparison import without_nan

        typer.echo(json.dumps(without_nan(content[1]), indent=1))
    else:
        show()


Content = tuple[str, dict[str, Any]]
"""The name of a JSON file and what goes into it."""
Figures = Callable[[], Iterator[tuple[str, "Figure"]]]
Answer = tuple[Content, Figures, Callable[[], None]]


def _settings(assignments: list[str], rounds: int | None) -> dict[str, Any]:
    from playerfl.runs.experiment import parse_setting

    found = dict(map(parse_setting, assignments))
    return found if rounds is None else {**found, "rounds": rounds}


def _target(target: str) -> tuple[Task, dict[str, Any], Mapping[str, Weights] | None, int]:
    """A task, the settings of a run, its models if they are federated, and its seed."""
    from playerfl.runs.experiment import find_task

    path = Path(target)
    if (path / "comparison.json").is_file():
        runs = sorted(str(folder.parent) for folder in path.glob("*/experiment.toml"))
        raise ConfigError(f"{target} holds several runs; give one of them: {', '.join(runs)}")
    if not (path / "experiment.toml").is_file():
        return find_task(target), {}, None, 0
    from playerfl.runs.api import load_result

    result = load_result(path)
    kept = ("rounds", "bn_stats", "tie_policy", "device", "threads", "training", "data")
    given = {key: result.experiment[key] for key in kept if key in result.experiment}
    models = None if result.algorithm == "local" else result.weights
    return find_task(result.experiment["task"]), given, models, int(result.experiment["seed"])


def _third_moment(
    target: str, models: Mapping[str, Weights] | None, federated: str | None, *, changed: bool
) -> str | Mapping[str, Weights]:
    """The algorithm to train with, or the models of a run that has."""
    from playerfl.algorithms import ALGORITHMS
    from playerfl.errors import one_of

    if federated is not None and federated not in ALGORITHMS:
        raise ConfigError(one_of(federated, ALGORITHMS, "--federated"))
    if federated is not None or models is None:
        return federated or "fedavg"
    if changed:
        raise ConfigError(
            f"{target} was trained with its own seed and settings, and its models stand for the third moment; leave "
            "--seed, --seeds, --rounds and --set out, or say --federated fedavg to train anew"
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


def _analyzed(task: Task, settings: dict[str, Any], seeds: range, federated: Any, options: Any, quiet: bool) -> Answer:
    from playerfl.analysis.layer_analysis import analyze_layers
    from playerfl.cli.tables.analysis import print_analysis

    with _stages(quiet) as watch:
        found = analyze_layers(task, seeds=seeds, federated=federated, settings=settings, options=options, watch=watch)

    def figures() -> Iterator[tuple[str, Figure]]:
        from playerfl.analysis.figures import FIGURES, correlation_figure, overview_figure, quantity_figure

        yield "overview", overview_figure(found)[0]
        for quantity in FIGURES:
            yield quantity, quantity_figure(found, quantity)[0]
        yield "correlation", correlation_figure(found)[0]

    return ("analysis", found.to_json()), figures, lambda: print_analysis(found)


def _swept(task: Task, settings: dict[str, Any], seeds: range, quiet: bool) -> Answer:
    from playerfl.analysis.sweep import sweep_cuts
    from playerfl.cli.progress import counted
    from playerfl.cli.tables.analysis import print_sweep

    with ExitStack() as bars:
        found = sweep_cuts(
            task,
            seeds=seeds,
            settings=settings,
            watch=lambda total: bars.enter_context(counted("runs", total, quiet=quiet, lines=True)),
        )

    def figures() -> Iterator[tuple[str, Figure]]:
        from playerfl.analysis.figures import sweep_figure

        yield "sweep", sweep_figure(found)[0]

    return ("sweep", found.to_json()), figures, lambda: print_sweep(found)


def _drifted(task: Task, settings: dict[str, Any], every: int, seed: int, quiet: bool) -> Answer:
    from playerfl.analysis.drift import monitor_drift
    from playerfl.cli.progress import shown_progress
    from playerfl.cli.tables.analysis import print_drift
    from playerfl.runs.experiment import Experiment

    rounds = Experiment.resolve(
        {"task": task.name, **{k: v for k, v in settings.items() if k == "rounds"}}, task
    ).rounds
    if every >= rounds:
        raise ConfigError(f"--drift {every} measures nothing again in {rounds} rounds; give more rounds or a smaller K")
    with shown_progress({"player_fl": rounds}, quiet=quiet) as listener:
        found = monitor_drift(task, every=every, seed=seed, settings=settings, listener=listener)

    def figures() -> Iterator[tuple[str, Figure]]:
        from playerfl.analysis.figures import drift_figure

        yield "drift", drift_figure(found)[0]

    return ("drift", found.to_json()), figures, lambda: print_drift(found)


@contextmanager
def _stages(quiet: bool) -> Iterator[Callable[[str, int], tuple[Listener | None, Callable[[], None]]]]:
    """A bar (or lines) for whatever begins, in place of the one before."""
    from playerfl.cli.progress import counted
    from playerfl.runs.run import Progress

    with ExitStack() as bars:

        def watch(what: str, steps: int) -> tuple[Listener | None, Callable[[], None]]:
            bars.close()
            tick = bars.enter_context(counted(what, steps, quiet=quiet, lines=True))
            seen = 0

            def listen(progress: Progress) -> None:
                nonlocal seen
                while seen < progress.round:
                    seen += 1
                    tick()

            return listen, tick

        yield watch


def _keep(out: Path, content: Content, figures: Figures) -> None:
    from playerfl.report.compute.comparison import without_nan

    name, tree = content
    write_atomically(out / f"{name}.json", (json.dumps(without_nan(tree), indent=1) + "\n").encode(), RERUN_HINT)
    written = [f"{name}.json"]
    try:
        from playerfl.report.plots.comparison import save

        for title, figure in figures():
            save(figure, out / f"{title}.png")
            written.append(f"{title}.png")
    except ImportError:
        typer.echo("no figures were made: matplotlib is missing; pip install 'playerfl[report]'", err=True)
    typer.echo(f"kept in {out}: {', '.join(written)}", err=True)
