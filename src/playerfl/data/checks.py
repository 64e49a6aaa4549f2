"""Refuses data that cannot train a meaningful model, before anything trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from playerfl.data.examples import LoaderExamples, SiteData, TensorExamples, tensors_in
from playerfl.errors import DataError


def check_sites(
    sites: Mapping[str, SiteData],
    *,
    batch_size: int,
    classification: bool = True,
    accept_small_sites: bool = False,
    classes: Sequence[str] = (),
) -> None:
    """Every site must have examples in all parts, finite numbers, two classes and enough rows for a batch.

    `accept_small_sites` waives the last two: some real sites are small and still want to take part. `classes` are their
    names, where they have any.
    """
    if not sites:
        raise DataError("there are no sites; give at least one")
    for name, site in sites.items():
        for part, examples in site.__dict__.items():
            if len(examples) == 0:
                raise DataError(f"{name} has no {part} examples; add some, or leave the site out")
            if isinstance(examples, TensorExamples):
                _check_numbers(name, part, examples)
        if accept_small_sites or isinstance(site.train, LoaderExamples):
            continue
        hint = "merge it with another site, leave it out, or set data.accept_small_sites=true"
        if len(site.train) < batch_size:
            raise DataError(
                f"{name} has {len(site.train)} training examples, fewer than training.batch_size {batch_size}; "
                f"use a smaller batch size, {hint}"
            )
        if classification and isinstance(site.train, TensorExamples):
            present = torch.unique(site.train.targets)
            if len(present) < 2:
                only = dict(enumerate(classes)).get(int(present[0]), present[0].item())
                raise DataError(
                    f"{name} has only class {only} in its training part, so nothing can be learnt; for "
                    f"partitioned data use a larger alpha or fewer sites, {hint}"
                )


def _check_numbers(name: str, part: str, examples: TensorExamples) -> None:
    for tensor in (*tensors_in(examples.inputs), examples.targets):
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            rows = (~torch.isfinite(tensor)).reshape(len(tensor), -1).any(1).nonzero()
            raise DataError(
                f"{name} has NaN or infinite values in {len(rows)} of its {len(tensor)} {part} examples, first in "
                f"row {int(rows[0])} of that part; drop or impute them before training"
            )


def check_targets(sites: Mapping[str, SiteData], num_outputs: int) -> None:
    """Class numbers must fit the model's outputs."""
    for name, site in sites.items():
        for part, examples in site.__dict__.items():
            if not isinstance(examples, TensorExamples):
                continue
            if examples.targets.is_floating_point() or examples.targets.dim() != 1:
                raise DataError(
                    f"{name} has {part} targets of kind {examples.targets.dtype} and shape "
                    f"{tuple(examples.targets.shape)}; they must be class numbers: integers, one per row"
                )
            low, high = int(examples.targets.min()), int(examples.targets.max())
            if low < 0 or high >= num_outputs:
                raise DataError(
                    f"{name} has {part} targets from {low} to {high}, but the model has {num_outputs} outputs, for "
                    f"classes 0 to {num_outputs - 1}; use a model with {high + 1} outputs or renumber the classes"
                )
