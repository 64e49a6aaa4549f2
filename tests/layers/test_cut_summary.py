"""Cut summaries, and the same cut for other frameworks."""

from __future__ import annotations

import re

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from playerfl.layers.cut_summary import CutSummary, summarise_cut
from playerfl.layers.export import exclusion_regex, export_cut
from playerfl.layers.layer_map import LayerMap


def summary_of(model: nn.Module, cut: int, **policies: str) -> CutSummary:
    return summarise_cut(model, LayerMap.of(model, **policies), cut)  # type: ignore[arg-type]


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))


def test_bytes_agree_with_the_traffic_of_a_run() -> None:
    import playerfl
    from federations import QUICK, task

    result = playerfl.run(task("batch norm"), "player_fl", rounds=3, settings=QUICK)
    cut = result.cut
    assert cut is not None
    expected = summary_of(result.build_model(), cut.index).bytes_per_round
    fits = [row for row in result.traffic_rows if row[0] == 1 and "fit" in str(row[2])]
    assert {int(row[3]) for row in fits} == {int(row[4]) for row in fits} == {expected}


def test_statistics_count_in_bytes_but_not_in_parameters() -> None:
    summary = summary_of(normed(), 1)
    # 9 weights + 6 of the norm, plus two statistics of 3 numbers and an 8-byte counter.
    assert summary.federated_parameters == 15
    assert summary.bytes_per_round == 15 * 4 + 6 * 4 + 8
    assert summary_of(normed(), 1, statistics="local").bytes_per_round == 15 * 4
    assert 0 < summary.private_share < 1


def test_norms_on_both_sides_are_warned_about() -> None:
    assert "batch-norm statistics lie on both sides of the cut" in summary_of(normed(), 1).warnings[0]
    assert summary_of(normed(), 2).warnings == ()
    assert summary_of(normed(), 1, statistics="local").warnings == ()


def test_a_norm_split_between_two_declared_layers_is_warned_about() -> None:
    class Torn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm, self.last = nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)

        def layer_groups(self) -> list[tuple[str, list[str]]]:
            return [
                ("first", ["first.weight", "first.bias", "norm.running_mean", "norm.running_var"]),
                ("last", ["norm.num_batches_tracked", "norm.weight", "norm.bias", "last.weight", "last.bias"]),
            ]

    assert "the batch norm norm has entries on both sides of the cut" in summary_of(Torn(), 1).warnings


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.middle = nn.Linear(4, 4)
        self.out = nn.Linear(4, 5, bias=False)
        self.out.weight = self.embed.weight


def test_both_names_of_a_tied_tensor_are_exported() -> None:
    summary = summary_of(Tied(), 1)
    assert summary.federated_keys == ("embed.weight", "out.weight")
    assert "embed.weight is used by embed and out, on both sides of the cut" in summary.warnings


def test_frozen_parameters_are_never_sent() -> None:
    model = normed()
    model[0].requires_grad_(False)
    summary = summary_of(model, 2)
    assert summary.frozen_parameters == 9
    assert "0.weight" in summary.private_keys
    assert "1.running_mean" in summary.federated_keys


def test_exports_exchange_exactly_the_federated_keys() -> None:
    summary = summary_of(normed(), 1)
    exported = export_cut(summary)
    pattern = re.compile(exported["nvflare_exclude_vars"])
    left = [key for key in normed().state_dict() if not pattern.search(key)]
    assert left == exported["fl4health_layers_to_transfer"] == exported["flower_state_dict_keys"]
    ours, theirs = normed(), normed()
    part = {key: theirs.state_dict()[key] for key in exported["flower_state_dict_keys"]}
    ours.load_state_dict(part, strict=False)
    assert torch.equal(ours.state_dict()["0.weight"], theirs.state_dict()["0.weight"])
    assert not torch.equal(ours.state_dict()["4.weight"], theirs.state_dict()["4.weight"])


KEYS = st.lists(
    st.lists(st.sampled_from(["fc1", "fc10", "a+b", "x", "weight"]), min_size=1, max_size=3).map(".".join),
    unique=True, max_size=8,
)  # fmt: skip


@given(KEYS, st.integers(0, 8))
def test_the_regex_finds_what_is_excluded_and_nothing_else(keys: list[str], cut: int) -> None:
    kept, excluded = keys[:cut], keys[cut:]
    pattern = exclusion_regex(excluded, kept)
    assert bool(pattern) == bool(excluded)
    for key in excluded:
        assert re.search(pattern, key)
    for key in kept:
        assert not pattern or not re.search(pattern, key)
