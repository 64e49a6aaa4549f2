"""Classes and categories by site: one spelled or coded in several ways, codes for unknown, rare and missing ones."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from playerfl.data.check.result import Counts, DataCheck, listing, one_or_list
from playerfl.data.check.texts.codings import coded_differently, recode_setting
from playerfl.data.check.texts.spelling import is_number, normal_form, spelled_alike, typing_errors

_UNKNOWN = {
    *("unknown", "unk", "unbekannt", "inconnu", "missing", "notknown", "notavailable", "na", "null", "notrecorded"),
    *("x", "tbd", "nd", "nk", "notdone", "notspecified", "desconocido", "onbekend", "notapplicable", "refused"),
    *("fehlt", "fehlend", "manquant", "mancante", "faltante", "ontbreekt", "saknas", "sconosciuto", "desconhecido"),
    *("nichtbekannt", "nichtverfugbar", "notknown", "notasked", "notassessed", "notdocumented", "nodata", "nonconnu"),
    *("okand", "ukendt", "ukjent", "nieznany", "brakdanych", "bilinmiyor", "不明", "未知", "undefined"),
    *("keineangabe", "ka", "nichterhoben", "pending", "notmeasured", "nonrenseigne", "unspecified", "sindato"),
}
_CODES = {"9", "99", "999", "9999", "88", "888", "77", "777", "-1", "-9", "-99", "-999", "-9999"}
_FEW = 3
_MOST_TEXT_CLASSES = 10
_WITH_UNIT = re.compile(r"(\D*?)[-+]?\d[\d.,]*(\D*)")
FEW_NUMBERS = 10
"""A column with at most this many different whole numbers may hold codes for categories."""


def check_labels(
    check: DataCheck, counts: Counts, what: str, column: str | None, accepted: Collection[str] = ()
) -> None:
    """Adds findings on the classes of the target, or on the categories of a column.

    `column` is None for images. `accepted`: labels that a user has chosen, so that they do not mean unknown.
    """
    remedy = "spell them the same in the files" if column is not None else "give the folders the same name"
    totals = {name: sum(by_site.values()) for name, by_site in counts.items()}
    rows: Counter[str] = Counter()
    for by_site in counts.values():
        rows.update(by_site)

    def at_sites(name: str) -> int:
        """The rows of the sites that have a label, so that all labels are given the spelling of the same sites."""
        return sum(rows[site] for site, count in counts[name].items() if count)

    alike = spelled_alike(counts)
    for names in alike:
        usual = max(names, key=lambda name: (at_sites(name), len(normal_form(name)), totals[name], len(name)))
        check.add(
            "warning",
            "labels",
            f"{what}: {_shown(counts, names)} look like the same value, but are read as {len(names)} different "
            f"ones; {remedy}",
            _recoded(column, {name: usual for name in names if name != usual}),
            column,
        )
    for rare, common in typing_errors(totals, {name for names in alike for name in names}):
        check.add(
            "warning",
            "labels",
            f"{what}: {_shown(counts, [rare])} may be a typing error for {common!r}; correct it",
            _recoded(column, {rare: common}),
            column,
        )
    check_codes(check, counts, what, column, accepted)


def check_codes(
    check: DataCheck,
    counts: Counts,
    what: str,
    column: str | None,
    accepted: Collection[str] = (),
    *,
    are_measured: bool = False,
) -> None:
    """Adds findings on labels that mean unknown, and on sites that code the same labels differently.

    `are_measured`: whether the labels are the numbers of an input, which may be measurements.
    """
    # Far away from all other numbers, a code has been found already.
    known = {finding.text.partition(" (")[0] for finding in check.findings if finding.topic == "codes"}
    codes = [c for c in _unknown_codes(counts) if c not in accepted and f"{column!r}: {c}" not in known]
    if codes:
        several = len(codes) > 1
        setting = (
            f"{missing_setting(column, codes)} data.missing={'mean' if are_measured else 'drop'}"
            if column is not None
            else None
        )
        then = "" if column is not None else f"; if so, move the folder{'s' if several else ''} away"
        check.add(
            "warning",
            "codes",
            f"{what}: {_shown(counts, codes)} may be {'codes' if several else 'a code'} for unknown, but "
            f"{'are' if several else 'is'} read like any other value{then}",
            setting,
            column,
        )
    for coding in coded_differently(counts, are_measured=are_measured):
        remedy = (
            "give the folders the same names"
            if column is None
            else "if they mean the same in this order, code them alike"
        )
        check.add(
            "warning",
            "labels",
            f"{what}: {coding.text}; {remedy}",
            None if column is None else coding.setting(column),
            column,
            coding.odd,
        )


def missing_setting(column: str, codes: Sequence[str]) -> str:
    """
    >>> missing_setting("age", ["?"]), missing_setting("age", ["?", "-"])
    ('data.missing_codes="age=?"', 'data.missing_codes=["age=?", "age=-"]')
    """
    return f"data.missing_codes={one_or_list([f'{column}={code}' for code in codes])}"


def means_unknown(text: str) -> bool:
    """Whether a text says that nothing is known: a word such as unknown, a spreadsheet's error, or punctuation alone.

    >>> [means_unknown(text) for text in ("?", ".", "n/a", "Unknown", "#DIV/0!", "heart", "+")]
    [True, True, True, True, True, False, False]
    """
    form = normal_form(text)
    return form in _UNKNOWN or text.strip().startswith("#") or (not form and "+" not in text)


def check_number_of_classes(check: DataCheck, counts: Counts, column: str) -> None:
    """A warning if the texts of the target are hardly classes: numbers with a unit, or nearly as many as rows."""
    texts = [name for name in counts if not is_number(name)]
    rows = sum(sum(by_site.values()) for by_site in counts.values())
    if not texts or len(counts) <= _MOST_TEXT_CLASSES:
        return
    beside = Counter((match[1], match[2]) for text in texts if (match := _WITH_UNIT.fullmatch(text)))
    (before, after), count = beside.most_common(1)[0] if beside else (("", ""), 0)
    shown = f"target {column!r} has {len(counts):,} classes in {rows:,} rows, texts such as {texts[0][:40]!r}"
    if 2 * count > len(counts):
        unit = " and ".join(repr(text.strip()) for text in (before, after) if text.strip())
        text = f"{shown}: if they are numbers, write them without {unit}; otherwise every one is a class of its own"
        check.add("warning", "kind", text, column=column)
    elif 3 * len(counts) > rows:
        text = f"{shown}, with fewer than three rows each, from which nothing can be learnt; merge them"
        check.add("warning", "kind", text, "data.target=COLUMN (if another one is meant)", column)


def check_classes(check: DataCheck, counts: Counts, *, are_split: bool = False) -> None:
    """What only matters for the target: classes that are rare or at few sites.

    `are_split`: whether the sites come in three parts, so that nothing depends on how they are split.
    """
    totals = {name: sum(by_site.values()) for name, by_site in counts.items()}
    if rare := [name for name, total in totals.items() if total < _FEW]:
        check.add(
            "warning",
            "labels",
            f"{_shown(counts, rare[:5])}: fewer than {_FEW} rows, so training, validation and test cannot all have one",
        )
    scarce = {
        name: {site: count for site, count in by_site.items() if 0 < count < _FEW}
        for name, by_site in counts.items()
        if name not in rare
    }
    if shown := {name: by_site for name, by_site in scarce.items() if by_site and not are_split}:
        check.add(
            "warning",
            "labels",
            f"{_shown(shown, list(shown)[:5])}: fewer than {_FEW} rows of a class at a site, so its training, "
            "validation and test cannot all have one, and its classes are not split evenly",
            sites=sorted({site for by_site in shown.values() for site in by_site}),
        )
    sites = sorted({site for by_site in counts.values() for site in by_site})
    for site in sites:
        lacking = [name for name, by_site in counts.items() if not by_site.get(site) and totals[name] >= _FEW]
        if lacking and len(counts) - len(lacking) >= 1:
            check.add(
                "note",
                "labels",
                f"{site} has no row of class {listing(lacking)}"
                if len(lacking) == 1
                else f"{site} has no rows of the classes {listing(lacking)}",
                sites=(site,),
            )


def _recoded(column: str | None, new_values: Mapping[str, str]) -> str | None:
    return None if column is None else recode_setting({column: new_values})


def _shown(counts: Counts, names: list[str]) -> str:
    return listing(
        [f"{name!r} ({', '.join(f'{site} {n:,}' for site, n in counts[name].items() if n)})" for name in names]
    )


def _unknown_codes(counts: Counts) -> list[str]:
    numbers = {name: float(name) for name in counts if is_number(name)}
    suspects: list[str] = []
    for name in counts:
        if name not in numbers:
            is_minus = name.strip() in ("-", "--") and any(other.startswith("+") for other in counts)
            if means_unknown(name) and not is_minus and len(counts) > 2:
                suspects.append(name)
        elif name in _CODES and all(other not in _CODES or other == name for other in counts):
            # Beside one other label it is not a code, but the other of two classes: -1 and 1.
            beside = [
                numbers[other]
                for other in numbers
                if other != name and any(counts[name].get(site) and n for site, n in counts[other].items())
            ]
            # 9 after 8 is a class like others; 9 after 3 is a code.
            gap = min((abs(numbers[name] - other) for other in beside), default=0)
            if len(beside) > 1 and (gap > 3 or numbers[name] < 0 <= min(beside)):
                suspects.append(name)
    return suspects
