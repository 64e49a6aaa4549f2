"""Layers derived from a model's modules: every rule of the specification, on the smallest model that shows it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from playerfl.errors import LayerError
from playerfl.layers.derive import call_model, derive_layers


def derive_groups(model: nn.Module, example: object = None) -> list[tuple[str, list[str]]]:
    return [(name, list(entries)) for name, entries in derive_layers(model, example).groups]


def names(model: nn.Module, example: object = None) -> list[str]:
    return [name for name, _ in derive_groups(model, example)]


def modules_of(model: nn.Module, example: object = None) -> dict[str, list[str]]:
    """The modules in each layer, by path."""
    return {
        name: list(dict.fromkeys(entry.rpartition(".")[0] for entry in entries))
        for name, entries in derive_groups(model, example)
    }


class Attention(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.q, self.k, self.v, self.proj = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.proj((self.q(x) @ self.k(x).transpose(-1, -2)).softmax(-1) @ self.v(x))


class Mlp(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.up, self.middle, self.down = nn.Linear(width, 7), nn.Linear(7, 5), nn.Linear(5, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.middle(self.up(x)).relu())


class Block(nn.Module):
    def __init__(self, feed_forward: nn.Module) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(4), Attention()
        self.norm2, self.feed_forward = nn.LayerNorm(4), feed_forward

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.feed_forward(self.norm2(x))


class TextModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(10, 4), nn.Embedding(3, 4)
        self.norm = nn.LayerNorm(4)
        self.block = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
        self.head = nn.Linear(4, 2)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.norm(self.tokens(ids) + self.positions(torch.arange(ids.shape[1])))
        return self.head(self.block(x)[:, 0])


class HeadFirst(nn.Module):
    """Registers its modules in the reverse of the order in which it calls them."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.body, self.stem = nn.Linear(3, 2), nn.Linear(4, 3), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.stem(x)))


def test_a_fully_connected_net_has_one_layer_per_linear() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Dropout(), nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))
    assert derive_groups(net) == [(i, [f"{i}.weight", f"{i}.bias"]) for i in ("0", "3", "5")]


def test_containers_activations_and_pooling_give_no_layer() -> None:
    features = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2))
    net = nn.Sequential(nn.Identity(), features, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 2))
    assert names(net) == ["1.0", "4"]


class HouseNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))


@pytest.mark.parametrize(
    "norm",
    [
        nn.BatchNorm1d(4),
        nn.BatchNorm2d(4),
        nn.LayerNorm(4),
        nn.GroupNorm(2, 4),
        nn.InstanceNorm2d(4, affine=True),
        nn.RMSNorm(4),
        HouseNorm(),
    ],
    ids=lambda norm: type(norm).__name__,
)
def test_a_norm_joins_the_layer_before_it(norm: nn.Module) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), norm, nn.ReLU(), nn.Conv2d(4, 4, 3))
    assert modules_of(net) == {"0": ["0", "1"], "3": ["3"]}


def test_a_norm_that_comes_first_joins_the_first_layer() -> None:
    net = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3), nn.Linear(3, 2))
    assert modules_of(net) == {"1": ["0", "1"], "2": ["2"]}


def test_a_model_of_norms_alone_is_one_layer() -> None:
    assert modules_of(nn.Sequential(nn.LayerNorm(3), nn.LayerNorm(3))) == {"0": ["0", "1"]}


@pytest.mark.parametrize("options", [{}, {"kdim": 2, "vdim": 2}, {"bias": False}, {"add_bias_kv": True}])
def test_multihead_attention_with_its_output_projection_is_one_layer(options: dict[str, object]) -> None:
    net = nn.ModuleDict({"stem": nn.Linear(4, 4), "attention": nn.MultiheadAttention(4, 2, **options)})
    assert modules_of(net) == {"stem": ["stem"], "attention": ["attention", "attention.out_proj"]}


@pytest.mark.parametrize("example", [None, torch.zeros(1, 3, 4)], ids=["registered", "flow"])
def test_an_encoder_layer_is_attention_then_feed_forward(example: Tensor | None) -> None:
    block = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    assert names(block, example) == ["self_attn", "linear1+linear2"]


def test_the_norms_of_an_encoder_layer_follow_the_flow() -> None:
    block = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    assert modules_of(block, torch.zeros(1, 3, 4)) == {
        "self_attn": ["self_attn", "self_attn.out_proj", "norm1"],
        "linear1+linear2": ["linear1", "linear2", "norm2"],
    }


def test_the_norms_of_a_norm_first_encoder_layer_follow_the_flow() -> None:
    block = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, norm_first=True)
    assert modules_of(block, torch.zeros(1, 3, 4)) == {
        "self_attn": ["norm1", "self_attn", "self_attn.out_proj"],
        "linear1+linear2": ["norm2", "linear1", "linear2"],
    }


@pytest.mark.parametrize("example", [None, (torch.zeros(1, 3, 4), torch.zeros(1, 2, 4))], ids=["registered", "flow"])
def test_a_decoder_layer_is_two_attentions_then_feed_forward(example: object) -> None:
    block = nn.TransformerDecoderLayer(4, 2, 8, batch_first=True)
    assert names(block, example) == ["self_attn", "multihead_attn", "linear1+linear2"]


def test_stacked_encoder_layers_keep_their_own_layers() -> None:
    block = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    stack = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
    expected = [f"layers.{i}.{unit}" for i in (0, 1) for unit in ("self_attn", "linear1+linear2")]
    assert names(stack, torch.zeros(1, 3, 4)) == expected


