"""Whether a model can be stacked, and whether that is faster."""

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
from playerfl.layers.derive import call_arguments
from playerfl.learning.job import EvalJob
from playerfl.learning.losses import logits_of
from playerfl.learning.stacked.forward import outputs_of
from playerfl.learning.stacked.grouping import padded_rows
from playerfl.learning.stacked.scoring import evaluate
from playerfl.learning.training import Learner, TrainerName

# With more parameters than this, the matrix products of one model keep a core busy on their own.
SMALL = 50_000


def choose_trainer(
    wanted: Literal["auto", "loop", "stacked"], learner: Learner, inputs: Any, targets: Tensor
) -> tuple[TrainerName, str | None]:
    """The trainer for a model, and a sentence if stacking was requested, or would pay off, but is not possible."""
    if wanted == "loop" or (wanted == "auto" and not pays(learner.model)):
        return "loop", None
    reason = reason_against(learner, inputs, targets)
    if reason is None:
        return "stacked", None
    return "loop", f"sites train one by one, not stacked: {reason}"


def pays(model: nn.Module) -> bool:
    """Whether a model is small and made of linear layers, so that Python and memory traffic cost more than arithmetic.

    >>> pays(nn.Sequential(nn.Linear(10, 50), nn.ReLU(), nn.Linear(50, 5))), pays(nn.Conv2d(1, 8, 3))
    (True, False)
    """
    owners = [module for module in model.modules() if list(module.parameters(recurse=False))]
    numbers = sum(parameter.numel() for parameter in model.parameters())
    return numbers <= SMALL and all(isinstance(module, nn.Linear) for module in owners)


def reason_against(learner: Learner, inputs: Any, targets: Tensor) -> str | None:
    """Why a model cannot be stacked; None if it can. It is tried on `inputs` and `targets` of at least two rows."""
    for name, module in learner.model.named_modules():
        if isinstance(module, _BatchNorm):
            return f"padded rows would enter the statistics of batch norm {name!r}"
        if isinstance(module, _DropoutNd) and module.p > 0:
            return f"the masks of dropout {name!r} would depend on the stack"
    if learner.device.type != "cpu":
        return f"stacking works on the CPU only, not on {learner.device.type}"
    kinds = {entry.dtype for entry in learner.entries.values()}
    if len(kinds) > 1 or not next(iter(kinds)).is_floating_point:
        return "its entries do not all have the same floating-point dtype"
    training = learner.model.training
    try:
        with warnings.catch_warnings():
            # torch runs what it cannot stack one by one, slowly, with a warning; the plain loop is then faster.
            warnings.filterwarnings("error", "There is a performance drop", UserWarning)
            return _reason_in_trial(learner, inputs, targets)
    except UserWarning as slow:
        operation = re.search(r"batching rule for (?:aten::)?([\w.]*\w)", str(slow))
        return f"torch has no vmapped version of {operation[1] if operation else 'one of its operations'}"
    except Exception as problem:  # anything a user's forward pass may raise
        message = (str(problem).strip().splitlines() or ["no reason given"])[0]
        return f"its forward pass cannot be vmapped ({type(problem).__name__}: {message})"
    finally:
        learner.model.train(training)


def _reason_in_trial(learner: Learner, inputs: Any, targets: Tensor) -> str | None:
    """Compares two models alone and stacked, each on its own rows, one with more padding than the other."""
    before = learner.weights()
    # Perturbed: a layer that starts at zero would hide errors in the layers before it.
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
    places = torch.arange(padded_rows(rows))
    padded = torch.stack([order[places.clamp_max(len(order) - 1)] for order in orders])
    batches = [(map_tensors(inputs, lambda x, order=order: x[order]), targets[order]) for order in orders]  # type: ignore[misc]
    learner.model.train()
    wide = map_tensors(inputs, lambda x: x.index_select(0, padded.flatten()).view(2, -1, *x.shape[1:]))
    # A stack of one as well, because torch lays out images differently for it.
    for count in (1, 2):
        few = {name: view[:count] for name, view in stack.items()}
        output = outputs_of(learner, few, map_tensors(wide, lambda x, count=count: x[:count]))  # type: ignore[misc]
        logits = logits_of(output)
        together = logits.view(count, len(places), *logits.shape[1:])
        for weights, (rows_in, rows_out), stacked_logits in zip(pair, batches, together, strict=False):
            with torch.no_grad():
                alone = logits_of(functional_call(learner.model, weights, *call_arguments(learner.model, rows_in)))
            if not _close(stacked_logits[: len(rows_out)], alone, float(alone.abs().max())):
                return "the rows of a batch depend on each other"
    losses = learner.loss(output, targets[padded].flatten(0, 1))
    if losses.shape != (padded.numel(),):
        return "its loss is not one number per row"
    losses = losses.view(padded.shape)
    shares = torch.stack([(places < len(order)) / len(order) for order in orders])
    trained = learner.trainable(None)
    slopes = torch.autograd.grad((losses * shares).sum(), [stack[name] for name in trained], allow_unused=True)
    gradients = dict(zip(trained, slopes, strict=True))
    if unused := [name for name, gradient in gradients.items() if gradient is None]:
        return f"{unused[0]} gets no gradient"
    if any(not torch.equal(entry, before[name]) for name, entry in learner.entries.items()):
        return "its forward pass changes its buffers"
    try:
        for i, (weights, batch) in enumerate(zip(pair, batches, strict=True)):
            alone, expected = learner.gradients(weights, *batch)
            if not _close(losses[i, : len(alone)], alone, float(alone.abs().max())):
                return "the loss of a row depends on other rows"
            largest = max(float(gradient.abs().max()) for gradient in expected.values() if gradient.numel())
            for name, gradient in gradients.items():
                if not _close(gradient[i], expected[name], largest):
                    return f"the gradient of {name} differs from the plain loop's (is there a hook?)"
        jobs = [EvalJob(learner, weights, {"test": TensorExamples(inputs, targets)}) for weights in pair]
        for stacked, job in zip([*evaluate(jobs), *evaluate(jobs[:1])], [*jobs, jobs[0]], strict=True):
            loss = learner.evaluate(job).scores["test"]["loss"]
            if abs(stacked.scores["test"]["loss"] - loss) > 1e-3 * abs(loss) + 1e-5:
                return "in evaluation the rows of a batch depend on each other"
    finally:
        learner.load(before)
    return None


def _close(actual: Tensor, expected: Tensor, scale: float) -> bool:
    """Equal up to rounding; numbers near zero may be off by as much as the largest number, `scale`, may be."""
    return torch.allclose(actual, expected, rtol=1e-3, atol=1e-4 * scale)
