"""Sites that code the same labels differently: other words, 0/1 against 1/2, and the setting that makes them alike."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from playerfl.data.check.result import Counts, listing, one_or_list
from playerfl.data.check.spelling import is_number, normal_form
from playerfl.data.encoding.cells import Cells

_TRUTH = (
    *(("no", "yes"), ("n", "y"), ("false", "true"), ("f", "t"), ("negative", "positive"), ("neg", "pos")),
    *(
        ("absent", "present"),
        ("nein", "ja"),
        ("nee", "ja"),
        ("non", "oui"),
        ("no", "si"),
        ("nao", "sim"),
        ("off", "on"),
    ),
    *(
        ("nej", "ja"),
        ("nei", "ja"),
        ("falsch", "wahr"),
        ("faux", "vrai"),
        ("falso", "vero"),
        ("falso", "verdadero"),
        ("unaffected", "affected"),
        ("control", "case"),
        ("healthy", "ill"),
        ("healthy", "sick"),
    ),
)
"""Words for no and yes."""
_SEX = (("m", "f"), ("male", "female"), ("m", "w"), ("mann", "frau"), ("man", "woman"), ("homme", "femme"), ("h", "f"))
_DIGITS = ({"0", "1"}, {"1", "2"}, {"-1", "1"})
_MOST_LABELS = 10
_IN_FULL = {
    frozenset(short): frozenset(full)
    for short, full in ((("y", "n"), ("yes", "no")), (("t", "f"), ("true", "false")), (("m", "f"), ("male", "female")))
}
"""Abbreviations, which are reported as spellings of the same words."""


@dataclass(frozen=True)
class Coding:
    """Two groups of sites that code a column differently."""

    text: str
    odd: tuple[str, ...]
    """The sites of the smaller group."""
    new_values: Mapping[str, str] | None
    """What the labels of the odd sites probably are elsewhere; None if that cannot be guessed."""

    def setting(self, column: str) -> str:
        """The exact setting, with … where it cannot be guessed."""
        changed = {old: new for old, new in (self.new_values or {}).items() if old != new}
        return recode_setting({f"{site}/{column}": changed for site in self.odd})


def recode_setting(rules: Mapping[str, Mapping[str, str]]) -> str:
    """
    >>> recode_setting({"south/sex": {"1": "0", "2": "1"}})
    'data.recode="south/sex: 1=0, 2=1"'
    >>> recode_setting({"a/sex": {"1": "0"}, "b/sex": {}})
    'data.recode=["a/sex: 1=0", "b/sex: OLD=NEW"]'
    """
    texts = [
        f"{place}: {', '.join(f'{old}={new}' for old, new in values.items()) or 'OLD=NEW'}"
        for place, values in rules.items()
    ]
    return f"data.recode={one_or_list(texts)}"


def counts_of(cells: Mapping[str, Cells]) -> dict[str, dict[str, int]]:
    """The rows of every label at every site."""
    counts: dict[str, dict[str, int]] = {}
    for site, of_site in cells.items():
        names, codes = of_site.spellings
        for name, count in zip(names, np.bincount(codes[codes >= 0], minlength=len(names)).tolist(), strict=True):
            counts.setdefault(name, {})[site] = count
    return counts


def coded_differently(counts: Counts, *, are_measured: bool = False) -> list[Coding]:
    """Groups of sites that share no label with the others, or whose labels are those of the others coded otherwise.

    `are_measured`: whether labels are numbers that may be measurements, for which only the latter is odd.
    """
    labels = _labels_by_site(counts)
    return [*([] if are_measured else _disjoint(labels, counts)), *_otherwise(labels, counts)]


def _labels_by_site(counts: Counts) -> dict[str, frozenset[str]]:
    sites = sorted({site for by_site in counts.values() for site in by_site})
    found = {site: frozenset(name for name, by_site in counts.items() if by_site.get(site)) for site in sites}
    return {site: names for site, names in found.items() if names}


def _disjoint(labels: Mapping[str, frozenset[str]], counts: Counts) -> list[Coding]:
    """Sites are connected if they have a label in common; labels that differ only in spelling are the same here."""
    if all(len(names) == 1 for names in labels.values()):
        return []
    forms = {site: _forms(names) for site, names in labels.items()}
    groups: list[list[str]] = []
    for site in labels:
        met = [group for group in groups if any(forms[site] & forms[other] for other in group)]
        groups = [group for group in groups if group not in met]
        groups.append([*(other for group in met for other in group), site])
    found = []
    usual, *others = sorted(groups, key=lambda group: (-len(group), -_rows(counts, group), group))
    usually = max((labels[site] for site in usual), key=lambda names: (_rows(counts, usual, names), sorted(names)))
    for group in others:
        names = frozenset().union(*(labels[site] for site in group))
        rest = frozenset().union(*(labels[site] for site in labels if site not in group))
        have = f"{listing(sorted(group))} {'has' if len(group) == 1 else 'have'}"
        text = f"{have} {_quoted(names)}, and no other site has any of these ({_quoted(rest)} there)"
        found.append(Coding(text, tuple(sorted(group)), translated(names, usually)))
    return found


def _forms(names: frozenset[str]) -> frozenset[str]:
    forms = frozenset(normal_form(name) or name for name in names)
    return _IN_FULL.get(forms, forms)


def _otherwise(labels: Mapping[str, frozenset[str]], counts: Counts) -> list[Coding]:
    """Numbers that overlap with those of other sites, but seem to count from another one: 0/1 against 1/2 or -1/1."""
    groups: dict[frozenset[str], list[str]] = {}
    for site, names in labels.items():
        groups.setdefault(names, []).append(site)
    ordered = sorted(groups, key=lambda names: (-len(groups[names]), -_rows(counts, groups[names]), sorted(names)))
    found: list[Coding] = []
    odd: set[str] = set()
    for position, usual in enumerate(ordered):
        for other in ordered[position + 1 :]:
            if odd & {*groups[usual], *groups[other]} or not _same_otherwise(usual, other, groups):
                continue
            low, high = sorted((usual, other), key=lambda names: sorted(map(float, names)))
            text = (
                f"{_quoted(low)} at {listing(groups[low])}, but {_quoted(high)} at {listing(groups[high])}, as if "
                "counting from another number"
            )
            found.append(Coding(text, tuple(groups[other]), translated(other, usual)))
            odd.update(groups[other])
    return found


def _same_otherwise(first: frozenset[str], second: frozenset[str], known: Iterable[frozenset[str]]) -> bool:
    if not first & second or len(first) != len(second) or not 2 <= len(first) <= _MOST_LABELS:
        return False
    if not all(re.fullmatch(r"-?\d+", name) for name in first | second):
        return False
    # A site that has all of them counts something, and the others just lack one of the numbers.
    if any(first | second <= names for names in known):
        return False
    if first in _DIGITS and second in _DIGITS:
        return True
    low, high = sorted(sorted(map(int, names)) for names in (first, second))
    return low[0] == 0 and high[0] == 1 and [number + 1 for number in low] == high


def translated(labels: frozenset[str], others: frozenset[str]) -> dict[str, str] | None:
    """Which label of other sites each label probably is; None if that cannot be guessed.

    >>> translated(frozenset({"ja", "nein"}), frozenset({"0", "1"}))
    {'nein': '0', 'ja': '1'}
    >>> translated(frozenset({"1", "2"}), frozenset({"male", "female"})) is None
    True
    """
    if len(labels) != len(others):
        return None
    if all(map(is_number, labels | others)):
        return dict(zip(sorted(labels, key=float), sorted(others, key=float), strict=True))
    for words in (_TRUTH, _SEX):
        old, new = (_in_order(names, words) for names in (labels, others))
        if old and new and not (words is _SEX and (_are_digits(old) or _are_digits(new))):
            return dict(zip(old, new, strict=True))
    return None


def _in_order(labels: frozenset[str], words: Sequence[tuple[str, str]]) -> list[str] | None:
    if _are_digits(labels):
        return sorted(labels, key=float)
    by_form = {normal_form(label): label for label in labels}
    return next(([by_form[a], by_form[b]] for a, b in words if by_form.keys() == {a, b}), None)


def _are_digits(labels: Iterable[str]) -> bool:
    return set(labels) in _DIGITS


def _rows(counts: Counts, sites: Iterable[str], names: Iterable[str] | None = None) -> int:
    """The rows that some sites have; of some labels, or of all."""
    chosen = counts if names is None else names
    return sum(counts[name].get(site, 0) for name in chosen for site in sites)


def _quoted(names: frozenset[str]) -> str:
    return listing(sorted(names))
