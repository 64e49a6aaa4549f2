"""Losses per example: against torch, by hand, and at extreme probabilities."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from playerfl.errors import ConfigError
from playerfl.learning.losses import FocalLoss, FocalVariant, cross_entropy, logits_of

LOGITS = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
TARGETS = torch.randint(4, (20,), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    "output",
    [LOGITS, {"logits": LOGITS, "loss": None}, SimpleNamespace(logits=LOGITS), (LOGITS, "hidden"), [LOGITS]],
    ids=["tensor", "mapping", "attribute", "tuple", "list"],
)
def test_logits_are_found_in_what_models_return(output: object) -> None:
    assert logits_of(output) is LOGITS


@pytest.mark.parametrize("output", [{"scores": LOGITS}, "text", ("text",)])
def test_an_output_without_logits_is_refused(output: object) -> None:
    with pytest.raises(ConfigError, match=f"not {type(output).__name__}"):
        logits_of(output)


def test_cross_entropy_gives_one_loss_per_example() -> None:
    assert cross_entropy(LOGITS, TARGETS).shape == (20,)
    assert torch.equal(cross_entropy(LOGITS, TARGETS).mean(), F.cross_entropy(LOGITS, TARGETS))


def test_focal_loss_of_a_coin_toss_by_hand() -> None:
    loss = FocalLoss(gamma=3.0, alpha=(0.2, 0.8))(torch.zeros(2, 2), torch.tensor([0, 1]))
    assert loss.tolist() == pytest.approx([0.2 * math.log(2) / 8, 0.8 * math.log(2) / 8])


@given(st.floats(0, 5), st.lists(st.floats(0.05, 1), min_size=4, max_size=4))
def test_focal_loss_is_its_formula(gamma: float, alpha: list[float]) -> None:
    logits = LOGITS.double()
    p = logits.softmax(-1)[torch.arange(20), TARGETS]
    expected = -torch.tensor(alpha, dtype=torch.float64)[TARGETS] * (1 - p) ** gamma * p.log()
    assert torch.allclose(FocalLoss(gamma, alpha)(logits, TARGETS), expected, rtol=1e-9)


@pytest.mark.parametrize("alpha", [None, (1.0, 1.0, 1.0, 1.0)])
def test_focal_loss_without_focus_is_cross_entropy(alpha: tuple[float, ...] | None) -> None:
    focal = FocalLoss(gamma=0.0, alpha=alpha)(LOGITS, TARGETS)
    assert torch.allclose(focal, cross_entropy(LOGITS, TARGETS), rtol=1e-6)


@given(st.floats(0, 5), st.lists(st.floats(0.05, 1), min_size=4, max_size=4))
def test_the_repository_variant_is_its_formula_example_by_example(gamma: float, alpha: list[float]) -> None:
    """In plain Python, class by class; the mean over examples is taken by the trainer."""
    found = FocalLoss(gamma, alpha, "repo")(LOGITS.double(), TARGETS)
    for row, target, loss in zip(LOGITS.double().tolist(), TARGETS.tolist(), found.tolist(), strict=True):
        total = sum(map(math.exp, row))
        p = [math.exp(logit) / total for logit in row]
        terms = [
            alpha[k] * (1 - p[k]) ** gamma if k == target else (1 - alpha[k]) * p[k] ** gamma for k in range(len(row))
        ]
        assert loss == pytest.approx(10 * sum(terms) / len(terms) * -math.log(p[target]), rel=1e-9)


def test_the_repository_variant_without_focus_or_alpha_is_ten_cross_entropies() -> None:
    assert torch.allclose(FocalLoss(0.0, variant="repo")(LOGITS, TARGETS), 10 * cross_entropy(LOGITS, TARGETS))


def test_an_unknown_variant_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown focal variant 'rep'; did you mean 'repo'"):
        FocalLoss(variant="rep")  # type: ignore[arg-type]


def focal_at(logit: float, gamma: float, variant: FocalVariant = "standard") -> tuple[Tensor, Tensor]:
    """Loss and gradient where the right class has `logit` and the wrong one its negative."""
    logits = torch.tensor([[logit, -logit]], requires_grad=True)
    loss = FocalLoss(gamma, variant=variant)(logits, torch.tensor([0]))
    loss.sum().backward()
    assert logits.grad is not None
    return loss.detach(), logits.grad


@pytest.mark.parametrize("variant", ["standard", "repo"])
@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0, 3.0])
@pytest.mark.parametrize("logit", [50.0, -50.0])
def test_focal_loss_has_finite_gradients_at_extreme_logits(gamma: float, logit: float, variant: FocalVariant) -> None:
    loss, gradient = focal_at(logit, gamma, variant)
    assert torch.isfinite(loss).all()
    assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("gamma", [1.0, 3.0])
def test_confident_right_answers_cost_nothing_and_confident_wrong_ones_their_margin(gamma: float) -> None:
    assert focal_at(50.0, gamma)[0].item() == pytest.approx(0.0, abs=1e-12)
    assert focal_at(-50.0, gamma)[0].item() == pytest.approx(100.0)


def test_negative_focus_is_refused() -> None:
    with pytest.raises(ConfigError, match="gamma must be at least 0, not -1"):
        FocalLoss(gamma=-1.0)
