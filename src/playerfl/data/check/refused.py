"""The setting that answers a column which training refuses."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from playerfl.data.check.predictors import sounds_like_a_subject
from playerfl.data.check.result import Counts, DataCheck, one_or_list, set_to
from playerfl.data.check.texts.codings import coded_differently, counts_of, recode_setting
from playerfl.data.check.texts.labels import means_unknown, missing_setting
from playerfl.data.check.texts.spelling import is_number
from playerfl.data.encoding.cells import Cells
from playerfl.data.encoding.columns import MOST_CATEGORIES, dates_in

_LIMIT = re.compile(r"(?:[<>≤≥]=?\s*)?([-+]?\d+(?:\.\d+)?)(?:\s*[+*†‡!^]|\s*[HL]{1,2})?")
"""A number beyond what is measured (<5, 89+), or one with a remark: a footnote, or H and L for high and low."""
_WITH_UNIT = re.compile(r"[-+]?\d+(?:\.\d+)?\s*([^\W\d][^\d]*|°\w?)")
_FEW_LABELS, _FEW_NUMBERS = 8, 4
_MOST_TEXTS = 10
_MOST_LABELS = 5
_RARE = 4
_MOST_ROWS_PER_SUBJECT = 20


def remedy_for(name: str, cells: Mapping[str, Cells], *, are_all: bool) -> str | None:
    """The exact setting for an input; `cells` are those of the sites where they could be read, perhaps not `are_all`.

    None if a site's cells cannot be read at all: a number with a comma is no reason to give the column up.
    """
    if not are_all:
        return None
    drop = set_to("drop_columns", name)
    flags = sorted({text for site in cells.values() for text in site.spellings[0] if text in ("True", "False")})
    if flags and not any(site.is_text.any() for site in cells.values()):
        return f"{missing_setting(name, flags)} data.missing=mean"
    return texts_remedy(name, cells) or _subject_remedy(name, cells, drop) or _rare_remedy(name, cells) or drop


def _rare_remedy(name: str, cells: Mapping[str, Cells]) -> str | None:
    """For a few texts among many numbers, which are no reason to give a column up."""
    texts = [text for site in cells.values() if site.texts is not None for text in site.texts[site.is_text]]
    numbers = sum(len(of_site.present) for of_site in cells.values())
    if len(set(texts)) > _MOST_LABELS or _RARE * len(texts) > numbers:
        return None
    return f"{missing_setting(name, sorted(set(texts)))} data.missing=mean (if it means unknown)"


def texts_remedy(name: str, cells: Mapping[str, Cells]) -> str | None:
    """The setting for texts among numbers, if they can be read: unknown, <5, yes and no against 1 and 0."""
    return _coding_remedy(name, counts_of(cells)) or _stray_remedy(name, cells)


def _coding_remedy(name: str, counts: Counts) -> str | None:
    """For texts at one site and numbers at another that mean the same."""
    by_site: dict[str, set[str]] = {}
    for label, of_sites in counts.items():
        for site, count in of_sites.items():
            if count:
                by_site.setdefault(site, set()).add(label)
    if max(map(len, by_site.values()), default=0) > _MOST_LABELS:
        return None
    codings = [coding for coding in coded_differently(counts) if any(map(is_number, by_site[coding.odd[0]]))]
    if not codings:
        return next((coding.setting(name) for coding in coded_differently(counts) if coding.new_values), None)
    # What cannot be guessed is left to the user.
    return recode_setting(
        {
            f"{site}/{name}": coding.new_values or dict.fromkeys(sorted(by_site[site]), "NEW")
            for coding in codings
            for site in coding.odd
        }
    )


def _stray_remedy(name: str, cells: Mapping[str, Cells]) -> str | None:
    """For a column of numbers with a few texts among them: codes for unknown, or limits such as <5."""
    numbers = sum(len(of_site.present) for of_site in cells.values())
    texts = sorted({text for site in cells.values() if site.texts is not None for text in site.texts[site.is_text]})
    if numbers == 0 or not 0 < len(texts) <= _MOST_TEXTS:
        return None
    unknown = [text for text in texts if means_unknown(text)]
    limits = {text: match[1] for text in texts if (match := _LIMIT.fullmatch(text))}
    if len(unknown) + len(limits) < len(texts):
        return None
    # Without the column's name: what means unknown in one column does so in others, and one setting answers them all.
    settings = [f"data.missing_codes={one_or_list(unknown)} data.missing=mean"] if unknown else []
    if limits and (recode := recode_setting({name: limits})):
        settings.append(recode)
    return " ".join(settings)


def check_numbers_as_categories(check: DataCheck, name: str, cells: Mapping[str, Cells]) -> None:
    """A warning about categories that are numbers: most of them limits such as <5, or with a unit."""
    labels = set().union(*(of_site.spellings[0] for of_site in cells.values()))
    shown = f"{name!r} is read as {len(labels)} categories, but holds numbers"
    with_unit = [match for label in labels if (match := _WITH_UNIT.fullmatch(label))]
    if len(labels) > _FEW_LABELS and len({match[1] for match in with_unit}) == 1 and 2 * len(with_unit) > len(labels):
        text = f"{shown} with the unit {with_unit[0][1]!r}; write them without"
        check.add("warning", "kind", text, column=name, sites=cells)
    elif sum(map(is_number, labels)) > _FEW_NUMBERS and (remedy := _stray_remedy(name, cells)):
        stray = min(label for label in labels if not is_number(label))
        text = f"{shown}, because most cells are texts such as {stray!r}; say what these mean"
        check.add("warning", "kind", text, remedy, name, cells)


def _subject_remedy(name: str, cells: Mapping[str, Cells], drop: str) -> str | None:
    """For a column of many texts that repeat, as the names of patients with several rows do."""
    distinct = sum(len(site.spellings[0]) for site in cells.values())
    present = sum(int((~site.is_missing).sum()) for site in cells.values())
    texts = sum(int(np.sum(site.is_text)) for site in cells.values())
    if distinct <= MOST_CATEGORIES or 2 * texts < present or present < 1.05 * distinct:
        return None
    if 2 * sum(int(dates_in(site).sum()) for site in cells.values()) > texts:
        return None
    if sounds_like_a_subject(name):
        return set_to("group", name)
    if present <= _MOST_ROWS_PER_SUBJECT * distinct:
        return f"{drop} (or, if it says whose row it is, {set_to('group', name)})"
    return None
