"""LayerMap: which entries a layer owns, what is sent, and which layer gets a tensor that two layers use."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from playerfl.errors import LayerError
from playerfl.layers.layer_map import LayerMap, state_entries
from playerfl.models.mlp import MLP


class Declared(nn.Module):
    """Two linears with layers as the test declares them."""

    def __init__(self, groups: Sequence[tuple[str, Sequence[str]]]) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(2, 3), nn.Linear(3, 1)
        self.groups = groups

    def layer_groups(self) -> Sequence[tuple[str, Sequence[str]]]:
        return self.groups


A, B = ["a.weight", "a.bias"], ["b.weight", "b.bias"]


class TiedModel(nn.Module):
    """A language model whose output layer uses the token table."""

    def __init__(self, *, bias: bool = True) -> None:
        super().__init__()
        self.tokens, self.body, self.head = nn.Embedding(5, 4), nn.Linear(4, 4), nn.Linear(4, 5, bias=bias)
        self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.body(self.tokens(ids)))


def test_entries_are_disjoint_and_complete() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2, 2))
    owned = [entry for entries in LayerMap.of(model).entries.values() for entry in entries]
    assert sorted(owned) == sorted(model.state_dict())


def test_a_declaration_decides_names_order_and_members() -> None:
    layers = LayerMap.of(Declared([("late", B), ("early", A)]))
    assert dict(layers.entries) == {"late": tuple(B), "early": tuple(A)}


def test_a_declared_order_is_kept_even_with_an_example() -> None:
    assert LayerMap.of(Declared([("late", B), ("early", A)]), torch.zeros(1, 2)).names == ("late", "early")


@pytest.mark.parametrize(
    ("groups", "sentence"),
    [
        (
            [("x", ["a.wieght", "a.bias"]), ("y", B)],
            r"layer 'x': unknown entry 'a\.wieght'; did you mean 'a\.weight'\?",
        ),
        ([("x", A), ("y", ["b.weight"])], r"leaves out b\.bias"),
        ([("x", A), ("x", B)], "layer names must differ"),
    ],
    ids=["unknown entry", "missing entry", "layer twice"],
)
def test_wrong_declarations_are_refused(groups: list[tuple[str, list[str]]], sentence: str) -> None:
    with pytest.raises(LayerError, match=sentence):
        LayerMap.of(Declared(groups))


def test_an_entry_declared_twice_counts_as_tied() -> None:
    model = Declared([("x", A), ("y", [*B, "a.bias"])])
    assert LayerMap.of(model).entries["y"] == tuple(B)
    assert LayerMap.of(model, tie_policy="local").entries["x"] == ("a.weight",)
    with pytest.raises(LayerError, match=r"a\.bias is used by the layers x, y"):
        LayerMap.of(model, tie_policy="error")


def test_an_entry_declared_twice_in_one_layer_counts_once() -> None:
    layers = LayerMap.of(Declared([("x", [*A, *A]), ("y", B)]))
    assert layers.entries["x"] == tuple(A)
    assert layers.tied == {}


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_a_lazy_module_in_a_declared_layer_is_refused() -> None:
    model = Declared([("x", A), ("y", B)])
    model.a = nn.LazyLinear(3)
    with pytest.raises(LayerError, match="lazy"):
        LayerMap.of(model)


@pytest.mark.parametrize("model", [MLP([2] * 12), nn.Sequential(*(nn.Linear(2, 2) for _ in range(11)))])
def test_a_layer_whose_name_begins_another_is_not_taken_for_it(model: nn.Module) -> None:
    layers = LayerMap.of(model)
    second = "fc1" if "fc1" in layers.names else "1"
    assert layers.entries[second] == (f"{second}.weight", f"{second}.bias")
    assert f"{second}0" in layers.names


def test_statistics_of_a_norm_whose_name_begins_another_stay_apart() -> None:
    model = nn.ModuleDict()
    for i in (10, 1):
        model[f"fc{i}"], model[f"bn{i}"] = nn.Linear(2, 2), nn.BatchNorm1d(2)
    entries = LayerMap.of(model).entries
    assert [name for name in entries["fc1"] if "running" in name] == ["bn1.running_mean", "bn1.running_var"]


def test_buffers_follow_the_layer_of_their_module() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 3), nn.BatchNorm1d(3))
    entries = LayerMap.of(model).entries
    assert {"3.running_mean", "3.running_var", "3.num_batches_tracked"} < set(entries["2"])
    assert {"1.running_mean", "1.running_var", "1.num_batches_tracked"} < set(entries["0"])


def test_statistics_of_a_norm_without_parameters_follow_the_layer_before_it() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 3), nn.BatchNorm1d(3, affine=False), nn.Linear(3, 1))
    assert "2.running_mean" in LayerMap.of(model).entries["1"]


def test_buffers_of_the_model_itself_join_the_first_layer() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    model.register_buffer("offset", torch.zeros(2))
    assert LayerMap.of(model).entries["0"] == ("0.weight", "0.bias", "offset")


def test_non_persistent_buffers_are_not_state() -> None:
    model = nn.Linear(2, 2)
    model.register_buffer("scratch", torch.zeros(2), persistent=False)
    assert list(state_entries(model)) == ["weight", "bias"]


@pytest.mark.parametrize(("statistics", "travel"), [("follow", True), ("local", False)])
def test_statistics_travel_only_if_they_follow(statistics: str, travel: bool) -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    layers = LayerMap.of(model, statistics=statistics)  # type: ignore[arg-type]
    sent = layers.travelling(model.state_dict())
    assert ("1.running_mean" in sent) is travel
    assert "1.weight" in sent


@pytest.mark.parametrize("option", ["tie_policy", "statistics"])
def test_an_unknown_policy_is_refused(option: str) -> None:
    with pytest.raises(LayerError, match="'locall'; did you mean 'local'"):
        LayerMap.of(nn.Linear(2, 2), **{option: "locall"})  # type: ignore[arg-type]


def test_frozen_parameters_neither_count_nor_travel() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    model[0].requires_grad_(False)
    model[1].bias.requires_grad_(False)
    layers = LayerMap.of(model)
    assert layers.num_parameters == {"0": 0, "1": 3}
    assert list(layers.travelling(model.state_dict())) == ["1.weight"]
    assert layers.names == ("0", "1")


def test_buffers_do_not_count_as_parameters() -> None:
    assert LayerMap.of(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))).num_parameters == {"0": 9 + 6}


def test_a_tied_tensor_belongs_to_the_first_layer_that_uses_it() -> None:
    layers = LayerMap.of(TiedModel())
    assert dict(layers.entries) == {
        "tokens": ("tokens.weight",),
        "body": ("body.weight", "body.bias"),
        "head": ("head.bias",),
    }
    assert layers.num_parameters == {"tokens": 20, "body": 20, "head": 5}
    assert layers.tied == {"tokens.weight": ("tokens", "head")}


def test_first_means_first_in_the_flow_not_in_registration() -> None:
    model = TiedModel()
    for name in ("head", "body", "tokens"):
        model.add_module(name, model._modules.pop(name))
    layers = LayerMap.of(model, torch.zeros(1, 2, dtype=torch.long))
    assert layers.names == ("tokens", "body", "head")
    assert layers.entries["tokens"] == ("head.weight",)


def test_under_the_local_policy_a_tied_tensor_belongs_to_its_last_layer() -> None:
    entries = LayerMap.of(TiedModel(), tie_policy="local").entries
    assert dict(entries) == {"body": ("body.weight", "body.bias"), "head": ("tokens.weight", "head.bias")}


def test_under_the_error_policy_a_tied_tensor_is_refused_with_a_remedy() -> None:
    with pytest.raises(LayerError, match=r"tokens\.weight is used by the layers tokens, head; set tie_policy"):
        LayerMap.of(TiedModel(), tie_policy="error")


def test_untied_models_pass_the_error_policy() -> None:
    assert LayerMap.of(nn.Linear(2, 2), tie_policy="error").tied == {}


def test_a_module_used_under_two_names_counts_as_tied() -> None:
    shared = nn.Linear(2, 2)
    layers = LayerMap.of(nn.Sequential(shared, nn.Linear(2, 2), shared))
    assert set(layers.tied) == {"0.weight", "0.bias"}


@pytest.mark.parametrize(("cut", "straddles"), [(0, False), (1, True), (2, True), (3, False)])
def test_a_tied_tensor_straddles_cuts_between_its_users(cut: int, straddles: bool) -> None:
    tied = LayerMap.of(TiedModel()).straddling(cut)
    assert tied == ({"tokens.weight": ("tokens", "head")} if straddles else {})


def test_nothing_straddles_when_every_layer_is_federated() -> None:
    layers = LayerMap.of(TiedModel(bias=False))
    assert layers.straddling(len(layers.names)) == {}
    assert layers.straddling(1) == {"tokens.weight": ("tokens", "head")}


def test_select_takes_the_entries_of_some_layers_in_the_order_of_the_model() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    weights, layers = model.state_dict(), LayerMap.of(model)
    assert list(layers.select(weights, ["1"])) == ["1.weight", "1.bias"]
    assert list(layers.select(weights)) == list(layers.select(weights, ["1", "0"])) == list(weights)
    assert layers.select(weights, []) == {}
    with pytest.raises(LayerError, match="layer 'fc' is unknown; the model has 0, 1"):
        layers.select(weights, ["fc"])


class _Backbone(nn.Sequential):
    """A pretrained part as detectors and adapters use it: nothing in it trains, and its norms stay as they are."""

    def train(self, mode: bool = True) -> _Backbone:
        super().train(mode)
        self[1].eval()
        return self


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", ["kept in evaluation mode", "in training mode", "trains"])
def test_statistics_of_a_frozen_norm_never_travel_if_they_never_change(kind: str, training: bool) -> None:
    parts = nn.Linear(3, 4), nn.BatchNorm1d(4)
    backbone = nn.Sequential(*parts) if kind == "in training mode" else _Backbone(*parts)
    backbone.requires_grad_(kind == "trains")
    model = nn.Sequential(backbone, nn.Linear(4, 2)).train(training)
    before = [module.training for module in model.modules()]
    layers = LayerMap.of(model, torch.randn(2, 3))
    assert [module.training for module in model.modules()] == before
    statistics = {name for name, _ in model.named_buffers()}
    fixed = kind == "kept in evaluation mode"
    assert layers.frozen & statistics == (statistics if fixed else set())
    assert layers.buffers == (set() if fixed else statistics)
    assert not statistics & layers.travelling(model.state_dict()).keys() or not fixed


class FrozenBatchNorm2d(nn.Module):
    """As in torchvision and detectron2."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.ones(2))
        self.register_buffer("running_mean", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.get_buffer("running_mean")[:, None, None]) * self.get_buffer("weight")[:, None, None]


def test_buffers_of_a_norm_that_is_frozen_by_its_class_never_travel() -> None:
    layers = LayerMap.of(nn.Sequential(nn.Conv2d(1, 2, 3), FrozenBatchNorm2d()), torch.zeros(1, 1, 4, 4))
    assert layers.frozen == {"1.weight", "1.running_mean"}
