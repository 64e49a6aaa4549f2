"""Columns that alone decide the target, and columns that name a row or a subject instead of measuring something."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from playerfl.data.check.result import ColumnProfile, DataCheck, listing, set_to
from playerfl.data.encoding.cells import Flags, Numbers
from playerfl.data.partition import Indices

_SUBJECTS = {
    *("patient", "patients", "pat", "subject", "subj", "person", "participant", "proband", "individual", "donor"),
    *("mrn", "pid", "patid", "patientid", "subjectid", "lesion", "animal", "mouse", "specimen", "household", "twin"),
    *("hadm", "icustay", "patnr", "fallnr", "fallnummer", "patientennummer", "id", "uid", "identifier"),
}
_EVENTS = {"case", "family", "episode", "admission", "encounter", "stay", "visit"}
"""Subjects only if a word for a name follows: a stay is a number of days, a stay_id is not."""
_NAMES = {"id", "uid", "identifier", "no", "nr", "num", "number", "key", "code", "hash", "pseudonym", "name"}
_NO_SUBJECTS = {
    *("doctor", "physician", "surgeon", "provider", "nurse", "hospital", "clinic", "ward", "unit", "site", "center"),
    *("centre", "department", "dept", "device", "scanner", "product", "drug", "branch", "type", "source", "status"),
}
_MOST_CODES = 50
_MOST_BINS = 50
_ROWS_PER_BIN = 10
_SURE = 0.98
_ENOUGH = 30
_STRAIGHT = 0.999
_FEWEST_MISSING = 15


def name_parts(name: str) -> set[str]:
    """
    >>> sorted(name_parts("patientID_2")), sorted(name_parts("SUBJECT_ID"))
    (['2', 'id', 'patient'], ['id', 'subject'])
    """
    return set(_parts(name))


def _parts(name: str) -> list[str]:
    return [part.lower() for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)]


def sounds_like_a_subject(name: str) -> bool:
    """Whether a column's name says that it names patients, lesions or the like.

    >>> [sounds_like_a_subject(name) for name in ("PatientID", "id_patient", "stay_id", "case no", "hadm_id_2")]
    [True, True, True, True, True]
    >>> [sounds_like_a_subject(name) for name in ("length_of_stay", "patient_age", "family_income", "doctor_id")]
    [False, False, False, False]
    """
    words = [part for part in _parts(name) if not part.isdigit()]
    if not words or _NO_SUBJECTS & set(words):
        return False
    return words[-1] in _SUBJECTS or (words[-1] in _NAMES and bool(set(words) & (_SUBJECTS | _EVENTS)))


def check_names_something(check: DataCheck, column: ColumnProfile) -> None:
    """Adds a finding if a column of integers has a name such as doctor_id: its numbers are codes."""
    words = _parts(column.name)
    distinct = max(of_site.distinct for of_site in column.sites.values())
    if words and words[-1] in ("id", "code", "nr") and _NO_SUBJECTS & set(words) and distinct > 2:
        text = f"{column.name!r} is read as a measurement, although its name says that its numbers are codes"
        few = distinct <= _MOST_CODES
        check.add(
            "warning", "codes", text, set_to("category_columns" if few else "drop_columns", column.name), column.name
        )


def check_names_a_subject(check: DataCheck, column: ColumnProfile, *, are_whole: bool) -> bool:
    """Adds a finding if a column numbers rows or repeats per subject; returns whether it names rows or subjects.

    `are_whole`: whether all its values are texts or integers, as names are.
    """
    name = column.name
    present = {site: c.rows - c.missing for site, c in column.sites.items()}
    if not are_whole or not all(present.values()) or min(present.values()) < 20:
        return False
    sounds_so = sounds_like_a_subject(name)
    if all(c.distinct == present[site] for site, c in column.sites.items()):
        check.add(
            "warning",
            "identifier",
            f"{name!r} has a different value in every row, as an identifier does; for new rows, it tells a model "
            "nothing",
            set_to("drop_columns", name),
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
            "are in both training and test, and scores are too good",
            set_to("group", name),
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


def sorted_by(values: Indices | Numbers, target: Indices | Numbers, *, are_classes: bool) -> bool:
    """Whether numbers that identify rows give the target, because the rows were sorted by it before.

    >>> sorted_by(np.arange(60.0), np.repeat([0, 1, 2], 20), are_classes=True)
    True
    >>> sorted_by(np.arange(60.0), np.arange(60) % 3, are_classes=True)
    False
    """
    if len(values) < _ENOUGH:
        return False
    if not are_classes:
        ranks = [np.argsort(np.argsort(numbers, kind="stable"), kind="stable") for numbers in (values, target)]
        return follows(*(rank.astype(np.float64) for rank in ranks)) > 0
    classes, counts = np.unique(target, return_counts=True)
    often = classes[counts >= _ROWS_PER_BIN]
    ordered = target[np.argsort(values)]
    changes = np.count_nonzero(np.diff(ordered[np.isin(ordered, often)]))
    return bool(len(often) >= 2 and changes <= len(often))


def check_leak(
    check: DataCheck, column: str, shares: Mapping[str, float], target: str, *, is_identifier: bool = False
) -> None:
    """`shares`: what `decides` gave at each site."""
    decided = [site for site, share in shares.items() if share >= _SURE]
    if decided:
        why = "if it is known only after the outcome, or is computed from it, leave it out"
        if is_identifier:
            why = "the rows were sorted by the target when they were numbered, so leave it out"
        check.add(
            "warning",
            "leak",
            f"{column!r} alone decides {target!r} at {listing(decided)}; {why}",
            set_to("drop_columns", column),
            column,
            decided,
        )


def missing_decides(is_missing: Flags, labels: Indices) -> bool:
    """Whether the class is known from whether a value is there: nearly all rows with (or without) one have one class.

    >>> labels = np.arange(100) % 2
    >>> missing_decides(labels == 0, labels), missing_decides(np.arange(100) % 4 < 2, labels)
    (True, False)
    """
    for rows, others in ((is_missing, ~is_missing), (~is_missing, is_missing)):
        if rows.sum() < _FEWEST_MISSING or not others.any():
            continue
        classes, counts = np.unique(labels[rows], return_counts=True)
        usual = classes[counts.argmax()]
        elsewhere = float((labels[others] == usual).mean())
        # By chance, all these rows would have this class about once in a million tables.
        if counts.max() >= _SURE * rows.sum() and rows.sum() * np.log(max(elsewhere, 1e-9)) < np.log(1e-6):
            return True
    return False


def missing_separates(is_missing: Flags, target: Numbers) -> bool:
    """The same for a target that is a number: nearly all targets of the rows with a value are larger, or smaller."""
    missing, present = target[is_missing], np.sort(target[~is_missing])
    if min(len(missing), len(present)) < _FEWEST_MISSING:
        return False
    below, up_to = (np.searchsorted(present, missing, side).mean() / len(present) for side in ("left", "right"))
    share = (below + up_to) / 2
    return bool(max(share, 1 - share) >= _SURE)


def check_missing_leak(check: DataCheck, column: str, sites: Sequence[str], target: str) -> None:
    """`sites`: those where `missing_decides` or `missing_separates`."""
    if sites:
        check.add(
            "warning",
            "leak",
            f"whether {column!r} is missing reveals {target!r} at {listing(sites)}; if it is filled in only after the "
            "outcome, or only for some outcomes, leave it out",
            set_to("drop_columns", column),
            column,
            sites,
        )


def follows(values: Numbers, target: Numbers) -> float:
    """How closely a number follows a target that is a number: the absolute correlation, 1 if it decides it."""
    if len(values) < _ENOUGH or np.ptp(values) == 0 or np.ptp(target) == 0:
        return 0.0
    # Scaled first: squares of 1e200 would overflow.
    x, y = (numbers / np.abs(numbers).max() for numbers in (values, target))
    return float(abs(np.corrcoef(x, y)[0, 1]) >= _STRAIGHT)
