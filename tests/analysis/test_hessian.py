"""Hessian traces against closed forms, an exact Hessian, and an independent library."""

from __future__ import annotations

import time

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, hessian
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from playerfl.analysis.hessian import hessian_traces
from playerfl.errors import LayerError
from playerfl.layers.layer_map import LayerMap
from playerfl.models.mlp import MLP
from playerfl.models.transformer import TextTransformer
from playerfl.seeding import generator_for, seeded_rng
from playerfl.weights import digest

# torch.func imports parts of torch that warn about torch.jit.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script")
NO_INPUT = [(torch.zeros(1, 1), torch.zeros(1))]


class Quadratic(nn.Module):
    """½ x'Ax in its parameter x, whatever the input."""

    def __init__(self, matrix: Tensor) -> None:
        super().__init__()
        self.matrix = matrix
        self.x = nn.Parameter(torch.ones(len(matrix), dtype=matrix.dtype))

    def forward(self, _: Tensor) -> Tensor:
        return (0.5 * self.x @ self.matrix @ self.x).expand(1)


def as_it_is(output: Tensor, _: Tensor) -> Tensor:
    return output


def symmetric(size: int) -> Tensor:
    a = torch.randn(size, size, generator=generator_for(0, "matrix"), dtype=torch.float64)
    return a + a.T


def test_a_quadratic_has_the_trace_of_its_matrix() -> None:
    model = Quadratic(symmetric(12))
    exact = hessian_traces(model, NO_INPUT, as_it_is, LayerMap.of(model), method="exact")["parameters"]
    assert exact.value == pytest.approx(float(model.matrix.trace()), rel=1e-12)
    assert exact.standard_error is None
    assert exact.per_parameter == exact.value / 12


@pytest.mark.slow
def test_hutchinson_is_within_its_standard_error_and_unbiased() -> None:
    model = Quadratic(symmetric(12))
    layers = LayerMap.of(model)
    traces = [
        hessian_traces(model, NO_INPUT, as_it_is, layers, method="hutchinson", probes=32, seed=seed)["parameters"]
        for seed in range(40)
    ]
    truth = float(model.matrix.trace())
    off = [(trace.value - truth) / (trace.standard_error or 1.0) for trace in traces]
    assert sum(abs(z) < 3 for z in off) >= 38
    assert abs(sum(off) / len(off)) < 3 / len(off) ** 0.5


def test_one_pair_of_signs_is_exact_for_a_diagonal_matrix() -> None:
    model = Quadratic(torch.diag(torch.arange(1.0, 6.0, dtype=torch.float64)))
    trace = hessian_traces(model, NO_INPUT, as_it_is, LayerMap.of(model), method="hutchinson", probes=2)["parameters"]
    assert trace.value == pytest.approx(15.0, rel=1e-12)
    assert trace.standard_error == pytest.approx(0.0, abs=1e-12)


def test_a_linear_model_has_the_mean_squared_norm_of_its_inputs() -> None:
    x = torch.randn(20, 6, generator=generator_for(1, "x"), dtype=torch.float64)
    model = nn.Linear(6, 1, bias=False).double()

    def half_squared(output: Tensor, targets: Tensor) -> Tensor:
        return 0.5 * (output.squeeze(1) - targets).square()

    batches = [(x[:7], torch.zeros(7)), (x[7:], torch.zeros(13))]
    trace = hessian_traces(model, batches, half_squared, LayerMap.of(model))["parameters"]
    assert trace.value == pytest.approx(float(x.square().sum(1).mean()), rel=1e-12)
    doubled = hessian_traces(model, batches, lambda o, t: 2 * half_squared(o, t), LayerMap.of(model))["parameters"]
    assert doubled.value == pytest.approx(2 * trace.value, rel=1e-12)


def mlp() -> tuple[nn.Module, LayerMap, Tensor, Tensor]:
    with seeded_rng(0):
        model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Dropout(0.5), nn.Linear(5, 3)).double()
    x = torch.randn(16, 4, generator=generator_for(2, "x"), dtype=torch.float64)
    return model, LayerMap.of(model), x, torch.randint(3, (16,), generator=generator_for(2, "y"))


def full_hessian_diagonal(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, float]:
    """Each parameter's part of the trace, from the whole Hessian."""
    parameters = dict(model.named_parameters())
    model.eval()
    with sdpa_kernel(SDPBackend.MATH):
        whole = hessian(lambda p: F.cross_entropy(functional_call(model, p, (x,)), y))(parameters)
    return {
        name: float(whole[name][name].detach().reshape(p.numel(), p.numel()).trace()) for name, p in parameters.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(16,), (5, 11), (1,) * 16], ids=["one batch", "two", "sixteen"])
