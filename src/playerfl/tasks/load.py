"""load_task: a task from what a user types: a bundled name, a folder, FILE.py:NAME or package.module:NAME."""

from __future__ import annotations

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
    """The task a text stands for; its name is that text, so that a run can be resumed by it.

    >>> load_task("digits").name
    'digits'
    """
    if not isinstance(text, str):
        raise ConfigError(f"task must be a text, not {text!r}")
    if text in TASKS:
        return TASKS[text]
    path = Path(text)
    if text and _is(path.is_dir):
        return replace(folder_task(path), name=text)
    place, colon, name = text.rpartition(":")
    if colon and place.endswith(".py"):
        return replace(_from_file(place, name), name=text)
    if colon and all(part.isidentifier() for part in place.split(".")):
        return replace(_from_module(place, name), name=text)
    if text.endswith(".py"):
        raise ConfigError(f"{text} may hold several things; name the task in it, as in {text}:task")
    if _is(path.is_file):
        raise ConfigError(f"{text} is a file; give the folder that holds one file per site")
    raise ConfigError(f"{one_of(text, TASKS, 'task')}, or a folder, or FILE.py:NAME")


def _is(question: Callable[[], bool]) -> bool:
    try:
        return question()
    except (OSError, ValueError):
        # A text that cannot be a path: too long, or with a zero byte.
        return False


def _from_file(place: str, name: str) -> Task:
    file = Path(place)
    if not _is(file.is_file):
        raise ConfigError(f"there is no file {place}; give the path of a Python file, as in mytask.py:task")
    try:
        stamp = file.stat()
    except OSError as problem:
        raise ConfigError(f"cannot read {place}: {problem.strerror or problem}") from problem
    return _task_in_file(file.resolve(), (stamp.st_mtime_ns, stamp.st_size), place, name)


@lru_cache(maxsize=16)
def _task_in_file(file: Path, stamp: tuple[int, int], place: str, name: str) -> Task:
    """Looked up again only if the file has changed: side by side, several runs ask for the same task."""
    with _neighbours_importable(file.parent):
        module = _run_file(file, place)
        return _task_called(module, name, place, str(file))


def _run_file(file: Path, place: str) -> ModuleType:
    # Under a name of its own, so that it hides no installed module, and without leaving a __pycache__ beside it.
    module = ModuleType(f"playerfl_own_{seed_for(str(file)):x}")
    module.__file__ = str(file)
    sys.modules[module.__name__] = module
    try:
        exec(compile(file.read_bytes(), str(file), "exec"), module.__dict__)
    except BaseException as problem:
        del sys.modules[module.__name__]
        if isinstance(problem, PlayerflError | KeyboardInterrupt):
            raise
        raise _failed(f"importing {place}", problem, str(file)) from problem
    return module


@contextmanager
def _neighbours_importable(folder: Path) -> Iterator[None]:
    """Lets a file import those beside it; last in the path, so that they hide nothing."""
    entry = str(folder)
    sys.path.append(entry)
    try:
        yield
    finally:
        sys.path.reverse()
        sys.path.remove(entry)
        sys.path.reverse()


def _from_module(place: str, name: str) -> Task:
    try:
        module = import_module(place)
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
    return _task_called(module, name, place, getattr(module, "__file__", None))


def _task_called(module: ModuleType, name: str, place: str, file: str | None) -> Task:
    found = getattr(module, name, None)
    if found is None:
        raise ConfigError(_absent(name, module, place))
    if inspect.isfunction(found):
        found = _called(found, f"{place}:{name}", file)
    if not isinstance(found, Task):
        raise ConfigError(
            f"{place}:{name} is {_described(found)}; a playerfl.Task is needed (playerfl.own_task makes one), or a "
            "function without arguments that returns one"
        )
    return found


def _called(make: Callable[[], Any], what: str, file: str | None) -> Any:
    try:
        inspect.signature(make).bind()
    except TypeError as problem:
        raise ConfigError(f"{what} cannot be called without arguments: {problem}") from problem
    try:
        return make()
    except (PlayerflError, KeyboardInterrupt):
        raise
    except BaseException as problem:
        raise _failed(f"calling {what}", problem, file) from problem


def _absent(name: str, module: ModuleType, place: str) -> str:
    public = [key for key, value in vars(module).items() if not key.startswith("_") and _may_be_meant(value, module)]
    close = get_close_matches(name, public, n=1, cutoff=0.6)
    hint = f"; did you mean {close[0]!r}?" if close else ";"
    return f"{place} has no {name!r}{hint} it has {', '.join(sorted(public)) or 'no task'}"


def _may_be_meant(value: object, module: ModuleType) -> bool:
    """Tasks, and functions that are written there rather than imported."""
    return isinstance(value, Task) or (inspect.isfunction(value) and value.__module__ == module.__name__)


def _described(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"of type {type(value).__name__}"


def _failed(what: str, problem: BaseException, file: str | None) -> ConfigError:
    """One sentence for an exception in somebody else's code: type, message, and the last line of that file."""
    lines = [frame.lineno for frame in traceback.extract_tb(problem.__traceback__) if frame.filename == file]
    if isinstance(problem, SyntaxError) and problem.filename == file:
        lines.append(problem.lineno)
    where = f" in line {lines[-1]}" if lines else ""
    message = problem.msg if isinstance(problem, SyntaxError) else str(problem)
    said = " ".join(message.split())
    return ConfigError(f"{what} failed{where}: {type(problem).__name__}{': ' if said else ''}{said}")
