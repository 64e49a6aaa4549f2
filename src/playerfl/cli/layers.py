"""`playerfl layers`: shows the layers of a model."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from playerfl.cli.options import DataDir, Json, Settings, Sites, examples
from playerfl.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn

    from playerfl.layers.layer_map import LayerMap

LAYERS_EXAMPLES = examples(
    "layers mymodule:make_model",
    "layers mymodule.py:make_model --data mymodule.py:make_sites --cut 3",
    "layers heart --json",
)


def layers(
    target: Annotated[str, typer.Argument()],
    data: Sites = None,
    cut: Annotated[int | None, typer.Option(help="Show what is shared with a cut after this many layers.")] = None,
    as_json: Json = False,
    settings: Settings = None,
    data_dir: DataDir = None,
) -> None:
    """Show the layers of a model from input to output, without training.

    TARGET is a function that builds your model, as MODULE:NAME or FILE.py:NAME, or any task that `playerfl run`
    accepts. With --data, blocks and their order are found in a forward pass; otherwise they are guessed from the
    model's definition.
    """
    from playerfl.cli.tables.console import wide_console
    from playerfl.cli.tables.layers import layer_rows, print_cut_summary, print_tree
    from playerfl.data.download.directory import use_data_directory
    from playerfl.errors import LayerError
    from playerfl.layers.cut_summary import summarise_cut

    with use_data_directory(data_dir):
        model, layer_map, in_flow = _layers_of(target, data, settings or [])
    if cut is not None and not 0 <= cut <= len(layer_map.names):
        raise LayerError(f"--cut must be between 0 and {len(layer_map.names)}, the number of layers, not {cut}")
    summary = None if cut is None else summarise_cut(model, layer_map, cut)
    if as_json:
        content = {"layers": layer_rows(layer_map), "in_order_of_flow": in_flow, "warnings": _warnings(layer_map)}
        typer.echo(json.dumps({**content, **({"cut": summary.to_json()} if summary else {})}, indent=1))
        return
    console = wide_console()
    print_tree(layer_map, model, console, title=f"Layers of {type(model).__name__}, input to output", cut=cut)
    if not in_flow:
        typer.echo(
            "note: layers are guessed from the model's definition, in its order; --data finds them in a forward pass",
            err=True,
        )
    for warning in (*(layer_map.notes if in_flow else ()), *_warnings(layer_map)):
        typer.echo(f"note: {warning}", err=True)
    if summary:
        print_cut_summary(summary, console)


def _layers_of(target: str, data: str | None, settings: list[str]) -> tuple[nn.Module, LayerMap, bool]:
    """A model, its layers, and whether they are in the order of a forward pass."""
    from playerfl.layers.layer_map import LayerMap
    from playerfl.tasks.named_models import built_model, example_rows, task_or_builder
    from playerfl.tasks.task import Task

    named = task_or_builder(target)
    if not isinstance(named, Task):
        model = built_model(named, target)
        example = None if data is None else example_rows(data)
        layers = LayerMap.of(model, example, **_policies(settings))
        return model, layers, example is not None or hasattr(model, "layer_groups")
    from playerfl.runs.experiment import Experiment
    from playerfl.runs.settings_table import with_settings
    from playerfl.runs.setup import initial_model, prepare_setup

    experiment = Experiment.resolve(with_settings({"task": named.name}, settings), named)
    model = initial_model(experiment, named)
    policies: dict[str, Any] = {
        "tie_policy": experiment.tie_policy,
        "statistics": experiment.bn_stats,
        "granularity": experiment.granularity,
    }
    if hasattr(model, "layer_groups"):
        return model, LayerMap.of(model, **policies), True
    return model, prepare_setup(experiment, named).learner.layers, True


def _policies(settings: list[str]) -> dict[str, Any]:
    """The settings of an experiment that affect a model's layers, under LayerMap's names."""
    from playerfl.errors import one_of
    from playerfl.runs.settings_table import parse_setting

    names = {"tie_policy": "tie_policy", "bn_stats": "statistics", "granularity": "granularity"}
    given = dict(map(parse_setting, settings))
    for key in given:
        if key not in names:
            raise ConfigError(one_of(key, names, "setting for a model's layers"))
    return {names[key]: value for key, value in given.items()}


def _warnings(layers: LayerMap) -> list[str]:
    """Which cuts would separate entries that belong together."""
    from playerfl.layers.layer_map import listed

    warnings = []
    for what, users in layers.shared().items():
        cuts = [cut for cut in range(1, len(layers.names)) if users in layers.straddling(cut).values()]
        if cuts:
            warnings.append(f"{what} is used by {listed(users)}: a cut {_after(cuts[0], cuts[-1])} separates them")
    with_statistics = [
        number
        for number, entries in enumerate(layers.entries.values(), start=1)
        if any(entry in layers.buffers and entry.endswith("running_mean") for entry in entries)
    ]
    if layers.statistics == "follow" and len(with_statistics) > 1:
        warnings.append(
            f"batch-norm statistics are in {len(with_statistics)} layers: a cut "
            f"{_after(with_statistics[0], with_statistics[-1] - 1)} averages some and leaves others at the site; "
            "bn_stats='local' leaves all of them at the site"
        )
    return warnings


def _after(first: int, last: int) -> str:
    return f"after layer {first}" if first == last else f"after any of layers {first} to {last}"
