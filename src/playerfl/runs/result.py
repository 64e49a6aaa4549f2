"""RunResult: the result of one run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from playerfl.errors import ConfigError, RunDirectoryError, one_of
from playerfl.layers.layer_map import state_entries
from playerfl.layers.split import Cut
from playerfl.runs.files import DataFile, EnvironmentFile, LayersFile, TimingFile
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
    def algorithm(self) -> str:
        return str(self.experiment["algorithm"]["name"])

    @property
    def sites(self) -> list[str]:
        return sorted(self.data["sites"])

    @cached_property
    def chosen_rounds(self) -> dict[str, int]:
        """The round reported for each site, by the experiment's `selection`, from validation losses alone."""
        return choose_rounds(self.score_rows, self.num_examples, self.experiment["selection"])

    @cached_property
    def num_examples(self) -> dict[str, int]:
        """Training examples per site, by which averages are weighted."""
        return {site: record["train"]["examples"] for site, record in self.data["sites"].items()}

    @cached_property
    def site_scores(self) -> dict[str, dict[str, float]]:
        """Each site's test scores at its chosen round: site, then metric."""
        stage = reported_stage(self.score_rows)
        scores: dict[str, dict[str, float]] = {site: {} for site in self.sites}
        for row_stage, round_, site, split, metric, value in self.score_rows:
            if row_stage == stage and split == "test" and round_ == self.chosen_rounds.get(str(site)):
                scores[str(site)][str(metric)] = float(value)
        return scores

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
        if site not in self.sites:
            raise ConfigError(one_of(site, self.sites, "site"))
        if site not in self.weights:
            raise ConfigError(
                f"the model of {site} is not here: it was not kept (keep_weights = true in the study file keeps it), "
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


def choose_rounds(rows: Sequence[Row], num_examples: Mapping[str, int], selection: str) -> dict[str, int]:
    """The reported round of each site: the one with the lowest validation loss (its own or the average), or the last.

    A site that was never scored, because it was lost, has none.

    >>> rows = [("round", 1, "a", "validation", "loss", 0.5), ("round", 2, "a", "validation", "loss", 0.7)]
    >>> choose_rounds(rows, {"a": 10}, "client_best"), choose_rounds(rows, {"a": 10}, "last")
    ({'a': 1}, {'a': 2})
    """
    stage = reported_stage(rows)
    losses: dict[int, dict[str, float]] = {}
    for row_stage, round_, site, split, metric, value in rows:
        if (row_stage, split, metric) == (stage, "validation", "loss"):
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
