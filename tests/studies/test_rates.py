"""The learning rate is chosen on validation losses: examples worked out by hand."""

from __future__ import annotations

import math
import re

import pytest

from federations import federate
from playerfl.algorithms import PFedMe
from playerfl.paper import facts as paper
from playerfl.studies.rates import (
    choose_rate,
    paper_grid,
    pfedme_preset,
    reported_regret,
    reported_value,
    tuned_loss,
    tuning_notes,
    validation_losses,
)


def test_the_mean_over_runs_is_taken_before_the_minimum_over_rounds() -> None:
    # Each run's own minimum would be 0.1; round by round the means are 0.5, 0.45 and 0.5.
    assert tuned_loss([{1: 0.1, 2: 0.5, 3: 0.9}, {1: 0.9, 2: 0.4, 3: 0.1}]) == 0.45


def test_a_round_that_diverged_is_infinitely_bad_and_the_others_count() -> None:
    assert tuned_loss([{1: 0.8, 2: math.inf}, {1: 0.6, 2: 0.1}]) == pytest.approx(0.7)
    assert tuned_loss([{1: math.nan}, {1: 0.1}]) == math.inf


def test_a_rate_with_a_failed_run_or_without_runs_is_infinitely_bad() -> None:
    assert tuned_loss([{1: 0.1}, None]) == math.inf
    assert tuned_loss([]) == math.inf


def test_the_smallest_loss_wins_and_of_equal_ones_the_larger_rate() -> None:
    assert choose_rate({0.1: 0.5, 0.01: 0.4, 0.001: 0.6}) == 0.01
    assert choose_rate({0.001: 0.4, 0.1: 0.4, 0.01: 0.4}) == 0.1
    assert choose_rate({0.1: math.inf, 0.01: math.inf}) is None


def test_losses_are_weighted_by_the_sites_training_examples() -> None:
    result = federate("fedavg", rounds=2)
    shares = result.num_examples
    assert len(set(shares.values())) > 1
    rows = {(row[1], row[2]): row[5] for row in result.score_rows if (row[3], row[4]) == ("validation", "loss")}
    for round_, loss in validation_losses(result).items():
        expected = sum(float(rows[round_, site]) * n for site, n in shares.items()) / sum(shares.values())
        assert loss == pytest.approx(expected)


@pytest.mark.parametrize("algorithm", ["fedbabu", "local_adaptation"])
def test_of_a_method_that_finishes_only_the_finished_model_counts(algorithm: str) -> None:
    result = federate(algorithm, rounds=3)
    losses = validation_losses(result)
    assert list(losses) == [3]
    last = {
        row[2]: float(row[5]) for row in result.score_rows if (row[0], *row[3:5]) == ("finish", "validation", "loss")
    }
    assert losses[3] == pytest.approx(
        sum(last[site] * n for site, n in result.num_examples.items()) / sum(result.num_examples.values())
    )


@pytest.mark.parametrize("dataset", paper.facts()["datasets"])
def test_every_method_tries_as_many_rates_and_pfedme_its_printed_one(dataset: str) -> None:
    assert len(paper_grid(dataset, "pfedme")) == len(paper_grid(dataset, "fedavg"))
    assert paper.learning_rates(dataset)["pfedme"] in paper_grid(dataset, "pfedme")
    assert paper_grid(dataset, "player_fl") == sorted(paper.protocol(dataset)["learning_rate_grid"], reverse=True)


@pytest.mark.parametrize("dataset", paper.facts()["datasets"])
def test_the_pfedme_preset_has_a_hundred_times_the_grid_and_mostly_rates_that_can_train(dataset: str) -> None:
    preset, grid = pfedme_preset(dataset), paper_grid(dataset, "fedavg")
    assert preset.learning_rates == pytest.approx([100 * rate for rate in grid])
    overshooting = [rate for rate in preset.learning_rates if PFedMe(preset.lam).training_notes(rate)]
    assert overshooting == ([50.0] if dataset == "Heart" else [])


def test_a_rate_is_judged_by_what_would_be_reported_on_validation_data() -> None:
    result = federate("fedper", rounds=4, selection="by_owner", **{"training.learning_rate": 0.1})
    table = result.scores
    table = table[table.split == "validation"]
    for metric in ("loss", "f1", "accuracy"):
        values = {}
        for site in result.sites:
            own = table[table.site == site].pivot_table(index="round", columns="metric", values="value")
            values[site] = own.loc[own.loss.idxmin(), metric]
        expected = sum(values[site] * n for site, n in result.num_examples.items()) / sum(result.num_examples.values())
        assert reported_value(result, metric) == pytest.approx(expected)  # type: ignore[arg-type]


def test_the_common_round_may_prefer_another_rate_than_what_is_reported() -> None:
    """Two runs whose best rounds differ: one common round is bad for both, their own rounds are good."""
    common = {0.1: tuned_loss([{1: 0.1, 2: 0.9}, {1: 0.9, 2: 0.1}]), 0.01: tuned_loss([{1: 0.4}, {1: 0.4}])}
    reported = {0.1: reported_regret([0.1, 0.1], "loss"), 0.01: reported_regret([0.4, 0.4], "loss")}
    assert (choose_rate(common), choose_rate(reported)) == (0.01, 0.1)


def test_a_close_choice_is_noted_with_its_rivals() -> None:
    calm = {0.1: [0.5, 0.5, 0.5, 0.5], 0.05: [0.1, 0.1, 0.1, 0.1], 0.01: [0.9, 0.9, 0.9, 0.9]}
    assert tuning_notes(calm, "loss") == []
    # Of two runs, 0.05 wins one by a little more than it loses the other.
    close = {0.1: [0.5, 0.1], 0.05: [0.1, 0.45], 0.01: [0.9, 0.9]}
    [note] = tuning_notes(close, "loss")
    draws = [(0, 0), (0, 1), (1, 0), (1, 1)]
    wins = sum(sum(close[0.05][i] for i in d) < sum(close[0.1][i] for i in d) for d in draws) / len(draws)
    shares = [float(share) / 100 for share in re.findall(r"(\d+)%", note)]
    assert shares == pytest.approx([wins, 1 - wins], abs=0.05)


def test_a_failed_or_diverged_run_rules_a_rate_out() -> None:
    assert reported_regret([0.1, math.nan], "f1") == math.inf
    assert tuning_notes({0.1: [0.5, None], 0.01: [0.6, 0.6]}, "loss") == [
        "the chosen learning rate 0.01 is the smallest that was tried"
    ]
