"""Models that one copy cannot train for every site in turn are refused in one sentence; unusual sound ones are not."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import playerfl
from playerfl.errors import PlayerflError
from playerfl.learning.model_trial import check_calls, check_parameters, works

X = torch.randn(24, 5, generator=torch.Generator().manual_seed(0))
Y = torch.randint(3, (24,), generator=torch.Generator().manual_seed(1))


class Net(nn.Module):
    """5 inputs, 3 outputs; `hidden` is what the tests vary."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(5, 8), nn.Linear(8, 3)

    def hidden(self, x: Tensor) -> Tensor:
        rows: Tensor = self.body(x).relu()
        return rows

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.hidden(x))
        return logits


class Remembers(Net):
    """Keeps the last activations, as a recurrent network may keep its hidden state between batches."""

    last: Tensor | float = 0.0

    def hidden(self, x: Tensor) -> Tensor:
        rows = super().hidden(x) + 0.1 * self.last
        self.last = rows.detach().mean(0)
        return rows


class RemembersInTraining(Remembers):
    def hidden(self, x: Tensor) -> Tensor:
        return super().hidden(x) if self.training else self.body(x).relu() + self.last


class HiddenBuffer(Net):
    average: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(8), persistent=False)

    def hidden(self, x: Tensor) -> Tensor:
        rows = super().hidden(x)
        if self.training:
            self.average += 0.1 * (rows.detach().mean(0) - self.average)
        return rows - self.average


class WritesIntoInputs(Net):
    def hidden(self, x: Tensor) -> Tensor:
        return super().hidden(x.mul_(2.0))


class PythonsRandomNumbers(Net):
    def hidden(self, x: Tensor) -> Tensor:
        return super().hidden(x) * random.random()


class ComplexWeights(Net):
    def __init__(self) -> None:
        super().__init__()
        self.phase = nn.Parameter(torch.ones(8, dtype=torch.cfloat))

    def hidden(self, x: Tensor) -> Tensor:
        return (super().hidden(x) * self.phase).abs()


class Sparse(Net):
    def __init__(self) -> None:
        super().__init__()
        self.codes = nn.Embedding(4, 8, sparse=True)

    def hidden(self, x: Tensor) -> Tensor:
        rows: Tensor = super().hidden(x) + self.codes((x[:, 0] > 0).long())
        return rows


class ReplacesBuffer(Net):
    """A new tensor in place of the buffer, which only training reads, as in a queue of negatives."""

    average: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(8))

    def hidden(self, x: Tensor) -> Tensor:
        rows = super().hidden(x)
        if self.training:
            self.average = 0.9 * self.average + 0.1 * rows.detach().mean(0)
            rows = rows - self.average
        return rows


class Grows(Net):
    """A range for each feature, of unknown number until the first batch, as in torch's observers for quantisation."""

    largest: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("largest", torch.zeros(0))

    def hidden(self, x: Tensor) -> Tensor:
        rows = super().hidden(x)
        if self.training:
            self.largest.resize_(8).copy_(rows.amax(0))
        return rows


class SlowCopy(Net):
    """A frozen copy that follows the weights, as a momentum encoder does."""

    def __init__(self) -> None:
        super().__init__()
        self.slow = nn.Linear(5, 8).requires_grad_(False)

    def hidden(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.slow.weight.lerp_(self.body.weight, 0.1)
        rows: Tensor = super().hidden(x) + self.slow(x)
        return rows


class Lazy(Net):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.LazyLinear(8)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Remembers, "depends on earlier calls"),
        (RemembersInTraining, "depends on earlier calls"),
        (HiddenBuffer, "perhaps average, which its state_dict does not have"),
        (ReplacesBuffer, r"in place of its buffer average.* self\.average\.copy_"),
        (Grows, r"buffer largest of Grows has the shape \(0,\), but \(8,\) after"),
        (SlowCopy, "changes slow.weight in training, a frozen parameter"),
        (PythonsRandomNumbers, "random numbers other than torch's"),
        (WritesIntoInputs, "writes into its inputs"),
        (ComplexWeights, "phase of ComplexWeights is complex"),
        (Sparse, "codes has sparse gradients"),
        (Lazy, "'body' is lazy and has no shape yet"),
    ],
)
def test_a_model_that_cannot_serve_several_sites_is_refused(model: Callable[[], nn.Module], reason: str) -> None:
    task = playerfl.own_task(model, {"north": (X.clone(), Y), "south": (X.clone(), Y)})
    with pytest.raises(PlayerflError, match=reason):
        playerfl.run(task, "fedavg", rounds=1, settings={"training.batch_size": 8})


class Counts(Net):
    """A persistent buffer of whole numbers, torch's noise, and a count that does not change the output."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.seen = 0

    def hidden(self, x: Tensor) -> Tensor:
        self.seen += 1
        self.calls += self.training
        return super().hidden(x) + 0.1 * torch.randn(len(x), 8) + self.calls


class Constant(Net):
    """A buffer that is made anew in every call, with the same values."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.full((8,), 2.0))

    def hidden(self, x: Tensor) -> Tensor:
        self.scale = self.scale.clone()
        return super().hidden(x) * self.scale


class StartsFromData(Net):
    """The first batch in training sets a bias that trains afterwards, as in Glow's activation norm."""

    done: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(8))
        self.register_buffer("done", torch.zeros((), dtype=torch.bool))

    def hidden(self, x: Tensor) -> Tensor:
        rows = super().hidden(x)
        if self.training and not self.done:
            with torch.no_grad():
                self.shift.copy_(-rows.mean(0))
                self.done.fill_(True)
        return rows + self.shift


