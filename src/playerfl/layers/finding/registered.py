"""Layers from a model's definition alone, for a model that cannot be run: by classes, names and traced code."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass

from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from playerfl.layers.finding.shortcuts import ends_in_a_shortcut
from playerfl.layers.finding.units import NORMS, own_entries

_ATTENTION = re.compile("attention|attn", re.IGNORECASE)
_FEED_FORWARD = re.compile("mlp|ffn|feed_?forward", re.IGNORECASE)
_RESIDUAL = re.compile("basic_?block|bottleneck|residual|res_?(net)?_?block|resunit|mbconv", re.IGNORECASE)
_SHORTCUTS = ("downsample", "shortcut", "skip", "identity_conv", "residual")
_ADAPTER = re.compile("lora|adapter", re.IGNORECASE)
_ADAPTER_PARTS = 3
_BLOCK_PARTS = 8
_EMBEDDINGS = re.compile("embeddings?$", re.IGNORECASE)
_TABLE = re.compile("pos|cls|class_token|embed", re.IGNORECASE)


@dataclass
class _Group:
    name: str
    block: str | None
    modules: list[tuple[str, nn.Module]]


def registered_groups(model: nn.Module, called: Mapping[str, int]) -> list[tuple[str, list[str]]]:
    """Named lists of a model's entries, in the order of `called` (the rank of each module in a forward pass), else in
    that of registration.

    >>> registered_groups(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 2)), {})
    [('0', ['0.weight', '0.bias', '1.weight', '1.bias']), ('3', ['3.weight', '3.bias'])]
    """
    owners = _in_order(model, called)
    residual = {id(module) for module in model.modules() if module is not model and _is_residual(module)}
    groups: list[_Group] = []
    leading: list[tuple[str, nn.Module]] = []
    for path, module in owners:
        name, block = _unit_of(model, path, residual)
        if _is_norm(module) and name == path:
            (groups[-1].modules if groups else leading).append((path, module))
            continue
        if not groups and name in (path, "parameters") and _holds_tables(module):
            leading.append((path, module))
            continue
        begun = next((group for group in groups if group.name == name), None)
        if begun is None and groups and _both_embeddings(groups[-1], module):
            begun = groups[-1]
        if begun:
            begun.modules.append((path, module))
        else:
            groups.append(_Group(name, block, [(path, module)]))
    if leading:
        if not groups:
            groups.append(_Group(leading[0][0], None, []))
        groups[0].modules[:0] = leading
    return [
        (group.name, [entry for path, module in group.modules for entry in own_entries(path, module)])
        for group in _with_feed_forwards_joined(groups)
    ]


def _is_norm(module: nn.Module) -> bool:
    return isinstance(module, NORMS) or type(module).__name__.endswith("Norm")


def _owns_state(module: nn.Module) -> bool:
    """Whether a module itself owns parameters, or a norm's statistics."""
    if next(module.parameters(recurse=False), None) is not None:
        return True
    return _is_norm(module) and next(module.buffers(recurse=False), None) is not None


def _in_order(model: nn.Module, called: Mapping[str, int]) -> list[tuple[str, nn.Module]]:
    """Modules that own parameters. One that is never called stays after its predecessor in registration order (its
    weights may be used directly)."""
    # A module under two names is listed twice: its tensors are then tied.
    every = model.named_modules(remove_duplicate=False)
    registered = [(path, module) for path, module in every if _owns_state(module)]
    rank = -1
    keys = {}
    for position, (path, _) in enumerate(registered):
        rank = called.get(path, rank)
        keys[path] = (rank, position)
    return sorted(registered, key=lambda item: keys[item[0]])


