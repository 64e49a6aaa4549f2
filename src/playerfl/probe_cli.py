"""`playerfl layers` and `playerfl probe`: what the layers of a model are, and which of them to federate."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from playerfl.analyze_cli import ANALYZE_EXAMPLES, analyze, make_folder
from playerfl.errors import ConfigError, DataError, PlayerflError, RunDirectoryError

if TYPE_CHECKING:
    from torch import nn

    from playerfl.layers.layer_map import LayerMap
    from playerfl.layers.recommend import Recommendation
    from playerfl.probing import Measured
    from playerfl.tasks.task import Task

_DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", metavar="DIR", help="Data directory; $PLAYERFL_DATA or your cache if not given."),
]
_Sites = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="MODULE:NAME",
        help="Your sites: a function that returns a mapping from site names to (inputs, targets), a Dataset or a "
        "DataLoader.",
    ),
]
_Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any setting of an experiment file, e.g. training.batch_size=16."),
]
_Json = Annotated[bool, typer.Option("--json", help="As JSON on stdout.")]
_Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]

PROFILES = "profiles.json"
_NOT_KEPT = "does not hold what `playerfl probe --out` writes there"


def add_probe_commands(app: typer.Typer) -> None:
    app.command(epilog=_LAYERS_EXAMPLES)(layers)
    app.command(epilog=_PROBE_EXAMPLES)(probe)
    app.command(epilog=ANALYZE_EXAMPLES)(analyze)


_LAYERS_EXAMPLES = """
[bold]Examples[/bold]

  playerfl layers mymodule:make_model

  playerfl layers mymodule.py:make_model --data mymodule.py:make_sites --cut 3

  playerfl layers heart --json
"""


def layers(
    target: Annotated[str, typer.Argument()],
    data: _Sites = None,
    cut: Annotated[int | None, typer.Option(help="Show what a cut after this many layers means.")] = None,
    as_json: _Json = False,
    settings: _Settings = None,
    data_dir: _DataDir = None,
) -> None:
    """Show what counts as a layer of a model, input to output, before anything runs.

    TARGET is MODULE:NAME or FILE.py:NAME of a function that builds your model (or of a task), or whatever
    `playerfl run` takes. With --data the order is taken from a forward pass instead of from the model's definition.
    """
    from playerfl.data.directory import use_data_directory
    from playerfl.errors import LayerError
    from playerfl.layers.meaning import cut_meaning
    from playerfl.report.evidence import evidence_console, layer_rows, print_layers, print_meaning

    with use_data_directory(data_dir):
        model, found, in_flow = _layers_of(target, data, settings or [])
    if cut is not None and not 0 <= cut <= len(found.names):
        raise LayerError(f"--cut must be between 0 and {len(found.names)}, the layers of the model, not {cut}")
    meaning = None if cut is None else cut_meaning(model, found, cut)
    if as_json:
        content = {"layers": layer_rows(found), "in_order_of_flow": in_flow, "warnings": _warnings(found)}
        typer.echo(json.dumps({**content, **({"cut": meaning.to_json()} if meaning else {})}, indent=1))
        return
    console = evidence_console()
    print_layers(found, console, title=f"Layers of {type(model).__name__}, input to output", cut=cut)
    if not in_flow:
        typer.echo("note: in the order of definition; with --data the order is that of a forward pass", err=True)
    for warning in _warnings(found):
        typer.echo(f"note: {warning}", err=True)
    if meaning:
        print_meaning(meaning, console)


def _layers_of(target: str, data: str | None, settings: list[str]) -> tuple[nn.Module, LayerMap, bool]:
    """A model, its layers, and whether their order is sure."""
    from playerfl.layers.layer_map import LayerMap
    from playerfl.tasks.task import Task

    found = _named(target)
    if not isinstance(found, Task):
        model = _built(found, target)
        example = None if data is None else _example(data)
        layers = LayerMap.of(model, example, **_policies(settings))
        return model, layers, example is not None or hasattr(model, "layer_groups")
    from playerfl.experiment import Experiment, parse_setting, with_setting
    from playerfl.ground import prepare_ground, seeded_model

    table: dict[str, Any] = {"task": found.name}
    for assignment in settings:
        table = with_setting(table, *parse_setting(assignment))
    experiment = Experiment.resolve(table, found)
    model = seeded_model(experiment.seed, found, experiment.data_options(found))
    policies: dict[str, Any] = {"tie_policy": experiment.tie_policy, "statistics": experiment.bn_stats}
    if hasattr(model, "layer_groups"):
        return model, LayerMap.of(model, **policies), True
    return model, prepare_ground(experiment, found).learner.layers, True


def _policies(settings: list[str]) -> dict[str, Any]:
    """Those settings of an experiment that layers of a model depend on, as LayerMap calls them."""
    from playerfl.errors import one_of
    from playerfl.experiment import parse_setting

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


_PROBE_EXAMPLES = """
[bold]Examples[/bold]

  playerfl probe mymodule:make_model --data mymodule:make_sites

  playerfl probe heart --seeds 5 --out heart-cut

  playerfl probe runs/compared/player_fl --rule max_jump

  playerfl probe heart-cut --threshold 10 --json > cut.json
