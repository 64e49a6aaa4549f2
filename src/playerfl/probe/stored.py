"""What `playerfl probe` keeps; and a recommendation from that, or from finished runs, without measuring again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from playerfl.errors import ConfigError, PlayerflError, RunDirectoryError
from playerfl.probe.named_models import model_of
from playerfl.storage.atomic_files import RERUN_HINT, make_directory, write_atomically

if TYPE_CHECKING:
    from torch import nn

    from playerfl.layers.layer_map import LayerMap
    from playerfl.layers.recommendation import Recommendation
    from playerfl.probe.measure import Measured

PROFILES = "profiles.json"
_NOT_KEPT = "does not hold what `playerfl probe --out` writes there"


def kept_at(path: Path) -> Callable[[dict[str, Any]], tuple[Recommendation, dict[str, Any]]] | None:
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
        return lambda changes: of_profiles(file, changes)
    return None


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.is_file() else ""


def _of_runs(runs: list[Path], changes: dict[str, Any]) -> tuple[Recommendation, dict[str, Any]]:
    from playerfl.probe.measure import measured_in
    from playerfl.runs.api import load_result

    # Variants of one comparison measure the same first epoch; only another seed is another measurement.
    results = [load_result(run) for run in reversed(runs)]
    if len(tasks := sorted({result.experiment["task"] for result in results})) > 1:
        raise ConfigError(f"these runs are of several tasks ({', '.join(tasks)}); probe those of one task at a time")
    by_seed = {result.experiment["seed"]: result for result in results}
    measured = measured_in(*(by_seed[seed] for seed in sorted(by_seed)))
    return measured.recommend(**changes), scores_of(measured, tasks[0], changes)


def of_profiles(file: Path, changes: dict[str, Any]) -> tuple[Recommendation, dict[str, Any]]:
    """From the scores that `keep` wrote."""
    from playerfl.layers.layer_map import LayerMap
    from playerfl.layers.recommend import recommend
    from playerfl.probe.measure import changed_decision

    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        options = changed_decision(content["options"], changes)
        target, groups, seeds = str(content["target"]), content["layers"], content["seeds"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as problem:
        raise RunDirectoryError(f"{file} {_NOT_KEPT}: {problem}") from problem
    try:
        built = model_of(target)
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


def scores_of(measured: Measured, target: str, changes: dict[str, Any]) -> dict[str, Any]:
    """What was measured and how it was decided, so that `playerfl probe DIR` finds the same again."""
    from playerfl.probe.measure import changed_decision

    return {
        "target": target,
        "layers": [[name, list(entries)] for name, entries in measured.layers.entries.items()],
        "bn_stats": measured.layers.statistics,
        "options": changed_decision(measured.options, changes),
        "seeds": [{site: profile.to_json() for site, profile in run.items()} for run in measured.profiles],
    }


def keep(out: Path, found: Recommendation, scores: dict[str, Any]) -> None:
    """Everything a recommendation consists of, as files."""
    make_directory(out)
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
        write_atomically(out / name, text.encode(), RERUN_HINT)
    written = list(files)
    try:
        written.append(save_figure(found, out / "recommendation.png").name)
    except ImportError:
        typer.echo("no figure was made: matplotlib is missing; pip install 'playerfl[report]'", err=True)
    typer.echo(f"kept in {out}: {', '.join(written)}", err=True)


def save_figure(found: Recommendation, file: Path) -> Path:
    """The picture of a recommendation."""
    from playerfl.report.plots.comparison import save
    from playerfl.report.plots.recommendation import recommendation_figure

    drawn, _ = recommendation_figure(found)
    return save(drawn, file)
