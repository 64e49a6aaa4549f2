"""What a model must do so that one copy of it can train for every site in turn: tried on a few inputs before a run."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from playerfl.data.examples import map_tensors, tensors_in
from playerfl.errors import ConfigError
from playerfl.layers.derive import call_model, reject_lazy
from playerfl.layers.layer_map import state_entries
from playerfl.learning.backward import mean_backward
from playerfl.learning.losses import logits_of
from playerfl.seeding import seeded_rng


def check_parameters(model: nn.Module) -> None:
    """Refuses parameters that cannot be trained and averaged here.

    >>> check_parameters(nn.Linear(2, 1))
    >>> check_parameters(nn.Embedding(9, 2, sparse=True))
    Traceback (most recent call last):
    ...
    playerfl.errors.ConfigError: Embedding has sparse gradients, which AdamW cannot use; build it with sparse=False
    """
    reject_lazy(model)
    for name, parameter in model.named_parameters():
        if parameter.is_complex():
            raise ConfigError(
                f"{name} of {type(model).__name__} is complex; make it real, and use torch.view_as_complex in forward"
            )
    for path, module in model.named_modules():
        if getattr(module, "sparse", False) and isinstance(module, nn.Embedding | nn.EmbeddingBag):
            raise ConfigError(
                f"{path or type(module).__name__} has sparse gradients, which AdamW cannot use; build it with "
                "sparse=False"
            )


def check_calls(model: nn.Module, inputs: Any) -> None:
    """Refuses a model that changes its inputs, or that carries something from one call to the next outside its state.

    Sites take turns with one model, into which their weights and buffers are loaded. Whatever else it keeps would
    bring one site's data to the next, and the results would differ from those of a deployment.
    """
    given = map_tensors(inputs, Tensor.clone)
    frozen = {name: p for name, p in model.named_parameters() if not p.requires_grad}
    # A large frozen base is not copied: torch counts what is written into it.
    entries = {name: entry for name, entry in state_entries(model).items() if name not in frozen}
    before = {name: entry.detach().clone() for name, entry in entries.items()}
    first = _output(model, given)
    if not all(map(torch.equal, tensors_in(given), tensors_in(inputs))):
        raise ConfigError(
            f"{type(model).__name__} writes into its inputs, which would change a site's data at every call; copy them "
            "in forward, as in x = x.clone()"
        )
    written = {name: _writes(parameter) for name, parameter in frozen.items()}
    _train_call(model, inputs)
    _check_buffers(model, entries, before)
    changed = [name for name, parameter in frozen.items() if _writes(parameter) != written[name]]
    with torch.no_grad():
        for name, entry in entries.items():
            entry.copy_(before[name])
    if _same(first, _output(model, map_tensors(inputs, Tensor.clone))):
        return
    if changed:
        raise ConfigError(
            f"{type(model).__name__} changes {changed[0]} in training, a frozen parameter, and all sites share those; "
            "make it a persistent buffer, so that each site has its own"
        )
    others = [name for name, _ in model.named_buffers() if name not in entries]
    hint = f" (perhaps {', '.join(others)}, which its state_dict does not have)" if others else ""
    raise ConfigError(
        f"the output of {type(model).__name__} depends on earlier calls, or on random numbers other than torch's: "
        f"something that it keeps{hint} would pass from one site to the next; keep it in a persistent buffer, or "
        "reset it in every call"
    )


def works(model: nn.Module, inputs: Any, targets: Tensor, loss: Callable[[Any, Tensor], Tensor]) -> bool:
    """Whether a model and its loss can be evaluated and trained on a few rows; leaves buffers and modes as they were.

    >>> rows, classes = torch.ones(3, 2), torch.tensor([0, 1, 0])
    >>> [works(model, rows, classes, nn.functional.cross_entropy) for model in (nn.Linear(2, 2), nn.Linear(4, 2))]
    [True, False]
    """
    entries = {name: entry for name, entry in state_entries(model).items() if not isinstance(entry, nn.Parameter)}
    before = {name: entry.clone() for name, entry in entries.items()}
    modes = [(module, module.training) for module in model.modules()]
    try:
        for training in (False, True):
            model.train(training)
            with torch.set_grad_enabled(training), seeded_rng(1), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                losses = loss(call_model(model, map_tensors(inputs, Tensor.clone)), targets.clone())
                if training:
                    mean_backward(losses)
    except RuntimeError:
        return False
    except Exception:  # a user's model may raise anything; training itself will say what
        return True
    finally:
        model.zero_grad()
        with torch.no_grad():
            for name, entry in entries.items():
                entry.copy_(before[name])
        for module, training in modes:
            module.training = training
    return True


def _writes(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _check_buffers(model: nn.Module, entries: Mapping[str, Tensor], before: Mapping[str, Tensor]) -> None:
    """Refuses a training call that left other tensors in place of buffers, where no site's values are loaded, or
    buffers of another shape, which cannot be averaged."""
    for name, buffer in model.named_buffers():
        if name not in entries:
            continue
        if buffer.shape != before[name].shape:
            raise ConfigError(
                f"the buffer {name} of {type(model).__name__} has the shape {tuple(before[name].shape)}, but "
                f"{tuple(buffer.shape)} after a call in training; call the model once where it is built, or keep its "
                "shape"
            )
        replaced = buffer.data_ptr() != entries[name].data_ptr()
        if replaced and not torch.equal(buffer.to(before[name].dtype), before[name]):
            raise ConfigError(
                f"{type(model).__name__} puts a new tensor in place of its buffer {name}, so a site's own values would "
                f"not be found there; change the tensor itself, as in self.{name.rpartition('.')[2]}.copy_(…)"
            )


def _output(model: nn.Module, inputs: Any) -> Tensor:
    model.eval()
    with torch.no_grad(), seeded_rng(0):
        return logits_of(call_model(model, inputs))


def _train_call(model: nn.Module, inputs: Any) -> None:
    """A call as in training, with other rows first. One that fails here, as batch norm does on a single row, says
    nothing about state."""
    model.train()
    try:
        with torch.no_grad(), seeded_rng(1), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call_model(model, map_tensors(inputs, lambda x: x.flip(0) if x.dim() else x.clone()))
    except Exception:  # a user's model may raise anything; training itself will say what
        return
    finally:
        model.eval()


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-4, atol=1e-6, equal_nan=True)
