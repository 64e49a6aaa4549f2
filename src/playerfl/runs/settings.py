"""Settings: what every option of a run means and allows, read from the classes that define it."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import textwrap
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from playerfl.errors import PlayerflError

QUESTIONS = {
    "layers": "Which layers do the sites share?",
    "method": "How does the method work?",
    "budget": "Does every method get the same chance?",
    "training": "How does a site learn?",
    "sites": "How much do the sites differ?",
    "data": "What is predicted, and from what?",
    "reported": "Which model is scored, and by what?",
    "chance": "How sure is the answer?",
    "none": "None: only speed, memory and files.",
}
"""The questions of a study that a setting can affect."""

_BY_TABLE = {"training": "training", "data": "data", "algorithm": "method", "study": "budget", "merge": "method"}
_BY_NAME = {
    "layers": "bn_stats tie_policy granularity personal_layers rule threshold fixed_cut sensitivity_mode include_bias "
    "weight_batches embedding_rows max_batches on_no_transition client_weight normalise reduce reference_cut "
    "exclude_reference",
    "budget": "rounds learning_rate local_epochs learning_rates tuning_metric early_stopping",
    "sites": "participation sites partition alpha shards_per_site min_size partition_seed accept_small_sites labels "
    "rows_per_site first_rank last_rank most_per_site unseen unseen_epochs",
    "reported": "eval_point selection metrics positive_class",
    "data": "task model",
    "method": "algorithm algorithms by_algorithm merge",
    "chance": "seed seeds tuning_seeds split split_seed shares data_seed",
    "none": "outcomes device threads trainer confusions name keep_weights seeds_per_group checkpoint_seconds",
}
"""The question by a setting's last name, if it is not that of its table."""


@dataclass(frozen=True)
class Setting:
    """One option of an experiment or study file."""

    name: str
    """With its table, as `--set` takes it: "training.batch_size"."""
    meaning: str
    kind: str
    """Its type in a user's words."""
    allowed: str
    """The allowed values, or nothing if the type says it all."""
    default: Any
    question: str
    """A key of QUESTIONS."""

    @property
    def default_text(self) -> str:
        """The default as it is written in a file; words for the absence of one."""
        return "none" if self.default is None else json.dumps(self.default, default=str, ensure_ascii=False)


def settings_of(kind: type, table: str = "", leave_out: Iterable[str] = ()) -> list[Setting]:
    """The settings that a class of options defines.

    >>> class Options(BaseModel):
    ...     speed: Annotated[float, annotated_types.Gt(0)] = 1.0
    >>> settings_of(Options, "data")[0].name, settings_of(Options, "data")[0].allowed
    ('data.speed', 'above 0')
    """
    return [
        Setting(
            name=f"{table}.{name}" if table and table != "study" else name,
            meaning=meanings(kind).get(name, ""),
            kind=words_for(annotation),
            allowed=bounds_of((annotation, *metadata)) or _tried_bounds(kind, name, annotation),
            default=default,
            question=question_of(name, table),
        )
        for name, annotation, metadata, default in _fields(kind)
        if name not in leave_out
    ]


def question_of(name: str, table: str) -> str:
    """The question that a setting affects; each table has a default, except the experiment itself."""
    return next((question for question, known in _BY_NAME.items() if name in known.split()), _BY_TABLE.get(table, ""))


def _fields(kind: type) -> Iterator[tuple[str, Any, tuple[Any, ...], Any]]:
    """Name, type, constraints and default of every field."""
    if issubclass(kind, BaseModel):
        for name, field in kind.model_fields.items():
            yield name, field.annotation, tuple(field.metadata), _default(field)
        return
    hints = get_type_hints(kind, include_extras=True)
    for option in dataclasses.fields(kind):  # type: ignore[arg-type]
        yield option.name, hints[option.name], (), option.default


def _default(field: FieldInfo) -> Any:
    return "required" if field.is_required() else field.get_default(call_default_factory=True)


