"""The models, losses and sites a user names as MODULE:NAME or FILE.py:NAME."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import nn

from playerfl.data.examples import tensors_in
from playerfl.errors import ConfigError, DataError
from playerfl.layers.derive import call_model
from playerfl.layers.wrappers import unwrapped
from playerfl.learning.losses import logits_of
from playerfl.seeding import seeded_rng
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


def with_model(task: Task, model: str | None) -> Task:
    """The task with the model that FILE.py:NAME builds instead of its own; the task itself if there is none.

    The function may take `inputs` and `outputs`: the shape of one example (a number for a row of a table, else a
    tuple) and the number of outputs the task needs.
    """
    if model is None:
        return task
    build = load_object(check_reference(model, "model"))
    if isinstance(build, Task):
        raise ConfigError(f"{model} is a task, not a model; give it as the task")
    if isinstance(build, nn.Module):
        raise ConfigError(f"{model} is a model; give a function that builds it: every seed starts from a new one")
    if not callable(build):
        raise ConfigError(
            f"{model} is of type {type(build).__name__}; it must be a function that returns a torch model"
        )
    parameters = inspect.signature(build).parameters
    wanted = sorted({"inputs", "outputs"} & parameters.keys())
    needs = cache(lambda options: _needs(task, options))

    def build_model(options: Any) -> nn.Module:
        try:
            needed = needs(options) if wanted else {}
        except DataError:
            # A server has no data; if its sizes differ from the sites', so do the fingerprints of the models.
            if any(parameters[name].default is inspect.Parameter.empty for name in wanted):
                raise
            needed = {}
        return built_model(build, model, **{name: needed[name] for name in wanted if name in needed})

    return replace(
        task,
        build_model=build_model,
        adapt=(lambda options: with_model(task.for_options(options), model)) if task.adapt else None,
    )


def _needs(task: Task, options: Any) -> dict[str, Any]:
    """What a model for this task must read and return."""
    adapted = task.for_options(options)
    sites = adapted.load_sites(options)
    inputs, _ = next(iter(sites[min(sites)].train.batches(2)))
    # Inside a seeded context of its own: a user's model must not depend on whether the task's was built before it.
    with seeded_rng(0), torch.no_grad():
        outputs = logits_of(call_model(adapted.build_model(options).eval(), inputs)).shape[-1]
    shapes = [tuple(tensor.shape[1:]) for tensor in tensors_in(inputs)]
    if len(shapes) > 1:
        raise ConfigError(
            f"task {task.name!r} has {len(shapes)} inputs per example, so a model for it cannot ask for `inputs`; "
            "write their sizes into the model's function"
        )
    return {"inputs": shapes[0][0] if len(shapes[0]) == 1 else shapes[0], "outputs": outputs}


def built_model(build: Callable[..., Any], what: str, **arguments: Any) -> nn.Module:
    """Calls a user's function and checks that it returns a model."""
    model = call_object(build, what, **arguments)
    if not isinstance(model, nn.Module):
        raise ConfigError(f"{what} returned {type(model).__name__}; it must return a torch model")
    return unwrapped(model)


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
