"""One reported round for sites that share one model, each site's own for sites that do not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from federations import assert_same, federate, quick_for, task
from playerfl.algorithms import ALGORITHMS, Algorithm, FedAvg, FedLAMA, FedPer, PLayerFL
from playerfl.runs.result import RunResult, choose_rounds
from playerfl.weights import num_bytes

ROUNDS = 6


def validation_loss(result: RunResult) -> Callable[[int, str], float]:
    rows = {(row[1], row[2]): float(row[5]) for row in result.score_rows if row[3:5] == ("validation", "loss")}
    return lambda round_, site: rows[round_, site]


def lowest_mean(result: RunResult, rounds: list[int]) -> int:
    loss, sizes = validation_loss(result), result.num_examples
    return min(rounds, key=lambda r: sum(loss(r, site) * n for site, n in sizes.items()))


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "fedlp"])
def test_sites_that_share_a_model_keep_that_of_one_round(name: str) -> None:
    result = federate(name, rounds=ROUNDS, selection="by_owner", **{"training.learning_rate": 0.3})
    best = lowest_mean(result, list(range(1, ROUNDS + 1)))
    assert result.chosen_rounds == dict.fromkeys(result.sites, best)
    until_then = federate(name, rounds=best, **{"training.learning_rate": 0.3})
    for site in result.sites:
        assert all(torch.equal(w, until_then.weights[site][n]) for n, w in result.weights[site].items())


PLAYER_FL = PLayerFL(rule="fixed", fixed_cut=2)


@pytest.mark.parametrize("name", ["local", "fedper", "fedrep", "ditto", "pfedme", "pfedla", PLAYER_FL])
def test_sites_with_their_own_models_choose_for_themselves(name: str | Algorithm) -> None:
    """The same models and scores as with client_best, to the bit."""
    result = federate(name, rounds=ROUNDS, selection="by_owner", **{"training.learning_rate": 0.1})
    loss = validation_loss(result)
    best = {site: min(range(1, ROUNDS + 1), key=lambda r, s=site: loss(r, s)) for site in result.sites}
    assert result.chosen_rounds == best
    assert_same(result, federate(name, rounds=ROUNDS, selection="client_best", **{"training.learning_rate": 0.1}))


def test_fedlama_is_scored_only_when_all_layers_are_in_step() -> None:
    """In step are the rounds in which every site uploaded the whole model, as the traffic shows."""
    rounds = 12
    result = federate(FedLAMA(phi=3), rounds=rounds, selection="by_owner", **{"training.learning_rate": 0.05})
    whole = num_bytes(next(iter(result.weights.values())))
    uploads = {int(row[0]): int(row[4]) for row in result.traffic_rows if "fit" in str(row[2])}
    in_step = [round_ + 1 for round_, up in uploads.items() if up == whole]
    assert in_step != list(range(1, rounds + 1))
    assert list(result.common_rounds) == in_step
    assert set(result.chosen_rounds.values()) == {lowest_mean(result, in_step)}
    # The sites would have chosen rounds in between, which is why it matters.
    assert not set(result.rounds_chosen_by("client_best").values()) <= set(in_step)


# After a finishing phase, what sites predicted with before it is not kept.
@pytest.mark.parametrize(
    "name",
    quick_for(
        [name for name, kind in ALGORITHMS.items() if not kind().finishes], "fedavg", "fedper", "fedlama", "apfl"
    ),
)
def test_an_algorithm_declares_a_common_model_when_all_sites_predict_with_one(name: str) -> None:
    # pFedLA's hypernetworks start out equal, so after one round its models are equal by chance.
    for rounds in (2, 3):
        result = federate(name, rounds=rounds)
        first, *others = (result.weights[site] for site in result.sites)
        equal = all(torch.equal(first[n], other[n]) for other in others for n in first)
        assert (rounds in result.common_rounds) == equal


def test_a_method_without_private_layers_is_fedavg_here_too() -> None:
    """PLayer-FL's cut is known only once it has been measured."""
    everything = PLayerFL(rule="fixed", fixed_cut=4)
    fedavg, *others = (federate(a, rounds=ROUNDS, selection="by_owner") for a in (FedAvg(), FedPer(0), everything))
    assert fedavg.chosen_rounds == others[0].chosen_rounds == others[1].chosen_rounds
    assert_same(fedavg, others[0])


@pytest.mark.parametrize("algorithm", [FedAvg(), FedLAMA()])
def test_models_after_local_training_belong_to_their_sites(algorithm: Algorithm) -> None:
    result = federate(algorithm, rounds=3, selection="by_owner", eval_point="post_local")
    assert not result.common_rounds
    assert_same(result, federate(algorithm, rounds=3, selection="client_best", eval_point="post_local"))


def test_without_a_common_round_each_site_chooses() -> None:
    rows = [
        ("round", r, site, "validation", "loss", (r - best) ** 2)
        for r in (1, 2, 3)
        for site, best in (("a", 1), ("b", 3))
    ]
    assert choose_rounds(rows, {"a": 1, "b": 1}, "by_owner") == {"a": 1, "b": 3}
    assert choose_rounds(rows, {"a": 1, "b": 1}, "by_owner", [1, 2]) == {"a": 2, "b": 2}


@pytest.mark.parametrize("patience", [1, 2])
def test_a_run_stops_once_the_validation_loss_has_not_fallen(patience: int) -> None:
    settings = {"training.learning_rate": 0.3, "selection": "by_owner"}
    whole = federate("fedavg", rounds=12, **settings)
    loss, sizes = validation_loss(whole), whole.num_examples
    means = [sum(loss(r, site) * n for site, n in sizes.items()) for r in range(1, 13)]
    lows = [min(range(i + 1), key=means.__getitem__) for i in range(12)]
    noticed = next(i + 1 for i in range(12) if i - lows[i] >= patience)
    stopped = federate("fedavg", rounds=12, early_stopping=patience, **settings)
    # The round after it was under way already: a merge is scored with the next message.
    assert noticed + 1 < 12
    assert max(int(row[1]) for row in stopped.score_rows) == noticed + 1
    assert sorted(stopped.score_rows) == sorted(row for row in whole.score_rows if int(row[1]) <= noticed + 1)


def test_sites_with_their_own_batch_norm_statistics_choose_for_themselves() -> None:
    runs = [
        federate("fedavg", task("batch norm"), rounds=3, selection="by_owner", bn_stats=s) for s in ("local", "follow")
    ]
    assert [list(run.common_rounds) for run in runs] == [[], [1, 2, 3]]
    assert runs[0].chosen_rounds == runs[0].rounds_chosen_by("client_best")
