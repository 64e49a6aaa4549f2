"""Labels that are probably one and the same, but written in several ways."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from itertools import combinations

_RARE_SHARE = 0.02
_MOST_COMPARED = 200
_LONG = 5
_OPPOSITES = (("macro", "micro"), ("abduct", "adduct"), ("ileum", "ilium"), ("phagia", "phasia"), ("ileal", "ilial"))
_SHORT = (("y", "yes"), ("n", "no"), ("f", "female"), ("m", "male"), ("t", "true"), ("f", "false"))
LOOK_ALIKES = str.maketrans("авекмнорстухіјѕԁցһαερνοτιυκԛԝχ", "abekmhopctyxijsdghaepvotiukqwx")
"""Cyrillic and Greek letters, in lower case, that look like Latin ones."""


def normal_form(label: str) -> str:
    """A label without case, accents, punctuation and spaces, in Latin letters where others look the same.

    >>> normal_form(" Non-Smoker "), normal_form("décédé"), normal_form("\N{CYRILLIC SMALL LETTER ES}ase")
    ('nonsmoker', 'decede', 'case')
    """
    plain = "".join(c for c in unicodedata.normalize("NFKD", label.casefold()) if not unicodedata.combining(c))
    return "".join(re.findall(r"[^\W_]+", plain.translate(LOOK_ALIKES)))


def is_number(text: str) -> bool:
    try:
        return float(text) == float(text)
    except ValueError:
        return False


def spelled_alike(labels: Iterable[str]) -> list[list[str]]:
    """Groups of labels that look the same.

    >>> spelled_alike(["Yes", "yes", "no", "n"])
    [['Yes', 'yes'], ['n', 'no']]
    """
    forms: dict[str, list[str]] = {}
    for name in labels:
        if not is_number(name):
            forms.setdefault(normal_form(name) or name, []).append(name)
    groups = [names for names in forms.values() if len(names) > 1]
    for short, word in _SHORT:
        both = [*forms.get(short, []), *forms.get(word, [])]
        if short in forms and word in forms and not set(both) & {name for names in groups for name in names}:
            groups.append(both)
    return groups


def typing_errors(totals: Mapping[str, int], known: set[str]) -> list[tuple[str, str]]:
    """Labels that are probably another one with a typing error, except those in `known`; `totals` are their rows.

    They differ in one letter, and are rare or long: a site may misspell a class in all its rows.
    """
    if len(totals) > _MOST_COMPARED:
        return []
    typos: list[tuple[str, str]] = []
    for a, b in combinations(totals, 2):
        rare, common = sorted((a, b), key=totals.__getitem__)
        if rare in known or rare in [typo for typo, _ in typos] or not one_letter_apart(rare, common):
            continue
        is_rare = totals[rare] <= max(1, _RARE_SHARE * totals[common]) < totals[common]
        if is_rare or _is_misspelt(rare, common):
            typos.append((rare, common))
    return typos


def _is_misspelt(a: str, b: str) -> bool:
    """Whether labels that are one letter apart are probably the same word.

    They are not if one has a prefix (typical, atypical) or another first letter, if the letter numbers something
    (type A, stage II), or if they are opposites that medicine spells alike.

    >>> [_is_misspelt(*pair) for pair in (("malignent", "malignant"), ("type A", "type B"), ("atypical", "typical"))]
    [True, False, False]
    """
    parts_a, parts_b = (re.findall(r"[^\W_]+", label) for label in (a, b))
    if len(parts_a) == len(parts_b) and any(
        x != y and min(len(x), len(y)) < _LONG for x, y in zip(parts_a, parts_b, strict=True)
    ):
        return False
    a, b = normal_form(a), normal_form(b)
    if not (a.isalpha() and b.isalpha()) or min(len(a), len(b)) < _LONG or a[0] != b[0] or a[:-1] == b[:-1]:
        return False
    if re.sub("[ivx]+$", "", a) == re.sub("[ivx]+$", "", b):
        return False
    return not any(a.replace(x, y) == b or b.replace(x, y) == a for x, y in _OPPOSITES)


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