"""


def probe(
    target: Annotated[str, typer.Argument()],
    data: _Sites = None,
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
    settings: _Settings = None,
    data_dir: _DataDir = None,
    as_json: _Json = False,
    quiet: _Quiet = False,
) -> None:
    """Measure one epoch at every site and say which layers to federate, and how sure that is.

    TARGET is MODULE:NAME or FILE.py:NAME of a function that builds your model, together with --data; or whatever
    `playerfl run` takes; or, without measuring again, the directory of a finished run or of an earlier --out.
    """
    from playerfl.data.directory import use_data_directory

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
    kept = _kept(Path(target))
    if kept is not None:
        if data or loss or settings or given or seeds > 1 or seed:
            raise ConfigError(f"{target} holds what was measured; options that would measure again do not go with it")
        found, scores = kept(changes)
    else:
        if out is not None:
            make_folder(out)
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
        found, scores = measured.recommend(**changes), _scores(measured, target, changes)
    # Files first: whoever pipes the table into `head` ends this process.
    if out is not None:
        _keep(out, found, scores)
    if figure is not None:
        typer.echo(f"figure: {_save_figure(found, figure)}", err=True)
    if as_json:
        typer.echo(json.dumps(found.to_json(), indent=1))
    else:
        from playerfl.report.evidence import print_recommendation

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
        from playerfl.report.figures import check_picture
    except ImportError as problem:
        raise ConfigError("pictures are drawn with matplotlib; pip install 'playerfl[report]'") from problem
    check_picture(file)


def _measured(
    target: str, data: str | None, loss: str | None, seeds: range, settings: list[str], *, quiet: bool, shown: bool
) -> Measured:
    from playerfl.probing import own_model_task, probe_sites
    from playerfl.progress import counted
    from playerfl.report.evidence import evidence_console, print_layers
    from playerfl.tasks.load import load_object
    from playerfl.tasks.task import Task

    found = _named(target)
    task: Task
    if isinstance(found, Task):
        if data or loss:
            raise ConfigError(f"{target} is a task and brings its data and loss; leave --data and --loss out")
        task = found
    else:
        if data is None:
            raise ConfigError(f"{target} is a model; say where the sites' data are, as in --data mymodule:make_sites")
        measure = None if loss is None else load_object(_place(loss, "--loss"))
        if loss is not None and not callable(measure):
            raise ConfigError(f"{loss} is {type(measure).__name__}; a function loss(output, targets) is needed")
        task = own_model_task(lambda: _built(found, target), _loaded_sites(data), measure, name=target)

    with ExitStack() as bars:

        def show(model: nn.Module, layers: LayerMap, sites: int) -> Callable[[], None]:
            if shown and not quiet:
                console = evidence_console(stderr=True)
                print_layers(layers, console, title=f"Layers of {type(model).__name__}, input to output")
            return bars.enter_context(counted("sites measured", sites * len(seeds), quiet=quiet, lines=True))

        try:
            return probe_sites(task, seeds=seeds, settings=settings, before=show)
        except DataError as problem:
            if isinstance(found, Task) or loss or "class numbers" not in str(problem):
                raise
            raise DataError(f"{problem}; for targets that are numbers say --loss mymodule:my_loss") from problem


def _named(target: str) -> Any:
    """A task, or what the user named: a function or class that builds a model."""
    import inspect

    from torch import nn

    from playerfl.tasks.load import call_object, load_object, load_task, names_object
    from playerfl.tasks.task import Task

    if not names_object(target):
        return load_task(target)
    found = load_object(target)
    if isinstance(found, Task):
        return load_task(target)
    if inspect.isfunction(found):
        made = call_object(found, target)
        if isinstance(made, Task):
            return load_task(target)
        if isinstance(made, nn.Module):
            return found
        raise ConfigError(f"{target} returned {type(made).__name__}; a function that builds a torch model is needed")
    if isinstance(found, type) and issubclass(found, nn.Module):
        return found
    if isinstance(found, nn.Module):
        raise ConfigError(f"{target} is a model; give a function that builds it: every seed starts from a new one")
    raise ConfigError(f"{target} is of type {type(found).__name__}; a function that builds a torch model is needed")


def _built(make: Callable[[], Any], what: str) -> nn.Module:
    from torch import nn

    from playerfl.tasks.load import call_object

    model = call_object(make, what)
    if not isinstance(model, nn.Module):
        raise ConfigError(f"{what} returned {type(model).__name__}; a torch model is needed")
    return model


def _place(text: str, option: str) -> str:
    from playerfl.tasks.load import names_object

    if not names_object(text):
        raise ConfigError(f"{option} {text} is no place; write it as mymodule:name or file.py:name")
    return text


def _loaded_sites(data: str) -> Any:
    """What a user's function returns, or a mapping that is there already."""
    from playerfl.tasks.load import call_object, load_object

    found = load_object(_place(data, "--data"))
    sites = found if isinstance(found, Mapping | list | tuple) else None
    if sites is None and callable(found):
        sites = call_object(found, data)
    if not isinstance(sites, Mapping | list | tuple) or not sites:
        raise ConfigError(
            f"{data} gives {type(sites).__name__ if sites is None or sites else 'no site'}; a mapping from site names "
            "to (inputs, targets), a Dataset or a DataLoader is needed"
        )
    return sites


