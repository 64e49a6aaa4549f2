"""Layers of a model that does not declare any: one per block, found in a forward pass."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from playerfl.errors import LayerError
from playerfl.layers.adapters import adapted_layers, is_adapted
from playerfl.layers.finding.layers import found_layers
from playerfl.layers.finding.registered import registered_groups
from playerfl.layers.finding.trace import order_of_calls, trace
from playerfl.layers.wrappers import uncompiled

Granularity = Literal["block", "module"]


@dataclass(frozen=True)
class Derived:
    """Layers by name, with their entries, in the order in which data flows, and why each of them is a layer."""

    groups: Sequence[tuple[str, Sequence[str]]]
    reasons: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def call_model(model: nn.Module, inputs: object) -> object:
    """Calls a model with a tensor, a tuple of positional inputs or a mapping of keyword inputs; a model that takes one
    mapping gets it whole."""
    arguments, keywords = call_arguments(model, inputs)
    return model(*arguments, **keywords)


def call_arguments(model: nn.Module, inputs: object) -> tuple[tuple[object, ...], dict[str, object]]:
    """The positional and keyword arguments of a model: a tensor is one argument, a tuple several, and a mapping
    keywords, or one argument if the model takes one mapping."""
    if isinstance(inputs, Mapping):
        return ((inputs,), {}) if _takes_one_mapping(model, inputs) else ((), dict(inputs))
    return (tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)), {}


def arguments_mismatch(model: nn.Module, inputs: object) -> str | None:
    """Why a model's `forward` cannot be called with these inputs; None if its parameters fit them.

    >>> arguments_mismatch(nn.Bilinear(2, 2, 1), {"ids": torch.zeros(1, 2)})
    'a mapping is passed as keyword arguments, forward(ids=…), but Bilinear.forward takes (input1, input2)'
    """
    try:
        signature = inspect.signature(model.forward)
    except (TypeError, ValueError):  # not every callable has one
        return None
    arguments, keywords = call_arguments(model, inputs)
    try:
        signature.bind(*arguments, **keywords)
    except TypeError:
        called = "one tensor is passed, forward(…)"
        if isinstance(inputs, Mapping):
            called = f"a mapping is passed as keyword arguments, forward({', '.join(f'{name}=…' for name in inputs)})"
        elif isinstance(inputs, tuple | list):
            called = f"a tuple is passed as positional arguments, forward({', '.join('…' for _ in inputs)})"
        return f"{called}, but {type(model).__name__}.forward takes ({', '.join(signature.parameters)})"
    return None


def _takes_one_mapping(model: nn.Module, inputs: Mapping[str, object]) -> bool:
    """Whether a forward pass has a single argument, and it is not the name of an input."""
    try:
        signature = inspect.signature(model.forward)
        signature.bind(**inputs)
    except ValueError:  # no signature: a compiled or scripted model
        return False
    except TypeError:
        needed = [
            p for p in signature.parameters.values() if p.default is p.empty and p.kind <= p.POSITIONAL_OR_KEYWORD
        ]
        return len(needed) == 1 and needed[0].name not in inputs
    return False


def derive_layers(model: nn.Module, example: object = None, granularity: Granularity = "block") -> Derived:
    """A layer for each block of a model, as a forward pass with the `example` batch shows them.

    >>> net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 2))
    >>> derive_layers(net, torch.zeros(2, 1, 4, 4)).groups
    [('0', ['0.weight', '0.bias', '1.weight', '1.bias']), ('3', ['3.weight', '3.bias'])]
    """
    reject_lazy(model)
    if next(model.parameters(), None) is None:
        raise LayerError(f"{type(model).__name__} has no parameters, so there are no layers to share")
    derived = _found(model, example, granularity)
    if not is_adapted(model):
        return derived
    groups, reasons = adapted_layers(model, derived.groups, derived.reasons)
    return Derived(groups, reasons, derived.notes)


def _found(model: nn.Module, example: object, granularity: Granularity) -> Derived:
    if example is None:
        return Derived(
            registered_groups(model, {}),
            notes=(
                "layers are guessed from the model's definition, in its order; with an example batch they can be found",
            ),
        )

    def run() -> object:
        return call_model(model, example)

    with _looked_at(model):
        try:
            ranks = order_of_calls(model, run)
        except Exception as problem:
            said = str(problem).strip().splitlines()
            if said and isinstance(problem, KeyError):  # its text is the key alone
                said = [f"KeyError: {said[0]}"]
            why = arguments_mismatch(model, example) or (said[0] if said else type(problem).__name__)
            raise LayerError(f"the model cannot be called with the example batch: {why}") from problem
        try:
            layers = found_layers(trace(model, run, example), model, by_module=granularity == "module")
        except Exception as problem:  # a forward pass that works, but not while its operations are recorded
            reason = str(problem).strip().splitlines() or [type(problem).__name__]
            note = (
                "layers are guessed from the model's definition, in the order of its calls, because its operations "
                f"cannot be recorded ({type(problem).__name__}: {reason[0]}); declare them with layer_groups()"
            )
            return Derived(registered_groups(model, ranks), notes=(note,))
    return Derived(
        [(layer.name, layer.entries) for layer in layers],
        {layer.name: "; ".join([layer.why, *layer.notes]) for layer in layers},
    )


@contextmanager
def _looked_at(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; leaves the model's modes and the random state as they were."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        _evaluating(model)
        with torch.no_grad(), torch.random.fork_rng(), uncompiled(model):
            yield
    finally:
        for module, training in modes:
            module.training = training


def _evaluating(model: nn.Module) -> None:
    try:
        model.eval()
    except NotImplementedError as problem:  # what torch.export makes
        raise LayerError(
            f"{type(model).__name__} cannot be switched to evaluation mode ({problem}); give the Python model that it "
            "was exported from"
        ) from problem


def reject_lazy(model: nn.Module) -> None:
    for path, module in model.named_modules():
        if any(is_lazy(p) for p in module.parameters(recurse=False)):
            raise LayerError(f"module {path!r} is lazy and has no shape yet; call the model once where it is built")
