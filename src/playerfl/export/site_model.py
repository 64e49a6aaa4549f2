"""SiteModel: a site's trained model with everything that an exported folder says about it; from a run or a site."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from playerfl.data.encoding.encoding import Encoding
from playerfl.data.examples import Examples, SiteData
from playerfl.data.sites import partition_hash
from playerfl.errors import ConfigError, DataError, RunDirectoryError, one_of
from playerfl.federation.server import Server
from playerfl.layers.layer_map import LayerMap, state_entries
from playerfl.learning.job import EvalJob
from playerfl.runs.api import COMPARISON, limited_threads, load_result
from playerfl.runs.directory import ROSTER, RunDirectory
from playerfl.runs.environment import environment
from playerfl.runs.experiment import Experiment
from playerfl.runs.measures.baseline import baseline_scores, site_baseline
from playerfl.runs.measures.outcomes import SiteOutcomes, outcomes_of
from playerfl.runs.measures.row_intervals import resampled_scores, row_interval
from playerfl.runs.model_files import load_weights
from playerfl.runs.result import RunResult
from playerfl.runs.setup import Setup, prepare_setup
from playerfl.storage import tensor_tree
from playerfl.tasks.load import load_task
from playerfl.tasks.task import Task

TEMPLATE = "template"
"""The name of a synthetic table for sites with different data."""


@dataclass(frozen=True)
class SiteModel:
    """A site's model in eval mode, an example of its inputs, and what is known about its training."""

    site: str
    experiment: Experiment
    model: nn.Module
    inputs: Any
    """The inputs of a few training rows."""
    train: Examples
    test: Examples
    classification: bool
    encoding: Encoding | None
    scores: Mapping[str, float]
    baseline: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]]
    """95 % intervals of the scores over the test rows, where they are known."""
    layers: Sequence[str]
    shared: Sequence[str]
    reason: str | None
    round: int | None
    sites: Mapping[str, int]
    environment: Mapping[str, Any]


def model_of_run(path: Path, site: str, task: Task | None = None) -> SiteModel:
    """The model that a site keeps from a finished run; its data must be where they were when it was trained."""
    _check_run(path)
    result = load_result(path, task=task)
    if site not in result.sites:
        raise ConfigError(one_of(site, result.sites, "site"))
    experiment = _experiment(path, task)
    sites, encodings, setup = _loaded(experiment, task)
    if partition_hash(sites) != result.data["partition_hash"]:
        raise RunDirectoryError(
            f"the data of {experiment.task} have changed since the run in {path}, so its model may read them "
            "differently; put the old data back, or run it again"
        )
    cut = result.cut
    return SiteModel(
        site=site,
        experiment=experiment,
        model=result.model(site),
        inputs=_some_inputs(sites[site]),
        train=sites[site].train,
        test=sites[site].test,
        classification=setup.classification,
        encoding=encodings.get(site),
        scores=result.site_scores[site],
        baseline=(baseline_scores(result) or {}).get(site, {}),
        intervals=_intervals(result.outcomes.get(site), result.site_scores[site], site, result.positive_class),
        layers=setup.layers.names,
        shared=_shared(experiment, setup, len(cut.federated) if cut else None),
        reason=cut.reason if cut else None,
        round=result.chosen_rounds.get(site),
        sites=result.num_examples,
        environment=_known(result),
    )


def model_of_site(state: Path, site: str, task: Task | None = None) -> SiteModel:
    """The model that a site keeps after a finished job, from the site's own state (STATE/JOB) and its own data.

    `task`: where the site's data are, if they are not where the experiment says.
    """
    for name, meaning in (
        ("experiment.toml", "is not a site's state of a job"),
        ("model.safetensors", "has no model yet"),
    ):
        if not (state / name).is_file():
            raise RunDirectoryError(
                f"{state} {meaning}: it has no {name}; give a finished job's folder in the site's --state directory"
            )
    experiment = _experiment(state, task)
    sites, encodings, setup = _loaded(experiment, task)
    mine = _own(site, sites)
    weights = load_weights(state / "model.safetensors")
    learner = setup.setup.learner
    if {n: e.shape for n, e in learner.entries.items()} != {n: e.shape for n, e in weights.items()}:
        raise RunDirectoryError(
            f"{state / 'model.safetensors'} does not fit the model of {experiment.task}: its data or code have changed"
        )
    with limited_threads(experiment.threads):
        data = learner.place(sites[mine])
        scores = learner.evaluate(EvalJob(learner, weights, {"test": data.test})).scores["test"]
        outcomes = outcomes_of(learner, {mine: weights}, {mine: data}, setup.setup.test_groups).get(mine)
    model = setup.setup.build_model().eval()
    for name, entry in state_entries(model).items():
        entry.detach().copy_(weights[name])
    memory = _memory(state)
    return SiteModel(
        site=site,
        experiment=experiment,
        model=model,
        inputs=_some_inputs(sites[mine]),
        train=sites[mine].train,
        test=sites[mine].test,
        classification=setup.classification,
        encoding=encodings.get(mine),
        scores=scores,
        baseline=site_baseline(setup.setup.description["sites"][mine]),
        intervals=_intervals(outcomes, scores, mine, setup.setup.description.get("positive_class", 1)),
        layers=setup.layers.names,
        shared=_shared(experiment, setup, memory.get("cut")),
        reason=None,
        round=memory.get("round"),
        sites={site: len(sites[mine].train)},
        environment=dict(environment(experiment.device, experiment.threads)),
    )


