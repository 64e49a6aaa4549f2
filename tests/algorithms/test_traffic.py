"""Bytes counted by the transport against the formula of each method, to the byte.

P is the whole model, P_l a layer, L the number of layers, R the number of rounds; a weight is 4 bytes, a number in
`info` 8. The initial model travels down once to every site. Then every round sends up and down what the method says;
what goes down after the last round is only scored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from algorithms.recorder import LAYERS, Watched, part_of, watch
from federations import build, quick_for, task
from playerfl import algorithms as methods
from playerfl.algorithms import ALGORITHMS, Algorithm
from playerfl.federation.messages import Info
from playerfl.weights import Weights

WEIGHT, NUMBER = 4, 8
SIZES = dict(zip(LAYERS, (6 * 8 + 8, 8 * 8 + 8, 8 * 8 + 8, 8 * 3 + 3), strict=True))
"""Weights and biases of 6 → 8 → 8 → 8 → 3."""
P = sum(SIZES.values())
L = len(LAYERS)
R = 5


def size(layers: Sequence[str]) -> int:
    return sum(SIZES[layer] for layer in layers)


def bytes_of(watched: Watched, site: str) -> tuple[int, int]:
    """Bytes down and up, as recorded in the run's own table."""
    rows = watched.result.traffic
    own = rows[rows["site"] == site]
    return int(own["down"].sum()), int(own["up"].sum())


def assert_every_site(watched: Watched, down: int, up: int) -> None:
    assert {site: bytes_of(watched, site) for site in watched.result.sites} == dict.fromkeys(
        ("site-0", "site-1", "site-2"), (down, up)
    )


def assert_cut(watched: Watched, cut: int, *, restarts: int = 0, scores: int = L) -> None:
    """The shared layers every round, and again for each restart; the cut down; layer scores up."""
    shared = size(LAYERS[:cut])
    down = WEIGHT * (P + (restarts + R) * shared) + NUMBER
    assert_every_site(watched, down=down, up=NUMBER * scores + WEIGHT * R * shared)


def run(algorithm: Algorithm, **settings: Any) -> Watched:
    return watch(build(algorithm, rounds=R, **settings))


def test_local_sends_the_initial_model_and_nothing_else() -> None:
    assert_every_site(run(methods.Local()), down=WEIGHT * P, up=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm",
    [
        methods.FedAvg(),
        methods.FedProx(),
        methods.PFedMe(),
        methods.PFedMe(beta=0.5),
        methods.Ditto(),
        methods.Ditto(anchor="post_agg"),
        methods.LocalAdaptation(),
        methods.LocalAdaptation(adapt_epochs=3),
        methods.PFedLA(),
        methods.APFL(),
        methods.APFL(alpha_learning_rate=0.1),
        methods.FedALA(),
        methods.FedCAC(),
        methods.FedBN(),
        methods.FedDBE(kappa=0.0),
        methods.FedAvg(server_optimizer="adam"),
    ],
)
def test_methods_of_the_whole_model_send_it_down_and_up_every_round(algorithm: Algorithm) -> None:
    assert_every_site(run(algorithm), down=WEIGHT * (P + R * P), up=WEIGHT * R * P)


@pytest.mark.slow
@pytest.mark.parametrize("method", [methods.FedPer, methods.FedRep, methods.FedBABU])
@pytest.mark.parametrize("personal", [0, 1, 2, 4])
def test_methods_with_a_head_send_the_body_only(method: Any, personal: int) -> None:
    body = size(LAYERS[: L - personal])
    assert_every_site(run(method(personal_layers=personal)), down=WEIGHT * (P + R * body), up=WEIGHT * R * body)


@pytest.mark.parametrize("shared", [0, 1, 3, 4])
def test_lg_fedavg_sends_the_head_only(shared: int) -> None:
    head = size(LAYERS[L - shared :])
    assert_every_site(run(methods.LGFedAvg(shared)), down=WEIGHT * (P + R * head), up=WEIGHT * R * head)


def test_scaffold_sends_a_control_variate_beside_every_weight() -> None:
    """The first download has none yet: all controls are zero."""
    assert_every_site(run(methods.Scaffold()), down=WEIGHT * (P + R * 2 * P), up=WEIGHT * R * 2 * P)


def test_feddbe_sends_the_mean_of_the_features_once() -> None:
    """The epoch that measures it is discarded, so the initial model is sent twice."""
    width = 8
    assert_every_site(
        run(methods.FedDBE()), down=WEIGHT * (2 * P + R * P) + NUMBER * width, up=WEIGHT * R * P + NUMBER * width
    )


