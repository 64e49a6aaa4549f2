"""CKA: which changes it must and must not detect."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from playerfl.analysis.cka import gram, linear_cka, representations, similarity_between_sites
from playerfl.errors import LayerError
from playerfl.layers.layer_map import LayerMap
from playerfl.models.transformer import TextTransformer
from playerfl.seeding import generator_for, seeded_rng


def normal(rows: int, columns: int, name: str) -> Tensor:
    return torch.randn(rows, columns, generator=generator_for(0, name), dtype=torch.float64)


X, Y = normal(40, 5, "x"), normal(40, 8, "y")


def by_features(x: Tensor, y: Tensor) -> float:
    """The formula as it is written, on centred columns."""
    x, y = x - x.mean(0), y - y.mean(0)
    return float((y.T @ x).norm() ** 2 / ((x.T @ x).norm() * (y.T @ y).norm()))


def test_gram_matrices_give_the_formula_on_features() -> None:
    assert linear_cka(X, Y) == pytest.approx(by_features(X, Y), rel=1e-10)


def test_a_representation_has_a_cka_of_1_with_itself() -> None:
    assert linear_cka(X, X) == pytest.approx(1.0, rel=1e-12)
    assert linear_cka(X, X, "debiased") == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize("formula", ["centred", "debiased"])
def test_cka_ignores_rotation_scale_and_shift(formula: str) -> None:
    rotation = torch.linalg.qr(normal(8, 8, "q")).Q
    changed = 3.0 * Y @ rotation + 2.0
    assert linear_cka(X, changed, formula) == pytest.approx(linear_cka(X, Y, formula), rel=1e-9)  # type: ignore[arg-type]


def test_cka_detects_other_linear_maps() -> None:
    stretched = X @ torch.diag(torch.tensor([100.0, 1, 1, 1, 1], dtype=torch.float64))
    assert linear_cka(X, stretched) < 0.9


def test_cka_is_symmetric_and_between_0_and_1() -> None:
    assert linear_cka(X, Y) == pytest.approx(linear_cka(Y, X), rel=1e-12)
    assert 0 <= linear_cka(X, Y) <= 1


def test_independent_representations_are_dissimilar() -> None:
    a, b = normal(1000, 10, "a"), normal(1000, 10, "b")
    assert linear_cka(a, b) < 0.05
    # With few inputs the plain formula overestimates similarity; the debiased one does not.
    few, other = normal(20, 200, "few"), normal(20, 200, "other")
    assert linear_cka(few, other) > 0.5
    assert abs(linear_cka(few, other, "debiased")) < 0.1


def test_the_printed_formula_is_neither_1_nor_free_of_scale() -> None:
    assert linear_cka(X, X, "printed") == pytest.approx(1 / float((X.T @ X).norm() ** 2), rel=1e-9)
    assert linear_cka(2 * X, Y, "printed") == pytest.approx(linear_cka(X, Y, "printed") / 4, rel=1e-9)


def test_a_constant_representation_has_no_similarity() -> None:
    with pytest.warns(UserWarning, match="the same for all inputs"):
        assert torch.tensor(linear_cka(torch.ones(5, 2), X[:5])).isnan()


@pytest.mark.parametrize(
    ("x", "y", "formula"),
    [(X, Y[:5], "centred"), (X[0], Y, "centred"), (X[:3], Y[:3], "debiased"), (X, Y, "centered")],
    ids=["rows", "shape", "too few", "formula"],
)
def test_what_cannot_be_compared_is_refused(x: Tensor, y: Tensor, formula: str) -> None:
    with pytest.raises(LayerError):
        linear_cka(x, y, formula)  # type: ignore[arg-type]


def test_a_site_is_compared_with_all_others() -> None:
    same, other = gram(X), gram(normal(40, 5, "other"))
    similarity = similarity_between_sites({"a": {"l": same}, "b": {"l": same}, "c": {"l": other}})
    cross = linear_cka(X, normal(40, 5, "other"))
    assert similarity["a"]["l"] == similarity["b"]["l"] == pytest.approx((1 + cross) / 2)
    assert similarity["c"]["l"] == pytest.approx(cross)
    with pytest.raises(LayerError, match="at least two"):
        similarity_between_sites({"a": {"l": same}})


def test_representations_are_outputs_after_each_layer() -> None:
    with seeded_rng(0):
        net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(8, 3))
    x = torch.randn(6, 1, 4, 4, generator=generator_for(1, "x"))
    layers = LayerMap.of(net)
    outputs = representations(net, x, layers)
    net.eval()
    with torch.no_grad():
        assert torch.allclose(outputs["0"], net[1](net[0](x)).flatten(1))  # the norm belongs to the convolution
        assert torch.allclose(outputs["4"], net(x))
        mean = representations(net, x, layers, maps="mean")["0"]
        assert torch.allclose(mean, net[1](net[0](x)).mean((2, 3)))
    assert not any(module._forward_hooks for module in net.modules())


def test_tokens_are_averaged_without_padding() -> None:
    with seeded_rng(0):
        model = TextTransformer(9, 5, 4, 8, 2)
    ids = torch.tensor([[1, 2, 0, 0, 0], [1, 3, 4, 5, 6]])
    outputs = representations(model, ids, LayerMap.of(model))
    places = model.positions.weight
    assert torch.allclose(outputs["embeddings"][0], (model.tokens.weight[[1, 2]] + places[:2]).mean(0))
    assert torch.allclose(outputs["embeddings"][1], (model.tokens.weight[[1, 3, 4, 5, 6]] + places).mean(0))
    assert outputs["attention"].shape == (2, 4)
    # A block's output has its residual in it.
    block = model.fc2(model.fc1(outputs["attention"]).relu())
    assert torch.allclose(outputs["feed_forward"], outputs["attention"] + block)
    assert torch.allclose(outputs["head"], model.head(outputs["feed_forward"]))


def test_a_residual_blocks_output_has_its_shortcut_in_it() -> None:
    class ResidualBlock(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return x + super().forward(x)

    with seeded_rng(0):
        net = nn.Sequential(ResidualBlock(nn.Linear(3, 3), nn.Tanh()), nn.Linear(3, 2))
    x = torch.randn(4, 3, generator=generator_for(1, "r"))
    with torch.no_grad():
        assert torch.allclose(representations(net, x, LayerMap.of(net))["0"], net[0](x))


def test_a_parameter_of_the_network_does_not_make_its_output_a_layer() -> None:
    class Tabled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pos_embed = nn.Parameter(torch.zeros(3))
            self.first, self.last = nn.Linear(4, 3), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.last(self.first(x) + self.pos_embed)
            return out

    with seeded_rng(0):
        net = Tabled()
    x = torch.randn(5, 4, generator=generator_for(1, "t"))
    outputs = representations(net, x, LayerMap.of(net))
    assert {layer: tuple(rows.shape) for layer, rows in outputs.items()} == {"first": (5, 3), "last": (5, 2)}