@dataclass(frozen=True)
class _Loaded:
    setup: Setup
    classification: bool

    @property
    def layers(self) -> LayerMap:
        return self.setup.learner.layers


def _check_run(path: Path) -> None:
    if (path / COMPARISON).is_file() and not (path / "experiment.toml").is_file():
        runs = sorted(folder.name for folder in path.iterdir() if (folder / "experiment.toml").is_file())
        shown = ", ".join(str(path / name) for name in runs) or "none yet"
        raise ConfigError(f"{path} compares several algorithms; export one of its runs: {shown}")
    if RunDirectory.open(path).has(ROSTER):
        raise RunDirectoryError(
            f"{path} is a job across institutions, whose models stay at their sites; each site exports its own with "
            "playerfl export --state STATE/JOB"
        )


def _experiment(path: Path, task: Task | None) -> Experiment:
    """The experiment as it was run, but on this machine's CPU and without a search for the fastest trainer."""
    return Experiment.of_run(path, task, device="cpu", trainer="loop")


def _loaded(
    experiment: Experiment, task: Task | None
) -> tuple[Mapping[str, SiteData], Mapping[str, Encoding], _Loaded]:
    """The sites' data, how they were encoded, and the setup; the data are read once."""
    known = task or load_task(experiment.task)
    options = experiment.data_options(known)
    adapted = known.for_options(options)
    sites = adapted.load_sites(options)
    setup = prepare_setup(experiment, replace(adapted, load_sites=lambda _: sites, adapt=None))
    return sites, getattr(sites, "encodings", {}), _Loaded(setup, adapted.classification)


def _intervals(
    outcomes: SiteOutcomes | None, metrics: Iterable[str], site: str, positive: int
) -> dict[str, tuple[float, float]]:
    """By metric; empty if the outcomes of the test rows are not known."""
    intervals: dict[str, tuple[float, float]] = {}
    if outcomes is None:
        return intervals
    for metric in metrics:
        scores = resampled_scores(outcomes, metric, site, positive=positive)
        if scores is not None and not math.isnan((interval := row_interval(scores))[0]):
            intervals[metric] = interval
    return intervals


def _shared(experiment: Experiment, loaded: _Loaded, cut: int | None) -> tuple[str, ...]:
    """The layers that the algorithm averages over the sites; `cut`: how many, if it decided on that during the run."""
    server = Server(loaded.setup.initial, loaded.layers, loaded.setup.sites, experiment.seed)
    if cut is not None:
        server.memory["cut"] = cut
    expected = set(experiment.build_algorithm().server_expects(server, ("fit",)).layers)
    return tuple(name for name in loaded.layers.names if name in expected)


def _some_inputs(site: SiteData) -> Any:
    return next(iter(site.train.batches(8)))[0]


def _known(result: RunResult) -> dict[str, Any]:
    return {key: value for key, value in result.environment.items() if key != "resumed_with"}


def _own(site: str, sites: Mapping[str, SiteData]) -> str:
    held = [name for name in sites if name != TEMPLATE]
    if site in held:
        return site
    if len(held) == 1:
        return held[0]
    raise DataError(f"the task has no data for {site!r}; it has data for: {', '.join(sorted(held)) or 'no site'}")


def _memory(state: Path) -> dict[str, Any]:
    """The cut and the chosen round, as far as the site's state has them."""
    file = state / "state.safetensors"
    try:
        client = tensor_tree.read(file)["state"] if file.is_file() else {}
        numbers = {"cut": client.get("memory", {}).get("cut"), "round": (client.get("kept") or {}).get("round")}
    except (RunDirectoryError, KeyError, TypeError, AttributeError):
        return {}
    return {name: value for name, value in numbers.items() if isinstance(value, int) and not math.isnan(value)}
