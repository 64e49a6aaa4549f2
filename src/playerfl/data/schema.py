"""Schema: what a site's columns and classes are called, so that sites with different ones do not train together."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

MOST_COLUMNS = 100_000
LONGEST_NAME = 500


@dataclass(frozen=True)
class ColumnSchema:
    """One input column. Categories are compared by a fingerprint: the texts themselves may reveal too much."""

    name: str
    kind: str
    categories: str = ""
    """How many there are, and a fingerprint of them in their order; "" if the column has none."""
    unit: str = ""
    """Compared where both parties state one."""


@dataclass(frozen=True)
class Schema:
    """The input columns in their order, and the target with its classes in their order."""

    columns: tuple[ColumnSchema, ...]
    target: str = ""
    classes: tuple[str, ...] = ()
    """Empty if the target is a number."""

    def with_units(self, units: Mapping[str, str]) -> Schema:
        """The same schema with the units of some columns."""
        return replace(self, columns=tuple(replace(c, unit=units.get(c.name, c.unit)) for c in self.columns))

    def to_json(self) -> dict[str, Any]:
        return {
            "columns": [[c.name, c.kind, c.categories, c.unit] for c in self.columns],
            "target": self.target,
            "classes": list(self.classes),
        }

    @classmethod
    def from_json(cls, table: Any) -> Schema:
        """The inverse of `to_json`; ValueError for anything else.

        >>> schema = Schema((ColumnSchema("age", "number"),), "sick", ("no", "yes"))
        >>> Schema.from_json(schema.to_json()) == schema
        True
        """
        try:
            rows, target, classes = table["columns"], table["target"], table["classes"]
            texts = [target, *classes, *(text for row in rows for text in row)]
            lists = isinstance(rows, list) and isinstance(classes, list)
            if not lists or len(rows) > MOST_COLUMNS or any(len(row) != 4 for row in rows):
                raise ValueError("a schema's columns have four fields each")
            if any(type(text) is not str or len(text) > LONGEST_NAME for text in texts):
                raise ValueError(f"a schema holds texts of at most {LONGEST_NAME} characters")
        except (KeyError, TypeError) as problem:
            raise ValueError(f"not a schema ({type(problem).__name__})") from problem
        return cls(tuple(ColumnSchema(*row) for row in rows), target, tuple(classes))

    def to_text(self) -> str:
        return json.dumps(self.to_json(), ensure_ascii=False, separators=(",", ":"))

    def difference(self, other: Schema, here: str, there: str) -> str | None:
        """The first difference in words, or None. `here` and `there` name the two parties.

        >>> north = Schema((ColumnSchema("age", "number"), ColumnSchema("bp", "number")), "sick", ("no", "yes"))
        >>> south = replace(north, columns=north.columns[::-1])
        >>> north.difference(south, "north", "south")
        "column 1 is 'age' at north, but 'bp' at south; they have the same columns in a different order"
        >>> north.difference(replace(north, classes=("yes", "no")), "north", "south")
        "class 0 is 'no' at north, but 'yes' at south; they have the same classes in a different order"
        """
        names, others = [c.name for c in self.columns], [c.name for c in other.columns]
        reason = _listed(names, others, here, there, "column", first=1)
        if reason:
            return reason
        for mine, theirs in zip(self.columns, other.columns, strict=True):
            if mine.kind != theirs.kind:
                return f"column {mine.name!r} is of the kind {mine.kind!r} at {here}, but {theirs.kind!r} at {there}"
            if mine.unit and theirs.unit and mine.unit != theirs.unit:
                return f"column {mine.name!r} is in the unit {mine.unit!r} at {here}, but {theirs.unit!r} at {there}"
            if mine.categories != theirs.categories:
                counts = [text.partition(" ")[0] or "no" for text in (mine.categories, theirs.categories)]
                return (
                    f"column {mine.name!r} has different categories: {counts[0]} at {here}, {counts[1]} at {there}; "
                    "put the same template table with all of them into every party's folder"
                )
        if self.target != other.target:
            return f"the target is {self.target!r} at {here}, but {other.target!r} at {there}"
        return _listed(self.classes, other.classes, here, there, "class", first=0)


def categories_fingerprint(categories: Sequence[str]) -> str:
    """The number of categories and a fingerprint of them, in their order.

    >>> categories_fingerprint(["a", "b"]) == categories_fingerprint(["b", "a"])
    False
    """
    text = json.dumps(list(categories), ensure_ascii=False)
    return f"{len(categories)} {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _listed(mine: Sequence[str], theirs: Sequence[str], here: str, there: str, what: str, first: int) -> str | None:
    if list(mine) == list(theirs):
        return None
    ours, other = set(mine), set(theirs)
    missing = [name for name in theirs if name not in ours]
    extra = [name for name in mine if name not in other]
    if missing and extra:
        return f"{here} has the {what} {extra[0]!r}, but {there} has {missing[0]!r}"
    if missing:
        return f"{there} has the {what} {missing[0]!r}, which {here} does not have"
    if extra:
        return f"{here} has the {what} {extra[0]!r}, which {there} does not have"
    place = next(i for i, (one, two) in enumerate(zip(mine, theirs, strict=False)) if one != two)
    plural = "classes" if what == "class" else f"{what}s"
    return (
        f"{what} {place + first} is {mine[place]!r} at {here}, but {theirs[place]!r} at {there}; they have the same "
        f"{plural} in a different order"
    )
