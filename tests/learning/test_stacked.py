"""The stacked trainer is the plain loop for many models at a time: equal numbers, whatever else is in the stack."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import federations
from federations import CLASSES, FEATURES, double_task, federate, quick_for
from playerfl.algorithms import ALGORITHMS
from playerfl.data.examples import SiteData, TensorExamples
from playerfl.layers.layer_map import LayerMap
from playerfl.learning.job import EvalJob
from playerfl.learning.losses import FocalLoss, cross_entropy
from playerfl.learning.stacked import stackable, training
from playerfl.learning.stacked.grouping import group_of
from playerfl.learning.trainer import run_jobs
from playerfl.learning.training import Learner
from playerfl.runs.api import run_experiments
from playerfl.runs.experiment import Experiment
from playerfl.runs.result import RunResult
from playerfl.runs.setup import prepare_setup
from playerfl.tasks.task import METRICS, DataOptions, Task, own_task


def run(a_task: Task, algorithm: str, trainer: str, rounds: int = 5, **settings: Any) -> RunResult:
    return federate(algorithm, a_task, rounds, trainer=trainer, **{"training.learning_rate": 1e-3, **settings})


def assert_stacked_equals_loop(a_task: Task, algorithm: str, **settings: Any) -> None:
    """Up to rounding: models, scores and traffic."""
    stacked, loop = (run(a_task, algorithm, trainer, **settings) for trainer in ("stacked", "loop"))
    assert (stacked.data["trainer"], loop.data["trainer"]) == ("stacked", "loop")
    assert federations.largest_difference(stacked, loop) < 1e-10
    assert [row[:5] for row in stacked.score_rows] == [row[:5] for row in loop.score_rows]
    assert max(abs(a[5] - b[5]) for a, b in zip(stacked.score_rows, loop.score_rows, strict=True)) < 1e-10  # type: ignore[operator]
    assert stacked.traffic_rows == loop.traffic_rows


@pytest.mark.parametrize("algorithm", quick_for(ALGORITHMS, "fedavg", "ditto", "fedbabu", "player_fl"))
def test_stacked_equals_loop(algorithm: str) -> None:
    assert_stacked_equals_loop(double_task(), algorithm)


@pytest.mark.parametrize(
    "settings",
    [
        {"training.optimizer": "sgd", "training.momentum": 0.9},
        {"training.optimizer": "sgd", "training.weight_decay": 0.1},
        {"training.optimizer_state": "reset"},
        {"training.amsgrad": True},
        {"training.local_epochs": 3},
        {"training.batch_size": 64, "data.accept_small_sites": True},
        {"training.batch_size": 5},
        {"participation": 0.5},
        {"eval_point": "post_local"},
        {"selection": "client_best"},
    ],
    ids=lambda settings: ",".join(f"{key}={value}" for key, value in settings.items()),
)
@pytest.mark.parametrize("algorithm", quick_for(["player_fl", "ditto"], "player_fl"))
def test_stacked_equals_loop_for_every_way_of_training(algorithm: str, settings: dict[str, Any]) -> None:
    assert_stacked_equals_loop(double_task(), algorithm, **settings)


@pytest.mark.parametrize("mode", ["running", "post_epoch", "post_batches", "one_batch"])
def test_layer_scores(mode: str) -> None:
    def scores(trainer: str) -> list[list[float]]:
        settings = {"algorithm.sensitivity_mode": mode, "training.local_epochs": 2, "algorithm.max_batches": 3}
        found = run(double_task(), "player_fl", trainer, rounds=1, **settings).layers["profiles"]
        return [row for profile in found.values() for row in profile["batches"]]

    stacked, loop = scores("stacked"), scores("loop")
    assert len(stacked) == len(loop) > 0
    for mine, theirs in zip(stacked, loop, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-9)


class Residual(nn.Module):
    """Layer norms, a residual branch, a table of constants, two inputs, outputs in a mapping, a frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.linspace(0.5, 1.5, FEATURES))
        self.frozen = nn.Linear(FEATURES, FEATURES).requires_grad_(False)
        self.enter = nn.Linear(FEATURES, 8)
        self.norm = nn.LayerNorm(8)
        self.inner = nn.Linear(8, 8)
        self.leave = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor, weight: Tensor) -> dict[str, Tensor]:
        hidden = self.norm(self.enter(self.frozen(x) * self.scale * weight))
        return {"logits": self.leave(hidden + F.gelu(self.inner(hidden)))}


