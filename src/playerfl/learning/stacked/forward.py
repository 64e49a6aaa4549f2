"""The forward pass of a stack: the outputs of all its models at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.func import functional_call, vmap
from torch.utils._pytree import tree_map

from playerfl.layers.derive import call_arguments
from playerfl.learning.stacked.linear_stack import NotOnlyLinearError, linear_outputs
from playerfl.learning.training import Learner


def outputs_of(learner: Learner, entries: Mapping[str, Tensor], inputs: Any) -> Any:
    """The outputs of all models for their inputs, concatenated model by model."""
    return tree_map(lambda output: output.flatten(0, 1), _by_model(learner, entries, inputs))


def _by_model(learner: Learner, entries: Mapping[str, Tensor], inputs: Any) -> Any:
    """The outputs with the model as first dimension, computed the faster way if the forward pass allows it."""
    if learner.only_linear:
        try:
            return linear_outputs(learner.model, {id(learner.entries[name]): e for name, e in entries.items()}, inputs)
        except NotOnlyLinearError:
            learner.only_linear = False

    def one(weights: dict[str, Tensor], x: Any) -> Any:
        return functional_call(learner.model, weights, *call_arguments(learner.model, x))

    return vmap(one)(dict(entries), inputs)
