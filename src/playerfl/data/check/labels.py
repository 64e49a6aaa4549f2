"""Classes and categories by site: one spelled or coded in several ways, codes for unknown, rare and missing ones."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from itertools import combinations

from playerfl.data.check.result import DataCheck, listing

Counts = Mapping[str, Mapping[str, int]]
"""Rows of each label at each site."""
_UNKNOWN = {
    *("unknown", "unk", "unbekannt", "inconnu", "missing", "notknown", "notavailable", "na", "null", "notrecorded"),
    *("", "x", "tbd", "nd", "nk"),
}
_CODES = {"9", "99", "999", "9999", "88", "888", "77", "777", "-1", "-9", "-99", "-999", "-9999"}
_FEW = 3
_RARE_SHARE = 0.02
_MOST_COMPARED = 200


def check_labels(check: DataCheck, counts: Counts, what: str, column: str | None) -> None:
    """Adds findings on the classes of the target, or on the categories of a column."""
    sites = sorted({site for by_site in counts.values() for site in by_site})
    alike = _spelled_alike(counts)
    for names in alike:
        check.add(
            "warning",
            "labels",
            f"{what}: {_shown(counts, names)} look like one and the same, but are read as {len(names)} different "
            "ones; write them alike in the files",
            column=column,
        )
    for rare, common in _typos(counts, {name for names in alike for name in names}):
        check.add(
            "warning",
            "labels",
            f"{what}: {_shown(counts, [rare])} may be a typing error for {common!r}; correct it in the file",
            column=column,
        )
    for code in _unknown_codes(counts):
        setting = f'data.missing_codes="{column}={code}"'
        check.add(
            "warning",
            "codes",
            f"{what}: {_shown(counts, [code])} may be a code for unknown, but is read like any other value",
            f"{setting} data.missing=drop",
            column,
        )
    for text, odd in _coded_differently(counts, sites):
        check.add("warning", "labels", f"{what}: {text}; code them alike in the files", column=column, sites=odd)


def check_classes(check: DataCheck, counts: Counts) -> None:
    """What only matters for the target: classes that are rare or at few sites."""
    totals = {name: sum(by_site.values()) for name, by_site in counts.items()}
    if rare := [name for name, total in totals.items() if total < _FEW]:
        check.add(
            "warning",
            "labels",
            f"{_shown(counts, rare[:5])}: fewer than {_FEW} rows, so training, validation and test cannot all have one",
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


def _shown(counts: Counts, names: list[str]) -> str:
    return listing(
        [f"{name!r} ({', '.join(f'{site} {n:,}' for site, n in counts[name].items() if n)})" for name in names]
    )


def normal_form(label: str) -> str:
    """A label without case, accents, punctuation and spaces.

    >>> normal_form(" Non-Smoker "), normal_form("décédé")
    ('nonsmoker', 'decede')
    """
    plain = "".join(c for c in unicodedata.normalize("NFKD", label.casefold()) if not unicodedata.combining(c))
    return "".join(re.findall(r"[^\W_]+", plain))


def _spelled_alike(counts: Counts) -> list[list[str]]:
    forms: dict[str, list[str]] = {}
    for name in counts:
        if not _is_number(name):
            forms.setdefault(normal_form(name), []).append(name)
    found = [names for names in forms.values() if len(names) > 1]
    for short, words in (("y", "yes"), ("n", "no"), ("f", "female"), ("m", "male"), ("t", "true"), ("f", "false")):
        both = [*forms.get(short, []), *forms.get(words, [])]
        if short in forms and words in forms and not set(both) & {name for names in found for name in names}:
            found.append(both)
    return found


def _typos(counts: Counts, known: set[str]) -> list[tuple[str, str]]:
    """Rare labels that differ in one letter from a common one."""
    totals = {name: sum(by_site.values()) for name, by_site in counts.items()}
    if len(totals) > _MOST_COMPARED:
        return []
    found: list[tuple[str, str]] = []
    for a, b in combinations(totals, 2):
        rare, common = sorted((a, b), key=totals.__getitem__)
        is_rare = rare not in known and totals[rare] <= max(1, _RARE_SHARE * totals[common]) < totals[common]
        if is_rare and one_letter_apart(rare, common) and rare not in [typo for typo, _ in found]:
            found.append((rare, common))
    return found


def one_letter_apart(a: str, b: str) -> bool:
    """Whether two words of some length differ in one letter, or in two neighbours that are swapped.

    >>> one_letter_apart("helathy", "healthy"), one_letter_apart("yess", "yes"), one_letter_apart("low", "now")
    (True, True, False)
    >>> one_letter_apart("grade1", "grade2")
    False
    """
    a, b = normal_form(a), normal_form(b)
    shortest = 4 if len(a) == len(b) else 3
    if min(len(a), len(b)) < shortest or abs(len(a) - len(b)) > 1 or re.sub(r"\d", "", a) == re.sub(r"\d", "", b):
        return False
    start = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    rest_a, rest_b = a[start:], b[start:]
    if len(a) != len(b):
        return (rest_a[1:] == rest_b) if len(a) > len(b) else (rest_b[1:] == rest_a)
    return rest_a[1:] == rest_b[1:] or (rest_a[:2] == rest_b[1::-1] and rest_a[2:] == rest_b[2:])


def _unknown_codes(counts: Counts) -> list[str]:
    numbers = {name: float(name) for name in counts if _is_number(name)}
    found: list[str] = []
    for name in counts:
        others = [number for other, number in numbers.items() if other != name]
        if name not in numbers:
            if normal_form(name) in _UNKNOWN and len(counts) > 2:
                found.append(name)
        elif name in _CODES and len(others) > 1 and all(other not in _CODES or other == name for other in counts):
            # 9 after 8 is a class like others; 9 after 3 is a code.
            gap = min(abs(numbers[name] - other) for other in others)
            if gap > 3 or (numbers[name] < 0 <= min(others)):
                found.append(name)
    return found


def _coded_differently(counts: Counts, sites: list[str]) -> list[tuple[str, tuple[str, ...]]]:
    """Sites that share no label with the others, or whose numbers are those of the others plus 1."""
    labels = {site: {name for name, by_site in counts.items() if by_site.get(site)} for site in sites}
    known = {site: names for site, names in labels.items() if names}
    found: list[tuple[str, tuple[str, ...]]] = []
    for site, names in known.items():
        others = [other for other in known if other != site]
        rest: set[str] = set().union(*(known[other] for other in others))
        # Those that differ only in spelling are reported as such.
        forms, other_forms = set(map(normal_form, names)), set(map(normal_form, rest))
        if others and not names & rest and not forms <= other_forms - {""}:
            found.append(
                (f"{site} has {_quoted(names)}, and no other site has any of these ({_quoted(rest)} there)", (site,))
            )
    shifted: dict[tuple[frozenset[str], frozenset[str]], tuple[list[str], list[str]]] = {}
    for a, b in combinations(known, 2):
        for first, second in ((a, b), (b, a)):
            if known[first] & known[second] and _plus_one(known[first]) == known[second] != known[first]:
                pair = shifted.setdefault((frozenset(known[first]), frozenset(known[second])), ([], []))
                for listed, site in zip(pair, (first, second), strict=True):
                    if site not in listed:
                        listed.append(site)
    for (low, high), (first_sites, second_sites) in shifted.items():
        found.append(
            (
                f"{_quoted(low)} at {listing(first_sites)}, but {_quoted(high)} at {listing(second_sites)}, as if "
                "counting from another number",
                tuple(second_sites),
            )
        )
    return found


def _plus_one(names: set[str]) -> set[str]:
    if not all(re.fullmatch(r"-?\d+", name) for name in names):
        return set()
    return {str(int(name) + 1) for name in names}


def _quoted(names: set[str] | frozenset[str]) -> str:
    return listing(sorted(names))


def _is_number(text: str) -> bool:
    try:
        return float(text) == float(text)
    except ValueError:
        return False
