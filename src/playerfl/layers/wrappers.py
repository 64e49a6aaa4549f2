"""Models inside wrappers: torch.compile, DataParallel and DDP add a prefix to every name and hide the forward pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from playerfl.errors import LayerError


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside torch.compile, DataParallel or DistributedDataParallel; a TorchScript model is refused.

    >>> net = nn.Linear(2, 2)
    >>> unwrapped(nn.DataParallel(net)) is net, unwrapped(net) is net
    (True, True)
    """
    if not isinstance(model, nn.Module):
        raise LayerError(f"expected a torch model (an nn.Module), not {type(model).__name__}")
    while (inside := _inside(model)) is not None:
        model = inside
    for path, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise LayerError(
                f"{path or 'the model'} is a TorchScript model (torch.jit.script, trace or load), whose forward pass "
                "cannot be looked into; build the Python model it was made from, and load its weights with "
                "load_state_dict(scripted.state_dict())"
            )
    return model


def _inside(model: nn.Module) -> nn.Module | None:
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        return model.module  # type: ignore[no-any-return]
    return getattr(model, "_orig_mod", None) if _is_compiled(model) else None


def _is_compiled(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch._dynamo")


@contextmanager
def uncompiled(model: nn.Module) -> Iterator[None]:
    """Compiled parts of a model run as they were written."""
    if not any(_is_compiled(m) or m._compiled_call_impl is not None for m in model.modules()):
        yield  # torch.compiler takes seconds to import
        return
    with torch.compiler.set_stance("force_eager"):
        yield
