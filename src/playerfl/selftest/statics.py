"""What an algorithm's file holds besides hyper-parameters: globals, class attributes, default arguments.

Sites are other processes than the server, and a resumed run is another process than the one that was killed. So
checks put the file back into the state in which it was imported, as a new process would find it.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import inspect
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
from torch import Tensor

from playerfl.weights import digest

_MISSING = object()


class Statics:
    """The state of an algorithm's module and classes, as it was when this object was made."""

    def __init__(self, kind: type) -> None:
        self._module = sys.modules[kind.__module__]
        # The algorithms of the package share its modules, which hold no state; only foreign bases are looked at.
        foreign = [base for base in kind.__mro__ if not base.__module__.startswith(("playerfl.", "builtins"))]
        own = [v for v in vars(self._module).values() if inspect.isclass(v) and v.__module__ == self._module.__name__]
        self._owners: list[ModuleType | type] = [self._module, *dict.fromkeys([*own, *foreign])]
        self._pristine = {place: _copied(value) for place, value in self._values().items()}
        self._fingerprints = self._now()
        self.touched: list[str] = []
        """What has changed in one of the contexts below, as a user would write its name."""

    @contextmanager
    def as_imported(self) -> Iterator[None]:
        """Puts everything into the state of a new process, and back afterwards."""
        current = self._values()
        for (owner, name), value in self._pristine.items():
            _set(owner, name, _copied(value))
        for owner, name in current.keys() - self._pristine.keys():
            _set(owner, name, _MISSING)
        try:
            yield
        finally:
            now = self._now()
            changed = [_written(*place) for place in now if now[place] != self._fingerprints.get(place)]
            self.touched += [name for name in changed if name not in self.touched]
            for owner, name in self._values().keys() - current.keys():
                _set(owner, name, _MISSING)
            for (owner, name), value in current.items():
                _set(owner, name, value)

    def _values(self) -> dict[tuple[Any, str], Any]:
        """The values that could be state: data in modules and classes, and what functions hold."""
        held: dict[tuple[Any, str], Any] = {}
        for owner in self._owners:
            for name, value in vars(owner).items():
                function = getattr(value, "__func__", value)
                if isinstance(function, FunctionType) and function.__module__ == self._module.__name__:
                    held[function, "__defaults__"] = function.__defaults__
                    held |= {(function, key): attribute for key, attribute in vars(function).items()}
                elif not name.startswith("__") and _is_data(value):
                    held[owner, name] = value
        return held

    def _now(self) -> dict[tuple[Any, str], bytes]:
        return {place: _fingerprint(value) for place, value in self._values().items()}


def _is_data(value: object) -> bool:
    """Whether a global or class attribute is data, rather than code, a module or a type annotation."""
    if isinstance(value, Tensor | np.ndarray | dict | list | set | int | float | str | bytes | tuple | None):
        return True
    code = (type, ModuleType, FunctionType, property, classmethod, staticmethod, functools.cached_property)
    return not isinstance(value, code) and not callable(value) and hasattr(value, "__dict__")


def _copied(value: object) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception:
        return value


def _set(owner: Any, name: str, value: object) -> None:
    if value is not _MISSING:
        setattr(owner, name, value)
    elif name in vars(owner):
        delattr(owner, name)


def _written(owner: Any, name: str) -> str:
    if isinstance(owner, ModuleType):
        return f"the global {name}"
    if name == "__defaults__":
        return f"a default argument of {owner.__qualname__}"
    return f"{owner.__qualname__}.{name}"


def _fingerprint(value: object) -> bytes:
    hashed = hashlib.blake2b(digest_size=16)
    for part in _parts(value, set()):
        hashed.update(part)
    return hashed.digest()


def _parts(value: Any, above: set[int]) -> Iterator[bytes]:
    """What makes up a value; an object that cannot be looked into counts as its identity."""
    yield type(value).__name__.encode()
    if isinstance(value, Tensor):
        yield digest({"": value.detach()}).encode()
    elif isinstance(value, np.ndarray):
        yield f"{value.dtype}{value.shape}".encode() + value.tobytes()
    elif isinstance(value, int | float | str | bytes | None):
        yield repr(value).encode()
    elif id(value) in above:
        yield b"itself"
    elif isinstance(value, Mapping):
        for key, held in value.items():
            yield repr(key).encode()
            yield from _parts(held, above | {id(value)})
    elif isinstance(value, list | tuple | set | frozenset):
        for held in value:
            yield from _parts(held, above | {id(value)})
    elif hasattr(value, "__dict__") and not callable(value):
        yield from _parts(vars(value), above | {id(value)})
    else:
        yield str(id(value)).encode()
