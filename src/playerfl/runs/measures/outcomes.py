"""Outcomes: the output of each site's reported model for each of its test rows, for intervals over rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from playerfl.data.examples import SiteData
from playerfl.learning.metrics.scoring import numbers_of
from playerfl.learning.training import Learner
from playerfl.weights import Weights

# Numbers per site that are kept: a hundred thousand rows of ten classes.
MOST_NUMBERS = 1_000_000


@dataclass(frozen=True)
class SiteOutcomes:
    """A model's output for each test row of a site, and the targets."""

    outputs: Tensor
    """Logits (rows × classes), or predicted numbers (rows) in the target's own units."""
    targets: Tensor
    """Class numbers, or numbers in their own units."""
    losses: Tensor | None = None
    """The loss of each row; None if the loss is not one number per row."""
    groups: Tensor | None = None
    """Which rows belong together, such as one patient's visits; None if no two do."""

    @property
    def of_classes(self) -> bool:
        return self.outputs.dim() == 2

    def checked(self) -> SiteOutcomes:
        """Returns itself; ValueError if what was read is inconsistent."""
        rows = len(self.targets)
        others = [self.targets, *(tensor for tensor in (self.losses, self.groups) if tensor is not None)]
        if not rows or any(tensor.shape != (rows,) for tensor in others) or len(self.outputs) != rows:
            raise ValueError("outcomes need one output and one target per row")
        if not self.outputs.is_floating_point() or self.outputs.dim() not in (1, 2):
            raise ValueError("outcomes need outputs that are numbers")
        if self.groups is not None and self.groups.is_floating_point():
            raise ValueError("outcomes need groups that are whole numbers")
        if self.of_classes and self.targets.is_floating_point():
            raise ValueError("outcomes need targets that are classes")
        if self.of_classes and not 0 <= int(self.targets.min()) <= int(self.targets.max()) < self.outputs.shape[1]:
            raise ValueError("outcomes have targets that are none of the classes")
        return self


def joined(parts: Sequence[SiteOutcomes]) -> SiteOutcomes:
    """The rows of several sites with the same classes, as if they were one site's. A group stays within its site."""
    outputs = torch.cat([part.outputs for part in parts])
    return SiteOutcomes(outputs, torch.cat([part.targets for part in parts]), groups=_joined_groups(parts))


def _joined_groups(parts: Sequence[SiteOutcomes]) -> Tensor | None:
    if all(part.groups is None for part in parts):
        return None
    numbered, start = [], 0
    for part in parts:
        groups = torch.arange(len(part.targets)) if part.groups is None else part.groups
        numbers = torch.unique(groups, return_inverse=True)[1] + start
        numbered.append(numbers)
        start = int(numbers.max()) + 1
    return torch.cat(numbered)


Outcomes = Mapping[str, SiteOutcomes]
"""By site; a site may be missing."""


def outcomes_of(
    learner: Learner,
    models: Mapping[str, Weights],
    sites: Mapping[str, SiteData],
    groups: Mapping[str, Tensor],
) -> dict[str, SiteOutcomes]:
    """The outcomes of each site's model, where they are few enough and a metric can be computed from them.

    `groups`: the group of each test row, at sites where that is known.
    """
    outcomes = {}
    of_numbers = learner.needs_outputs and not learner.needs_classes
    for site, weights in models.items():
        test = sites[site].test
        if not len(test) or not (learner.needs_classes or of_numbers):
            continue
        outputs, targets, losses = learner.outputs(weights, test)
        if outputs.numel() > MOST_NUMBERS:
            continue
        if of_numbers:
            outputs, targets = (learner.scale.restored(x) for x in (numbers_of(outputs, targets), targets))
        outcomes[site] = SiteOutcomes(outputs, targets, losses, groups.get(site))
    return outcomes


def tree_of(outcomes: Outcomes) -> dict[str, Any]:
    """Outcomes as a tree that a file can hold."""
    return {
        site: {
            "outputs": one.outputs,
            "targets": one.targets.int() if one.of_classes else one.targets,
            "losses": one.losses,
            "groups": one.groups,
        }
        for site, one in outcomes.items()
    }


def from_tree(tree: Any) -> dict[str, SiteOutcomes]:
    """The inverse of `tree_of`; ValueError for anything else."""
    if not isinstance(tree, dict):
        raise ValueError("outcomes are not a table of sites")
    outcomes = {}
    for site, parts in tree.items():
        if not isinstance(parts, dict) or not {"outputs", "targets", "losses", "groups"} <= parts.keys():
            raise ValueError(f"the outcomes of {site} are incomplete")
        needed, optional = (parts["outputs"], parts["targets"]), (parts["losses"], parts["groups"])
        if not all(isinstance(part, Tensor) for part in (*needed, *(part for part in optional if part is not None))):
            raise ValueError(f"the outcomes of {site} are not tensors")
        outputs, targets = needed
        targets = targets.long() if outputs.dim() == 2 and not targets.is_floating_point() else targets
        outcomes[str(site)] = SiteOutcomes(outputs, targets, *optional).checked()
    return outcomes
