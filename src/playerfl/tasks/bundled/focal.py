"""The focal loss of the paper's unbalanced tasks, and the options that choose its form."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from pydantic import Field

from playerfl.learning.losses import FocalLoss, FocalVariant
from playerfl.paper import facts as paper
from playerfl.tasks.task import PaperOptions, Task


class FocalOptions(PaperOptions):
    """Further options of tasks with a focal loss."""

    added: ClassVar[frozenset[str]] = frozenset({"focal_variant", "focal_gamma"})

    focal_variant: FocalVariant = "standard"
    """The published form, or that of the authors' repository. Losses are comparable only within one form."""
    focal_gamma: float | None = Field(None, ge=0, allow_inf_nan=False)
    """Default: the value for the dataset in the authors' repository (heart 3, isic2019 and mimic3 1)."""

    def focal_loss(self, dataset: str) -> FocalLoss:
        """The loss for one of the paper's datasets, by its name in the paper."""
        gamma, alpha = paper.focal(dataset)
        return FocalLoss(gamma if self.focal_gamma is None else self.focal_gamma, alpha, self.focal_variant)


def with_focal_loss(task: Task) -> Task:
    """A task of the paper with the focal loss that its options choose."""

    def adapt(options: FocalOptions) -> Task:
        assert task.paper is not None
        return replace(task, loss=options.focal_loss(task.paper), adapt=adapt)

    assert issubclass(task.options, FocalOptions)
    return adapt(task.options())
