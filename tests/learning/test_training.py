"""The training loop: what moves, what stays bit for bit, and how losses are averaged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from playerfl.data.examples import Batch, Examples, LoaderExamples, SiteData, TensorExamples
from playerfl.errors import DataError
from playerfl.layers.layer_map import LayerMap, state_entries
from playerfl.learning import training
from playerfl.learning.job import EvalJob, Measure, Pull, Trained, TrainJob
from playerfl.learning.losses import cross_entropy
from playerfl.learning.metrics import accuracy, macro_f1
from playerfl.learning.optimizers import SGD, AdamW, Moreau
from playerfl.learning.training import Learner
from playerfl.weights import Weights, digest

ROWS = 24
X = torch.randn(ROWS, 5, generator=torch.Generator().manual_seed(0))
Y = torch.randint(3, (ROWS,), generator=torch.Generator().manual_seed(1))
DATA = TensorExamples(X, Y)


class InOrder(TensorExamples):
    """Never shuffles, so that a loop written out in this file sees the same batches."""

    def batches(self, size: int, order: torch.Generator | None = None, *, join_single: bool = False) -> Iterator[Batch]:
        return super().batches(size, None, join_single=join_single)


def plain() -> nn.Sequential:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))


def noisy() -> nn.Sequential:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 3))


def convolutional() -> nn.Sequential:
    torch.manual_seed(2)
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 2), nn.Flatten(), nn.Linear(4, 3))


def learner_of(model: nn.Module, loss: Callable[[Any, Tensor], Tensor] = cross_entropy) -> Learner:
    return Learner(model, LayerMap.of(model), loss, {"accuracy": accuracy, "f1": macro_f1})


def train(learner: Learner, weights: Weights | None = None, **changes: Any) -> Trained:
    job = TrainJob(
        learner=learner,
        weights=learner.weights() if weights is None else weights,
        examples=DATA,
        epochs=1,
        batch_size=8,
        optimizer=AdamW(0.01),
        state={},
        order=torch.Generator().manual_seed(3),
    )
    return replace(job, **changes).run()


def trained_digest(build: Callable[[], nn.Module], **changes: Any) -> str:
    return digest(train(learner_of(build()), **changes).weights)


def changed(before: Weights, after: Weights) -> set[str]:
    return {name for name in before if digest({"w": before[name]}) != digest({"w": after[name]})}


# The loop itself.


@pytest.mark.slow
@pytest.mark.parametrize("build", [plain, convolutional])
def test_training_is_the_plain_torch_loop_bit_for_bit(build: Callable[[], nn.Module]) -> None:
    images = build is convolutional
    x = torch.randn(ROWS, 2, 4, 4, generator=torch.Generator().manual_seed(0)) if images else X
    learner = learner_of(build())
    placed = learner.place(SiteData(*[TensorExamples(x, Y)] * 3)).train
    examples = InOrder(placed.inputs, placed.targets)  # type: ignore[attr-defined]
    found = train(learner, examples=examples, epochs=2).weights

    model = build().to(memory_format=torch.channels_last) if images else build()  # type: ignore[call-overload]
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    for _ in range(2):
        for inputs, targets in examples.batches(8):
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), targets, reduction="none").mean().backward()
            optimizer.step()
    assert digest(found) == digest(state_entries(model))


def test_an_unused_branch_is_left_as_torch_leaves_it() -> None:
    def with_branch() -> nn.Module:
        model = plain()
        model[2].register_module("unused", nn.Linear(2, 2))
        return model

    learner = learner_of(with_branch())
    before = learner.weights()
    after = train(learner, optimizer=AdamW(0.01, weight_decay=0.5)).weights
    assert changed(before, after) == {"0.weight", "0.bias", "2.weight", "2.bias"}


class Alternating(nn.Module):
    """Uses its second branch in every other training step, as a mixture of experts or a skipped layer would."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.first, self.second, self.head = nn.Linear(5, 6), nn.Linear(5, 6), nn.Linear(6, 3)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += self.training
        hidden = self.first(x) + self.second(x) if self.calls % 2 else self.first(x)
        logits: Tensor = self.head(hidden.relu())
        return logits


