"""Local: every site trains alone."""

from __future__ import annotations

import pytest

from algorithms.recorder import same_bits, watch
from federations import MODELS, build, federate, task
from playerfl.algorithms import FedAvg, Local


def test_nothing_is_sent_after_the_initial_model() -> None:
    watched = watch(build(Local()))
    for site in watched.result.sites:
        first, *later = watched.to(site)
        assert same_bits(first.down, watched.run.setup.initial)
        assert later
        assert all(not m.down and not m.request.download.info for m in later)
        assert all(not m.up and not m.reply.upload.info for m in watched.to(site))


@pytest.mark.parametrize("model", MODELS)
def test_all_sites_start_from_the_initial_model_of_fedavg(model: str) -> None:
    resting = {"training.learning_rate": 0.0, "bn_stats": "local"}
    alone, together = (federate(algorithm, task(model), rounds=1, **resting) for algorithm in (Local(), FedAvg()))
    parameters = {name for name, _ in MODELS[model]().named_parameters()}
    for site in alone.sites:
        for other in (alone.weights["site-0"], together.weights[site]):
            assert same_bits(
                {n: w for n, w in alone.weights[site].items() if n in parameters},
                {n: w for n, w in other.items() if n in parameters},
            )


@pytest.mark.parametrize("epochs", [1, 2])
def test_it_trains_as_many_epochs_as_fedavg(epochs: int) -> None:
    counts = [watch(build(a, **{"training.local_epochs": epochs})).epochs for a in (Local(), FedAvg())]
    assert counts == [3 * 3 * epochs] * 2


def test_both_evaluation_points_coincide() -> None:
    after_merge, after_training = (federate(Local(), eval_point=point) for point in ("post_agg", "post_local"))
    assert sorted(after_merge.score_rows) == sorted(after_training.score_rows)
