"""Resolves a user's name for a task: a bundled task, a folder, FILE.py:NAME or package.module:NAME."""

from __future__ import annotations

import hashlib
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from difflib import get_close_matches
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from playerfl.errors import ConfigError, PlayerflError, one_of
from playerfl.seeding import seed_for
from playerfl.tasks import TASKS
from playerfl.tasks.folder import folder_task
from playerfl.tasks.task import Task


def load_task(text: str) -> Task:
    """The task that a text names; it is named after that text, so that a run can be resumed.

    >>> load_task("digits").name
    'digits'
    """
    if not isinstance(text, str):
        raise ConfigError(f"task must be a string, not {text!r}")
    if text in TASKS:
        return TASKS[text]
    path = Path(text)
    if text and _is(path.is_dir):
        return replace(folder_task(path), name=text)
    if names_object(text):
        return replace(_as_task(load_object(text), text), name=text)
    if text.endswith(".py"):
        raise ConfigError(f"{text} is a Python file; name the task in it, as in {text}:task")
    if _is(path.is_file):
        raise ConfigError(f"{text} is a file; give a folder with one file per site")
    raise ConfigError(f"{one_of(text, TASKS, 'task')}, or a folder, or FILE.py:NAME")


def _is(question: Callable[[], bool]) -> bool:
    try:
        return question()
    except (OSError, ValueError):
        # Not a possible path: too long, or with a null byte.
        return False


def names_object(text: str) -> bool:
    """Whether a text has the form FILE.py:NAME or package.module:NAME.

    >>> names_object("mymodule:make_model"), names_object("heart")
    (True, False)
    """
    place, colon, _ = text.rpartition(":")
    return bool(colon) and (place.endswith(".py") or all(part.isidentifier() for part in place.split(".")))


def load_object(text: str) -> Any:
    """The object called NAME in FILE.py or in an importable module; modules in the working directory are importable."""
    place, _, name = text.rpartition(":")
    if not place.endswith(".py"):
        return _attribute(name, _import(place), place)
    file = Path(place)
    if not _is(file.is_file):
        raise ConfigError(
            f"there is no file {place} in {Path.cwd()}; give the path of a Python file, as in mytask.py:task"
        )
    try:
        stamp = file.stat()
    except OSError as problem:
        raise ConfigError(f"cannot read {place}: {problem.strerror or problem}") from problem
    return _attribute(name, _module_of_file(file.resolve(), (stamp.st_mtime_ns, stamp.st_size), place), place)


def code_hash(text: str) -> str | None:
    """A fingerprint of the file that FILE.py:NAME or module:NAME names; it does not cover what that file imports.

    >>> code_hash("heart") is None, len(code_hash("playerfl.tasks.bundled.heart:TASK"))
    (True, 32)
    """
    if not names_object(text):
        return None
    place, _, _ = text.rpartition(":")
    file = place if place.endswith(".py") else _import(place).__file__
    return hashlib.blake2b(Path(file).read_bytes(), digest_size=16).hexdigest() if file else None


def call_object(make: Callable[..., Any], what: str, **arguments: Any) -> Any:
    """Calls a user's function; reports failures in one sentence."""
    try:
        inspect.signature(make).bind(**arguments)
    except TypeError as problem:
        given = f"with {' and '.join(arguments)} only" if arguments else "without arguments"
        raise ConfigError(
            f"{what} cannot be called {given}: {problem}; give a function that sets the rest itself"
        ) from problem
    try:
        file = inspect.getsourcefile(make)
    except TypeError:
        file = None
    try:
        with _neighbours_importable(Path(file).parent if file else Path.cwd()):
            return make(**arguments)
    except (PlayerflError, KeyboardInterrupt):
        raise
    except BaseException as problem:
        raise _failed(f"calling {what}", problem, file) from problem


@lru_cache(maxsize=16)
def _module_of_file(file: Path, stamp: tuple[int, int], place: str) -> ModuleType:
    """Runs a file again only after it has changed: parallel runs ask for the same task."""
    # With a unique name, so that it hides no installed module; and without leaving a __pycache__ next to it.
    module = ModuleType(f"playerfl_own_{seed_for(str(file)):x}")
    module.__file__ = str(file)
    sys.modules[module.__name__] = module
    try:
        with _neighbours_importable(file.parent):
            exec(compile(file.read_bytes(), str(file), "exec"), module.__dict__)
    except BaseException as problem:
        del sys.modules[module.__name__]
        if isinstance(problem, PlayerflError | KeyboardInterrupt):
            raise
        raise _failed(f"importing {place}", problem, str(file)) from problem
    return module


@contextmanager
def _neighbours_importable(folder: Path) -> Iterator[None]:
    """Lets a file import its neighbours; they come last in the path, so that they hide nothing."""
    entry = str(folder)
    sys.path.append(entry)
    try:
        yield
    finally:
        sys.path.reverse()
        sys.path.remove(entry)
        sys.path.reverse()


def _import(place: str) -> ModuleType:
    try:
        with _neighbours_importable(Path.cwd()):
            return import_module(place)
    except (PlayerflError, KeyboardInterrupt):
        raise
    except ModuleNotFoundError as problem:
        if problem.name is not None and f"{place}.".startswith(f"{problem.name}."):
            raise ConfigError(
                f"there is no module {place}; install it, or give its file, as in mytask.py:task"
            ) from problem
        raise _failed(f"importing {place}", problem, None) from problem
    except BaseException as problem:
        raise _failed(f"importing {place}", problem, None) from problem


def _attribute(name: str, module: ModuleType, place: str) -> Any:
    named = getattr(module, name, None)
    if not name:
        raise ConfigError(f"{place}: lacks a name; write it after the colon, as in mytask.py:task")
    if named is None:
        public = [key for key, value in vars(module).items() if key[0] != "_" and _may_be_meant(value, module)]
        close = get_close_matches(name, public, n=1, cutoff=0.6)
        hint = f"; did you mean {close[0]!r}?" if close else ";"
        raise ConfigError(f"{place} has no {name!r}{hint} it has {', '.join(sorted(public)) or 'no task'}")
    return named


@lru_cache(maxsize=16)
def _made_by(make: Callable[[], Any], what: str) -> Any:
    """Calls a function of an unchanged file once, however many runs ask for its task."""
    return call_object(make, what)


def _as_task(named: Any, what: str) -> Task:
    task = _made_by(named, what) if inspect.isfunction(named) else named
    if not isinstance(task, Task):
        described = f"the class {task.__name__}" if isinstance(task, type) else f"of type {type(task).__name__}"
        raise ConfigError(
            f"{what} is {described}; it must be a playerfl.Task (playerfl.own_task makes one), or a "
            "function without arguments that returns one"
        )
    return task


def _may_be_meant(value: object, module: ModuleType) -> bool:
    """Whether it is a task, or a function that the module itself defines."""
    return isinstance(value, Task) or (inspect.isfunction(value) and value.__module__ == module.__name__)


def _failed(what: str, problem: BaseException, file: str | None) -> ConfigError:
    """One sentence for an exception in the user's code: its type, its message, and the line in the user's file."""
    lines = [frame.lineno for frame in traceback.extract_tb(problem.__traceback__) if frame.filename == file]
    if isinstance(problem, SyntaxError) and problem.filename == file:
        lines.append(problem.lineno)
    where = f" on line {lines[-1]}" if lines else ""
    message = problem.msg if isinstance(problem, SyntaxError) else str(problem)
    reason = " ".join(message.split())
    return ConfigError(f"{what} failed{where}: {type(problem).__name__}{': ' if reason else ''}{reason}")