def test_a_branch_used_in_every_other_step_is_trained_as_torch_trains_it() -> None:
    examples = InOrder(X, Y)
    # The first rate returns in the third epoch.
    model, factors = Alternating(), (1.0, 0.5, 1.0)
    learner = Learner(Alternating(), LayerMap.of(Alternating(), granularity="module"), cross_entropy, {})
    trained = train(learner, examples=examples, epochs=3, rate_factors=factors).weights

    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    for factor in factors:
        optimizer.param_groups[0]["lr"] = 0.01 * factor
        for inputs, targets in examples.batches(8):
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), targets, reduction="none").mean().backward()
            optimizer.step()
    assert digest(trained) == digest(state_entries(model))


def test_the_reported_loss_is_the_mean_over_examples() -> None:
    learner = learner_of(plain())
    expected = F.cross_entropy(plain()(X), Y).item()
    assert train(learner, optimizer=SGD(0.0), batch_size=7).loss == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("changes", [{"epochs": 0}, {"only": frozenset()}], ids=["no epoch", "no layer"])
def test_nothing_to_train_gives_the_weights_back(changes: dict[str, Any]) -> None:
    learner = learner_of(noisy())
    weights = learner.weights()
    assert digest(train(learner, weights, **changes).weights) == digest(weights)


def test_a_job_neither_writes_into_its_weights_nor_sees_those_of_the_job_before() -> None:
    learner = learner_of(noisy())
    start = learner.weights()
    before = digest(start)
    first = train(learner, start)
    assert digest(start) == before
    assert digest(train(learner, start).weights) == digest(first.weights)


def test_a_site_without_training_examples_is_refused() -> None:
    with pytest.raises(DataError, match="no training examples"):
        train(learner_of(plain()), examples=TensorExamples(X[:0], Y[:0]))


@pytest.mark.parametrize("inputs", [(X, X), {"a": X, "b": X}], ids=["tuple", "mapping"])
def test_models_of_several_inputs_train_and_score(inputs: Any) -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(2)
            self.linear = nn.Linear(5, 3)

        def forward(self, a: Tensor, b: Tensor) -> dict[str, Tensor]:
            return {"logits": self.linear(a + b)}

    learner = learner_of(Sum())
    examples = TensorExamples(inputs, Y)
    before = learner.weights()
    after = train(learner, examples=examples).weights
    assert changed(before, after) == {"linear.weight", "linear.bias"}
    (scores,) = EvalJob(learner, after, {"test": examples}).run().scores.values()
    expected = F.cross_entropy(F.linear(2 * X, after["linear.weight"], after["linear.bias"]), Y).item()
    assert scores["loss"] == pytest.approx(expected, rel=1e-6)


def test_an_optimiser_may_take_several_steps_on_each_batch() -> None:
    options: dict[str, Any] = {"examples": InOrder(X, Y), "batch_size": ROWS}
    three_steps = Moreau(0.1, 0.0, lam=0.0, inner_steps=3)
    found = train(learner_of(plain()), optimizer=three_steps, measure=Measure(), **options)
    expected = train(learner_of(plain()), optimizer=SGD(0.1), epochs=3, **options).weights
    assert all(torch.allclose(found.weights[name], expected[name], atol=1e-6) for name in expected)
    assert found.profile is not None
    assert len(found.profile.batches) == 1


# Randomness.


@pytest.mark.parametrize("build", [plain, noisy])
def test_the_order_decides_everything_and_the_global_random_state_nothing(build: Callable[[], nn.Module]) -> None:
    def run(seed: int, global_seed: int) -> str:
        learner = learner_of(build())
        torch.manual_seed(global_seed)
        before = torch.get_rng_state()
        trained = train(learner, order=torch.Generator().manual_seed(seed))
        assert torch.equal(torch.get_rng_state(), before)
        return digest(trained.weights)

    assert run(1, 10) == run(1, 11)
    assert run(1, 10) != run(2, 10)


def test_dropout_depends_on_the_stream() -> None:
    first, second = (
        trained_digest(noisy, examples=InOrder(X, Y), order=torch.Generator().manual_seed(seed)) for seed in (1, 2)
    )
    assert first != second


def test_dropout_is_on_in_training() -> None:
    def without_dropout() -> nn.Module:
        model = noisy()
        model[3] = nn.Identity()
        return model

    assert trained_digest(noisy) != trained_digest(without_dropout)


