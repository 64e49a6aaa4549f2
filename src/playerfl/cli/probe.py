"""`playerfl probe`: which layers of a model to share, and how certain that is."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from playerfl.cli.options import DataDir, Json, Quiet, Settings, Sites, examples
from playerfl.errors import ConfigError, DataError, PlayerflError
from playerfl.probe.stored import save_figure, scores_of, stored_probe_at, write_probe
from playerfl.storage.atomic_files import make_directory

if TYPE_CHECKING:
    from torch import nn

    from playerfl.analysis.verify import Verification
    from playerfl.layers.layer_map import LayerMap
    from playerfl.layers.recommendation import Recommendation
    from playerfl.probe.measure import Measurement
    from playerfl.tasks.task import Task

PROBE_EXAMPLES = examples(
    "probe mymodule:make_model --data mymodule:make_sites",
    "probe heart --seeds 5 --out heart-cut",
    "probe runs/compared/player_fl --rule max_jump",
    "probe heart-cut --threshold 10 --json > cut.json",
)


def probe(
    target: Annotated[str, typer.Argument()],
    data: Sites = None,
    loss: Annotated[
        str | None,
        typer.Option(metavar="MODULE:NAME", help="Your model's loss(output, targets) (default: cross-entropy)."),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Number of seeds (initial model and batch order).")] = 1,
    seed: Annotated[int, typer.Option(help="First seed.")] = 0,
    learning_rate: Annotated[
        float | None, typer.Option(help="Learning rate at every site (default: the task's, or 0.001).")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Batch size at every site (default: the task's, or 32).")
    ] = None,
    rule: Annotated[
        str | None,
        typer.Option(
            help="Decision rule: layer_ratio, cumulative_ratio or max_jump (default: layer_ratio, or as stored)."
        ),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(help="Jumps above this count as a transition (default: the rule's own, or as stored)."),
    ] = None,
    normalise: Annotated[
        str | None,
        typer.Option(help="Normalise each site's scores: none, first_layer or last (default: none, or as stored)."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Save scores, recommendation, figure and exports here.")
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Save the figure here (.png, .svg, .pdf).")
    ] = None,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Then train with this cut and its alternatives, and compare them on validation data (3 seeds, or as "
            "many as --seeds).",
        ),
    ] = False,
    settings: Settings = None,
    data_dir: DataDir = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure one epoch at every site and recommend which layers to share, with the evidence.

    TARGET is a function that builds your model, as MODULE:NAME or FILE.py:NAME, together with --data; or any task that
    `playerfl run` accepts; or the directory of a finished run or an earlier --out, whose scores are reused, not
    measured again.
    """
    from playerfl.data.download.directory import use_data_directory

    decision = {"rule": rule, "threshold": threshold, "normalise": normalise}
    changes = {key: value for key, value in decision.items() if value is not None}
    training = {"training.learning_rate": learning_rate, "training.batch_size": batch_size}
    given = [f"{key}={value}" for key, value in training.items() if value is not None]
    if seeds < 1:
        raise ConfigError(f"--seeds must be at least 1, not {seeds}")
    # Checked before anything is measured: an epoch at every site may take hours.
    _check_decision(rule, threshold, normalise)
    if figure is not None:
        _check_figure_file(figure)
    verification: Verification | None = None
    tried = range(seed, seed + (seeds if seeds > 1 else 3))
    stored = stored_probe_at(Path(target))
    if stored is not None:
        if verify:
            raise ConfigError(
                f"{target} holds stored scores; --verify trains, so give the task or the model and --data"
            )
        if data or loss or settings or given or seeds > 1 or seed:
            raise ConfigError(
                f"{target} holds scores that have already been measured; leave out --data, --loss, --seed, --seeds, "
                "--learning-rate, --batch-size and --set"
            )
        reread = stored(changes)
        recommendation, scores, verify_seconds = reread.recommendation, reread.scores, None
        for note in reread.notes:
            typer.echo(f"note: {note}", err=True)
    else:
        if out is not None:
            make_directory(out)
        with use_data_directory(data_dir):
            every = range(seed, seed + seeds)
            chosen = [*given, *(settings or [])]
            measured, held_out = _tasks(target, data, loss)
            measurement = _measure(measured, data, loss, every, chosen, quiet=quiet, shown=not (as_json or quiet))
            recommendation, scores = measurement.recommend(**changes), scores_of(measurement, target, changes)
            verify_seconds = _cost(held_out, recommendation, measurement, tried, chosen, verify=verify)
            if verify:
                verification = _verify(held_out, recommendation, tried, chosen, quiet=quiet)
    # Files first: piping the table into `head` ends this process.
    if out is not None:
        files = write_probe(out, recommendation, scores, verification.to_json() if verification else None)
        try:
            files.append(save_figure(recommendation, out / "recommendation.png").name)
        except ImportError:
            typer.echo("no figure was drawn: matplotlib is missing; pip install 'playerfl[report]'", err=True)
        typer.echo(f"saved in {out}: {', '.join(files)}", err=True)
    if figure is not None:
        typer.echo(f"figure: {save_figure(recommendation, figure)}", err=True)
    if as_json:
        content = recommendation.to_json()
        content["verify_seconds"] = verify_seconds
        if verification:
            content["verification"] = verification.to_json()
        typer.echo(json.dumps(content, indent=1))
    else:
        from playerfl.cli.tables.layers import print_recommendation

        print_recommendation(recommendation, verify_seconds, verification, verify_seeds=len(tried))