def residual_task(kind: torch.dtype = torch.float64) -> Task:
    sites = {n: ((x.to(kind), torch.ones(len(x), 1, dtype=kind)), y) for n, (x, y) in federations.sites().items()}
    return own_task(lambda: Residual().to(kind), sites, loss=FocalLoss(3.0, (0.2, 0.3, 0.5)))


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fedavg", "fedprox", "pfedme", "fedrep", "player_fl"])
def test_models_that_are_more_than_linear_layers(algorithm: str) -> None:
    assert_stacked_equals_loop(residual_task(), algorithm)


def experiment(task: Task, algorithm: str, seed: int, rate: float = 1e-2, **training: Any) -> Experiment:
    training = {"learning_rate": rate, "batch_size": 20, **training}
    table = {"seed": seed, "rounds": 4, "algorithm": algorithm, "trainer": "stacked", "training": training}
    return Experiment.resolve(table, task)


def side_by_side(task: Task, algorithms: list[str], seeds: list[int]) -> dict[tuple[str, int], RunResult]:
    keys = [(algorithm, seed) for algorithm in algorithms for seed in seeds]
    experiments = [experiment(task, algorithm, seed) for algorithm, seed in keys]
    return dict(zip(keys, run_experiments(experiments, [None] * len(keys), task), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("make", [federations.task, lambda: residual_task(torch.float32)], ids=["mlp", "residual"])
def test_a_result_does_not_depend_on_its_stack(make: Callable[[], Task]) -> None:
    """Bit for bit, in float32 and at a rate at which one flipped bit would grow: the kernels see fixed shapes."""
    task = make()
    algorithms = ["fedavg", "ditto", "pfedme", "player_fl"]
    crowd = side_by_side(task, algorithms, list(range(11)))
    for algorithm in algorithms:
        for seed in (0, 7):
            alone = side_by_side(task, [algorithm], [seed])[algorithm, seed]
            beside = crowd[algorithm, seed]
            assert alone.score_rows == beside.score_rows
            for site, own in alone.weights.items():
                assert all(torch.equal(entry, beside.weights[site][name]) for name, entry in own.items())


def uneven(task: Task) -> Task:
    """The same task, but in a run with its own split sites lose rows: other sizes, other numbers of batches."""

    def load_sites(options: DataOptions) -> dict[str, SiteData]:
        sites = {}
        for i, (name, site) in enumerate(task.load_sites(options).items()):
            train = site.train
            assert isinstance(train, TensorExamples)
            sites[name] = replace(site, train=train.rows(torch.arange(len(train) - options.split_seed % (7 + i))))
        return sites

    return replace(task, load_sites=load_sites)


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [8, 40])
@pytest.mark.parametrize("make", [federations.task, lambda: residual_task(torch.float32)], ids=["mlp", "residual"])
def test_a_result_does_not_depend_on_the_data_of_others(make: Callable[[], Task], batch_size: int) -> None:
    """As above, where every run has its own split, and sites of different sizes."""
    task = uneven(make())
    data = {"split": "per_run", "accept_small_sites": True}
    experiments = [
        experiment(task, algorithm, seed, batch_size=batch_size, local_epochs=2).model_copy(update={"data": data})
        for algorithm in ("fedavg", "pfedme", "player_fl")
        for seed in range(9)
    ]
    crowd = run_experiments(experiments, [None] * len(experiments), task)
    assert len({tuple(result.num_examples.values()) for result in crowd}) > 4
    for place in (0, 5, 13, 21):
        (alone,) = run_experiments([experiments[place]], [None], task)
        assert alone.data["trainer"] == "stacked"
        federations.assert_same(alone, crowd[place])


def test_models_are_scored_on_their_own_examples() -> None:
    """More rows than a batch of the evaluation, splits of sizes that need the same padding, a metric of one's own."""

    def share_of_first(predicted: Tensor, targets: Tensor) -> float:
        return float(((predicted == 0) & (targets == 0)).sum()) / len(targets)

    task = double_task(metrics={**METRICS, "first": share_of_first})
    setup = prepare_setup(Experiment.resolve({"trainer": "stacked", "training": {"batch_size": 8}}, task), task)
    generator = torch.Generator().manual_seed(1)

    def examples(rows: int) -> TensorExamples:
        inputs = torch.randn(rows, FEATURES, generator=generator, dtype=torch.float64)
        return TensorExamples(inputs, torch.randint(CLASSES, (rows,), generator=generator))

    same = {"validation": examples(600), "test": examples(50)}
    splits = [same, same, *({"validation": examples(600 - i), "test": examples(40 + i)} for i in (3, 3, 8))]
    jobs = [EvalJob(setup.learner, setup.initial, split) for split in splits]
    assert len({group_of(job) for job in jobs}) == 1
    together = run_jobs(jobs)
    assert together[0].scores == together[1].scores != together[2].scores != together[3].scores
    for job, evaluated in zip(jobs, together, strict=True):
        [alone], by_loop = run_jobs([job]), setup.learner.evaluate(job)
        assert alone.scores == evaluated.scores
        for split in job.splits:
            assert evaluated.scores[split] == pytest.approx(by_loop.scores[split], rel=1e-12)
            assert (evaluated.confusions[split] == alone.confusions[split]).all()
            assert (evaluated.confusions[split] == by_loop.confusions[split]).all()


def test_a_diverging_model_does_not_touch_its_neighbours() -> None:
    task = federations.task()
    calm = experiment(task, "local", 0, optimizer="sgd")
    wild = experiment(task, "local", 1, rate=1e30, optimizer="sgd")
    (alone,) = run_experiments([calm], [None], task)
    beside, lost = run_experiments([calm, wild], [None, None], task)
    assert lost.diverged
    assert alone.score_rows == beside.score_rows


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(FEATURES, 4, batch_first=True)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.lstm(x.unsqueeze(1))[0][:, -1])
        return out