@pytest.mark.parametrize("example", [None, torch.zeros(1, 3, dtype=torch.long)], ids=["registered", "flow"])
def test_a_text_model_has_the_four_layers_of_the_paper(example: Tensor | None) -> None:
    layers = modules_of(TextModel(), example)
    first = "tokens" if example is None else "tokens+positions"
    assert list(layers) == [first, "block.self_attn", "block.linear1+linear2", "head"]
    assert layers[first] == ["tokens", "positions", "norm"]


def test_attention_by_class_name_is_one_layer_with_its_projections() -> None:
    net = nn.ModuleDict({"attention": Attention(), "head": nn.Linear(4, 2)})
    parts = [f"attention.{part}" for part in ("q", "k", "v", "proj")]
    assert modules_of(net) == {"attention": parts, "head": ["head"]}


def test_a_wrapper_around_one_attention_is_one_layer() -> None:
    class WrappedAttention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.output = Attention(), nn.Linear(4, 4)

    layers = modules_of(nn.ModuleDict({"wrapper": WrappedAttention(), "head": nn.Linear(4, 2)}))
    assert list(layers) == ["wrapper", "head"]
    assert layers["wrapper"][-1] == "wrapper.output"


def test_a_network_of_several_attentions_is_not_one_layer() -> None:
    class AttentionNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = Attention(), Attention()

    assert names(nn.ModuleDict({"net": AttentionNet()})) == ["net.first", "net.second"]


def test_a_feed_forward_module_beside_an_attention_is_one_layer() -> None:
    layers = modules_of(Block(Mlp()), torch.zeros(1, 3, 4))
    parts = [f"feed_forward.{part}" for part in ("up", "middle", "down")]
    assert list(layers) == ["attention", "feed_forward"]
    assert layers["feed_forward"] == ["norm2", *parts]


def test_up_and_down_linears_are_joined_only_inside_a_transformer_block() -> None:
    up_and_down = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
    assert names(up_and_down) == ["0", "2"]
    assert names(Block(up_and_down)) == ["attention", "feed_forward.0+2"]


def test_parameters_of_the_model_itself_are_a_layer() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.linear = nn.Parameter(torch.ones(1)), nn.Linear(2, 2)

    assert derive_groups(Scaled()) == [("parameters", ["scale"]), ("linear", ["linear.weight", "linear.bias"])]


def test_a_reparametrised_linear_is_still_one_layer() -> None:
    assert names(nn.Sequential(weight_norm(nn.Linear(2, 2)), nn.Linear(2, 2))) == ["0", "1"]


def test_without_an_example_the_order_is_that_of_registration() -> None:
    assert names(HeadFirst()) == ["head", "body", "stem"]


@pytest.mark.parametrize("example", [torch.zeros(1, 5), (torch.zeros(1, 5),), {"x": torch.zeros(1, 5)}])
def test_with_an_example_the_order_is_that_of_the_flow(example: object) -> None:
    assert names(HeadFirst(), example) == ["stem", "body", "head"]


def test_a_module_that_is_never_called_stays_after_its_predecessor() -> None:
    model = HeadFirst()
    model.unused = nn.Linear(2, 2)  # registered after the stem
    assert names(model, torch.zeros(1, 5)) == ["stem", "unused", "body", "head"]


def test_a_module_called_twice_counts_where_it_is_called_first() -> None:
    class Recurrent(HeadFirst):
        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.body(self.stem(x))) + self.head(torch.zeros(1, 3)) + self.stem(x).sum()

    assert names(Recurrent(), torch.zeros(1, 5)) == ["stem", "body", "head"]


def test_looking_at_the_flow_leaves_the_model_and_the_random_state_alone() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5), nn.Linear(3, 2))
    model[2].eval()
    state, random = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    names(model, torch.randn(4, 3, generator=torch.Generator().manual_seed(0)))
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    assert torch.equal(random, torch.get_rng_state())
    assert [module.training for module in model] == [True, True, False, True]
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_a_failing_forward_pass_leaves_no_hooks() -> None:
    model = HeadFirst()
    with pytest.raises(LayerError, match="cannot be called with the example batch: mat1 and mat2 shapes"):
        names(model, torch.zeros(1, 2))
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert model.training


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_a_lazy_module_is_refused_until_it_has_a_shape() -> None:
    net = nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 2))
    with pytest.raises(LayerError, match=r"'0' is lazy .* call the model once where it is built"):
        derive_groups(net)
    net(torch.zeros(1, 5))
    assert names(net) == ["0", "1"]


def test_a_model_without_parameters_is_refused() -> None:
    with pytest.raises(LayerError, match="Sequential has no parameters"):
        derive_groups(nn.Sequential(nn.ReLU()))


@pytest.mark.parametrize("inputs", [(2, 3), [2, 3], {"a": 2, "b": 3}])
def test_inputs_are_passed_by_position_or_by_name(inputs: object) -> None:
    class Difference(nn.Module):
        def forward(self, a: int, b: int) -> int:
            return a - b

    assert call_model(Difference(), inputs) == -1


def test_a_model_that_takes_one_dict_gets_it_whole() -> None:
    class OneDict(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(2, 2)

        def forward(self, batch: dict[str, Tensor]) -> Tensor:
            return self.fc(batch["a"] - batch["b"])

    inputs = {"a": torch.ones(1, 2), "b": torch.ones(1, 2)}
    model = OneDict()
    assert torch.equal(call_model(model, inputs), model.fc.bias[None])
    assert names(model, inputs) == ["fc"]


def test_a_model_with_other_inputs_is_named_with_them() -> None:
    with pytest.raises(LayerError, match=r"one tensor is passed, .* Bilinear.forward takes \(input1, input2\)"):
        derive_layers(nn.Bilinear(2, 2, 1), torch.zeros(2, 2))
