"""The probe inside a user's own training loop: it measures, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, AdamW, Optimizer

from playerfl.errors import LayerError
from playerfl.layers.layer_map import LayerMap
from playerfl.layers.probe import SensitivityProbe
from playerfl.weights import digest

AFTER_TRAINING = ["post_epoch", "post_batches", "one_batch"]
X = torch.randn(24, 5, generator=torch.Generator().manual_seed(0))
Y = torch.randint(3, (24,), generator=torch.Generator().manual_seed(1))


def plain() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))


def noisy() -> nn.Module:
    """Dropout, batch norm and a branch that is never used."""
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 3))
    model[4].register_module("unused", nn.Linear(2, 2))
    return model


def batches(size: int) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(X.split(size), Y.split(size), strict=True)


def train(model: nn.Module, optimizer: Optimizer, size: int = 8) -> None:
    for x, y in batches(size):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


OPTIMIZERS: dict[str, Callable[[nn.Module], Optimizer]] = {
    "adamw": lambda model: AdamW(model.parameters(), lr=0.01),
    "momentum": lambda model: SGD(model.parameters(), lr=0.1, momentum=0.9),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("build", [plain, noisy])
def test_an_attached_probe_does_not_change_training_by_a_bit(build: Callable[[], nn.Module], name: str) -> None:
    def trained(*, probed: bool) -> list[object]:
        model = build()
        optimizer = OPTIMIZERS[name](model)
        torch.manual_seed(3)
        with SensitivityProbe(model).attach(optimizer) if probed else nullcontext():
            train(model, optimizer)
        slots = optimizer.state_dict()["state"]
        return [
            digest(model.state_dict()),
            [digest({k: v for k, v in slot.items() if v is not None}) for slot in slots.values()],
            digest({"random": torch.get_rng_state()}),
        ]

    assert trained(probed=True) == trained(probed=False)


def test_each_step_is_one_row_until_the_probe_is_detached() -> None:
    model = plain()
    optimizer = SGD(model.parameters(), lr=0.1)
    with SensitivityProbe(model).attach(optimizer) as probe:
        train(model, optimizer, size=8)
    train(model, optimizer, size=8)
    assert len(probe.profile().batches) == 3
    assert not optimizer._optimizer_step_pre_hooks


def test_the_hook_is_removed_when_training_fails() -> None:
    model = plain()
    optimizer = SGD(model.parameters(), lr=0.1)
    with pytest.raises(RuntimeError, match="diverged"), SensitivityProbe(model).attach(optimizer):
        raise RuntimeError("diverged")
    assert not optimizer._optimizer_step_pre_hooks


def test_attaching_twice_measures_once() -> None:
    model = plain()
    optimizer = SGD(model.parameters(), lr=0.1)
    probe = SensitivityProbe(model).attach(optimizer)
    with probe.attach(optimizer):
        train(model, optimizer, size=8)
    assert len(probe.profile().batches) == 3


def test_running_scores_are_taken_before_each_step() -> None:
    model = plain()
    optimizer = SGD(model.parameters(), lr=0.5)
    expected = []
    with SensitivityProbe(model).attach(optimizer) as probe:
        for x, y in batches(8):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            before = [(p.detach().double() * p.grad.double()).square() for p in model.parameters()]  # type: ignore[union-attr]
            expected.append([float((before[i].sum() + before[i + 1].sum()) / n) for i, n in ((0, 36), (2, 21))])
            optimizer.step()
    assert torch.tensor(probe.profile().batches) == pytest.approx(torch.tensor(expected), rel=1e-6)


def test_running_with_one_batch_and_no_step_equals_post_epoch() -> None:
    model = plain()
    optimizer = SGD(model.parameters(), lr=0.0)
    with SensitivityProbe(model).attach(optimizer) as running:
        train(model, optimizer, size=24)
    after = SensitivityProbe(model, mode="post_epoch").measure(batches(7), F.cross_entropy)
    assert running.profile().importance == pytest.approx(after.importance, rel=1e-6)


@pytest.mark.parametrize("size", [1, 7, 24])
def test_post_epoch_equals_the_closed_form_whatever_the_batch_size(size: int) -> None:
    # The net and its scores are worked out by hand in test_sensitivity.
    net = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1)).double()
    with torch.no_grad():
        for parameter, value in zip(net.parameters(), (2.0, 1.0, 3.0, -1.0), strict=True):
            parameter.fill_(value)
    x, y = torch.tensor([[1.0], [2.0], [3.0]]).double(), torch.tensor([[7.0], [14.0], [22.0]]).double()
    parts = zip(x.split(size), y.split(size), strict=True)
    profile = SensitivityProbe(net, mode="post_epoch").measure(parts, F.mse_loss)
    assert profile.importance == pytest.approx({"0": 202.0, "1": (484 + 4 / 9) / 2}, rel=1e-12)
    assert profile.num_examples == 3


def test_post_batches_is_the_mean_of_the_scores_of_single_batches() -> None:
    model = plain()
    whole = SensitivityProbe(model, mode="post_batches").measure(batches(8), F.cross_entropy)
    single = [SensitivityProbe(model, mode="post_epoch").measure([b], F.cross_entropy) for b in batches(8)]
    assert len(whole.batches) == 3
    for layer in ("0", "2"):
        expected = sum(profile.importance[layer] for profile in single) / 3
        assert whole.importance[layer] == pytest.approx(expected, rel=1e-6)


def test_one_batch_is_the_first_batch() -> None:
    model = plain()
    one = SensitivityProbe(model, mode="one_batch").measure(batches(8), F.cross_entropy)
    first = SensitivityProbe(model, mode="post_epoch").measure([next(batches(8))], F.cross_entropy)
    assert one.importance == pytest.approx(first.importance, rel=1e-5)
    assert one.num_examples == 8


@pytest.mark.parametrize(("mode", "train_mode"), [("post_epoch", False), ("post_batches", False), ("one_batch", True)])
def test_only_one_batch_measures_in_train_mode(mode: str, train_mode: bool) -> None:
    seen = []
    model = plain()
    model.register_forward_pre_hook(lambda module, _: seen.append(module.training))
    SensitivityProbe(model, mode=mode).measure(batches(12), F.cross_entropy)  # type: ignore[arg-type]
    assert set(seen) == {train_mode}


@pytest.mark.parametrize("mode", AFTER_TRAINING)
def test_measuring_leaves_model_gradients_modes_and_random_state_alone(mode: str) -> None:
    model = noisy()
    F.cross_entropy(model(X), Y).backward()
    model[3].eval()
    before = digest(model.state_dict()), torch.get_rng_state(), [m.training for m in model.modules()]
    gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    SensitivityProbe(model, mode=mode).measure(batches(8), F.cross_entropy)  # type: ignore[arg-type]
    assert digest(model.state_dict()) == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])
    assert [m.training for m in model.modules()] == before[2]
    assert digest({n: p.grad for n, p in model.named_parameters() if p.grad is not None}) == digest(gradients)


def test_a_failing_loss_leaves_the_model_alone() -> None:
    model = noisy()
    before = digest(model.state_dict())

    def failing(output: Tensor, targets: Tensor) -> Tensor:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        SensitivityProbe(model, mode="one_batch").measure(batches(8), failing)
    assert digest(model.state_dict()) == before
    assert model.training


@pytest.mark.parametrize("mode", AFTER_TRAINING)
def test_measuring_again_gives_the_same_scores(mode: str) -> None:
    probe = SensitivityProbe(plain(), mode=mode)  # type: ignore[arg-type]
    first = probe.measure(batches(8), F.cross_entropy)
    assert probe.measure(batches(8), F.cross_entropy).importance == pytest.approx(first.importance, rel=1e-9)


@pytest.mark.parametrize("mode", ["post_epoch", "post_batches"])
def test_a_loss_per_example_scores_like_its_mean(mode: str) -> None:
    model = plain()
    mean = SensitivityProbe(model, mode=mode).measure(batches(7), F.cross_entropy)  # type: ignore[arg-type]
    by_example = SensitivityProbe(model, mode=mode).measure(  # type: ignore[arg-type]
        batches(7), lambda output, targets: F.cross_entropy(output, targets, reduction="none")
    )
    assert by_example.importance == pytest.approx(mean.importance, rel=1e-6)


@pytest.mark.slow
def test_max_batches_caps_the_measurement() -> None:
    model = plain()
    capped = SensitivityProbe(model, mode="post_epoch", max_batches=2).measure(batches(8), F.cross_entropy)
    expected = SensitivityProbe(model, mode="post_epoch").measure([(X[:16], Y[:16])], F.cross_entropy)
    assert capped.importance == pytest.approx(expected.importance, rel=1e-5)
    optimizer = SGD(model.parameters(), lr=0.1)
    with SensitivityProbe(model, max_batches=2).attach(optimizer) as running:
        train(model, optimizer, size=4)
    assert len(running.profile().batches) == 2


def test_batches_can_be_weighted_by_their_size() -> None:
    probe = SensitivityProbe(plain(), mode="post_batches", weight_batches=True)
    profile = probe.measure(batches(16), F.cross_entropy)
    (large, _), (small, _) = profile.batches
    assert profile.batch_sizes == (16, 8)
    assert profile.importance["0"] == pytest.approx((2 * large + small) / 3)


def test_frozen_layers_score_zero() -> None:
    model = plain()
    model[0].requires_grad_(False)
    importance = SensitivityProbe(model, mode="post_epoch").measure(batches(8), F.cross_entropy).importance
    assert importance["0"] == 0.0
    assert importance["2"] > 0


@pytest.mark.parametrize("mode", AFTER_TRAINING)
def test_an_unused_branch_dilutes_its_layer_and_breaks_nothing(mode: str) -> None:
    model = noisy()
    layers = LayerMap.of(model)
    importance = SensitivityProbe(model, mode=mode).measure(batches(8), F.cross_entropy).importance  # type: ignore[arg-type]
    assert layers.names == ("0", "4", "4.unused")
    assert importance["4.unused"] == 0.0
    assert importance["4"] > 0


class Text(nn.Module):
    def __init__(self, *, sparse: bool = False) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.tokens, self.head = nn.Embedding(10, 4, sparse=sparse), nn.Linear(4, 2)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.tokens(ids).mean(1))


TOKENS = [(torch.tensor([[1, 2], [2, 1]]), torch.tensor([0, 1]))]


def text_importance(model: nn.Module, **options: str) -> dict[str, float]:
    return SensitivityProbe(model, mode="post_batches", **options).measure(TOKENS, F.cross_entropy).importance  # type: ignore[arg-type]


def test_unseen_rows_of_an_embedding_need_not_dilute_its_score() -> None:
    everything, touched = text_importance(Text()), text_importance(Text(), embedding_rows="touched")
    assert touched["tokens"] == pytest.approx(everything["tokens"] * 10 / 2)
    assert touched["head"] == everything["head"]


def test_rows_touched_are_counted_batch_by_batch() -> None:
    probe = SensitivityProbe(Text(), mode="post_batches", embedding_rows="touched")
    other = (torch.tensor([[3, 3]]), torch.tensor([0]))
    profile = probe.measure([*TOKENS, other], F.cross_entropy)
    alone = SensitivityProbe(Text(), mode="post_batches").measure([other], F.cross_entropy)
    assert profile.batches[1][0] == pytest.approx(alone.batches[0][0] * 10)


def test_an_embedding_that_is_not_used_at_all_has_no_touched_rows() -> None:
    class TwoTables(Text):
        def __init__(self) -> None:
            super().__init__()
            self.unused = nn.Embedding(100, 4)

        def layer_groups(self) -> list[tuple[str, list[str]]]:
            return [("tables", ["tokens.weight", "unused.weight"]), ("head", ["head.weight", "head.bias"])]

    expected = text_importance(Text(), embedding_rows="touched")["tokens"]
    assert text_importance(TwoTables(), embedding_rows="touched")["tables"] == pytest.approx(expected)


@pytest.mark.parametrize("rows", ["all", "touched"])
def test_sparse_gradients_score_as_dense_ones(rows: str) -> None:
    sparse = text_importance(Text(sparse=True), embedding_rows=rows)
    assert sparse == pytest.approx(text_importance(Text(), embedding_rows=rows), rel=1e-6)


def test_several_inputs_may_come_as_a_tuple_or_by_name() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(5)
            self.linear = nn.Linear(5, 3)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return self.linear(a + b)

    by_position, by_name = (
        SensitivityProbe(Sum(), mode="post_epoch").measure([(inputs, Y)], F.cross_entropy).importance
        for inputs in ((X, 2 * X), {"a": X, "b": 2 * X})
    )
    assert by_position == by_name


@pytest.mark.parametrize(
    ("misuse", "sentence"),
    [
        (lambda: SensitivityProbe(plain), "expected a torch model .* not function"),  # type: ignore[arg-type]
        (lambda: SensitivityProbe(plain(), max_batches=0), "max_batches must be at least 1"),
        (lambda: SensitivityProbe(plain(), mode="runing"), "unknown sensitivity mode .* allowed: "),  # type: ignore[arg-type]
        (lambda: SensitivityProbe(plain(), embedding_rows="some"), "unknown embedding_rows .* allowed: "),  # type: ignore[arg-type]
        (lambda: SensitivityProbe(plain()).attach("adam"), "expected a torch optimizer"),  # type: ignore[arg-type]
    ],
    ids=["a function", "no batches", "mode", "rows", "a text"],
)
def test_misuse_gets_one_sentence(misuse: Callable[[], object], sentence: str) -> None:
    with pytest.raises(LayerError, match=sentence):
        misuse()


def test_each_mode_says_how_it_is_used() -> None:
    model = plain()
    with pytest.raises(LayerError, match=r"call measure\(batches, loss\)"):
        SensitivityProbe(model, mode="post_epoch").attach(SGD(model.parameters(), lr=0.1))
    with pytest.raises(LayerError, match=r"use attach\(optimizer\)"):
        SensitivityProbe(model).measure(batches(8), F.cross_entropy)


@pytest.mark.parametrize("mode", AFTER_TRAINING)
def test_no_batches_are_refused(mode: str) -> None:
    with pytest.raises(LayerError, match="nothing was measured"):
        SensitivityProbe(plain(), mode=mode).measure([], F.cross_entropy)  # type: ignore[arg-type]


class Backwards(nn.Module):
    """Registered in an order that differs from the flow of data."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, 2)
        self.first = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.first(x).relu())
        return out


def test_an_example_gives_the_order_of_the_layers() -> None:
    assert SensitivityProbe(Backwards()).layers.names == ("last", "first")
    assert SensitivityProbe(Backwards(), example=torch.zeros(1, 3)).layers.names == ("first", "last")


def test_another_models_optimizer_is_refused() -> None:
    with pytest.raises(LayerError, match="steps none of the model's parameters"):
        SensitivityProbe(Backwards()).attach(torch.optim.SGD(Backwards().parameters(), lr=0.1))
    model = Backwards()
    with pytest.raises(LayerError, match="does not know batch sizes"):
        SensitivityProbe(model, weight_batches=True).attach(torch.optim.SGD(model.parameters(), lr=0.1))