def _unit_of(model: nn.Module, path: str, residual: Container[int]) -> tuple[str, str | None]:
    """The name of the unit a module belongs to (itself, or the attention, feed-forward or other block around it)
    and the transformer block around that unit, if there is one."""
    steps = path.split(".") if path else []
    block = None
    module: nn.Module = model
    for depth, step in enumerate(steps):
        if any(_is_attention(child) for child in module.children()):
            block = ".".join(steps[:depth])
        module = module.get_submodule(step)
        here = ".".join(steps[: depth + 1])
        if _is_attention(module):
            return here, block
        inside_block = block is not None and block == ".".join(steps[:depth])
        if inside_block and _FEED_FORWARD.search(type(module).__name__):
            return here, block
        if is_parametrized(module) or id(module) in residual or _is_adapted(module):
            return here, block
        if _EMBEDDINGS.search(type(module).__name__):
            return here, block
    return path or "parameters", block


def _is_attention(module: nn.Module) -> bool:
    """By class name, since there is no common base. A wrapper around one attention module counts as a whole; a
    network that holds several ("AttentionNet") does not."""
    if not _ATTENTION.search(type(module).__name__) or next(module.parameters(), None) is None:
        return False
    inner = [m for m in module.modules() if m is not module and _ATTENTION.search(type(m).__name__)]
    return len(inner) <= 1


def _is_residual(module: nn.Module) -> bool:
    """A block with a shortcut around it: recognised by its class name, by a shortcut child, or by its code.
    A cut inside it would put the two paths on different sides."""
    children = dict(module.named_children())
    if not children or next(module.parameters(), None) is None:
        return False
    inner = [m for m in module.modules() if m is not module]
    if any(_is_attention(m) or _RESIDUAL.search(type(m).__name__) for m in inner):
        return False
    if _RESIDUAL.search(type(module).__name__) or any(name in children for name in _SHORTCUTS):
        return True
    return _num_parts(module) <= _BLOCK_PARTS and ends_in_a_shortcut(module, _is_norm)


def _num_parts(module: nn.Module) -> int:
    """How many modules in it own parameters, not counting norms."""
    return sum(not _is_norm(m) and next(m.parameters(recurse=False), None) is not None for m in module.modules())


def _holds_tables(module: nn.Module) -> bool:
    """Position and class-token tables that the network itself holds: they belong to the embedding that follows."""
    names = [name for name, _ in module.named_parameters(recurse=False)]
    inside = any(next(child.parameters(), None) is not None for child in module.children())
    return inside and bool(names) and all(map(_TABLE.search, names))


def _is_adapted(module: nn.Module) -> bool:
    """A module with low-rank adapters (PEFT's have a child `lora_A`), or an adapter, which has few parts."""
    if "lora_A" in dict(module.named_children()) or hasattr(module, "lora_A"):
        return True
    if not _ADAPTER.search(type(module).__name__):
        return False
    return 0 < _num_parts(module) <= _ADAPTER_PARTS


def _both_embeddings(group: _Group, module: nn.Module) -> bool:
    """Token and position tables side by side are one layer, as in the paper's table of architectures."""
    return isinstance(module, nn.Embedding) and all(isinstance(m, nn.Embedding) for _, m in group.modules)


def _with_feed_forwards_joined(groups: list[_Group]) -> list[_Group]:
    """Joins the up layer of a transformer block with the projection back: linears d→h … h→d in a row."""
    joined: list[_Group] = []
    for group in groups:
        previous = joined[-1] if joined else None
        if previous and group.block is not None and previous.block == group.block:
            up, down = _only_linear(previous), _only_linear(group)
            if up and down and up.in_features == down.out_features and up.out_features == down.in_features:
                last = group.name.rpartition(".")[2]
                joined[-1] = _Group(f"{previous.name}+{last}", group.block, previous.modules + group.modules)
                continue
        joined.append(group)
    return joined


def _only_linear(group: _Group) -> nn.Linear | None:
    linears = [m for _, m in group.modules if isinstance(m, nn.Linear)]
    others = [m for _, m in group.modules if not isinstance(m, nn.Linear) and not _is_norm(m)]
    return linears[0] if len(linears) == 1 and not others else None