class DataDependent(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if float(x.sum()) > 0 else -x)


class AcrossRows(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(0))


class Counting(nn.Linear):
    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x)


class Unused(nn.Linear):
    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.spare = nn.Parameter(torch.zeros(3))


class HiddenBehindZeros(nn.Sequential):
    """Rows depend on each other, but at the start no output shows it."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(FEATURES, 8), nn.Linear(8, CLASSES))
        nn.init.zeros_(self[1].weight)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self[0](x)
        out: Tensor = self[1](hidden - hidden.mean(0))
        return out


class _Shortened(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.relu(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] / gradients[0].norm()


class OwnFunction(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(FEATURES, 8), nn.Linear(8, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self[1](_Shortened.apply(self[0](x)))  # type: ignore[no-untyped-call]
        return out


def hooked() -> nn.Module:
    model = nn.Linear(FEATURES, CLASSES)
    model.weight.register_hook(lambda gradient: gradient * 0.5)
    return model


def hooked_module() -> nn.Module:
    model = nn.Sequential(nn.Linear(FEATURES, 8), nn.Linear(8, CLASSES))
    model[1].register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * 2,))
    return model


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "batch norm": (federations.with_batch_norm, "padded rows would enter the statistics of batch norm '1'"),
    "dropout": (federations.with_dropout, "the masks of dropout '2' would depend on the stack"),
    "lstm": (Recurrent, "its forward pass cannot be vmapped"),
    "data-dependent": (lambda: DataDependent(FEATURES, CLASSES), "its forward pass cannot be vmapped"),
    "across rows": (lambda: AcrossRows(FEATURES, CLASSES), "the rows of a batch depend on each other"),
    "changing buffers": (lambda: Counting(FEATURES, CLASSES), "its forward"),
    "across rows, hidden": (HiddenBehindZeros, "the rows of a batch depend on each other"),
    "own autograd function": (OwnFunction, "the gradient of 0.weight differs from the plain loop"),
    "hook on a parameter": (hooked, "the gradient of weight differs from the plain loop"),
    "hook on a module": (hooked_module, "stacked"),
    "unused parameter": (lambda: Unused(FEATURES, CLASSES), "spare gets no gradient"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_stacked_falls_back_and_says_so(case: str) -> None:
    build, reason = REFUSED[case]
    task = own_task(build, federations.sites())
    asked = run(task, "fedavg", "stacked", rounds=1)
    assert asked.data["trainer"] == "loop"
    (note,) = [note for note in asked.data["notes"] if "stacked" in note]
    assert reason in note
    left_to_auto = run(task, "fedavg", "auto", rounds=1)
    assert left_to_auto.data["trainer"] == "loop"
    said = any("stacked" in note for note in left_to_auto.data["notes"])
    assert said == stackable.pays(build()), "the note is for models that stacking would have sped up"
    assert asked.score_rows == left_to_auto.score_rows


def by_frequency(output: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(output, targets, weight=1.0 / (1 + targets.bincount(minlength=CLASSES)), reduction="none")


def centred(output: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(output - output.mean(0), targets, reduction="none")


@pytest.mark.parametrize("loss", [by_frequency, centred])
def test_a_loss_that_looks_at_the_whole_batch_falls_back(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    task = own_task(lambda: nn.Linear(FEATURES, CLASSES), federations.sites(), loss=loss)
    found = run(task, "fedavg", "stacked", rounds=1)
    assert found.data["trainer"] == "loop"
    assert any("the loss of a row depends on other rows" in note for note in found.data["notes"])


def test_the_trial_leaves_the_model_as_it_was() -> None:
    model = nn.Linear(FEATURES, CLASSES)
    before = {name: entry.clone() for name, entry in model.state_dict().items()}
    layers = LayerMap.of(model, torch.zeros(2, FEATURES))
    learner = Learner(model, layers, cross_entropy, {})
    for rows in (1, 7):
        assert stackable.reason_against(learner, torch.randn(rows, FEATURES), torch.arange(rows) % CLASSES) is None
    assert all(torch.equal(entry, before[name]) for name, entry in model.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


def test_auto_stacks_small_fully_connected_models() -> None:
    assert run(federations.task(), "fedavg", "auto", rounds=1).data["trainer"] == "stacked"
    assert run(federations.task("convolutional"), "fedavg", "auto", rounds=1).data["trainer"] == "loop"
    assert not stackable.pays(nn.Linear(1000, 1000))


@pytest.mark.slow
def test_the_size_of_a_stack_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    task = federations.task()
    whole = side_by_side(task, ["player_fl"], [0, 1, 2])
    monkeypatch.setattr(training, "STACK_NUMBERS", 1)
    parts = side_by_side(task, ["player_fl"], [0, 1, 2])
    for key, result in whole.items():
        assert result.score_rows == parts[key].score_rows


def test_optimiser_state_passes_between_trainers() -> None:
    """The loop can continue from a state the stack left, and vice versa."""
    from playerfl.federation.client import TrainingPlan
    from playerfl.learning.job import TrainJob
    from playerfl.learning.optimizers import AdamW

    task = double_task()
    settings = {"algorithm": "fedavg", "trainer": "stacked", "training": {"batch_size": 8}}
    setup = prepare_setup(Experiment.resolve(settings, task), task)
    plan = TrainingPlan(AdamW(1e-3), batch_size=8)

    def train(trainers: list[str], parts: tuple[str | None, ...] = (None,) * 4) -> dict[str, Tensor]:
        state: dict[str, dict[str, Tensor]] = {}
        weights = setup.initial
        order = torch.Generator().manual_seed(3)
        for trainer, part in zip(trainers, parts, strict=True):
            setup.learner.trainer = trainer  # type: ignore[assignment]
            examples = setup.sites["site-0"].train
            entries = setup.learner.layers.entries
            only = None if part is None else frozenset(e for layer in part.split() for e in entries[layer])
            job = TrainJob(setup.learner, weights, examples, 1, 8, plan.optimizer, state, order, only)
            (trained,) = run_jobs([job])
            weights = trained.weights
        return weights

    reference = train(["loop"] * 4)
    for trainers in (["stacked", "loop", "stacked", "loop"], ["loop", "stacked", "stacked", "loop"]):
        found = train(trainers)
        assert max(float((found[n] - reference[n]).abs().max()) for n in reference) < 1e-12
    # Layers that have trained a different number of times keep separate step counts.
    for parts in (("6", "6", None, "0"), (None, "6", "6 4", None), ("0 2", "2 4", "0", None)):
        reference = train(["loop"] * 4, parts)
        for trainers in (["stacked"] * 4, ["loop", "stacked", "stacked", "loop"]):
            found = train(trainers, parts)
            assert max(float((found[n] - reference[n]).abs().max()) for n in reference) < 1e-12


@pytest.mark.parametrize("trainer", ["loop", "stacked"])
def test_a_diverged_model_has_no_score_and_the_others_keep_theirs(trainer: str) -> None:
    """One NaN weight makes every logit NaN; a user's own metric never sees the predictions of such a model."""
    seen: list[int] = []

    def lowest(predicted: Tensor, targets: Tensor) -> float:
        seen.append(int(predicted.min()))
        return 0.5

    task = double_task(metrics={**METRICS, "lowest": lowest})
    setup = prepare_setup(Experiment.resolve({"trainer": trainer, "training": {"batch_size": 8}}, task), task)
    assert setup.learner.trainer == trainer
    data = setup.sites["site-0"]
    splits = {"validation": data.validation, "test": data.test}
    name = next(iter(setup.initial))
    diverged = {**setup.initial, name: setup.initial[name].clone().fill_(torch.nan)}
    seen.clear()  # the trial whether a model can be stacked scores it, too
    healthy = run_jobs([EvalJob(setup.learner, setup.initial, splits)])[0].scores
    jobs = [EvalJob(setup.learner, weights, splits) for weights in (setup.initial, diverged, setup.initial)]
    evaluated = run_jobs(jobs)
    first, found, last = (result.scores for result in evaluated)
    assert first == last == healthy
    for split in splits:
        assert set(found[split]) == {"loss", "f1", "accuracy", "lowest"}
        assert all(math.isnan(value) for value in found[split].values())
        assert all(math.isfinite(value) for value in healthy[split].values())
        matrices = [result.confusions[split] for result in evaluated]
        assert [int(matrix.sum()) for matrix in matrices] == [len(splits[split]), -9, len(splits[split])]
    assert len(seen) == 6
    assert min(seen) >= 0


@pytest.mark.parametrize("trainer", ["loop", "stacked"])
def test_one_diverged_row_is_enough(trainer: str) -> None:
    task = double_task()
    setup = prepare_setup(Experiment.resolve({"trainer": trainer, "training": {"batch_size": 8}}, task), task)
    examples = setup.sites["site-0"].test
    assert isinstance(examples, TensorExamples)
    inputs = examples.inputs.clone()
    inputs[-1, 0] = torch.nan
    splits = {"bad": TensorExamples(inputs, examples.targets), "test": examples}
    found = run_jobs([EvalJob(setup.learner, setup.initial, splits)])[0].scores
    assert all(math.isnan(value) for value in found["bad"].values())
    assert all(math.isfinite(value) for value in found["test"].values())


@pytest.mark.slow
def test_learning_rates_share_a_stack() -> None:
    task = federations.task()
    experiments = [experiment(task, "ditto", seed, rate) for rate in (1e-2, 1e-3, 1e-4) for seed in (0, 1)]
    together = run_experiments(experiments, [None] * len(experiments), task)
    for one, beside in zip(experiments, together, strict=True):
        (alone,) = run_experiments([one], [None], task)
        assert alone.score_rows == beside.score_rows
