"""CellRules: values that a user says mean something else, either a missing value or another spelling."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from playerfl.errors import ConfigError

Value = bool | float | str
_CODE = re.compile(r"\s*(?:(?P<column>.*?)\s*=)?\s*(?P<value>[^=]*?)\s*")
_NEXT_PAIR = re.compile(r",\s*(?=[^,]*=)")


@dataclass(frozen=True)
class CellRules:
    """What the values of some cells mean, as the settings `data.missing_codes` and `data.recode` say."""

    missing_codes: tuple[str, ...] = ()
    """Values that mean a missing one: "-999", or "age=99" for one column only."""
    recode: tuple[str, ...] = ()
    """Values to be read as others: "outcome: YES=yes, NO=no", or "south/outcome: 2=1" for one site only."""

    def at(self, site: str) -> CellRules:
        """The rules for one site's table.

        >>> CellRules(recode=("south/sex: 2=1",)).at("south").new_values("sex")
        {'2': '1'}
        """
        own = tuple(rule.strip().removeprefix(f"{site}/") for rule in self.recode)
        return CellRules(self.missing_codes, own)

    def missing(self, column: str) -> set[str]:
        """The values that mean a missing one in a column.

        >>> sorted(CellRules(("-999.0", "age = 99")).missing("age")), CellRules(("age=99",)).missing("dose")
        (['-999', '99'], set())
        """
        return {value for own, value in map(split_code, self.missing_codes) if own in (None, column)}

    def new_values(self, column: str) -> dict[str, str]:
        """Every value of a column that is to be read as another; it applies before values count as missing.

        >>> CellRules(recode=("sex: 1=male, 2.0=female",)).new_values("sex")
        {'1': 'male', '2': 'female'}
        """
        new: dict[str, str] = {}
        for rule in self.recode:
            if rule.startswith(f"{column}:"):
                new |= dict(pairs_in(rule[len(column) + 1 :]))
        return new


def check_recode(rules: Sequence[str]) -> None:
    """Refuses what is not a rule of `recode`."""
    for rule in rules:
        _, colon, pairs = rule.partition(":")
        if not colon or not all(old and new for old, new in pairs_in(pairs)):
            raise ConfigError(
                f'data.recode: {rule!r} is not of the form "COLUMN: OLD=NEW, OLD=NEW" or "SITE/COLUMN: OLD=NEW"'
            )


def pairs_in(text: str) -> list[tuple[str, str]]:
    """Old and new values; an entry without "=" has an empty old one.

    >>> pairs_in(" <5=5, ja=yes")
    [('<5', '5'), ('ja', 'yes')]
    """
    halves = [pair.rpartition("=") for pair in _NEXT_PAIR.split(text)]
    return [(as_written(old.strip()), new.strip()) for old, _, new in halves]


def split_code(code: str) -> tuple[str | None, str]:
    """
    >>> split_code("-999"), split_code("age = 99"), split_code("9999.0")
    ((None, '-999'), ('age', '99'), (None, '9999'))
    """
    split = _CODE.fullmatch(code)
    column, value = (None, code) if split is None else split.group("column", "value")
    return column, as_written(value)


def as_written(value: str) -> str:
    """A value in the spelling of its cell: numbers as one would type them, true and false as booleans."""
    parsed = parse(value)
    return value if parsed is None or isinstance(parsed, str) else spelled(parsed, isinstance(parsed, bool))


def spelled(number: float, boolean: bool = False) -> str:
    """
    >>> spelled(3.0), spelled(0.5), spelled(1.0, boolean=True)
    ('3', '0.5', 'True')
    """
    if boolean:
        return str(bool(number))
    return str(int(number)) if float(number).is_integer() else repr(float(number))


def parse(cell: Any) -> Value | None:
    """What a cell says: a boolean, a number or a text; None if it is missing."""
    if isinstance(cell, bool | np.bool_):
        return bool(cell)
    if not isinstance(cell, str):
        try:
            return float(cell)
        except OverflowError:  # an integer of more than 308 digits
            return math.inf
    text = cell.strip()
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if not text or text.lower() == "nan":
        return None
    try:
        # Python reads 1_000 as a number, but in a table it is text.
        return text if "_" in text else float(text)
    except ValueError:
        return text
