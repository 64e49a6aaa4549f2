"""A model and its sites as a user names them: MODULE:NAME or FILE.py:NAME, or a task."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from playerfl.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn


def task_or_builder(target: str) -> Any:
    """A task, or what the user named: a function or class that builds a model."""
    import inspect

    from torch import nn

    from playerfl.tasks.load import call_object, load_object, load_task, names_object
    from playerfl.tasks.task import Task

    if not names_object(target):
        return load_task(target)
    found = load_object(target)
    if isinstance(found, Task):
        return load_task(target)
    if inspect.isfunction(found):
        made = call_object(found, target)
        if isinstance(made, Task):
            return load_task(target)
        if isinstance(made, nn.Module):
            return found
        raise ConfigError(f"{target} returned {type(made).__name__}; a function that builds a torch model is needed")
    if isinstance(found, type) and issubclass(found, nn.Module):
        return found
    if isinstance(found, nn.Module):
        raise ConfigError(f"{target} is a model; give a function that builds it: every seed starts from a new one")
    raise ConfigError(f"{target} is of type {type(found).__name__}; a function that builds a torch model is needed")


def built_model(make: Callable[[], Any], what: str) -> nn.Module:
    """What a user's function makes, if it is a model."""
    from torch import nn

    from playerfl.tasks.load import call_object

    model = call_object(make, what)
    if not isinstance(model, nn.Module):
        raise ConfigError(f"{what} returned {type(model).__name__}; a torch model is needed")
    return model


def named_place(text: str, option: str) -> str:
    """The same, if it says where something is."""
    from playerfl.tasks.load import names_object

    if not names_object(text):
        raise ConfigError(f"{option} {text} is no place; write it as mymodule:name or file.py:name")
    return text


def loaded_sites(data: str) -> Any:
    """What a user's function returns, or a mapping that is there already."""
    from playerfl.tasks.load import call_object, load_object

    found = load_object(named_place(data, "--data"))
    sites = found if isinstance(found, Mapping | list | tuple) else None
    if sites is None and callable(found):
        sites = call_object(found, data)
    if not isinstance(sites, Mapping | list | tuple) or not sites:
        raise ConfigError(
            f"{data} gives {type(sites).__name__ if sites is None or sites else 'no site'}; a mapping from site names "
            "to (inputs, targets), a Dataset or a DataLoader is needed"
        )
    return sites


def example_rows(data: str) -> Any:
    """Two rows of a site's inputs."""
    from torch import nn

    from playerfl.probe.measure import own_model_task

    task = own_model_task(nn.Identity, loaded_sites(data))
    sites = task.load_sites(task.options())
    return next(iter(sites[min(sites)].train.batches(2)))[0]


def model_of(target: str) -> nn.Module:
    """The model behind a target, with random weights: what is asked of it are names and sizes."""
    from playerfl.runs.setup import seeded_model
    from playerfl.tasks.task import Task

    found = task_or_builder(target)
    return seeded_model(0, found, found.options()) if isinstance(found, Task) else built_model(found, target)
