"""RunResult: the result of one run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from playerfl.errors import ConfigError, RunDirectoryError, one_of
from playerfl.federation.messages import ConfusionKey
from playerfl.layers.cut import Cut
from playerfl.layers.layer_map import state_entries
from playerfl.learning.confusion import F1Labels
from playerfl.runs.confusions import Confusions
from playerfl.runs.files import DataFile, EnvironmentFile, LayersFile, TimingFile
from playerfl.runs.measures.declared import declared_as
from playerfl.runs.measures.outcomes import Outcomes
from playerfl.tasks import TASKS
from playerfl.tasks.load import names_object
from playerfl.weights import Weights, digest

if TYPE_CHECKING:
    import pandas as pd

SCORE_COLUMNS = ("stage", "round", "site", "split", "metric", "value")
TRAFFIC_COLUMNS = ("round", "site", "verbs", "down", "up")
Row = Sequence[str | int | float]


@dataclass(frozen=True, repr=False)
class RunResult:
    """One run: every site's scores per round, the traffic, the cut, and every site's model."""

    experiment: Mapping[str, Any]
    environment: EnvironmentFile
    score_rows: Sequence[Row]
    traffic_rows: Sequence[Row]
    layers: LayersFile
    data: DataFile
    weights: Mapping[str, Weights]
    """The model each site keeps, chosen on its validation data; empty if models were not kept."""
    build_model: Callable[[], nn.Module]
    timing: TimingFile
    path: Path | None = None
    confusions: Confusions = field(default_factory=Confusions.none)
    """A confusion matrix per stage, round, site and split ("validation", "test"); empty if none were recorded."""
    outcomes: Outcomes = field(default_factory=dict)
    """By site, its reported model's output for each test row; empty if that was not kept."""

    def __repr__(self) -> str:
        place = f", in {self.path}" if self.path else ""
        task, rounds = self.experiment["task"], self.experiment["rounds"]
        return f"<RunResult: {self.algorithm} on {task}, {rounds} rounds, {len(self.sites)} sites{place}>"

    @cached_property
    def scores(self) -> pd.DataFrame:
        """Tidy: stage, round, site, split, metric, value."""
        import pandas as pd

        return pd.DataFrame(list(self.score_rows), columns=list(SCORE_COLUMNS))

    @cached_property
    def traffic(self) -> pd.DataFrame:
        """Tidy: round, site, verbs, bytes down, bytes up."""
        import pandas as pd

        return pd.DataFrame(list(self.traffic_rows), columns=list(TRAFFIC_COLUMNS))

    @property
    def bytes_up_per_round(self) -> float:
        """What a site sends in a round, averaged over all trainings."""
        trainings = sum("fit" in str(row[2]) for row in self.traffic_rows)
        return sum(int(row[4]) for row in self.traffic_rows) / trainings if trainings else 0.0

    @property
    def full_fine_tuning_bytes(self) -> int | None:
        """What a site would send in a round if the whole model were trained; None if all of it is."""
        frozen = self.data.get("frozen")
        return frozen["full_fine_tuning_bytes"] if frozen else None

    @property
    def algorithm(self) -> str:
        return str(self.experiment["algorithm"]["name"])

    @property
    def sites(self) -> list[str]:
        return sorted(self.data["sites"])

    @cached_property
    def unseen_scores(self) -> dict[str, dict[str, float]]:
        """The test scores of the sites that joined after the last round: site, then metric; empty if there are none."""
        scores: dict[str, dict[str, float]] = {site: {} for site in sorted(self.data.get("unseen", {}))}
        for stage, _, site, split, metric, value in self.score_rows:
            if (stage, split) == ("unseen", "test"):
                scores.setdefault(str(site), {})[str(metric)] = float(value)
        return scores

    @cached_property
    def chosen_rounds(self) -> dict[str, int]:
        """The round reported for each site, by the experiment's `selection`, from validation losses alone."""
        return self.rounds_chosen_by(self.experiment["selection"])

    def rounds_chosen_by(self, selection: str) -> dict[str, int]:
        """The rounds that would be reported with another `selection`: every round is recorded, so nothing is rerun."""
        return choose_rounds(self.score_rows, self.num_examples, selection, self.common_rounds)

    @property
    def common_rounds(self) -> Sequence[int]:
        """The rounds after which all sites predicted with one model; none in runs that did not record it."""
        return self.layers.get("common_rounds", [])

    @cached_property
    def num_examples(self) -> dict[str, int]:
        """Training examples per site, by which averages are weighted."""
        return {site: record["train"]["examples"] for site, record in self.data["sites"].items()}

    @cached_property
    def site_scores(self) -> dict[str, dict[str, float]]:
        """Each site's test scores at its chosen round: site, then metric."""
        return self._scores_at(self.chosen_rounds)

    def undefined(self, metric: str) -> dict[str, str]:
        """The sites at which a metric has no value although the model did not diverge, and why."""
        why: dict[str, str] = {}
        if declared_as(metric, self.data.get("metrics", {}).get(metric)).always_defined:
            return why
        for site, scores in self.site_scores.items():
            value, loss = scores.get(metric, 0.0), scores.get("loss", 0.0)
            if value != value and math.isfinite(loss):
                reasons = self.data["sites"][site].get("test", {}).get("undefined", {})
                why[site] = reasons.get(metric, f"the metric returned NaN in round {self.chosen_rounds.get(site)}")
        return why

    @cached_property
    def test_rows(self) -> dict[str, int]:
        """Test rows per site, where that is known."""
        return {site: record["test"]["examples"] for site, record in self.data["sites"].items() if "test" in record}

    @property
    def positive_class(self) -> int:
        """The class that metrics of two classes are about."""
        return self.data.get("positive_class", 1)

    @property
    def of_folder(self) -> bool:
        """Whether its task is a folder of a user's own data."""
        task = str(self.experiment["task"])
        return task not in TASKS and not names_object(task)

    @property
    def reports_one_round(self) -> bool:
        """Whether all sites report the same round."""
        return len(set(self.chosen_rounds.values())) == 1

    @cached_property
    def one_round_scores(self) -> dict[str, dict[str, float]]:
        """Test scores at one round for all sites: the one they report, or else that with the lowest average loss."""
        common = choose_rounds(self.score_rows, self.num_examples, "round_best")
        return self.site_scores if self.reports_one_round or not common else self._scores_at(common)

    def _scores_at(self, rounds: Mapping[str, int]) -> dict[str, dict[str, float]]:
        stage = reported_stage(self.score_rows)
        scores: dict[str, dict[str, float]] = {site: {} for site in self.sites}
        for row_stage, round_, site, split, metric, value in self.score_rows:
            if row_stage == stage and split == "test" and round_ == rounds.get(str(site)):
                scores[str(site)][str(metric)] = float(value)
        return scores

    def f1(
        self,
        labels: F1Labels = "true_or_predicted",
        *,
        split: str = "test",
        rounds: Mapping[str, int] | None = None,
    ) -> dict[str, float]:
        """Each site's macro-F1 over these classes, at its chosen round or at that of `rounds`.

        With the default labels, it equals the recorded F1 bit for bit.
        """
        stage = reported_stage(self.score_rows)
        chosen = self.chosen_rounds if rounds is None else rounds
        keys = [(stage, round_, site, split) for site, round_ in chosen.items()]
        return dict(zip(chosen, self._f1(keys, labels), strict=True))

    def with_f1_over(self, labels: F1Labels) -> RunResult:
        """The same run, with every macro-F1 recomputed over these classes."""
        keys = [(str(row[0]), int(row[1]), str(row[2]), str(row[3])) for row in self.score_rows if row[4] == "f1"]
        scores = iter(self._f1(keys, labels))
        rows = [(*row[:5], next(scores)) if row[4] == "f1" else row for row in self.score_rows]
        return replace(self, score_rows=rows)

    def _f1(self, keys: Sequence[ConfusionKey], labels: F1Labels) -> list[float]:
        if lacking := [key for key in keys if key not in self.confusions]:
            _, round_, site, split = lacking[0]
            matrices = f"matrix of round {round_} at {site} on {split} data" if self.confusions else "matrices"
            raise ConfigError(
                f"{self.algorithm} on {self.experiment['task']} with seed {self.experiment['seed']} has no confusion "
                f"{matrices} to compute F1 over other classes from; run it again, in a new directory, and with "
                "confusions = 'always' if it has more than 100 classes"
            )
        return self.confusions.f1(labels, keys)

    @property
    def diverged(self) -> bool:
        """Whether a loss became NaN in any round."""
        return any(row[4] == "loss" and row[5] != row[5] for row in self.score_rows)

    @property
    def cut(self) -> Cut | None:
        """Where the layers were cut and why, if the algorithm decides on a cut."""
        decision = self.layers.get("decision")
        return None if decision is None else Cut.from_json(decision)

    def model(self, site: str) -> nn.Module:
        """The model a site keeps, in eval mode."""
        known = [*self.sites, *self.unseen_scores]
        if site not in known:
            raise ConfigError(one_of(site, known, "site"))
        if site not in self.weights:
            raise ConfigError(
                f"the model of {site} is missing: it was not kept (keep_weights = true in the study file keeps it), "
                "or it never left its site and is in that site's directory"
            )
        model, kept = self.build_model(), self.weights[site]
        entries = state_entries(model)
        if {name: entry.shape for name, entry in entries.items()} != {
            name: weight.shape for name, weight in kept.items()
        }:
            raise RunDirectoryError(
                f"the weights of {site} do not fit the model its experiment describes: the experiment file or the "
                "model's code has changed since the run; run it again"
            )
        for name, entry in entries.items():
            entry.detach().copy_(kept[name])
        return model.eval()


