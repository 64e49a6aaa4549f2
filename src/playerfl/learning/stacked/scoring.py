"""Scoring many models of one kind in each tensor operation: `Learner.evaluate` for a stack."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from playerfl.data.examples import TensorExamples, map_tensors
from playerfl.learning.confusion import Matrix, confusion_matrix
from playerfl.learning.job import EvalJob, Evaluated, Scores
from playerfl.learning.losses import logits_of
from playerfl.learning.metrics import predictions
from playerfl.learning.metrics.scoring import scores_of, scores_of_confusions
from playerfl.learning.stacked.forward import outputs_of
from playerfl.learning.stacked.gathered import Gathered
from playerfl.learning.stacked.grouping import STACK_NUMBERS, padded_rows
from playerfl.learning.training import EVALUATION_BATCH, Learner


def evaluate(jobs: Sequence[EvalJob]) -> list[Evaluated]:
    """Like `Learner.evaluate`, for jobs of one group: their splits have the same numbers of rows after padding."""
    learner = jobs[0].learner
    layout = learner.layout(learner.entries)
    size = max(1, STACK_NUMBERS // layout.width)
    learner.model.eval()
    scores: list[Evaluated] = []
    with torch.inference_mode():
        for start in range(0, len(jobs), size):
            part = jobs[start : start + size]
            scores += _scored(part, layout.views(layout.stacked([job.weights for job in part])))
    return scores


def _scored(jobs: Sequence[EvalJob], entries: Mapping[str, Tensor]) -> list[Evaluated]:
    learner, models = jobs[0].learner, len(jobs)
    # Models with the same splits share one copy of the inputs.
    splits = [list(job.splits.values()) for job in jobs]
    owners = splits[:1] if all(map(_same, splits, splits[:1] * models)) else splits
    examples = Gathered.of([part for parts in owners for part in parts if isinstance(part, TensorExamples)])
    sizes = torch.tensor([[len(part) for part in parts] for parts in owners])
    padded = [padded_rows(len(part)) for part in splits[0]]
    # Rows of the table by owner, split after split, each padded with its last row.
    rows = torch.cat(
        [
            first.unsqueeze(1) + torch.minimum(torch.arange(width), count.unsqueeze(1) - 1)
            for first, count, width in zip(examples.first.view(sizes.shape).T, sizes.T, padded, strict=True)
        ],
        dim=1,
    )
    targets = _for_each(examples.targets(rows), models)
    losses, predicted, classes = [torch.empty(models, 0)], [torch.empty(models, 0, dtype=torch.long)], 0
    outputs: list[Tensor] = []
    for start in range(0, rows.shape[1], EVALUATION_BATCH):
        stop = start + EVALUATION_BATCH
        inputs = map_tensors(examples.inputs(rows[:, start:stop]), lambda x: _for_each(x, models))
        output = outputs_of(learner, entries, inputs)
        losses.append(learner.loss(output, targets[:, start:stop].flatten(0, 1)).view(models, -1))
        if learner.needs_classes:
            logits = logits_of(output)
            classes = logits.shape[-1]
            predicted.append(predictions(logits).view(models, -1))
        if learner.needs_outputs:
            logits = logits_of(output)
            outputs.append(logits.view(models, -1, *logits.shape[1:]))
    by_row = _ByRow(
        torch.cat(losses, dim=1).double(),
        torch.cat(predicted, dim=1),
        torch.cat(outputs, dim=1) if outputs else None,
        targets,
    )
    scores: list[Scores] = [{} for _ in jobs]
    confusions: list[dict[str, Matrix]] = [{} for _ in jobs]
    start = 0
    for split, width, count in zip(jobs[0].splits, padded, sizes.T.expand(-1, models).tolist(), strict=True):
        columns = slice(start, start + width)
        of_split = _of_split(learner, by_row.part(slice(None), columns), count, classes)
        for model, (measured, confusion) in enumerate(of_split):
            scores[model][split] = measured
            if confusion is not None:
                confusions[model][split] = confusion
        start += width
    return list(map(Evaluated, scores, confusions))


def _for_each(tensor: Tensor, models: int) -> Tensor:
    """A tensor with one row per model. If all models share one row, it is repeated without a copy."""
    return tensor.expand(models, *[-1] * (tensor.dim() - 1))


def _same(splits: Sequence[object], others: Sequence[object]) -> bool:
    return all(map(operator.is_, splits, others))


@dataclass(frozen=True)
class _ByRow:
    """Targets, predictions and losses of each row under each model: models × rows."""

    losses: Tensor
    predicted: Tensor
    """Classes; without columns if no metric is about classes."""
    outputs: Tensor | None
    """With a further dimension; None if no metric needs them."""
    targets: Tensor

    def part(self, models: Any, rows: slice) -> _ByRow:
        outputs = None if self.outputs is None else self.outputs[models, rows]
        return _ByRow(self.losses[models, rows], self.predicted[models, rows], outputs, self.targets[models, rows])


def _of_split(
    learner: Learner, by_row: _ByRow, counts: Sequence[int], classes: int
) -> list[tuple[dict[str, float], Matrix | None]]:
    """The scores of each model on one split, and its confusion matrix if that is recorded.

    `counts`: how many of each model's rows are examples; the rest are padding.
    """
    measured: dict[int, tuple[dict[str, float], Matrix | None]] = {}
    for count in set(counts):
        models = [model for model, rows in enumerate(counts) if rows == count]
        # A slice makes no copy.
        part = by_row.part(slice(None) if len(models) == len(counts) else models, slice(count))
        columns: dict[str, list[float]] = {}
        matrices: Matrix | None = None
        if count:
            columns["loss"] = (part.losses.sum(1) / count).tolist()
            if learner.records_confusions(classes):
                matrices = confusion_matrix(part.predicted, part.targets, classes).int().numpy()
                columns |= scores_of_confusions(learner.metrics, matrices)
            others = {name: metric for name, metric in learner.metrics.items() if name not in columns}
            columns |= scores_of(others, part.predicted, part.outputs, part.targets, learner.scale)
        for place, model in enumerate(models):
            scores = {name: columns[name][place] if count else math.nan for name in ("loss", *learner.metrics)}
            measured[model] = (scores, None if matrices is None else matrices[place])
    return [measured[model] for model in range(len(counts))]
