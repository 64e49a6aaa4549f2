"""Robust merges: by hand, off by default, the same in one process and over Flower, and refused where they cannot be."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from federations import federate, settings_of, task
from playerfl.errors import ConfigError
from playerfl.federation.merging import Merge
from playerfl.runs.experiment import Experiment
from playerfl.weights import digest, weighted_mean

Part = tuple[dict[str, torch.Tensor], float]


def parts(*rows: list[float]) -> list[Part]:
    return [({"w": torch.tensor(row)}, 10.0**i) for i, row in enumerate(rows)]


COMMON = {"w": torch.zeros(2)}


@pytest.mark.parametrize(
    ("merge", "expected"),
    [
        (Merge("median"), [2.0, -1.0]),
        (Merge("trimmed_mean", 0.25), [2.0, -1.0]),
        (Merge("trimmed_mean", 0.0), [(0 + 1 + 3 + 1000) / 4, (-1 - 1 - 1 + 9) / 4]),
    ],
)
def test_rules_by_hand(merge: Merge, expected: list[float]) -> None:
    merged = merge(parts([1.0, -1.0], [3.0, -1.0], [1000.0, 9.0], [0.0, -1.0]), COMMON)
    assert merged["w"].tolist() == expected


def test_an_odd_number_of_sites_has_a_middle_one() -> None:
    assert Merge("median")(parts([1.0, 5.0], [2.0, -7.0], [9.0, 6.0]), COMMON)["w"].tolist() == [2.0, 5.0]
    counters = [({"steps": torch.tensor(n)}, 1.0) for n in (3, 2**60, 4)]
    assert int(Merge("median")(counters, {})["steps"]) == 4


def test_clipping_shortens_long_updates_only() -> None:
    common = {"w": torch.ones(2)}
    merged = Merge(clip_norm=2.0)(
        [({"w": torch.tensor(row)}, 1.0) for row in ([2.0, 1.0], [1.0, 2.0], [1.0, -15.0])], common
    )
    # Lengths 1, 1 and 16: the last one becomes 2.
    assert torch.allclose(merged["w"], torch.tensor([4 / 3, (1 + 2 - 1) / 3]))
    within = parts([1.0, 0.0], [0.0, 1.5])
    assert digest(Merge(clip_norm=2.0)(within, COMMON)) == digest(weighted_mean(within))


def test_sites_that_train_nothing_do_not_stop_the_others() -> None:
    """With a median length of 0, all updates were scaled down to nothing."""
    idle = parts([0.0, 0.0], [0.0, 0.0], [3.0, 4.0])
    assert digest(Merge(clip_norm=2.0)(idle, COMMON)) == digest(weighted_mean(idle))


@given(
    st.lists(st.lists(st.floats(-1e6, 1e6, width=32), min_size=2, max_size=2), min_size=3, max_size=9),
    st.floats(-1e30, 1e30),
)
def test_one_site_cannot_move_the_result_out_of_the_others_range(rows: list[list[float]], bad: float) -> None:
    honest = torch.tensor(rows)
    for merge in (Merge("median"), Merge("trimmed_mean", 0.0001)):
        merged = merge([*parts(*rows), ({"w": torch.full((2,), bad)}, 1e9)], COMMON)["w"]
        slack = 1e-3 + 1e-6 * honest.abs().max()
        assert bool((merged >= honest.min(0).values - slack).all() and (merged <= honest.max(0).values + slack).all())


def test_equal_uploads_give_the_same_bits_back() -> None:
    same = [({"w": torch.tensor([0.1, -0.0])}, 1.0)] * 3
    for merge in (Merge(), Merge("median"), Merge("trimmed_mean"), Merge(clip_norm=3.0)):
        assert digest(merge(same, COMMON)) == digest(same[0][0])


def test_the_default_changes_no_key_and_no_bit() -> None:
    plain = Experiment.resolve(settings_of("fedavg", {}), task())
    assert "merge" not in plain.to_toml() and plain.merge.build() == Merge()
    declared = Experiment.resolve(settings_of("fedavg", {"merge.rule": "mean"}), task())
    assert declared.to_toml() == plain.to_toml()


@pytest.mark.parametrize(
    "settings", [{"merge.rule": "median"}, {"merge.rule": "trimmed_mean"}, {"merge.clip_norm": 1.0}]
)
@pytest.mark.parametrize("algorithm", ["fedavg", "fedper"])
def test_a_run_uses_the_rule_and_its_file_reads_back(algorithm: str, settings: dict[str, Any]) -> None:
    plain, robust = federate(algorithm, rounds=2), federate(algorithm, rounds=2, **settings)
    assert digest(plain.weights["site-0"]) != digest(robust.weights["site-0"])
    experiment = Experiment.resolve(settings_of(algorithm, settings), task())
    assert Experiment.from_resolved(experiment.to_toml()) == experiment


@pytest.mark.parametrize(
    ("algorithm", "settings", "reason"),
    [
        ("fedavg", {"merge.rule": "mode"}, "merge.rule"),
        ("fedavg", {"merge.trim": 0.5}, "merge.trim"),
        ("fedavg", {"merge.trim": 0.2}, "no effect"),
        ("fedavg", {"merge.clip_norm": 0.5}, "at least 1"),
        ("fedavg", {"merge.rul": "median"}, "did you mean 'rule'"),
        ("pfedla", {"merge.rule": "median"}, "no effect on pfedla"),
        ("local", {"merge.clip_norm": 2.0}, "no effect on local"),
    ],
)
def test_bad_settings_are_one_sentence(algorithm: str, settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        Experiment.resolve(settings_of(algorithm, settings), task())
