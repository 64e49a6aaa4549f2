"""The models, losses and sites a user names as MODULE:NAME or FILE.py:NAME."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from playerfl.errors import ConfigError
from playerfl.tasks.load import call_object, load_object, load_task, names_object
from playerfl.tasks.task import Task, unsplit_task


def task_or_builder(target: str) -> Any:
    """A task, or the function or class a user named that builds a model."""
    if not names_object(target):
        return load_task(target)
    named = load_object(target)
    if isinstance(named, Task):
        return load_task(target)
    if inspect.isfunction(named):
        result = call_object(named, target)
        if isinstance(result, Task):
            return load_task(target)
        if isinstance(result, nn.Module):
            return named
        raise ConfigError(
            f"{target} returned {type(result).__name__}; it must be a function that returns a torch model"
        )
    if isinstance(named, type) and issubclass(named, nn.Module):
        return named
    if isinstance(named, nn.Module):
        raise ConfigError(f"{target} is a model; give a function that builds it: every seed starts from a new one")
    raise ConfigError(f"{target} is of type {type(named).__name__}; it must be a function that returns a torch model")


def built_model(build: Callable[[], Any], what: str) -> nn.Module:
    """Calls a user's function and checks that it returns a model."""
    model = call_object(build, what)
    if not isinstance(model, nn.Module):
        raise ConfigError(f"{what} returned {type(model).__name__}; it must return a torch model")
    return model


def check_reference(text: str, option: str) -> str:
    """The text itself, if it has the form MODULE:NAME or FILE.py:NAME."""
    if not names_object(text):
        raise ConfigError(f"{option} {text} does not name an object; write mymodule:name or file.py:name")
    return text


def loaded_sites(data: str) -> Any:
    """The sites a user named: a mapping or list, or a function that returns one."""
    named = load_object(check_reference(data, "--data"))
    sites = named if isinstance(named, Mapping | list | tuple) else None
    if sites is None and callable(named):
        sites = call_object(named, data)
    if not isinstance(sites, Mapping | list | tuple) or not sites:
        raise ConfigError(
            f"{data} gives {type(sites).__name__ if sites is None or sites else 'no sites'}; it must be a mapping from "
            "site names to (inputs, targets), a Dataset or a DataLoader"
        )
    return sites


def example_rows(data: str) -> Any:
    """The inputs of two rows of one site."""
    task = unsplit_task(nn.Identity, loaded_sites(data))
    sites = task.load_sites(task.options())
    return next(iter(sites[min(sites)].train.batches(2)))[0]
