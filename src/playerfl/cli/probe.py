"""`playerfl probe`: which layers of a model to federate, and how sure that is."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from playerfl.cli.options import DataDir, Json, Quiet, Settings, Sites
from playerfl.errors import ConfigError, DataError
from playerfl.probe.named_models import built_model, loaded_sites, named_place, task_or_builder
from playerfl.probe.stored import keep, kept_at, save_figure, scores_of
from playerfl.storage.atomic_files import make_directory

if TYPE_CHECKING:
    from torch import nn

    from playerfl.layers.layer_map import LayerMap
    from playerfl.probe.measure import Measured

PROBE_EXAMPLES = """
[bold]Examples[/bold]

  playerfl probe mymodule:make_model --data mymodule:make_sites

  playerfl probe heart --seeds 5 --out heart-cut

  playerfl probe runs/compared/player_fl --rule max_jump

  playerfl probe heart-cut --threshold 10 --json > cut.json
"""


def probe(
    target: Annotated[str, typer.Argument()],
    data: Sites = None,
    loss: Annotated[
        str | None,
        typer.Option(metavar="MODULE:NAME", help="loss(output, targets) of your model; cross-entropy if not given."),
    ] = None,
    seeds: Annotated[int, typer.Option(help="How many initial models and batch orders to measure.")] = 1,
    seed: Annotated[int, typer.Option(help="The first of the seeds.")] = 0,
    learning_rate: Annotated[float | None, typer.Option(help="Of every site's optimiser.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Of every site.")] = None,
    rule: Annotated[str | None, typer.Option(help="layer_ratio, cumulative_ratio or max_jump.")] = None,
    threshold: Annotated[float | None, typer.Option(help="The jump that counts.")] = None,
    normalise: Annotated[str | None, typer.Option(help="Sites' scores: none, first_layer or last.")] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep scores, recommendation, figure and exports there.")
    ] = None,
    figure: Annotated[Path | None, typer.Option(metavar="FILE", help="Picture (.png, .svg, .pdf).")] = None,
    settings: Settings = None,
    data_dir: DataDir = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure one epoch at every site and say which layers to federate, and how sure that is.

    TARGET is MODULE:NAME or FILE.py:NAME of a function that builds your model, together with --data; or whatever
    `playerfl run` takes; or, without measuring again, the directory of a finished run or of an earlier --out.
    """
    from playerfl.data.download.directory import use_data_directory

    decision = {"rule": rule, "threshold": threshold, "normalise": normalise}
    changes = {key: value for key, value in decision.items() if value is not None}
    training = {"training.learning_rate": learning_rate, "training.batch_size": batch_size}
    given = [f"{key}={value}" for key, value in training.items() if value is not None]
    if seeds < 1:
        raise ConfigError(f"--seeds must be at least 1, not {seeds}")
    # Known before anything is measured: an epoch at every site may take hours.
    _check_decision(rule, threshold, normalise)
    if figure is not None:
        _check_picture(figure)
    kept = kept_at(Path(target))
    if kept is not None:
        if data or loss or settings or given or seeds > 1 or seed:
            raise ConfigError(f"{target} holds what was measured; options that would measure again do not go with it")
        found, scores = kept(changes)
    else:
        if out is not None:
            make_directory(out)
        with use_data_directory(data_dir):
            measured = _measured(
                target,
                data,
                loss,
                range(seed, seed + seeds),
                [*given, *(settings or [])],
                quiet=quiet,
                shown=not as_json,
            )
        found, scores = measured.recommend(**changes), scores_of(measured, target, changes)
    # Files first: whoever pipes the table into `head` ends this process.
    if out is not None:
        keep(out, found, scores)
    if figure is not None:
        typer.echo(f"figure: {save_figure(found, figure)}", err=True)
    if as_json:
        typer.echo(json.dumps(found.to_json(), indent=1))
    else:
        from playerfl.cli.tables.layers import print_recommendation

        print_recommendation(found)


def _check_decision(rule: str | None, threshold: float | None, normalise: str | None) -> None:
    from playerfl.errors import one_of
    from playerfl.layers.recommend import NORMALISATIONS, RULES
    from playerfl.layers.split import check_rule

    for value, allowed, option in ((rule, RULES, "--rule"), (normalise, NORMALISATIONS, "--normalise")):
        if value is not None and value not in allowed:
            raise ConfigError(one_of(value, allowed, option))
    if threshold is not None:
        check_rule(rule or "layer_ratio", threshold, "all")


def _check_picture(file: Path) -> None:
    try:
        from playerfl.report.plots.comparison import check_picture
    except ImportError as problem:
        raise ConfigError("pictures are drawn with matplotlib; pip install 'playerfl[report]'") from problem
    check_picture(file)


def _measured(
    target: str, data: str | None, loss: str | None, seeds: range, settings: list[str], *, quiet: bool, shown: bool
) -> Measured:
    from playerfl.cli.progress import counted
    from playerfl.cli.tables.console import wide_console
    from playerfl.cli.tables.layers import print_layers
    from playerfl.probe.measure import own_model_task, probe_sites
    from playerfl.tasks.load import load_object
    from playerfl.tasks.task import Task

    found = task_or_builder(target)
    task: Task
    if isinstance(found, Task):
        if data or loss:
            raise ConfigError(f"{target} is a task and brings its data and loss; leave --data and --loss out")
        task = found
    else:
        if data is None:
            raise ConfigError(f"{target} is a model; say where the sites' data are, as in --data mymodule:make_sites")
        measure = None if loss is None else load_object(named_place(loss, "--loss"))
        if loss is not None and not callable(measure):
            raise ConfigError(f"{loss} is {type(measure).__name__}; a function loss(output, targets) is needed")
        task = own_model_task(lambda: built_model(found, target), loaded_sites(data), measure, name=target)

    with ExitStack() as bars:

        def show(model: nn.Module, layers: LayerMap, sites: int) -> Callable[[], None]:
            if shown and not quiet:
                console = wide_console(stderr=True)
                print_layers(layers, console, title=f"Layers of {type(model).__name__}, input to output")
            return bars.enter_context(counted("sites measured", sites * len(seeds), quiet=quiet, lines=True))

        try:
            return probe_sites(task, seeds=seeds, settings=settings, before=show)
        except DataError as problem:
            if isinstance(found, Task) or loss or "class numbers" not in str(problem):
                raise
            raise DataError(f"{problem}; for targets that are numbers say --loss mymodule:my_loss") from problem
