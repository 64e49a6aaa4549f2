"""Units: the smallest pieces a layer can consist of, a module with its own parameters or a bare parameter."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.utils.parametrize import is_parametrized

Role = Literal["kernel", "lookup", "norm", "scale"]
"""What a unit does with its input: mixes features, looks rows up, normalises, or only scales and shifts."""

NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.LocalResponseNorm)
_MIXES = re.compile(r"(^|_)(add|b|badd|addb)?mm$|conv|^(add)?mv$|^dot$|linear|lstm|gru|rnn|attention|cdist|fft")
_WITH_BIAS = {"addmm", "addmv", "baddbmm", "convolution"}
_LOOKS_UP = re.compile(r"embedding|^index|^gather$")
_SUMS_UP = {"sum", "cumsum", "prod", "amax", "max", "logsumexp"}
_REDUCES = re.compile(r"mean|var|std|rsqrt|norm")


@dataclass
class Unit:
    """A module that owns parameters, or a parameter that a larger module uses directly."""

    name: str
    path: str
    """Where it is in the module tree, for distances between units."""
    entries: list[str]
    module: nn.Module | None = None
    role: Role = "kernel"
    operations: set[str] = field(default_factory=set)
    again: bool = False
    """Another unit owns the entries; this is a second use, as in a head tied to an embedding."""

    @property
    def is_bare(self) -> bool:
        """Whether it is a single parameter, not a module."""
        return self.entries == [self.name]

    @property
    def joins(self) -> bool:
        """Whether it is too small to be a layer of its own."""
        return self.role in ("norm", "scale")


def mixes(operation: str) -> bool:
    """Whether an operation mixes features with a weight: a matrix product or a convolution.

    >>> [mixes(operation) for operation in ("addmm", "convolution", "mul", "comm")]
    [True, True, False, False]
    """
    return bool(_MIXES.search(operation))


def looks_up(operation: str) -> bool:
    """Whether an operation picks rows of a table."""
    return bool(_LOOKS_UP.search(operation))


def role_of(unit: Unit, parameters: Sequence[Tensor], *, reads_data: bool) -> Role:
    """What a unit does, judged by its operations and the shapes of its parameters, never by its name."""
    if isinstance(unit.module, NORMS):
        return "norm"
    flat = all(p.numel() == max(p.shape, default=1) for p in parameters)
    if unit.module is None and flat and unit.operations <= _WITH_BIAS:
        return "scale"  # the bias of a product whose weight was computed
    if unit.module is None and not any(mixes(o) or "embedding" in o for o in unit.operations):
        # A bias, a gate, a position table, a class token; or the weights of a norm that is a function.
        return "norm" if any(o.endswith("_norm") for o in unit.operations) else "scale"
    if flat and not any(map(mixes, unit.operations)) and not any("embedding" in o for o in unit.operations):
        return "norm" if any(map(_REDUCES.search, unit.operations)) else "scale"
    if not reads_data and any(map(looks_up, unit.operations)):
        return "lookup"
    if not any(mixes(o) or looks_up(o) or _REDUCES.search(o) or o in _SUMS_UP for o in unit.operations):
        return "scale"  # a module that adds its table of positions to what it is given
    if not reads_data and not any(map(mixes, unit.operations)):
        return "scale"  # a module that hands out its parameter, such as learnt latents
    return "kernel"


def own_entries(path: str, module: nn.Module) -> list[str]:
    """The parameters that a module itself owns; its statistics, if it has no parameters."""
    prefix = f"{path}." if path else ""
    entries = [prefix + name for name, _ in module.named_parameters(recurse=False)]
    passing = module._non_persistent_buffers_set  # not part of the model's state
    return entries or [prefix + name for name, _ in module.named_buffers(recurse=False) if name not in passing]


def owns_state(module: nn.Module) -> bool:
    """Whether a module itself owns parameters, or a norm's statistics."""
    if next(module.parameters(recurse=False), None) is not None:
        return True
    return isinstance(module, NORMS) and next(module.buffers(recurse=False), None) is not None


def stateful_modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Modules that own state, in order of registration. A module under two names is listed twice: its tensors are then
    tied."""
    return [(path, m) for path, m in model.named_modules(remove_duplicate=False) if owns_state(m)]


def outermost_parametrised(model: nn.Module, path: str) -> str | None:
    """The module whose weight is computed from parameters (weight norm and the like) around a path, if there is one.

    >>> net = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)))
    >>> outermost_parametrised(net, "0.parametrizations.weight")
    '0'
    """
    steps = path.split(".")
    for depth in range(1, len(steps) + 1):
        here = ".".join(steps[:depth])
        if is_parametrized(model.get_submodule(here)):
            return here
    return None
