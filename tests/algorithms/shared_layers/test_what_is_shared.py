"""Methods with private layers: exactly the shared layers are sent and common, the others differ between sites."""

from __future__ import annotations

from typing import Any

import pytest

from algorithms.recorder import LAYERS, entries_of, part_of, same_bits, watch
from federations import build
from playerfl.algorithms import ALGORITHMS, Algorithm, Ditto

CUTS = range(len(LAYERS) + 1)


def fixed(name: str, cut: int, **options: Any) -> Algorithm:
    return ALGORITHMS[name](rule="fixed", fixed_cut=cut, **options)  # type: ignore[call-arg]


def cases() -> list[Any]:
    by_cut = [
        *((ALGORITHMS["fedper"](personal_layers=len(LAYERS) - cut), cut) for cut in CUTS),  # type: ignore[call-arg]
        *((fixed("player_fl", cut, first_epoch=start), cut) for cut in CUTS for start in ("continue", "restart")),
        *((fixed(f"player_fl_{base}", cut), cut) for cut in (1, 2, 3) for base in ("fedprox", "ditto", "fedrep")),
        *((ALGORITHMS["fedrep"](personal_layers=len(LAYERS) - cut), cut) for cut in (1, 2, 3)),  # type: ignore[call-arg]
        (ALGORITHMS["fedbabu"](), 3),
        (fixed("player_fl_minus_1", 2), 1),
        (fixed("player_fl_plus_1", 2), 3),
    ]
    return [pytest.param(algorithm, cut, id=f"{type(algorithm).__name__}, {cut}") for algorithm, cut in by_cut]


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "cut"), cases())
def test_exactly_the_shared_layers_are_sent_and_common(algorithm: Algorithm, cut: int) -> None:
    watched = watch(build(algorithm))
    shared = entries_of(watched.run, LAYERS[:cut])
    for site, weights in watched.result.weights.items():
        first, second, *later = watched.to(site)
        assert same_bits(first.down, watched.run.setup.initial)
        assert not (algorithm.prepares and first.up)
        # The measured epoch is round 1, so its fit needs only the cut.
        continues = algorithm.prepares and getattr(algorithm, "first_epoch", "") == "continue"
        assert second.down.keys() == (set() if continues else shared)
        assert all(message.down.keys() == shared for message in later)
        assert all(fit.up.keys() == shared for fit in watched.fits(site))
        assert not watched.to(site)[-1].up
        if not isinstance(algorithm, Ditto):
            assert same_bits(part_of(weights, *LAYERS[:cut]), part_of(watched.run.server.weights, *LAYERS[:cut]))
    one, other, _ = watched.result.weights.values()
    assert not any(same_bits(part_of(one, layer), part_of(other, layer)) for layer in LAYERS[cut:])