def test_fedselect_sends_its_mask_in_numbers_of_48_bits() -> None:
    mask = NUMBER * -(-P // 48)
    assert_every_site(run(methods.FedSelect()), down=WEIGHT * (P + R * P), up=(WEIGHT * P + mask) * R)


def test_fedbn_sends_no_batch_norm() -> None:
    watched = watch(build(methods.FedBN(), task("batch norm"), rounds=R))
    whole = 6 * 8 + 8 + 8 * 8 + 8 + 8 * 3 + 3
    # Two norms: scale, shift, mean and variance of 8 features, and a step counter of 8 bytes.
    norms = WEIGHT * 2 * (4 * 8) + 8 * 2
    assert_every_site(watched, down=WEIGHT * (1 + R) * whole + norms, up=WEIGHT * R * whole)


@pytest.mark.parametrize(
    ("method", "shared"), [(methods.FedAvg, "ABH"), (methods.FedSALoRA, "A"), (methods.FFALoRA, "BH")]
)
def test_of_adapters_only_what_is_shared_is_sent_and_never_what_is_frozen(method: Any, shared: str) -> None:
    watched = watch(build(method(), task("low-rank adapters"), rounds=R))
    rank = 2
    sizes = {"A": rank * (6 + 8 + 8), "B": rank * 3 * 8, "H": 8 * 3 + 3}
    each = sum(sizes[part] for part in shared)
    assert_every_site(watched, down=WEIGHT * (sum(sizes.values()) + R * each), up=WEIGHT * R * each)
    assert watched.result.bytes_up_per_round == WEIGHT * each
    # Three frozen layers and the head, without the adapters.
    assert watched.result.full_fine_tuning_bytes == WEIGHT * (6 * 8 + 8 + 2 * (8 * 8 + 8) + sizes["H"])


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.7, 1.0])
def test_fedlp_sends_everything_down_and_the_kept_layers_up(keep: float) -> None:
    watched = run(methods.FedLP(keep=keep))
    for site in watched.result.sites:
        kept = sum(size([layer for layer in LAYERS if part_of(fit.up, layer)]) for fit in watched.fits(site))
        assert bytes_of(watched, site) == (WEIGHT * (P + R * P), WEIGHT * kept)


@pytest.mark.parametrize(("tau", "phi"), [(1, 1), (1, 2), (2, 2), (6, 2)])
def test_fedlama_sends_what_is_due_and_the_intervals_at_each_adjustment(tau: int, phi: int) -> None:
    watched = run(methods.FedLAMA(tau=tau, phi=phi))
    adjustments = R // (phi * tau) if phi > 1 else 0
    for site in watched.result.sites:
        intervals, due = [tau] * L, 0
        for round_, fit in enumerate(watched.fits(site), start=1):
            intervals = fit.request.download.info.get("intervals", intervals)  # type: ignore[assignment]
            due += size([layer for layer, every in zip(LAYERS, intervals, strict=True) if round_ % every == 0])
        assert bytes_of(watched, site) == (WEIGHT * (P + due) + NUMBER * L * adjustments, WEIGHT * due)


@pytest.mark.slow
@pytest.mark.parametrize("cut", range(L + 1))
def test_player_fl_sends_the_shared_layers_the_scores_and_the_cut(cut: int) -> None:
    """The measured epoch is round 1, so the first download after the cut is the first average."""
    assert_cut(run(methods.PLayerFL(rule="fixed", fixed_cut=cut)), cut)


RESTARTED = [
    lambda **options: methods.PLayerFL(first_epoch="restart", **options),
    methods.PLayerFLFedProx,
    methods.PLayerFLDitto,
    methods.PLayerFLFedRep,
]


@pytest.mark.slow
@pytest.mark.parametrize("method", RESTARTED, ids=["player_fl", "fedprox", "ditto", "fedrep"])
@pytest.mark.parametrize("cut", [0, 2, 4])
def test_a_restart_sends_the_shared_layers_of_the_initial_model_again(method: Any, cut: int) -> None:
    assert_cut(run(method(rule="fixed", fixed_cut=cut)), cut, restarts=1)


@pytest.mark.parametrize(("method", "cut"), [(methods.PLayerFLMinusOne, 1), (methods.PLayerFLPlusOne, 3)])
def test_a_moved_cut_counts_where_it_was_moved_to(method: Any, cut: int) -> None:
    assert_cut(run(method(rule="fixed", fixed_cut=2)), cut)


@pytest.mark.parametrize(("reference_cut", "scores"), [(2, 0), (None, L)])
def test_a_random_cut_sends_scores_only_to_measure_its_reference(reference_cut: int | None, scores: int) -> None:
    watched = run(methods.PLayerFLRandom(reference_cut=reference_cut))
    assert_cut(watched, watched.run.server.memory["cut"], scores=scores)


@pytest.mark.parametrize("name", quick_for(ALGORITHMS, "fedavg", "ditto", "fedbabu", "player_fl"))
def test_the_table_counts_what_was_in_the_messages(name: str) -> None:
    watched = watch(build(name, rounds=2))
    for site in watched.result.sites:
        messages = watched.to(site)
        down = sum(weighed(m.down, m.request.download.info) for m in messages)
        up = sum(weighed(m.up, m.reply.upload.info) for m in messages)
        assert bytes_of(watched, site) == (down, up)


def weighed(weights: Weights, info: Info) -> int:
    numbers = sum(len(value) if isinstance(value, list) else 1 for value in info.values())
    return WEIGHT * sum(w.numel() for w in weights.values()) + NUMBER * numbers


@pytest.mark.slow
@pytest.mark.parametrize("method", [methods.Local, methods.FedAvg, methods.FedPer, methods.PLayerFL])
def test_scoring_after_local_training_needs_no_model_after_the_last_round(method: Any) -> None:
    after_merge, after_training = (run(method(), eval_point=point) for point in ("post_agg", "post_local"))
    for site in after_merge.result.sites:
        last = sum(w.numel() for w in after_merge.to(site)[-1].down.values())
        down, up = bytes_of(after_merge, site)
        assert bytes_of(after_training, site) == (down - WEIGHT * last, up)
