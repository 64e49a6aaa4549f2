"""A trial of what a run does with a folder's targets before it trains: the split, and the check of its parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from playerfl.data.check.result import DataCheck
from playerfl.data.checks import check_sites
from playerfl.data.examples import SiteData, TensorExamples
from playerfl.errors import DataError
from playerfl.seeding import seed_for
from playerfl.tasks.folder.groups import Names, numbered, split_sites
from playerfl.tasks.folder.options import FolderOptions
from playerfl.tasks.task import Parts

_OTHER_SPLITS = 9
_SMALLEST_BATCH = 8


def rehearse(
    check: DataCheck,
    targets: Mapping[str, Tensor],
    groups: Mapping[str, Names] | None,
    classes: Sequence[str],
    options: FolderOptions,
    batch_size: int,
) -> None:
    """Adds a stop for every site that a run refuses, and a warning for those that it refuses with some other seed."""
    refused = dict(_refusals(targets, groups, classes, options, batch_size))
    for site, (sentence, train) in refused.items():
        check.add("stop", "sites", sentence, _setting(train, batch_size), sites=(site,))
    if groups is not None and not refused:
        _check_shares(check, targets, groups, options)
    if refused or options.split == "fixed":
        return
    for number in range(_OTHER_SPLITS):
        other = options.model_copy(update={"split_seed": seed_for(options.split_seed, "rehearsal", number)})
        for site, (sentence, train) in _refusals(targets, groups, classes, other, batch_size):
            text = f"every run has its own split, and of {_OTHER_SPLITS} others that were tried, one fails: {sentence}"
            check.add("warning", "sites", text, _setting(train, batch_size), sites=(site,))
            return


def _check_shares(
    check: DataCheck, targets: Mapping[str, Tensor], groups: Mapping[str, Names], options: FolderOptions
) -> None:
    """Warns of sites whose groups are so large that a part has less than half or more than twice its share of rows."""
    split, _ = split_sites(targets, groups, options)
    for site, parts in split.items():
        rows = [len(part) for part in parts]
        ratios = [count / sum(rows) / share for count, share in zip(rows, options.shares, strict=True)]
        if min(ratios) >= 0.5 and max(ratios) <= 2:
            continue
        _, sizes = np.unique(numbered({site: groups[site]})[site], return_counts=True)
        check.add(
            "warning",
            "groups",
            f"{site}: {rows[0]:,} rows for training, {rows[1]:,} for validation and {rows[2]:,} for test, far from "
            f"their shares ({', '.join(f'{share:.0%}' for share in options.shares)}), because groups are not divided "
            f"and the largest of {len(sizes):,} has {sizes.max():,} of {sum(rows):,} rows",
            sites=(site,),
        )


def _refusals(
    targets: Mapping[str, Tensor],
    groups: Mapping[str, Names] | None,
    classes: Sequence[str],
    options: FolderOptions,
    batch_size: int,
) -> Iterator[tuple[str, tuple[str, int]]]:
    """The sites that a run refuses, why, and how many rows they have for training."""
    together = [list(targets)] if groups is not None and options.groups_span_sites else [[site] for site in targets]
    for sites in together:
        chosen = {site: targets[site] for site in sites}
        try:
            split, _ = split_sites(chosen, groups and {site: groups[site] for site in sites}, options)
        except DataError as problem:
            yield sites[0], (str(problem), 0)
            continue
        for site in sites:
            try:
                check_sites(
                    {site: _without_inputs(targets[site], split[site])},
                    batch_size=batch_size,
                    classification=bool(classes),
                    accept_small_sites=options.accept_small_sites,
                    classes=classes,
                )
            except DataError as problem:
                yield site, (str(problem), len(split[site][0]))


def _without_inputs(targets: Tensor, parts: Parts) -> SiteData:
    examples = TensorExamples(torch.zeros(len(targets), 1), targets)
    return SiteData(*(examples.rows(torch.from_numpy(part)) for part in parts))


def _setting(train: int, batch_size: int) -> str | None:
    if train == 0:
        return None
    if _SMALLEST_BATCH <= train < batch_size:
        return f"training.batch_size={max(_SMALLEST_BATCH, train // 2)}"
    return "data.accept_small_sites=true"
