"""agreed_schema: the columns, classes and units of a job, decided by the server's template or else by most sites."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from playerfl.data.schema import Schema
from playerfl.federation.messages import SiteId

Choice = TypeVar("Choice", bound=Hashable)


def agreed_schema(own: Schema | None, stated: Mapping[SiteId, Schema]) -> Schema | None:
    """The schema that all sites must have; None if nobody has stated one.

    No single site decides: one that speaks first could have all others refused. Units are never in the server's
    template, so sites vote on them in any case; a site that states none agrees with every unit.

    >>> from playerfl.data.schema import ColumnSchema
    >>> age, bp = Schema((ColumnSchema("age", "number"),)), Schema((ColumnSchema("bp", "number", unit="mmHg"),))
    >>> agreed_schema(None, {"a": age, "b": bp, "c": bp.with_units({"bp": ""})}) == bp
    True
    >>> agreed_schema(age, {"b": bp, "c": bp}) == age
    True
    """
    forms = {site: _without_units(schema) for site, schema in sorted(stated.items())}
    agreed = own or _most_common(forms.values())
    if agreed is None:
        return None
    alike = [stated[site] for site, form in forms.items() if form == _without_units(agreed)]
    units = {
        column.name: _most_common(schema.columns[place].unit for schema in alike if schema.columns[place].unit)
        for place, column in enumerate(agreed.columns)
    }
    return agreed.with_units({name: unit for name, unit in units.items() if unit})


def _without_units(schema: Schema) -> Schema:
    return replace(schema, columns=tuple(replace(column, unit="") for column in schema.columns))


def _most_common(choices: Iterable[Choice]) -> Choice | None:
    """The first one of those that are named most often."""
    counted = Counter(choices).most_common(1)
    return counted[0][0] if counted else None
