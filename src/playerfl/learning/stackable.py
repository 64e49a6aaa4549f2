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

from playerfl.data.examples import TensorExamples, map_tensors
from playerfl.learning.job import EvalJob
from playerfl.learning.losses import logits_of
from playerfl.learning.stacked import LANES, call_arguments, evaluate, outputs_of
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
    """Two models alone and stacked, each on rows of its own, one with more padding than the other."""
    before = learner.weights()
    # Moved a little: a layer that begins at zero would hide what is wrong before it.
    noise = torch.Generator().manual_seed(0)
    pair = [
        {
            name: entry + 0.05 * torch.randn(entry.shape, generator=noise, dtype=entry.dtype)
            for name, entry in before.items()
        }
        for _ in range(2)
    ]
    layout = learner.layout(before)
    stack = {name: view.detach().requires_grad_() for name, view in layout.views(layout.stacked(pair)).items()}
    inputs = map_tensors(inputs, learner.placed)
    rows = len(targets)
    orders = [torch.arange(rows), torch.arange(rows).flip(0)[: max(1, rows - 1)]]
    places = torch.arange(-(-rows // LANES) * LANES)
    padded = torch.stack([order[places.clamp_max(len(order) - 1)] for order in orders])
    batches = [(map_tensors(inputs, lambda x, order=order: x[order]), targets[order]) for order in orders]  # type: ignore[misc]
    learner.model.train()
    wide = map_tensors(inputs, lambda x: x.index_select(0, padded.flatten()).view(2, -1, *x.shape[1:]))
    # One model by itself too: torch then lays out pictures another way.
    for count in (1, 2):
        few = {name: view[:count] for name, view in stack.items()}
        output = outputs_of(learner, few, map_tensors(wide, lambda x, count=count: x[:count]))  # type: ignore[misc]
        logits = logits_of(output)
        together = logits.view(count, len(places), *logits.shape[1:])
        for own, (own_inputs, own_targets), found in zip(pair, batches, together, strict=False):
            with torch.no_grad():
                alone = logits_of(functional_call(learner.model, own, *call_arguments(own_inputs)))
            if not _close(found[: len(own_targets)], alone, float(alone.abs().max())):
                return "the rows of a batch depend on each other"
    losses = learner.loss(output, targets[padded].flatten(0, 1))
    if losses.shape != (padded.numel(),):
        return "its loss is not one number a row"
    losses = losses.view(padded.shape)
    shares = torch.stack([(places < len(order)) / len(order) for order in orders])
    trained = learner.trainable(None)
    slopes = torch.autograd.grad((losses * shares).sum(), [stack[name] for name in trained], allow_unused=True)
    gradients = dict(zip(trained, slopes, strict=True))
    if unused := [name for name, gradient in gradients.items() if gradient is None]:
        return f"{unused[0]} gets no gradient"
    if any(not torch.equal(entry, before[name]) for name, entry in learner.entries.items()):
        return "its forward changes its buffers"
    try:
        for i, (own, batch) in enumerate(zip(pair, batches, strict=True)):
            alone, expected = learner.gradients(own, *batch)
            if not _close(losses[i, : len(alone)], alone, float(alone.abs().max())):
                return "the loss of a row depends on other rows"
            largest = max(float(gradient.abs().max()) for gradient in expected.values() if gradient.numel())
            for name, gradient in gradients.items():
                if not _close(gradient[i], expected[name], largest):
                    return f"the gradient of {name} is another than in the loop (is there a hook?)"
        jobs = [EvalJob(learner, own, {"test": TensorExamples(inputs, targets)}) for own in pair]
        for stacked, job in zip([*evaluate(jobs), *evaluate(jobs[:1])], [*jobs, jobs[0]], strict=True):
            loss = learner.evaluate(job)["test"]["loss"]
            if abs(stacked["test"]["loss"] - loss) > 1e-3 * abs(loss) + 1e-5:
                return "in evaluation the rows of a batch depend on each other"
    finally:
        learner.load(before)
    return None


def _close(found: Tensor, expected: Tensor, scale: float) -> bool:
    """Up to rounding, of which numbers near zero have as much as the largest: `scale`."""
    return torch.allclose(found, expected, rtol=1e-3, atol=1e-4 * scale)
