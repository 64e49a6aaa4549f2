"""PLayer-FL; its limit cases are in selftest."""

from __future__ import annotations

import pytest

from algorithms.recorder import LAYERS, Watched, part_of, same_bits, watch
from federations import build, task
from playerfl.algorithms import PLayerFL
from playerfl.layers.cut import choose_cut

both_starts = pytest.mark.parametrize("first_epoch", ["continue", "restart"])


def fixed(cut: int, first_epoch: str = "continue") -> PLayerFL:
    return PLayerFL(rule="fixed", fixed_cut=cut, first_epoch=first_epoch)  # type: ignore[arg-type]


def scores_sent(watched: Watched) -> dict[str, dict[str, float]]:
    """What every site uploaded before the first round, by layer."""
    return {
        m.client: dict(zip(LAYERS, m.reply.upload.info["importance"], strict=True))  # type: ignore[arg-type]
        for m in watched.messages
        if m.request.verbs == ("prepare",)
    }


@both_starts
def test_the_cut_is_chosen_once_from_one_number_per_layer_and_announced_once(first_epoch: str) -> None:
    watched = watch(build(PLayerFL(first_epoch=first_epoch), rounds=4))  # type: ignore[arg-type]
    cut = watched.result.cut
    assert cut is not None
    assert cut.index == choose_cut(scores_sent(watched)).index
    for site in watched.result.sites:
        prepare, first, *later = watched.to(site)
        assert len(prepare.reply.upload.info["importance"]) == len(LAYERS)  # type: ignore[arg-type]
        assert dict(first.request.download.info) == {"cut": cut.index}
        assert all(not m.request.download.info for m in later)
        assert all(not m.reply.upload.info for m in (first, *later))


def test_sites_are_measured_before_anything_is_averaged() -> None:
    """So what a site sends depends neither on the others nor on the number of rounds."""
    together = scores_sent(watch(build(PLayerFL(), task(count=3))))
    assert scores_sent(watch(build(PLayerFL(), task(count=1)))) == {"site-0": together["site-0"]}
    assert scores_sent(watch(build(PLayerFL(), task(count=3), rounds=1))) == together
    assert together["site-0"] != together["site-1"]


@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize(("first_epoch", "rounds"), [("continue", 3), ("restart", 4)])
def test_the_measured_epoch_is_round_one_or_extra(first_epoch: str, rounds: int, epochs: int) -> None:
    watched = watch(build(fixed(2, first_epoch), rounds=3, **{"training.local_epochs": epochs}))
    assert watched.epochs == 3 * rounds * epochs


def test_a_restart_discards_the_measured_epoch() -> None:
    watched = watch(build(fixed(2, "restart"), rounds=1, **{"training.learning_rate": 0.0}))
    assert all(same_bits(own, watched.run.setup.initial) for own in watched.result.weights.values())
    moved = watch(build(fixed(2, "restart"), rounds=1))
    first = moved.fits("site-0")[0]
    assert same_bits(first.down, part_of(moved.run.setup.initial, "0", "2"))