def _example(data: str) -> Any:
    """Two rows of a site's inputs."""
    from torch import nn

    from playerfl.probing import own_model_task

    task = own_model_task(nn.Identity, _loaded_sites(data))
    sites = task.load_sites(task.options())
    return next(iter(sites[min(sites)].train.batches(2)))[0]


def _kept(path: Path) -> Callable[[dict[str, Any]], tuple[Recommendation, dict[str, Any]]] | None:
    """A recommendation from what was measured before, and that itself, if it is what a path holds."""
    from playerfl.tasks import TASKS

    if str(path) in TASKS or not path.exists():
        return None
    if (path / "experiment.toml").is_file():
        return lambda changes: _of_runs([path], changes)
    compared = sorted(folder.parent for folder in path.glob("*/experiment.toml")) if path.is_dir() else []
    measured = [run for run in compared if '"batches"' in _text(run / "layers.json")]
    if measured:
        return lambda changes: _of_runs(measured, changes)
    file = path / PROFILES if path.is_dir() else path
    if file.name == PROFILES and file.is_file():
        return lambda changes: _of_profiles(file, changes)
    return None


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.is_file() else ""


def _of_runs(runs: list[Path], changes: dict[str, Any]) -> tuple[Recommendation, dict[str, Any]]:
    from playerfl.probing import measured_in
    from playerfl.running import load_result

    # Variants of one comparison measure the same first epoch; only another seed is another measurement.
    results = [load_result(run) for run in reversed(runs)]
    if len(tasks := sorted({result.experiment["task"] for result in results})) > 1:
        raise ConfigError(f"these runs are of several tasks ({', '.join(tasks)}); probe those of one task at a time")
    by_seed = {result.experiment["seed"]: result for result in results}
    measured = measured_in(*(by_seed[seed] for seed in sorted(by_seed)))
    return measured.recommend(**changes), _scores(measured, tasks[0], changes)


