"""Columns that alone decide the target, and columns that name a row or a subject instead of measuring something."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from playerfl.data.check.result import ColumnProfile, DataCheck, listing
from playerfl.data.encoding.cells import Numbers
from playerfl.data.partition import Indices

_SUBJECTS = {
    *("patient", "patients", "pat", "subject", "subj", "person", "participant", "proband", "individual", "donor"),
    *("case", "mrn", "pid", "patid", "patientid", "subjectid", "lesion", "animal", "mouse", "specimen", "family"),
    *("household", "twin", "episode", "admission", "encounter", "stay", "hadm", "icustay", "id", "uid", "identifier"),
}
_MOST_BINS = 50
_ROWS_PER_BIN = 10
_SURE = 0.98
_ENOUGH = 30
_STRAIGHT = 0.999


def name_parts(name: str) -> set[str]:
    """
    >>> sorted(name_parts("patientID_2")), sorted(name_parts("SUBJECT_ID"))
    (['2', 'id', 'patient'], ['id', 'subject'])
    """
    return {part.lower() for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)}


def check_names_a_subject(check: DataCheck, column: ColumnProfile, *, are_whole: bool) -> bool:
    """Adds a finding if a column numbers rows or repeats per subject; returns whether it names rows or subjects.

    `are_whole`: whether all its values are texts or integers, as names are.
    """
    name = column.name
    present = {site: c.rows - c.missing for site, c in column.sites.items()}
    if not are_whole or not all(present.values()) or min(present.values()) < 20:
        return False
    sounds_so = bool(name_parts(name) & _SUBJECTS)
    if all(c.distinct == present[site] for site, c in column.sites.items()):
        check.add(
            "warning",
            "identifier",
            f"{name!r} has a different value in every row, as an identifier does; a model can learn nothing from it",
            f"data.drop_columns={name}",
            name,
        )
        return True
    per_value = {site: present[site] / max(1, c.distinct) for site, c in column.sites.items()}
    enough = all(c.distinct >= 10 for c in column.sites.values())
    if sounds_so and enough and max(per_value.values()) >= 1.05:
        shown = ", ".join(f"{site} {c.distinct:,} in {present[site]:,} rows" for site, c in column.sites.items())
        check.add(
            "warning",
            "groups",
            f"{name!r} repeats ({shown}), as a subject with several rows does; without grouping, rows of one subject "
            "are in training and in test, and scores are too good",
            f"data.group={name}",
            name,
        )
        return True
    return False


def decides(values: Indices | Numbers, labels: Indices, *, ordered: bool) -> float:
    """The share of rows whose class one column alone gives, above what the most frequent class gives: from 0 to 1.

    `ordered`: whether values are numbers, which are cut into up to 50 ranges, rather than categories.

    >>> labels = np.arange(100) % 2
    >>> decides(labels, labels, ordered=False), decides(np.zeros(100), labels, ordered=True)
    (1.0, 0.0)
    """
    if len(labels) < _ENOUGH:
        return 0.0
    classes, label_of = np.unique(labels, return_inverse=True)
    usual = np.bincount(label_of).max() / len(labels)
    if usual >= 1:
        return 0.0
    distinct, value_of = np.unique(values, return_inverse=True)
    if ordered and len(distinct) > _MOST_BINS:
        by_cut = _best_cut(values, label_of) if len(classes) == 2 else 0.0
        rank = np.argsort(np.argsort(values, kind="stable"), kind="stable")
        bins = max(2, min(_MOST_BINS, len(values) // _ROWS_PER_BIN))
        # Equal values must share a range, or their order in the file would count.
        starts = np.zeros(len(distinct), dtype=np.int64)
        np.maximum.at(starts, value_of, rank * bins // len(values))
        value_of = starts[value_of]
    else:
        by_cut = 0.0
        if len(distinct) * 3 > len(labels):
            return 0.0
    table = np.zeros((int(value_of.max()) + 1, len(classes)), dtype=np.int64)
    np.add.at(table, (value_of, label_of), 1)
    right = max(table.max(1).sum() / len(labels), by_cut)
    return float(max(0.0, (right - usual) / (1 - usual)))


def _best_cut(values: Numbers | Indices, label_of: Indices) -> float:
    """The accuracy of the best rule of the form: one class below a value, the other above."""
    order = np.argsort(values, kind="stable")
    ones = np.concatenate([[0], np.cumsum(label_of[order])])
    rows = np.arange(len(order) + 1)
    cut = np.concatenate([[True], np.diff(values[order]) > 0, [True]])
    right = ((rows - ones) + (ones[-1] - ones))[cut] / len(order)
    return float(max(right.max(), 1 - right.min()))


def check_leak(check: DataCheck, column: str, shares: Mapping[str, float], target: str) -> None:
    """`shares`: what `decides` gave at each site."""
    found = [site for site, share in shares.items() if share >= _SURE]
    if found:
        check.add(
            "warning",
            "leak",
            f"{column!r} alone decides {target!r} at {listing(found)}; if it is known only after the outcome, or is "
            "computed from it, leave it out",
            f"data.drop_columns={column}",
            column,
            found,
        )


def follows(values: Numbers, target: Numbers) -> float:
    """How closely a number follows a target that is a number: the absolute correlation, 1 if it decides it."""
    if len(values) < _ENOUGH or np.ptp(values) == 0 or np.ptp(target) == 0:
        return 0.0
    # Scaled first: squares of 1e200 would overflow.
    x, y = (numbers / np.abs(numbers).max() for numbers in (values, target))
    return float(abs(np.corrcoef(x, y)[0, 1]) >= _STRAIGHT)
