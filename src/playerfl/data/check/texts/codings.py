"""Sites that code the same labels differently: other words, 0/1 against 1/2, and the setting that makes them alike."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from playerfl.data.check.result import Counts, listing, one_or_list
from playerfl.data.check.texts.spelling import is_number, normal_form
from playerfl.data.encoding.cells import Cells
from playerfl.data.encoding.rules import pairs_in

_NO_YES = (
    "no/yes n/y false/true f/t negative/positive neg/pos absent/present off/on control/case unaffected/affected "
    "healthy/ill healthy/sick nein/ja falsch/wahr nee/ja nej/ja nei/ja non/oui faux/vrai no/si falso/vero "
    "falso/verdadero nao/sim"
)
_MALE_FEMALE = "m/f male/female man/woman m/w mann/frau h/f homme/femme"
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

    def setting(self, column: str) -> str | None:
        """The exact setting, with OLD=NEW where it cannot be guessed."""
        changed = {old: new for old, new in (self.new_values or {}).items() if old != new}
        return recode_setting({f"{site}/{column}": changed for site in self.odd})


def recode_setting(rules: Mapping[str, Mapping[str, str]]) -> str | None:
    """The setting for new values by column or SITE/COLUMN; None if a label holds what separates labels there.

    >>> recode_setting({"south/sex": {"1": "0", "2": "1"}})
    'data.recode="south/sex: 1=0, 2=1"'
    >>> recode_setting({"a/sex": {"1": "0"}, "b/sex": {}})
    'data.recode=["a/sex: 1=0", "b/sex: OLD=NEW"]'
    """
    texts = []
    for place, values in rules.items():
        pairs = ", ".join(f"{old}={new}" for old, new in values.items())
        if values and dict(pairs_in(pairs)) != dict(values):
            return None
        texts.append(f"{place}: {pairs or 'OLD=NEW'}")
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
    """Groups of sites that share no label with the others, or whose labels are those of the others, coded differently.

    `are_measured`: whether labels are numbers that may be measurements, for which only the latter is odd.
    """
    labels = _labels_by_site(counts)
    return [*([] if are_measured else _disjoint(labels, counts)), *_other_start(labels, counts)]


def _labels_by_site(counts: Counts) -> dict[str, frozenset[str]]:
    sites = sorted({site for by_site in counts.values() for site in by_site})
    names_at = {site: frozenset(name for name, by_site in counts.items() if by_site.get(site)) for site in sites}
    return {site: names for site, names in names_at.items() if names}


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
    codings = []
    usual, *others = sorted(groups, key=lambda group: (-len(group), -_rows(counts, group), group))
    usually = max((labels[site] for site in usual), key=lambda names: (_rows(counts, usual, names), sorted(names)))
    for group in others:
        names = frozenset().union(*(labels[site] for site in group))
        rest = frozenset().union(*(labels[site] for site in labels if site not in group))
        have = f"{listing(sorted(group))} {'has' if len(group) == 1 else 'have'}"
        text = f"{have} {_quoted(names)}, and no other site has any of these ({_quoted(rest)} there)"
        codings.append(Coding(text, tuple(sorted(group)), translated(names, usually)))
    return codings


def _forms(names: frozenset[str]) -> frozenset[str]:
    forms = frozenset(normal_form(name) or name for name in names)
    return _IN_FULL.get(forms, forms)


def _other_start(labels: Mapping[str, frozenset[str]], counts: Counts) -> list[Coding]:
    """Numbers that overlap with those of other sites, but seem to start elsewhere: 0/1 against 1/2 or -1/1."""
    groups: dict[frozenset[str], list[str]] = {}
    for site, names in labels.items():
        groups.setdefault(names, []).append(site)
    ordered = sorted(groups, key=lambda names: (-len(groups[names]), -_rows(counts, groups[names]), sorted(names)))
    codings: list[Coding] = []
    odd: set[str] = set()
    for position, usual in enumerate(ordered):
        for other in ordered[position + 1 :]:
            if odd & {*groups[usual], *groups[other]} or not _same_otherwise(usual, other, groups):
                continue
            low, high = sorted((usual, other), key=lambda names: sorted(map(float, names)))
            text = (
                f"{_quoted(low)} at {listing(groups[low])}, but {_quoted(high)} at {listing(groups[high])}, as if "
                "counting from a different number"
            )
            codings.append(Coding(text, tuple(groups[other]), translated(other, usual)))
            odd.update(groups[other])
    return codings


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
    for words in (_NO_YES, _MALE_FEMALE):
        old, new = (_in_order(names, words) for names in (labels, others))
        # Which of two digits is a woman is anybody's guess.
        if old and new and (words is _NO_YES or not (_are_digits(old) or _are_digits(new))):
            return dict(zip(old, new, strict=True))
    return None


def _in_order(labels: frozenset[str], words: str) -> list[str] | None:
    if _are_digits(labels):
        return sorted(labels, key=float)
    by_form = {normal_form(label): label for label in labels}
    pairs = (pair.split("/") for pair in words.split())
    return next(([by_form[word] for word in pair] for pair in pairs if by_form.keys() == set(pair)), None)


def _are_digits(labels: Iterable[str]) -> bool:
    return set(labels) in _DIGITS


def _rows(counts: Counts, sites: Iterable[str], names: Iterable[str] | None = None) -> int:
    """The rows that some sites have; of some labels, or of all."""
    chosen = counts if names is None else names
    return sum(counts[name].get(site, 0) for name in chosen for site in sites)


def _quoted(names: frozenset[str]) -> str:
    return listing(sorted(names))
