"""What `playerfl probe --out` writes, and recommendations from that, or from finished runs, without new training."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

from playerfl.errors import ConfigError, PlayerflError, RunDirectoryError
from playerfl.storage.atomic_files import RERUN_HINT, make_directory, write_atomically

if TYPE_CHECKING:
    from torch import nn

    from playerfl.layers.layer_map import BatchNormStatistics, LayerMap
    from playerfl.layers.recommendation import Recommendation
    from playerfl.probe.measure import Measurement

PROFILES = "profiles.json"
_NOT_OURS = "does not hold what `playerfl probe --out` writes there"


class StoredScores(TypedDict):
    """The content of profiles.json."""

    target: str
    """The user's name for what was probed."""
    layers: list[tuple[str, list[str]]]
    """Each layer with the names of its entries in the model's state."""
    bn_stats: BatchNormStatistics
    options: dict[str, Any]
    """How the cut was decided: keyword arguments of `recommend`."""
    seeds: list[dict[str, Any]]
    """For each seed, every site's `Profile` as JSON."""
    layer_map: NotRequired[dict[str, Any]]
    """The layers with their sizes and what is frozen: a model that has changed since is refused."""


@dataclass(frozen=True)
class StoredProbe:
    """A recommendation from stored scores, and the scores themselves."""

    recommendation: Recommendation
    scores: StoredScores
    notes: tuple[str, ...] = ()
    """What could not be determined from the files alone."""


def stored_probe_at(path: Path) -> Callable[[Mapping[str, Any]], StoredProbe] | None:
    """A function from changed decision options to a recommendation; None if the path holds no measurements."""
    from playerfl.tasks import TASKS

    if str(path) in TASKS or not path.exists():
        return None
    if (path / "experiment.toml").is_file():
        return lambda changes: _from_runs([path], changes)
    runs = sorted(folder.parent for folder in path.glob("*/experiment.toml")) if path.is_dir() else []
    measured = [run for run in runs if '"batches"' in _text(run / "layers.json")]
    if measured:
        return lambda changes: _from_runs(measured, changes)
    file = path / PROFILES if path.is_dir() else path
    if file.name == PROFILES and file.is_file():
        return lambda changes: from_profiles(file, changes)
    return None


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.is_file() else ""


def _from_runs(runs: list[Path], changes: Mapping[str, Any]) -> StoredProbe:
    from playerfl.probe.measure import measured_in
    from playerfl.runs.api import load_result

    # Variants in one comparison measure the same first epoch; only another seed gives another measurement.
    results = [load_result(run) for run in reversed(runs)]
    if len(tasks := sorted({result.experiment["task"] for result in results})) > 1:
        raise ConfigError(f"these runs are from several tasks ({', '.join(tasks)}); probe one task's runs at a time")
    by_seed = {result.experiment["seed"]: result for result in results}
    measurement = measured_in(*(by_seed[seed] for seed in sorted(by_seed)))
    return StoredProbe(measurement.recommend(**changes), scores_of(measurement, tasks[0], changes))


def from_profiles(file: Path, changes: Mapping[str, Any]) -> StoredProbe:
    """A recommendation from the scores that `write_probe` wrote."""
    from playerfl.layers.layer_map import LayerMap
    from playerfl.layers.measured_model import check_model
    from playerfl.layers.recommend import recommend
    from playerfl.probe.measure import changed_decision

    try:
        content: StoredScores = json.loads(file.read_text(encoding="utf-8"))
        options = changed_decision(content["options"], changes)
        target, groups, seeds = str(content["target"]), content["layers"], content["seeds"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as problem:
        raise RunDirectoryError(f"{file} {_NOT_OURS}: {problem}") from problem
    model: nn.Module | None = None
    layers: LayerMap | None = None
    notes: tuple[str, ...] = ()
    try:
        if "layer_map" in content:
            layers = LayerMap.from_json(content["layer_map"])
            if list(layers.entries.items()) != [(name, tuple(entries)) for name, entries in groups]:
                raise ValueError("its layers differ from its layer_map")
        built = _model_of(target)
        if layers is None:  # written before sizes were
            layers = LayerMap.from_groups(built, groups, statistics=content.get("bn_stats", "follow"))
        check_model(layers, built)
        model = built
    except (AttributeError, KeyError, TypeError, ValueError) as problem:
        raise RunDirectoryError(f"{file} {_NOT_OURS}: {problem}") from problem
    except PlayerflError as problem:
        notes = (f"parameters, bytes and exports are left out because the model cannot be built as it was: {problem}",)
    try:
        recommendation = recommend(seeds, model, layers=layers, **options)
    except (AttributeError, LookupError, TypeError, ValueError, ZeroDivisionError, OverflowError) as problem:
        raise RunDirectoryError(f"{file} {_NOT_OURS}: {problem!r}") from problem
    return StoredProbe(recommendation, {**content, "options": options}, notes)


def _model_of(target: str) -> nn.Module:
    """The model behind a target, with random weights: only names and sizes are needed."""
    from playerfl.runs.setup import seeded_model
    from playerfl.tasks.named_models import built_model, task_or_builder
    from playerfl.tasks.task import Task

    named = task_or_builder(target)
    return seeded_model(0, named, named.options()) if isinstance(named, Task) else built_model(named, target)


def scores_of(measurement: Measurement, target: str, changes: Mapping[str, Any]) -> StoredScores:
    """The scores and how the cut was decided, so that `playerfl probe DIR` gives the same answer again."""
    from playerfl.probe.measure import changed_decision

    return {
        "target": target,
        "layers": [(name, list(entries)) for name, entries in measurement.layers.entries.items()],
        "bn_stats": measurement.layers.statistics,
        "options": changed_decision(measurement.options, changes),
        "seeds": [{site: profile.to_json() for site, profile in run.items()} for run in measurement.profiles],
        "layer_map": measurement.layers.to_json(),
    }


def write_probe(
    out: Path, recommendation: Recommendation, scores: StoredScores, verification: Mapping[str, Any] | None = None
) -> list[str]:
    """Writes the recommendation, the scores and the exports for other frameworks; returns the files' names."""
    make_directory(out)
    content = recommendation.to_json()
    files = {
        "recommendation.json": json.dumps(content, indent=1) + "\n",
        PROFILES: json.dumps(scores, indent=1) + "\n",
    }
    if verification:
        files["verification.json"] = json.dumps(verification, indent=1) + "\n"
    if content["export"]:
        # No newline at the end: it would become part of the regex, which would then exclude nothing.
        files["nvflare_exclude_vars.txt"] = content["export"]["nvflare_exclude_vars"]
        for name in ("fl4health_layers_to_transfer", "flower_state_dict_keys"):
            files[f"{name}.json"] = json.dumps(content["export"][name], indent=1) + "\n"
    for name, text in files.items():
        write_atomically(out / name, text.encode(), RERUN_HINT)
    return list(files)


def save_figure(recommendation: Recommendation, file: Path) -> Path:
    """The figure of a recommendation; ImportError without matplotlib."""
    from playerfl.report.plots.comparison import save
    from playerfl.report.plots.recommendation import recommendation_figure

    figure, _ = recommendation_figure(recommendation)
    return save(figure, file)