def _verify(
    task: Task, recommendation: Recommendation, seeds: range, settings: list[str], *, quiet: bool
) -> Verification:
    from playerfl.analysis.verify import verify_cut
    from playerfl.cli.progress import step_counter

    with ExitStack() as bars:
        return verify_cut(
            task,
            recommendation,
            seeds=seeds,
            settings=settings,
            watch=lambda total: bars.enter_context(step_counter("verifying runs", total, quiet=quiet, lines=True)),
        )


def _cost(
    task: Task,
    recommendation: Recommendation,
    measurement: Measurement,
    seeds: range,
    settings: list[str],
    *,
    verify: bool,
) -> float | None:
    """Seconds that --verify takes, shown before it starts; None if it is not known or not needed."""
    from playerfl.analysis.verify import cuts_to_verify
    from playerfl.analysis.verify_cost import verification_seconds
    from playerfl.time_left import duration

    settled = recommendation.verdict == "clear" or len(recommendation.cut.layers) == 1
    if measurement.seconds_per_example is None or (settled and not verify):
        return None
    per_example = measurement.seconds_per_example
    try:
        seconds = verification_seconds(task, recommendation, per_example, seeds=len(seeds), settings=settings)
    except PlayerflError:
        if verify:
            raise
        return None  # too few rows to hold some out, or settings that a sweep refuses: --verify would say so
    if verify:
        runs = len(seeds) * len(cuts_to_verify(recommendation))
        typer.echo(f"verifying with {runs} runs: about {duration(seconds)}", err=True)
    return seconds


def _check_decision(rule: str | None, threshold: float | None, normalise: str | None) -> None:
    from playerfl.errors import one_of
    from playerfl.layers.cut import check_rule
    from playerfl.layers.recommend import NORMALISATIONS, RULES

    for value, allowed, option in ((rule, RULES, "--rule"), (normalise, NORMALISATIONS, "--normalise")):
        if value is not None and value not in allowed:
            raise ConfigError(one_of(value, allowed, option))
    if threshold is not None:
        check_rule(rule or "layer_ratio", threshold, "all")


def _check_figure_file(file: Path) -> None:
    try:
        from playerfl.report.plots.comparison import check_figure_file
    except ImportError as problem:
        raise ConfigError("figures need matplotlib; pip install 'playerfl[report]'") from problem
    check_figure_file(file)


def _tasks(target: str, data: str | None, loss: str | None) -> tuple[Task, Task]:
    """The task to measure, which trains on all data, and the one to verify on, which holds some of them out."""
    from playerfl.learning.losses import cross_entropy
    from playerfl.tasks.load import load_object
    from playerfl.tasks.named_models import built_model, check_reference, loaded_sites, task_or_builder
    from playerfl.tasks.task import Task, own_task, unsplit_task

    named = task_or_builder(target)
    if isinstance(named, Task):
        if data or loss:
            raise ConfigError(f"{target} is a task with its own data and loss; leave out --data and --loss")
        return named, named
    if data is None:
        raise ConfigError(f"{target} is a model; name the sites' data too, as in --data mymodule:make_sites")
    loss_function = None if loss is None else load_object(check_reference(loss, "--loss"))
    if loss is not None and not callable(loss_function):
        raise ConfigError(f"{loss} is {type(loss_function).__name__}; it must be a function loss(output, targets)")

    def build() -> nn.Module:
        return built_model(named, target)

    sites = loaded_sites(data)
    held_out = own_task(
        build, sites, name=target, loss=loss_function or cross_entropy, metrics=None if loss is None else {}
    )
    return unsplit_task(build, sites, loss_function, name=target), held_out


def _measure(
    task: Task,
    data: str | None,
    loss: str | None,
    seeds: range,
    settings: list[str],
    *,
    quiet: bool,
    shown: bool,
) -> Measurement:
    from playerfl.cli.progress import step_counter
    from playerfl.cli.tables.console import wide_console
    from playerfl.cli.tables.layers import print_layers
    from playerfl.probe.measure import probe_sites

    with ExitStack() as bars:

        def show(model: nn.Module, layers: LayerMap, sites: int) -> Callable[[], None]:
            if shown:
                console = wide_console(stderr=True)
                print_layers(layers, console, title=f"Layers of {type(model).__name__}, input to output")
            return bars.enter_context(step_counter("sites measured", sites * len(seeds), quiet=quiet, lines=True))

        try:
            return probe_sites(task, seeds=seeds, settings=settings, before=show)
        except DataError as problem:
            if data is None or loss or "class numbers" not in str(problem):
                raise
            raise DataError(f"{problem}; for targets that are not classes give --loss mymodule:my_loss") from problem