@pytest.mark.parametrize("generator", [None, torch.Generator()], ids=["global", "own"])
def test_a_shuffling_loader_repeats_itself_given_the_order(generator: torch.Generator | None) -> None:
    loader = DataLoader(TensorDataset(X, Y), batch_size=8, shuffle=True, generator=generator)
    first = trained_digest(plain, examples=LoaderExamples(loader), epochs=2)
    torch.rand(3)
    assert trained_digest(plain, examples=LoaderExamples(loader), epochs=2) == first


# Freezing.


@pytest.mark.parametrize("layer", ["0", "4"])
def test_only_moves_the_named_layer_and_its_statistics(layer: str) -> None:
    learner = learner_of(noisy())
    before = learner.weights()
    own = frozenset(learner.layers.entries[layer])
    assert changed(before, train(learner, before, only=own).weights) == own


@pytest.mark.parametrize(
    "norm",
    [
        nn.BatchNorm1d(6),
        nn.BatchNorm1d(6, affine=False),
        nn.InstanceNorm1d(6, affine=True, track_running_stats=True),
    ],
    ids=["batch norm", "batch norm without parameters", "instance norm"],
)
def test_only_freezes_the_statistics_of_other_layers(norm: nn.Module) -> None:
    learner = learner_of(nn.Sequential(nn.Conv1d(1, 6, 1), norm, nn.Flatten(), nn.Linear(30, 3)))
    before = learner.weights()
    head = frozenset({"3.weight", "3.bias"})
    examples = TensorExamples(X.unsqueeze(1), Y)
    assert changed(before, train(learner, before, examples=examples, only=head).weights) == head


def test_frozen_parameters_stay_frozen() -> None:
    model = noisy()
    model[0].requires_grad_(False)
    model[1].requires_grad_(False)
    learner = learner_of(model)
    before = learner.weights()
    assert changed(before, train(learner, before).weights) == {"4.weight", "4.bias"}
    assert not model[0].weight.requires_grad


def test_training_some_layers_leaves_every_layer_trainable() -> None:
    model = noisy()
    learner = learner_of(model)
    train(learner, only=frozenset({"4.weight"}))
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_two_halves_trained_separately_keep_separate_optimiser_states() -> None:
    learner = learner_of(plain())
    state: dict[str, dict[str, Tensor]] = {}
    head = frozenset({"2.weight", "2.bias"})
    train(learner, state=state, only=head)
    assert state["exp_avg"].keys() == head


# The pull.

ANCHOR = {name: torch.full_like(entry, 0.25) for name, entry in state_entries(plain()).items()}


def test_the_pull_is_the_gradient_of_its_formula() -> None:
    learner = learner_of(plain())
    examples = InOrder(X, Y)
    found = train(
        learner, examples=examples, batch_size=ROWS, epochs=3, optimizer=SGD(0.1), pull=Pull(ANCHOR, 0.7)
    ).weights

    model = plain()
    for _ in range(3):
        model.zero_grad()
        F.cross_entropy(model(X), Y).backward()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter -= 0.1 * (parameter.grad + 0.7 * (parameter - ANCHOR[name]))
    assert all(torch.allclose(found[name], p, atol=1e-6) for name, p in model.named_parameters())


def test_a_pull_on_some_entries_leaves_the_others_alone() -> None:
    half = {name: ANCHOR[name] for name in ("2.weight", "2.bias")}
    options: dict[str, Any] = {"examples": InOrder(X, Y), "batch_size": ROWS, "optimizer": SGD(0.1)}
    free = train(learner_of(plain()), **options).weights
    pulled = train(learner_of(plain()), pull=Pull(half, 5.0), **options).weights
    assert changed(free, pulled) == {"2.weight", "2.bias"}


@pytest.mark.parametrize("anchor", [ANCHOR, {name: entry / 0 for name, entry in ANCHOR.items()}], ids=["finite", "inf"])
def test_a_pull_of_strength_zero_is_no_pull_bit_for_bit(anchor: Weights) -> None:
    assert trained_digest(plain, pull=Pull(anchor, 0.0), epochs=2) == trained_digest(plain, epochs=2)


def test_a_pull_towards_the_current_weights_does_nothing_at_the_first_step() -> None:
    options: dict[str, Any] = {"batch_size": ROWS, "epochs": 1}
    here = Pull(learner_of(plain()).weights(), 1e6)
    assert trained_digest(plain, pull=here, **options) == trained_digest(plain, **options)


