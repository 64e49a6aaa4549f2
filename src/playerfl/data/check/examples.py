"""The check of sites whose examples are tensors already: bundled tasks, and tasks from a Python file."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from playerfl.data.check.numbers import check_information, check_numbers, profile
from playerfl.data.check.result import ColumnProfile, DataCheck
from playerfl.data.check.rows import check_duplicates
from playerfl.data.check.texts.labels import check_classes
from playerfl.data.encoding.cells import Cells
from playerfl.data.examples import SiteData, TensorExamples, tensors_in
from playerfl.data.sites import Sites

MOST_HASHED = 20_000
MOST_INPUTS = 100
_REPEATED_ANYWAY = 0.5


def check_examples(check: DataCheck, sites: Mapping[str, SiteData], *, classification: bool) -> None:
    """Adds findings on sites in memory; of a DataLoader's examples only their number is known."""
    check.target = "the task's targets"
    check.rows = {site: sum(len(part) for part in data.__dict__.values()) for site, data in sites.items()}
    parts = {site: _tensors(data) for site, data in sites.items()}
    known = {site: found for site, found in parts.items() if found}
    if len(known) < len(sites):
        check.add("note", "sample", "the examples of a DataLoader are counted, but not checked")
    if classification:
        for site, found in known.items():
            labels, counts = torch.unique(torch.cat([part.targets for part in found.values()]), return_counts=True)
            for label, count in zip(labels.tolist(), counts.tolist(), strict=True):
                check.classes.setdefault(str(label), {})[site] = count
        check.classes = dict(sorted(check.classes.items(), key=lambda item: float(item[0])))
        check_classes(check, check.classes, are_split=True)
    if isinstance(sites, Sites) and sites.groups:
        check.groups = {
            site: len(np.unique(np.concatenate(list(groups.__dict__.values()))))
            for site, groups in sites.groups.items()
        }
    _check_repeats(check, known)
    _check_inputs(check, known)


def _tensors(data: SiteData) -> dict[str, TensorExamples]:
    parts = data.__dict__.items()
    return {name: part for name, part in parts if isinstance(part, TensorExamples)} if len(data.train) else {}


def _check_repeats(check: DataCheck, sites: Mapping[str, Mapping[str, TensorExamples]]) -> None:
    hashes = {site: {part: _hashes(of_part) for part, of_part in parts.items()} for site, parts in sites.items()}
    if any(len(part) > MOST_HASHED for parts in sites.values() for part in parts.values()):
        check.add("note", "sample", f"copies were searched for among {MOST_HASHED:,} examples of each part")
    for site, parts in hashes.items():
        if "train" not in parts or "test" not in parts:
            continue
        if len(np.unique(parts["train"])) < _REPEATED_ANYWAY * len(parts["train"]):
            continue
        copies = int(np.isin(parts["test"], parts["train"]).sum())
        if copies:
            text = f"{copies:,} of {len(parts['test']):,} test examples of {site} are in its training part too"
            check.add("warning", "duplicates", text, sites=(site,))
    whole = {site: np.unique(np.concatenate(list(parts.values()))) for site, parts in hashes.items() if parts}
    check_duplicates(check, whole, 0.0, "examples", can_set=False)


def _hashes(examples: TensorExamples) -> NDArray[np.uint64]:
    rows = [
        tensor[:MOST_HASHED].detach().cpu().contiguous().reshape(min(len(tensor), MOST_HASHED), -1).numpy()
        for tensor in tensors_in(examples.inputs)
    ]
    found = (
        hashlib.blake2b(b"".join(row.tobytes() for row in of_row), digest_size=8) for of_row in zip(*rows, strict=True)
    )
    return np.array([int.from_bytes(one.digest(), "little") for one in found], dtype=np.uint64)


def _check_inputs(check: DataCheck, sites: Mapping[str, Mapping[str, TensorExamples]]) -> None:
    """Ranges of the inputs, if they are a table of up to 100 columns."""
    tables = {}
    for site, parts in sites.items():
        inputs = [part.inputs for part in parts.values() if isinstance(part.inputs, torch.Tensor)]
        if len(inputs) < len(parts) or not all(x.dim() == 2 and x.is_floating_point() for x in inputs):
            return
        tables[site] = torch.cat(inputs).double().cpu().numpy()
    widths = {table.shape[1] for table in tables.values()}
    if len(widths) != 1 or max(widths) > MOST_INPUTS:
        return
    for number in range(widths.pop()):
        name = f"input {number}"
        cells = {site: Cells(site, name, range(len(table)), table[:, number]) for site, table in tables.items()}
        numbers = {site: of_site.present for site, of_site in cells.items()}
        column = ColumnProfile(name, "number", {site: profile(c, numbers[site]) for site, c in cells.items()})
        check.columns.append(column)
        check_information(check, column, can_drop=False)
        check_numbers(check, column, numbers, can_set=False)
