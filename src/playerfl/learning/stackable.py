"""Whether a model can be stacked, and whether that pays."""

from __future__ import annotations

import re
import warnings
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from playerfl.data.examples import map_tensors
from playerfl.learning.losses import logits_of
from playerfl.learning.stacked import LANES, call_arguments, outputs_of
from playerfl.learning.training import Learner, Trainer

# Above this, the matrix products of one model keep a core busy by themselves.
SMALL = 50_000


def choose_trainer(
    wanted: Literal["auto", "loop", "stacked"], learner: Learner, inputs: Any, targets: Tensor
) -> tuple[Trainer, str | None]:
    """The trainer for a model, and a sentence where stacking was asked for, or would pay, and cannot be had."""
    if wanted == "loop" or (wanted == "auto" and not pays(learner.model)):
        return "loop", None
    reason = reason_against(learner, inputs, targets)
    if reason is None:
        return "stacked", None
    return "loop", f"sites train one by one, not stacked: {reason}"


def pays(model: nn.Module) -> bool:
    """Small and made of linear layers: there Python and memory traffic cost more than the arithmetic.

    >>> pays(nn.Sequential(nn.Linear(10, 50), nn.ReLU(), nn.Linear(50, 5))), pays(nn.Conv2d(1, 8, 3))
    (True, False)
    """
    owners = [module for module in model.modules() if list(module.parameters(recurse=False))]
    numbers = sum(parameter.numel() for parameter in model.parameters())
    return numbers <= SMALL and all(isinstance(module, nn.Linear) for module in owners)


def reason_against(learner: Learner, inputs: Any, targets: Tensor) -> str | None:
    """Why a model cannot be stacked; None if it can. It is tried on `inputs` and `targets`, two rows or more."""
    for name, module in learner.model.named_modules():
        if isinstance(module, _BatchNorm):
            return f"padded rows would enter the statistics of the batch norm {name!r}"
        if isinstance(module, _DropoutNd) and module.p > 0:
            return f"the dropout {name!r} would draw other masks in another company"
    if learner.device.type != "cpu":
        return f"it is done on the CPU only, not on {learner.device.type}"
    kinds = {entry.dtype for entry in learner.entries.values()}
    if len(kinds) > 1 or not next(iter(kinds)).is_floating_point:
        return "its entries are not all of one floating-point kind"
    training = learner.model.training
    try:
        with warnings.catch_warnings():
            # What torch cannot stack it does one by one, slowly, and warns of it: then the loop does it better.
            warnings.filterwarnings("error", "There is a performance drop", UserWarning)
            return _reason_in_trial(learner, inputs, targets)
    except UserWarning as slow:
        operation = re.search(r"batching rule for (?:aten::)?([\w.]*\w)", str(slow))
        return f"torch has no stacked form of {operation[1] if operation else 'one of its operations'}"
    except Exception as problem:  # whatever a stranger's forward does not stand
        said = (str(problem).strip().splitlines() or ["no reason given"])[0]
        return f"its forward does not stand it ({type(problem).__name__}: {said})"
    finally:
        learner.model.train(training)


def _reason_in_trial(learner: Learner, inputs: Any, targets: Tensor) -> str | None:
    """Two models alone and stacked, on rows with padding."""
    rows = len(targets)
    before = {name: entry.detach().clone() for name, entry in learner.entries.items()}
    pair = [before, {name: entry / 2 for name, entry in before.items()}]
    stack = {name: torch.stack([own[name] for own in pair]).requires_grad_() for name in before}
    padding = torch.arange(max(LANES, rows)).clamp_max(rows - 1)
    wide = map_tensors(inputs, lambda x: x[padding].expand(2, *[-1] * x.dim()))
    for training in (False, True):
        learner.model.train(training)
        output = outputs_of(learner, stack, wide)
        logits = logits_of(output)
        together = logits.view(2, -1, *logits.shape[1:])[:, :rows]
        with torch.no_grad():
            alone = [logits_of(functional_call(learner.model, own, *call_arguments(inputs))) for own in pair]
        if not torch.allclose(together, torch.stack(alone), rtol=1e-3, atol=1e-5):
            return "the rows of a batch depend on each other"
    losses = learner.loss(output, targets[padding].repeat(2))
    if losses.shape != (2 * len(padding),):
        return "its loss is not one number a row"
    trained = learner.trainable(None)
    found = torch.autograd.grad(losses.sum(), [stack[name] for name in trained], allow_unused=True)
    if unused := [name for name, gradient in zip(trained, found, strict=True) if gradient is None]:
        return f"{unused[0]} gets no gradient"
    if any(not torch.equal(entry, before[name]) for name, entry in learner.entries.items()):
        return "its forward changes its buffers"
    return None