def _of_profiles(file: Path, changes: dict[str, Any]) -> tuple[Recommendation, dict[str, Any]]:
    from playerfl.layers.layer_map import LayerMap
    from playerfl.layers.recommend import recommend
    from playerfl.probing import changed_decision

    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        options = changed_decision(content["options"], changes)
        target, groups, seeds = str(content["target"]), content["layers"], content["seeds"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as problem:
        raise RunDirectoryError(f"{file} {_NOT_KEPT}: {problem}") from problem
    try:
        built = _model_of(target)
        layers: LayerMap | None = LayerMap.from_groups(built, groups, statistics=content.get("bn_stats", "follow"))
        model: nn.Module | None = built
    except (TypeError, ValueError) as problem:
        raise RunDirectoryError(f"{file} {_NOT_KEPT}: {problem}") from problem
    except PlayerflError as problem:
        typer.echo(f"note: parameters and bytes are not shown, for the model cannot be built: {problem}", err=True)
        model = layers = None
    try:
        return recommend(seeds, model, layers=layers, **options), {**content, "options": options}
    except (AttributeError, LookupError, TypeError, ValueError, ZeroDivisionError, OverflowError) as problem:
        raise RunDirectoryError(f"{file} {_NOT_KEPT}: {problem!r}") from problem


def _model_of(target: str) -> nn.Module:
    """The model behind a target, with random weights: what is asked of it are names and sizes."""
    from playerfl.ground import seeded_model
    from playerfl.tasks.task import Task

    found = _named(target)
    return seeded_model(0, found, found.options()) if isinstance(found, Task) else _built(found, target)


def _scores(measured: Measured, target: str, changes: dict[str, Any]) -> dict[str, Any]:
    """What was measured and how it was decided, so that `playerfl probe DIR` finds the same again."""
    from playerfl.probing import changed_decision

    return {
        "target": target,
        "layers": [[name, list(entries)] for name, entries in measured.layers.entries.items()],
        "bn_stats": measured.layers.statistics,
        "options": changed_decision(measured.options, changes),
        "seeds": [{site: profile.to_json() for site, profile in run.items()} for run in measured.profiles],
    }


def _keep(out: Path, found: Recommendation, scores: dict[str, Any]) -> None:
    """Everything a recommendation consists of, as files."""
    from playerfl.atomic_files import AGAIN, write_atomically

    make_folder(out)
    content = found.to_json()
    files = {
        "recommendation.json": json.dumps(content, indent=1) + "\n",
        PROFILES: json.dumps(scores, indent=1) + "\n",
    }
    if content["export"]:
        # Without a line's end: read as it stands it would be part of the regex, which then excludes nothing.
        files["nvflare_exclude_vars.txt"] = content["export"]["nvflare_exclude_vars"]
        for name in ("fl4health_layers_to_transfer", "flower_state_dict_keys"):
            files[f"{name}.json"] = json.dumps(content["export"][name], indent=1) + "\n"
    for name, text in files.items():
        write_atomically(out / name, text.encode(), AGAIN)
    written = list(files)
    try:
        written.append(_save_figure(found, out / "recommendation.png").name)
    except ImportError:
        typer.echo("no figure was made: matplotlib is missing; pip install 'playerfl[report]'", err=True)
    typer.echo(f"kept in {out}: {', '.join(written)}", err=True)


def _save_figure(found: Recommendation, file: Path) -> Path:
    from playerfl.report.evidence_figure import recommendation_figure
    from playerfl.report.figures import save

    drawn, _ = recommendation_figure(found)
    return save(drawn, file)
