"""Tables of settings: reading them from TOML, changing single settings, and checking them against a schema."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from playerfl.errors import ConfigError, one_of

# The settings of a folder that list columns, values or sites; a data check suggests them one by one.
_LISTED = {f"data.{name}" for name in ("category_columns", "drop_columns", "missing_codes", "recode", "skip_sites")}
_REASONS = {
    "greater_than_equal": "at least {ge}",
    "greater_than": "above {gt}",
    "less_than_equal": "at most {le}",
    "less_than": "below {lt}",
    "literal_error": "{expected}",
    "finite_number": "a finite number",
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "an integer"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    "string_type": "a text",
    "list_type": "a list",
    "tuple_type": "a list",
    **dict.fromkeys(("dict_type", "mapping_type", "model_type", "model_attributes_type"), "a table"),
}
"""What a value must be, by pydantic's type of error; others keep pydantic's own words."""
Model = TypeVar("Model", bound=BaseModel)


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise ConfigError(f"cannot read {path}: {problem.strerror or problem}") from problem
    except (ValueError, RecursionError) as problem:
        raise ConfigError(f"{path} is not a TOML file: {problem}") from problem


def parse_setting(assignment: str) -> tuple[str, Any]:
    """Reads `key=value` with the value in TOML syntax; anything else is taken as a string.

    >>> parse_setting("training.learning_rate=0.01"), parse_setting("algorithm.name=fedavg")
    (('training.learning_rate', 0.01), ('algorithm.name', 'fedavg'))
    """
    key, equals, text = assignment.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"cannot read the setting {assignment!r}; write it as key=value, e.g. training.batch_size=16")
    try:
        return key.strip(), tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return key.strip(), text.strip()


def with_settings(table: Mapping[str, Any], settings: Mapping[str, Any] | Iterable[str]) -> dict[str, Any]:
    """A table with more settings, given as values by key or as texts `key=value`. Dots in a key reach into tables.

    >>> with_settings({"rounds": 3}, {"training.learning_rate": 0.01})
    {'rounds': 3, 'training': {'learning_rate': 0.01}}
    >>> with_settings({"rounds": 3}, ["rounds=4", "algorithm.name=fedavg"])
    {'rounds': 4, 'algorithm': {'name': 'fedavg'}}
    """
    for key, value in settings.items() if isinstance(settings, Mapping) else _together(map(parse_setting, settings)):
        nested: Any = value
        for part in reversed(key.split(".")):
            nested = {part: nested}
        table = merged(table, nested)
    return dict(table)


def _together(settings: Iterable[tuple[str, Any]]) -> Iterable[tuple[str, Any]]:
    """Of a setting that is given twice, the last value counts; those of a setting that lists values are joined.

    >>> dict(_together([("rounds", 3), ("rounds", 4), ("data.drop_columns", "a"), ("data.drop_columns", ["b", "c"])]))
    {'rounds': 4, 'data.drop_columns': ['a', 'b', 'c']}
    """
    known: dict[str, Any] = {}
    for key, value in settings:
        if key in _LISTED and key in known:
            value = [one for given in (known[key], value) for one in (given if isinstance(given, list) else [given])]
        known[key] = value
    return known.items()


def merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Two tables merged recursively; the second one wins.

    >>> merged({"rounds": 3, "training": {"eps": 1}}, {"training": {"momentum": 2}})
    {'rounds': 3, 'training': {'eps': 1, 'momentum': 2}}
    """
    both = dict(first)
    for key, value in second.items():
        before = both.get(key)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            both[key] = merged(before, value)
        else:
            both[key] = value
    return both


def validated(schema: type[Model], values: Mapping[str, Any], where: str) -> Model:
    """The typed table; ConfigError about the first mistake in it."""
    try:
        return schema.model_validate(dict(values))
    except ValidationError as problem:
        raise ConfigError(_explained(problem, schema, where)) from problem


def _explained(problem: ValidationError, schema: type[BaseModel], where: str) -> str:
    """The first mistake in one sentence."""
    error = problem.errors()[0]
    path = [str(part) for part in error["loc"]]
    place = f" in {where}" if where else ""
    if error["type"] == "extra_forbidden":
        holder: Any = schema
        for part in path[:-1]:
            holder = holder.model_fields[part].annotation
        unknown = f"unknown key {path[-1]!r}"
        return one_of(path[-1], holder.model_fields, "key").replace(unknown, unknown + place, 1)
    if error["type"] == "missing":
        return f"{'.'.join(path)} is missing{place}"
    reason = (error["msg"][0].lower() + error["msg"][1:]).removeprefix("value error, ").replace("input", "it")
    if error["type"] in _REASONS:
        reason = f"it must be {_REASONS[error['type']].format_map(error.get('ctx', {}))}"
    if error["type"] == "value_error" and not path:
        return reason + place
    return f"{'.'.join(path)} = {error['input']!r}{place} is not allowed: {reason}"