def test_exact_traces_are_those_of_the_whole_hessian(sizes: tuple[int, ...]) -> None:
    model, layers, x, y = mlp()
    batches = list(zip(x.split(list(sizes)), y.split(list(sizes)), strict=True))
    traces = hessian_traces(model, batches, F.cross_entropy, layers, method="exact")
    expected = full_hessian_diagonal(model, x, y)
    for layer in layers.names:
        assert traces[layer].value == pytest.approx(sum(expected[e] for e in layers.entries[layer]), rel=1e-10)


@pytest.mark.filterwarnings("ignore")
def test_traces_agree_with_curvlinops() -> None:
    curvlinops = pytest.importorskip("curvlinops", reason="curvlinops is not installed (pip install --no-deps)")
    model, layers, x, y = mlp()
    model.eval()
    traces = hessian_traces(model, [(x, y)], F.cross_entropy, layers, method="exact")
    for layer in layers.names:
        own = [dict(model.named_parameters())[name] for name in layers.entries[layer]]
        block = curvlinops.HessianLinearOperator(model, nn.CrossEntropyLoss(), own, [(x, y)], check_deterministic=False)
        columns = block @ torch.eye(block.shape[1], dtype=torch.float64)
        assert traces[layer].value == pytest.approx(float(columns.trace()), rel=1e-8)


def test_measuring_leaves_the_model_alone() -> None:
    model, layers, x, y = mlp()
    before, random = digest(model.state_dict()), torch.get_rng_state()
    hessian_traces(model, [(x, y)], F.cross_entropy, layers, method="hutchinson", probes=2)
    assert digest(model.state_dict()) == before
    assert model.training
    assert torch.equal(torch.get_rng_state(), random)
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.slow
def test_attention_is_differentiated_twice() -> None:
    with seeded_rng(0):
        model = TextTransformer(20, 6, 8, 16, 3).double()
    ids = torch.randint(1, 20, (4, 6), generator=generator_for(3, "ids"))
    traces = hessian_traces(model, [(ids, torch.tensor([0, 1, 2, 0]))], F.cross_entropy, LayerMap.of(model))
    expected = full_hessian_diagonal(model, ids, torch.tensor([0, 1, 2, 0]))
    entries = LayerMap.of(model).entries["attention"]
    assert traces["attention"].method == "exact"
    assert traces["attention"].value == pytest.approx(sum(expected[e] for e in entries), rel=1e-8)


def test_convolutions_are_estimated_and_large_layers_too() -> None:
    with seeded_rng(0):
        model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 300), nn.Linear(300, 2))
    x, y = torch.randn(4, 1, 4, 4, generator=generator_for(4, "x")), torch.tensor([0, 1, 0, 1])
    traces = hessian_traces(model, [(x, y)], F.cross_entropy, LayerMap.of(model), probes=4)
    assert [trace.method for trace in traces.values()] == ["hutchinson", "hutchinson", "exact"]
    exact = hessian_traces(
        model.to(memory_format=torch.channels_last), [(x, y)], F.cross_entropy, LayerMap.of(model), method="exact"
    )
    assert abs(exact["0"].value - traces["0"].value) < 5 * (traces["0"].standard_error or 0)


def test_frozen_layers_have_no_curvature() -> None:
    model, _, x, y = mlp()
    model[0].requires_grad_(False)
    traces = hessian_traces(model, [(x, y)], F.cross_entropy, LayerMap.of(model))
    assert (traces["0"].value, traces["0"].per_parameter, traces["0"].parameters) == (0.0, 0.0, 0)


def test_the_quantity_of_the_authors_code_is_never_negative() -> None:
    model, layers, x, y = mlp()
    traces = hessian_traces(model, [(x, y)], F.cross_entropy, layers, method="repo_hv_nuclear")
    assert all(trace.value > 0 for trace in traces.values())


@pytest.mark.parametrize(
    ("options", "text"), [({"method": "exactly"}, "did you mean 'exact'"), ({"probes": 1}, "at least 2")]
)
def test_unknown_options_are_refused(options: dict[str, object], text: str) -> None:
    model, layers, x, y = mlp()
    with pytest.raises(LayerError, match=text):
        hessian_traces(model, [(x, y)], F.cross_entropy, layers, **options)  # type: ignore[arg-type]
    with pytest.raises(LayerError, match="needs at least one example"):
        hessian_traces(model, [], F.cross_entropy, layers)


@pytest.mark.slow
def test_the_heart_network_is_exact_within_five_seconds_of_computing() -> None:
    with seeded_rng(0):
        model = MLP((10, 50, 20, 20, 5))
    x, y = torch.randn(256, 10, generator=generator_for(5, "x")), torch.randint(5, (256,))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        start = time.process_time()
        traces = hessian_traces(model, [(x, y)], F.cross_entropy, LayerMap.of(model))
        taken = time.process_time() - start
    finally:
        torch.set_num_threads(before)
    assert {trace.method for trace in traces.values()} == {"exact"}
    assert taken < 5
