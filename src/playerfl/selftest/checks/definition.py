"""How the class is written: a frozen dataclass whose fields are all the hyper-parameters that it reads."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from contextlib import suppress
from functools import cached_property
from typing import Any

from playerfl.selftest.subject import BrokenError, Subject, finished


def built_from_defaults(subject: Subject) -> None:
    """It is a frozen dataclass with defaults."""
    kind = subject.kind
    if not kind.__dataclass_params__.frozen:
        raise BrokenError(
            f"{kind.__name__} is not frozen, so it can change while it runs; write @dataclass(frozen=True)"
        )
    annotated = [name for name, kind_of in inspect.get_annotations(kind).items() if "ClassVar" not in str(kind_of)]
    if annotated and "__dataclass_fields__" not in vars(kind):
        raise BrokenError(
            f"{kind.__name__} has no @dataclass(frozen=True) of its own, so {annotated[0]} is not a hyper-parameter"
        )
    required = [
        field.name
        for field in dataclasses.fields(kind)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    if required:
        raise BrokenError(f"{', '.join(required)} has no default; give every hyper-parameter one")


def declares_what_it_reads(subject: Subject) -> None:
    """Every hyper-parameter that it reads is declared."""
    reads = _attributes_read(subject)
    for base in subject.kind.__mro__:
        if not base.__module__.startswith(("playerfl.", "builtins")):
            for name, value in vars(base).items():
                untyped = name not in inspect.get_annotations(base) and _looks_like_a_setting(name, value)
                if untyped and name in reads:
                    raise BrokenError(
                        f"{name} = {value!r} of {base.__name__} has no type, so it is not a hyper-parameter and cannot "
                        f"be set; write {name}: {type(value).__name__} = {value!r}, or ClassVar if it is a constant"
                    )
    missing = [name for name, exists in reads.items() if not exists]
    if missing:
        raise BrokenError(
            f"it reads self.{missing[0]}, which is not declared; add a field with a type and a default, as in "
            f"{missing[0]}: float = 0.1"
        )


def _looks_like_a_setting(name: str, value: object) -> bool:
    code = (property, cached_property, classmethod, staticmethod)
    return not name.startswith("_") and not name.isupper() and not callable(value) and not isinstance(value, code)


def _attributes_read(subject: Subject) -> dict[str, bool]:
    """What a short run reads from the algorithm, and whether it exists; it need not where a default takes its place."""
    reads: dict[str, bool] = {}
    kind = subject.kind

    def read(algorithm: Any, name: str) -> Any:
        try:
            value = kind.__getattribute__(algorithm, name)
        except AttributeError:
            if not name.startswith("__") and not hasattr(kind, "__getattr__"):
                reads[name] = False
            raise
        reads.setdefault(name, True)
        return value

    spy = type(kind.__name__, (kind,), {"__getattribute__": read, "__module__": kind.__module__})
    run = subject.started(rounds=2)
    run.algorithm = copy.copy(run.algorithm)
    object.__setattr__(run.algorithm, "__class__", spy)
    # Whether it runs at all is another check; here only what it has read so far counts.
    with subject.statics.as_imported(), suppress(Exception):
        finished(run)
    return reads