def test_the_anchor_is_not_changed() -> None:
    before = digest(ANCHOR)
    train(learner_of(plain()), pull=Pull(ANCHOR, 1.0))
    assert digest(ANCHOR) == before


# Optimiser state.


@pytest.mark.parametrize("optimizer", [AdamW(0.01), SGD(0.1, momentum=0.9)])
def test_a_kept_optimiser_state_continues_where_it_stopped(optimizer: Any) -> None:
    options: dict[str, Any] = {"examples": InOrder(X, Y), "optimizer": optimizer}
    at_once = train(learner_of(plain()), epochs=2, **options).weights

    learner = learner_of(plain())
    state: dict[str, dict[str, Tensor]] = {}
    half_way = train(learner, state=state, **options).weights
    assert digest(train(learner, half_way, state=state, **options).weights) == digest(at_once)
    assert digest(train(learner, half_way, state={}, **options).weights) != digest(at_once)


@pytest.mark.parametrize("optimizer", [AdamW(0.01), SGD(0.1, momentum=0.9)])
def test_a_convolution_continues_bit_for_bit_from_a_contiguous_restored_state(optimizer: Any) -> None:
    learner = learner_of(convolutional())
    images = torch.randn(ROWS, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    options: dict[str, Any] = {"examples": TensorExamples(images, Y), "optimizer": optimizer}
    state: dict[str, dict[str, Tensor]] = {}
    weights = train(learner, state=state, **options).weights

    def restored(tensors: Mapping[str, Tensor]) -> Weights:
        return {name: t.clone(memory_format=torch.contiguous_format) for name, t in tensors.items()}

    copies = {slot: restored(held) for slot, held in state.items()}
    slot = next(iter(set(state) - {"step"}))
    assert copies[slot]["0.weight"].stride() != state[slot]["0.weight"].stride()
    continued = train(learner, weights, state=state, **options).weights
    resumed = train(learner, restored(weights), state=copies, **options).weights
    assert digest(resumed) == digest(continued)
    assert {slot: digest(held) for slot, held in copies.items()} == {s: digest(held) for s, held in state.items()}


def test_images_are_placed_with_channels_last() -> None:
    images = TensorExamples(torch.randn(6, 2, 4, 4), Y[:6])
    placed = learner_of(convolutional()).place(SiteData(images, images, images))
    for part in (placed.train, placed.validation, placed.test):
        ((inputs, _),) = part.batches(6)
        assert inputs.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(inputs, images.inputs)  # type: ignore[arg-type]


# Batch norm and short batches.


@pytest.mark.parametrize(("rows", "steps"), [(17, 2), (18, 3), (16, 2)])
def test_a_last_batch_of_one_row_is_joined_where_there_is_batch_norm(rows: int, steps: int) -> None:
    weights = train(learner_of(noisy()), examples=TensorExamples(X[:rows], Y[:rows])).weights
    assert weights["1.num_batches_tracked"].item() == steps


def test_a_last_batch_of_one_row_stays_where_there_is_no_batch_norm() -> None:
    state: dict[str, dict[str, Tensor]] = {}
    train(learner_of(plain()), examples=TensorExamples(X[:17], Y[:17]), state=state)
    assert state["step"]["0.weight"].item() == 3


# Evaluation.


def mean_loss(output: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(output, targets)


@pytest.mark.parametrize("loss", [cross_entropy, mean_loss], ids=["by example", "mean"])
def test_the_evaluation_loss_is_the_mean_over_examples(
    monkeypatch: pytest.MonkeyPatch, loss: Callable[[Any, Tensor], Tensor]
) -> None:
    monkeypatch.setattr(training, "EVALUATION_BATCH", 7)
    learner = learner_of(plain(), loss)
    found = EvalJob(learner, learner.weights(), {"test": DATA}).run().scores["test"]["loss"]
    assert found == pytest.approx(F.cross_entropy(plain()(X), Y).item(), rel=1e-6)


def test_metrics_are_computed_once_over_the_whole_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "EVALUATION_BATCH", 5)
    learner = learner_of(plain())
    scores = EvalJob(learner, learner.weights(), {"test": DATA}).run().scores["test"]
    predicted = plain()(X).argmax(1)
    assert scores["f1"] == macro_f1(predicted, Y)
    assert scores["accuracy"] == accuracy(predicted, Y)


def test_evaluation_runs_in_eval_mode_and_changes_nothing() -> None:
    learner = learner_of(noisy())
    before, random = learner.weights(), torch.get_rng_state()
    scores = [EvalJob(learner, before, {"test": DATA}).run().scores for _ in range(2)]
    assert scores[0] == scores[1]
    assert digest(learner.weights()) == digest(before)
    assert torch.equal(torch.get_rng_state(), random)
    expected = F.cross_entropy(noisy().eval()(X), Y).item()
    assert scores[0]["test"]["loss"] == pytest.approx(expected, rel=1e-6)


def test_an_empty_split_scores_nan() -> None:
    learner = learner_of(plain())
    scores = EvalJob(learner, learner.weights(), {"test": TensorExamples(X[:0], Y[:0])}).run().scores["test"]
    assert set(scores) == {"loss", "accuracy", "f1"}
    assert all(value != value for value in scores.values())


def test_evaluation_does_not_affect_later_training() -> None:
    learner = learner_of(noisy())
    start = learner.weights()
    EvalJob(learner, start, {"test": DATA}).run()
    assert digest(train(learner, start).weights) == trained_digest(noisy)


@pytest.mark.parametrize(
    "options",
    [{"drop_last": True}, {"sampler": torch.utils.data.SubsetRandomSampler(range(7))}],
    ids=["drop last", "sampler"],
)
def test_the_evaluation_loss_counts_the_rows_a_loader_gives(options: dict[str, Any]) -> None:
    loader = DataLoader(TensorDataset(X, Y), batch_size=7, **options)
    rows = 7 if "sampler" in options else 21
    learner = learner_of(plain())
    found = EvalJob(learner, learner.weights(), {"test": LoaderExamples(loader)}).run().scores["test"]["loss"]
    assert found == pytest.approx(F.cross_entropy(plain()(X[:rows]), Y[:rows]).item(), rel=1e-6)


# Measuring.

MODES = ["running", "post_epoch", "post_batches", "one_batch"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("examples", [DATA, LoaderExamples(DataLoader(TensorDataset(X, Y), 8, shuffle=True))])
def test_measuring_does_not_change_training_by_a_bit(mode: Any, examples: Examples) -> None:
    order = [torch.Generator().manual_seed(9) for _ in range(2)]
    options: dict[str, Any] = {"examples": examples, "epochs": 2, "pull": Pull(ANCHOR, 0.1)}
    learners = [learner_of(noisy()) for _ in order]
    measured = train(learners[0], order=order[0], measure=Measure(mode=mode), **options)
    assert measured.profile is not None
    assert digest(measured.weights) == digest(train(learners[1], order=order[1], **options).weights)
    assert torch.equal(order[0].get_state(), order[1].get_state())


def importance(**changes: Any) -> dict[str, float]:
    profile = train(learner_of(plain()), **changes).profile
    assert profile is not None
    return profile.importance


def test_running_with_one_batch_and_no_step_equals_post_epoch() -> None:
    running = importance(optimizer=SGD(0.0), batch_size=ROWS, measure=Measure(mode="running"))
    after = importance(optimizer=SGD(0.0), batch_size=7, measure=Measure(mode="post_epoch"))
    assert running == pytest.approx(after, rel=1e-6)


def test_the_pull_is_not_in_the_scores() -> None:
    options: dict[str, Any] = {"batch_size": ROWS, "measure": Measure()}
    assert importance(pull=Pull(ANCHOR, 100.0), **options) == importance(**options)


@pytest.mark.parametrize("mode", MODES)
def test_only_the_first_epoch_is_measured(mode: Any) -> None:
    options: dict[str, Any] = {"measure": Measure(mode=mode)}
    assert importance(epochs=3, **options) == importance(epochs=1, **options)


def test_a_running_profile_knows_its_batches_and_examples() -> None:
    profile = train(learner_of(plain()), batch_size=7, measure=Measure(weight_batches=True)).profile
    assert profile is not None
    assert sorted(profile.batch_sizes) == [3, 7, 7, 7]
    assert profile.num_examples == ROWS
    assert profile.weight_batches


def test_every_option_reaches_the_probe() -> None:
    capped = train(learner_of(plain()), measure=Measure(max_batches=2)).profile
    assert capped is not None
    assert len(capped.batches) == 2
    without = importance(measure=Measure(include_bias=False), batch_size=ROWS)
    assert without != importance(measure=Measure(), batch_size=ROWS)
