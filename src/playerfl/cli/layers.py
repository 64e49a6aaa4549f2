"""`playerfl layers`: what the layers of a model are."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from playerfl.cli.options import DataDir, Json, Settings, Sites
from playerfl.errors import ConfigError
from playerfl.tasks.named_models import built_model, example_rows, task_or_builder

if TYPE_CHECKING:
    from torch import nn

    from playerfl.layers.layer_map import LayerMap

LAYERS_EXAMPLES = """
[bold]Examples[/bold]

  playerfl layers mymodule:make_model

  playerfl layers mymodule.py:make_model --data mymodule.py:make_sites --cut 3

  playerfl layers heart --json
"""


def layers(
    target: Annotated[str, typer.Argument()],
    data: Sites = None,
    cut: Annotated[int | None, typer.Option(help="Show what a cut after this many layers means.")] = None,
    as_json: Json = False,
    settings: Settings = None,
    data_dir: DataDir = None,
) -> None:
    """Show what counts as a layer of a model, input to output, before anything runs.

    TARGET is MODULE:NAME or FILE.py:NAME of a function that builds your model (or of a task), or whatever
    `playerfl run` takes. With --data the order is taken from a forward pass instead of from the model's definition.
    """
    from playerfl.cli.tables.console import wide_console
    from playerfl.cli.tables.layers import layer_rows, print_cut_summary, print_layers
    from playerfl.data.download.directory import use_data_directory
    from playerfl.errors import LayerError
    from playerfl.layers.meaning import cut_meaning

    with use_data_directory(data_dir):
        model, found, in_flow = _layers_of(target, data, settings or [])
    if cut is not None and not 0 <= cut <= len(found.names):
        raise LayerError(f"--cut must be between 0 and {len(found.names)}, the layers of the model, not {cut}")
    meaning = None if cut is None else cut_meaning(model, found, cut)
    if as_json:
        content = {"layers": layer_rows(found), "in_order_of_flow": in_flow, "warnings": _warnings(found)}
        typer.echo(json.dumps({**content, **({"cut": meaning.to_json()} if meaning else {})}, indent=1))
        return
    console = wide_console()
    print_layers(found, console, title=f"Layers of {type(model).__name__}, input to output", cut=cut)
    if not in_flow:
        typer.echo("note: in the order of definition; with --data the order is that of a forward pass", err=True)
    for warning in _warnings(found):
        typer.echo(f"note: {warning}", err=True)
    if meaning:
        print_cut_summary(meaning, console)


def _layers_of(target: str, data: str | None, settings: list[str]) -> tuple[nn.Module, LayerMap, bool]:
    """A model, its layers, and whether their order is sure."""
    from playerfl.layers.layer_map import LayerMap
    from playerfl.tasks.task import Task

    found = task_or_builder(target)
    if not isinstance(found, Task):
        model = built_model(found, target)
        example = None if data is None else example_rows(data)
        layers = LayerMap.of(model, example, **_policies(settings))
        return model, layers, example is not None or hasattr(model, "layer_groups")
    from playerfl.runs.experiment import Experiment, parse_setting, with_setting
    from playerfl.runs.setup import prepare_setup, seeded_model

    table: dict[str, Any] = {"task": found.name}
    for assignment in settings:
        table = with_setting(table, *parse_setting(assignment))
    experiment = Experiment.resolve(table, found)
    model = seeded_model(experiment.seed, found, experiment.data_options(found))
    policies: dict[str, Any] = {"tie_policy": experiment.tie_policy, "statistics": experiment.bn_stats}
    if hasattr(model, "layer_groups"):
        return model, LayerMap.of(model, **policies), True
    return model, prepare_setup(experiment, found).learner.layers, True


def _policies(settings: list[str]) -> dict[str, Any]:
    """Those settings of an experiment that layers of a model depend on, as LayerMap calls them."""
    from playerfl.errors import one_of
    from playerfl.runs.experiment import parse_setting

    names = {"tie_policy": "tie_policy", "bn_stats": "statistics"}
    given = dict(map(parse_setting, settings))
    for key in given:
        if key not in names:
            raise ConfigError(one_of(key, names, "setting of a model's layers"))
    return {names[key]: value for key, value in given.items()}


def _warnings(found: LayerMap) -> list[str]:
    """Which cuts would part what belongs together."""
    warnings = []
    for entry in found.tied:
        cuts = [cut for cut in range(1, len(found.names)) if entry in found.straddling(cut)]
        if cuts:
            between = f"after layer {cuts[0]}" if len(cuts) == 1 else f"after layers {cuts[0]} to {cuts[-1]}"
            warnings.append(f"{entry} is used by {' and '.join(found.tied[entry])}: a cut {between} parts its users")
    with_statistics = [
        number
        for number, entries in enumerate(found.entries.values(), start=1)
        if any(entry in found.buffers and entry.endswith("running_mean") for entry in entries)
    ]
    if found.statistics == "follow" and len(with_statistics) > 1:
        warnings.append(
            f"batch-norm statistics are in {len(with_statistics)} layers: a cut after layers {with_statistics[0]} to "
            f"{with_statistics[-1] - 1} averages some and keeps the others; bn_stats='local' keeps all at the site"
        )
    return warnings