@pytest.mark.parametrize(
    "model",
    [
        Counts(),
        StartsFromData(),
        Constant(),
        nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 3)),
        nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(5, 8)), nn.ReLU(), nn.Linear(8, 3)),
    ],
    ids=["own buffer and noise", "a start from data", "a constant", "batch norm and dropout", "spectral norm"],
)
@pytest.mark.parametrize("rows", [1, 2])
def test_a_sound_model_passes_and_is_left_as_it_was(model: nn.Module, rows: int) -> None:
    before, random_state = {name: entry.clone() for name, entry in model.state_dict().items()}, torch.get_rng_state()
    check_parameters(model)
    check_calls(model, X[:rows])
    assert all(torch.equal(entry, before[name]) for name, entry in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random_state)


class Tutorial(nn.Module):
    """Flattens with `view`, as torch's tutorial does; that needs features in torch's usual memory format."""

    def __init__(self, *, flatten: Callable[[Tensor], Tensor], only_in_training: bool = False) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(2, 4, 3, bias=False), nn.BatchNorm2d(4), nn.Linear(36, 3)
        self.flatten, self.only_in_training = flatten, only_in_training

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x)).relu()
        if self.only_in_training and not self.training:
            x = x.contiguous()
        logits: Tensor = self.head(self.flatten(x))
        return logits


def pictures() -> dict[str, tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(2)
    return {site: (torch.randn(24, 2, 5, 5, generator=generator), torch.arange(24) % 3) for site in ("a", "b")}


@pytest.mark.parametrize("only_in_training", [False, True])
def test_features_may_be_flattened_with_view(only_in_training: bool) -> None:
    """It failed with torch's sentence about strides: convolutions run with channels last where that is faster."""

    def flattens(flatten: Callable[[Tensor], Tensor]) -> playerfl.RunResult:
        return playerfl.run(
            playerfl.own_task(lambda: Tutorial(flatten=flatten, only_in_training=only_in_training), pictures()),
            rounds=1,
            settings={"data.accept_small_sites": True, "training.batch_size": 8},
        )

    viewed, reshaped = flattens(lambda x: x.view(-1, 36)), flattens(lambda x: x.reshape(-1, 36))
    for entry, tensor in viewed.weights["a"].items():
        assert torch.allclose(tensor, reshaped.weights["a"][entry], atol=1e-5), entry


class _ViewedGradient(torch.autograd.Function):
    """The identity, which views its gradient, as a straight-through estimator may."""

    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        return gradient.view(-1).view(gradient.shape)


class Segmenter(nn.Module):
    """Its outputs are pictures, in the memory format of its convolutions."""

    def __init__(self, *, hidden: Callable[[Tensor], Tensor] = torch.relu) -> None:
        super().__init__()
        self.enter, self.head = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 2, 1)
        self.hidden = hidden

    def forward(self, x: Tensor) -> Tensor:
        masks: Tensor = self.head(self.hidden(self.enter(x)))
        return masks


def overlap(outputs: Tensor, targets: Tensor) -> Tensor:
    """Dice's loss, as it is often written."""
    given, wanted = outputs.sigmoid().view(len(outputs), -1), targets.view(len(targets), -1)
    return 1 - (2 * (given * wanted).sum(1) + 1) / (given.sum(1) + wanted.sum(1) + 1)


def mean_overlap(outputs: Tensor, targets: Tensor) -> Tensor:
    return overlap(outputs.contiguous(), targets.contiguous())


@pytest.mark.parametrize(("hidden", "loss"), [(torch.relu, overlap), (_ViewedGradient.apply, mean_overlap)])
def test_a_loss_and_a_backward_pass_may_use_view(hidden: Any, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Only the model's forward pass was tried with channels last; `view` in a loss on masks failed in training."""
    sites = {site: (x, (x > 0).float()) for site, (x, _) in pictures().items()}
    task = playerfl.own_task(lambda: Segmenter(hidden=hidden), sites, loss=loss, metrics={})
    settings = {"data.accept_small_sites": True, "training.batch_size": 8}
    assert playerfl.run(task, rounds=1, settings=settings).weights


class Capsules(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.votes = nn.Conv2d(2, 4, 3), nn.Parameter(torch.ones(1, 9, 3, 4, 1))

    def forward(self, x: Tensor) -> Tensor:
        votes: Tensor = self.conv(x).flatten(2).transpose(1, 2)[:, :, None, :, None] * self.votes
        return votes.sum((1, 3, 4))


def test_parameters_may_have_five_dimensions_beside_convolutions() -> None:
    """torch refuses to bring them into channels last, which is about four."""
    task = playerfl.own_task(Capsules, pictures())
    assert playerfl.run(task, rounds=1, settings={"data.accept_small_sites": True, "training.batch_size": 8}).weights


def test_a_trial_leaves_the_model_as_it_was() -> None:
    model = Tutorial(flatten=lambda x: x.flatten(1))
    model.norm.eval()
    random_state = torch.get_rng_state()
    assert works(model, *pictures()["a"], nn.functional.cross_entropy)
    assert torch.equal(model.norm.running_mean, torch.zeros(4))
    assert (model.training, model.norm.training) == (True, False)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), random_state)
    one = (torch.ones(1, 3), torch.zeros(1, dtype=torch.long))
    assert works(nn.BatchNorm1d(3), *one, nn.functional.cross_entropy), "one row says nothing about the memory format"
