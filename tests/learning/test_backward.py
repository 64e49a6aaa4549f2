"""The short backward pass gives the bits of torch's own."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from playerfl.learning.backward import gradients_of, mean_backward


@pytest.fixture
def losses_of_rows() -> tuple[nn.Module, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, 5))
    return model, torch.randn(100, 13, generator=generator), torch.randint(5, (100,), generator=generator)


# A third or a seventh has no exact binary form, and one row is its own mean.
@pytest.mark.parametrize("rows", [1, 3, 7, 29, 32, 100])
def test_same_gradients_as_of_the_mean_and_of_a_weighted_sum(
    losses_of_rows: tuple[nn.Module, Tensor, Tensor], rows: int
) -> None:
    model, inputs, targets = losses_of_rows
    parameters = list(model.parameters())

    def losses() -> Tensor:
        return F.cross_entropy(model(inputs[:rows]), targets[:rows], reduction="none")

    of_mean = torch.autograd.grad(losses().mean(), parameters)
    mean_backward(losses())
    for parameter, expected in zip(parameters, of_mean, strict=True):
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, expected)
    shares = torch.arange(rows) / (3.0 * rows)
    of_sum = torch.autograd.grad((losses() * shares).sum(), parameters)
    assert all(map(torch.equal, gradients_of(losses(), shares, parameters), of_sum))


def test_a_loss_that_is_already_a_mean() -> None:
    weight = torch.ones(2, requires_grad=True)
    mean_backward((weight * 3).mean())
    assert weight.grad is not None
    assert weight.grad.tolist() == [1.5, 1.5]
