"""The drift monitor: does the cut move when sensitivity is measured again later in training?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from playerfl.algorithms.shared_layers.player_fl import PLayerFL
from playerfl.analysis.layer_analysis import analysis_table
from playerfl.engine.scheduler import drive
from playerfl.errors import ConfigError
from playerfl.federation.client import Client
from playerfl.federation.messages import Download, Upload
from playerfl.layers.layer_map import LayerName
from playerfl.layers.recommend import recommend
from playerfl.layers.recommendation import Recommendation
from playerfl.layers.sensitivity import Profile
from playerfl.learning.job import Measure
from playerfl.probe.measure import decision_options
from playerfl.runs.api import limited_threads
from playerfl.runs.experiment import Experiment
from playerfl.runs.run import Listener, Run
from playerfl.runs.setup import prepare_setup
from playerfl.tasks.load import load_task
from playerfl.tasks.task import Task
from playerfl.weights import Weights

_RESAMPLES = 200


@dataclass(frozen=True)
class Monitored(PLayerFL):
    """PLayer-FL that measures again in every k-th round, which costs nothing and changes nothing.

    Paper: PLayer-FL ("stable over training").
    Differs: measurements after the first epoch are recorded but never acted on.
    """

    every: int = 1

    async def client_fit(self, client: Client, download: Download) -> Upload:
        client.memory["round"] = download.round + 1
        return await super().client_fit(client, download)

    async def client_train(self, client: Client, received: Weights) -> None:
        round_ = int(client.memory["round"])
        due = (round_ - 1) % self.every == 0
        trained = await client.train(measure=Measure(include_bias=self.include_bias) if due else None)
        if trained.profile is not None:
            client.memory.setdefault("drift", {})[str(round_)] = trained.profile.to_json(layer_map=False)


@dataclass(frozen=True)
class Drift:
    """The cut that each measured round would choose."""

    task: str
    layers: tuple[LayerName, ...]
    rounds: Mapping[int, Recommendation]
    """Round 1 is the first epoch, where PLayer-FL decides."""

    @property
    def cuts(self) -> dict[int, int]:
        return {round_: recommendation.cut.index for round_, recommendation in self.rounds.items()}

    @property
    def share_that_stays(self) -> float:
        """The share of later measurements that agree with the first cut."""
        first, *later = self.cuts.values()
        return sum(cut == first for cut in later) / len(later) if later else 1.0

    def __str__(self) -> str:
        first, *later = self.cuts.values()
        same = sum(cut == first for cut in later)
        start = (
            f"first cut: after {first} of {len(self.layers)} layers; {same} of {len(later)} later measurements agree"
        )
        moved = [f"{cut} in round {round_}" for round_, cut in self.cuts.items() if cut != first]
        return f"{start}; the cut moves to {', '.join(moved)}" if moved else f"{start}; the cut does not move"

    def to_json(self) -> dict[str, Any]:
        return {
            "task": self.task,
            "layers": list(self.layers),
            "cuts": {str(round_): cut for round_, cut in self.cuts.items()},
            "share_that_stays": self.share_that_stays,
            "rounds": {str(round_): recommendation.to_json() for round_, recommendation in self.rounds.items()},
        }


def monitor_drift(
    task: str | Task,
    *,
    every: int = 5,
    rounds: int | None = None,
    seed: int = 0,
    cut: int | None = None,
    settings: Mapping[str, Any] | Sequence[str] = (),
    listener: Listener | None = None,
) -> Drift:
    """Runs PLayer-FL and measures sensitivity again in rounds 1, 1 + every, 1 + 2·every …

    `cut`: share this many layers instead of the recommended number; all layers is FedAvg, none is training alone.
    """
    if every < 1:
        raise ConfigError(f"sensitivity cannot be measured every {every} rounds; give at least 1")
    chosen = task if isinstance(task, Task) else load_task(task)
    table = {**analysis_table(chosen, rounds, settings), "seed": seed}
    fixed = {} if cut is None else {"rule": "fixed", "fixed_cut": cut}
    experiment = Experiment.resolve({**table, "algorithm": {"name": "player_fl", **fixed}}, chosen)
    arguments = {key: value for key, value in experiment.algorithm.items() if key != "name"}
    algorithm = Monitored(**arguments, every=every)
    with limited_threads(experiment.threads):
        setup = prepare_setup(experiment, chosen)
        algorithm.check_layers(setup.learner.layers)
        run = Run(experiment, setup, listener=listener, algorithm=algorithm)
        drive(run.rounds())
    measured = {1: {site: client.memory["profile"] for site, client in run.clients.items()}}
    for site, client in run.clients.items():
        for round_, profile in client.memory.get("drift", {}).items():
            measured.setdefault(int(round_), {})[site] = profile
    options = decision_options(vars(algorithm))
    recommendations: dict[int, Recommendation] = {}
    for round_, stored in sorted(measured.items()):
        profiles = {site: Profile.from_json(profile) for site, profile in stored.items()}
        recommendations[round_] = recommend(profiles, resamples=_RESAMPLES, **options)
    return Drift(chosen.name, setup.learner.layers.names, recommendations)