def meanings(kind: type) -> dict[str, str]:
    """The sentences below the fields of a class; a field without one inherits that of its base."""
    by_field: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("playerfl."):
            by_field |= _sentences(base)
    return by_field


@cache
def _sentences(kind: type) -> dict[str, str]:
    try:
        body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    except OSError:  # a class that was typed in has no source
        return {}
    assert isinstance(body, ast.ClassDef)
    return {
        field.target.id: " ".join(sentence.value.value.split())
        for field, sentence in zip(body.body, body.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(sentence, ast.Expr)
        and isinstance(sentence.value, ast.Constant)
        and isinstance(sentence.value.value, str)
    }


_WORDS = {
    bool: "true or false", int: "integer", float: "number", str: "text", dict: "table", type(None): "none", Any: "any",
}  # fmt: skip


def words_for(annotation: Any) -> str:
    """A type in a user's words.

    >>> words_for(float | None), words_for(Literal["a", "b"]), words_for(tuple[float, float]), words_for(list[int])
    ('number, or none', '"a" or "b"', 'list of 2: number', 'list: integer')
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return words_for(arguments[0])
    if origin is Literal:
        return _either([json.dumps(value) for value in arguments])
    if origin in (Union, types.UnionType):
        words = [words_for(argument) for argument in arguments if argument is not type(None)]
        return _either(words) + (", or none" if type(None) in arguments else "")
    if origin in (list, tuple):
        inner = list(dict.fromkeys(words_for(argument) for argument in arguments if argument is not Ellipsis))
        length = f" of {len(arguments)}" if origin is tuple and Ellipsis not in arguments else ""
        return f"list{length}: {_either(inner)}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "table"
    return _WORDS.get(origin or annotation, getattr(annotation, "__name__", str(annotation)))


def _either(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def bounds_of(parts: Iterable[Any]) -> str:
    """The limits in a field's type and constraints.

    >>> bounds_of([tuple[Annotated[float, annotated_types.Ge(0)], float], annotated_types.Lt(1)])
    'at least 0, below 1'
    """
    limits = {
        f"{words} {value:,}" if isinstance(value, int) else f"{words} {value:g}": None
        for part in parts
        for constraint in _constraints(part)
        for words, attribute in (("at least", "ge"), ("above", "gt"), ("at most", "le"), ("below", "lt"))
        if (value := getattr(constraint, attribute, None)) is not None
    }
    return ", ".join(limits)


def _tried_bounds(kind: type, name: str, annotation: Any) -> str:
    """The limits of a number that a class checks in its own code: found by trying values on both sides."""
    numbers = {int, float} & {annotation, *get_args(annotation)}
    if issubclass(kind, BaseModel) or not numbers:
        return ""

    def accepts(value: float) -> bool:
        try:
            kind(**{name: value})
        except PlayerflError:
            return False
        return True

    if numbers == {int}:
        return next((f"at least {low}" for low in (0, 1) if accepts(low) and not accepts(low - 1)), "")
    tiny = 1e-9
    low = "at least 0" if accepts(0.0) else "above 0" if accepts(tiny) else ""
    high = "at most 1" if accepts(1.0) else "below 1" if accepts(1 - tiny) else ""
    bounds = (low if not accepts(-tiny) else "", high if not accepts(1 + tiny) else "")
    return ", ".join(filter(None, bounds))


def _constraints(part: Any) -> Iterator[Any]:
    """The constraints in a type, however deep; anything else is one itself."""
    if get_origin(part) is Annotated:
        inner, *metadata = get_args(part)
        for piece in (inner, *metadata):
            yield from _constraints(piece)
    elif get_origin(part) is not None:
        for argument in get_args(part):
            yield from _constraints(argument)
    elif isinstance(part, annotated_types.BaseMetadata | annotated_types.GroupedMetadata | FieldInfo):
        yield from part.metadata if isinstance(part, FieldInfo) else (part,)