def reported_stage(rows: Iterable[Row]) -> str:
    """If an algorithm has a finishing phase, only the scores after it are reported."""
    return "finish" if any(row[0] == "finish" for row in rows) else "round"


def choose_rounds(
    rows: Sequence[Row], num_examples: Mapping[str, int], selection: str, common_rounds: Sequence[int] = ()
) -> dict[str, int]:
    """The reported round of each site: that with the lowest validation loss (its own, or the average), or the last.

    By owner: the round with the lowest average among `common_rounds`, after which all sites had one model; if there are
    none, each site's own best round. A site that was lost before it was ever scored has no reported round.

    >>> rows = [("round", 1, "a", "validation", "loss", 0.5), ("round", 2, "a", "validation", "loss", 0.7)]
    >>> choose_rounds(rows, {"a": 10}, "client_best"), choose_rounds(rows, {"a": 10}, "last")
    ({'a': 1}, {'a': 2})
    >>> choose_rounds(rows, {"a": 10}, "by_owner", common_rounds=[2]), choose_rounds(rows, {"a": 10}, "by_owner")
    ({'a': 2}, {'a': 1})
    """
    stage = reported_stage(rows)
    if selection == "by_owner":
        selection = "round_best" if common_rounds and stage == "round" else "client_best"
        compared = set(common_rounds) if selection == "round_best" else None
    else:
        compared = None
    losses: dict[int, dict[str, float]] = {}
    for row_stage, round_, site, split, metric, value in rows:
        if (row_stage, split, metric) == (stage, "validation", "loss") and (compared is None or round_ in compared):
            losses.setdefault(int(round_), {})[str(site)] = float(value)

    def lowest(loss_of: Callable[[int], float], rounds: list[int]) -> int:
        # Comparisons with nan are false, so a diverged round is never chosen over a finite one.
        best = rounds[0]
        for round_ in rounds[1:]:
            if loss_of(round_) < loss_of(best) or loss_of(best) != loss_of(best):
                best = round_
        return best

    chosen = {}
    for site in sorted(num_examples):
        rounds = sorted(round_ for round_ in losses if site in losses[round_])
        if not rounds:
            continue
        if selection == "last":
            chosen[site] = rounds[-1]
        elif selection == "client_best":
            chosen[site] = lowest(lambda r, c=site: losses[r][c], rounds)  # type: ignore[misc]
        else:
            common = [round_ for round_ in rounds if losses[round_].keys() >= num_examples.keys()]
            if common:
                chosen[site] = lowest(lambda r: sum(losses[r][c] * n for c, n in num_examples.items()), common)
    return chosen


def digest_of(weights: Mapping[str, Weights]) -> str:
    """One digest of all sites' models."""
    return digest(_AllEntries(weights))


def no_model(reason: str) -> nn.Module:
    """The `build_model` of a result that was read without its models."""
    raise RunDirectoryError(reason)


class _AllEntries(Mapping[str, Tensor]):
    """The entries of all sites by site and name; each model is loaded only when it is needed."""

    def __init__(self, weights: Mapping[str, Weights]) -> None:
        self._weights = weights
        self._places = {f"{site}/{name}": (site, name) for site, entries in weights.items() for name in entries}

    def __getitem__(self, key: str) -> Tensor:
        site, name = self._places[key]
        return self._weights[site][name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)
