"""Adapters (LoRA and its relatives): which entries they are, and layers in which an adapter is never torn apart.

Nothing here imports `peft`: its modules are recognised by where their classes come from, its entries by their names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import nn

from playerfl.errors import ConfigError, LayerError

_FACTOR_A = re.compile(r"(^|\.)(lora_A|lora_embedding_A|vera_lambda_d)(\.|$)")
_FACTOR_B = re.compile(r"(^|\.)(lora_B|lora_embedding_B|vera_lambda_b)(\.|$)")
_ADAPTER = re.compile(
    r"(^|\.)(lora_|vera_|ia3_|hada_|lokr_|oft_|boft_|hra_|ln_tuning_|fourierft_|adaption_|prompt_encoder|prompt_embeddings)"
)
# A head that peft trains has a frozen copy beside it, which takes no part in the forward pass.
_COPY, _SAVED, _BASE = "original_module", "modules_to_save", "base_layer"
_SAVED_COPY = re.compile(rf"(^|\.){_SAVED}\.[^.]+\.")
_WITHIN = re.compile(
    r"\.modules_to_save\.[^.]+|\.(base_layer|original_module|(?:lora|vera|ia3|hada|lokr|oft|boft)_.*)$"
)
_PREFIX = re.compile(r"^(.*\.)?base_model\.(model\.)?")
_ANY_PREFIX = re.compile(r"\bbase_model\.(model\.)?")
_BASE_LAYER = re.compile(rf"\.{_BASE}\.")
_AROUND = re.compile(r"((?:.*\.)?base_model)\.model\.")
_MOST_NAMES = 4

Groups = Sequence[tuple[str, Sequence[str]]]


def factors_a(entries: Iterable[str]) -> frozenset[str]:
    """The A matrices of LoRA, which read a layer's input, and what plays their part in VeRA.

    >>> sorted(factors_a(["q.lora_A.default.weight", "q.lora_B.default.weight", "q.base_layer.weight"]))
    ['q.lora_A.default.weight']
    """
    return frozenset(entry for entry in entries if _FACTOR_A.search(entry))


def factors_b(entries: Iterable[str]) -> frozenset[str]:
    """The B matrices of LoRA, which write to a layer's output and start at zero, and what plays their part in VeRA.

    >>> sorted(factors_b(["q.lora_A.default.weight", "q.lora_B.default.weight", "q.base_layer.weight"]))
    ['q.lora_B.default.weight']
    """
    return frozenset(entry for entry in entries if _FACTOR_B.search(entry))


def must_be_lora(entries: Iterable[str], among: Iterable[str], does: str) -> frozenset[str]:
    """The A matrices in some entries of a model; none if it has no adapters. ConfigError for adapters of another kind.
    `among`: all entries of the model.

    >>> must_be_lora(["fc.weight"], ["fc.weight", "fc.bias"], "fedsa_lora shares")
    frozenset()
    """
    names = frozenset(entries)
    factors = factors_a(names)
    if not factors and (others := adapter_entries(among) & names):
        raise ConfigError(
            f"{does} the A matrices of LoRA, but this model's adapters have none that train (they have entries like "
            f"{min(others)}); use LoRA, or fedavg, which works with any adapter"
        )
    return factors


def adapter_entries(entries: Iterable[str]) -> frozenset[str]:
    """The entries that an adapter added to a model: those with an adapter's name, and all that is beside a layer's own
    weights, whatever peft calls it; and what adapters share, beside the model itself.

    >>> sorted(adapter_entries(["q.lora_magnitude_vector.default.weight", "k.ia3_l.default", "q.base_layer.weight"]))
    ['k.ia3_l.default', 'q.lora_magnitude_vector.default.weight']
    >>> sorted(adapter_entries(["base_model.bank.default", "base_model.model.q.base_layer.weight",
    ...     "base_model.model.q.choice", "base_model.model.out.weight"]))
    ['base_model.bank.default', 'base_model.model.q.choice']
    """
    names = list(entries)
    inside = {name[: found.start()] for name in names for found in _BASE_LAYER.finditer(name)}
    models = {found[1] for path in inside if (found := _AROUND.match(path))}

    def is_added(name: str) -> bool:
        steps = name.split(".")
        beside = any(steps[depth] != _BASE and ".".join(steps[:depth]) in inside for depth in range(1, len(steps)))
        shared = any(name.startswith(f"{model}.") and not name.startswith(f"{model}.model.") for model in models)
        return beside or shared or bool(_ADAPTER.search(name))

    return frozenset(filter(is_added, names))


def without_adapters(entries: Iterable[str]) -> list[str]:
    """The entries of the model as it was before adapters were added: what full fine-tuning would train.

    >>> without_adapters(["q.base_layer.weight", "q.lora_A.default.weight",
    ...     "head.original_module.bias", "head.modules_to_save.default.bias"])
    ['q.base_layer.weight', 'head.modules_to_save.default.bias']
    """
    names = list(entries)
    added = adapter_entries(names)
    own = [name for name in names if name not in added and f".{_COPY}." not in f".{name}"]
    # With several adapters, the head has a copy for each.
    return list({_SAVED_COPY.sub(".", name): name for name in reversed(own)}.values())[::-1]


def fixed_buffers(model: nn.Module) -> frozenset[str]:
    """Buffers that an adapter never changes, such as VeRA's random projections, and the statistics of a norm beside the
    copy of it that trains."""
    buffers = set()
    for path, module in model.named_modules():
        if _is_peft(module):
            prefix = f"{path}." if path else ""
            buffers |= {prefix + name for name, _ in module.named_buffers(recurse=False)}
            if (copied := module._modules.get(_COPY)) is not None:
                buffers |= {f"{prefix}{_COPY}.{name}" for name, _ in copied.named_buffers()}
    return frozenset(buffers & model.state_dict().keys()) if buffers else frozenset()


def is_adapted(model: nn.Module) -> bool:
    """Whether some module of a model comes from `peft`."""
    return any(map(_is_peft, model.modules()))


def _is_peft(module: nn.Module) -> bool:
    return type(module).__module__.split(".")[0] == "peft"


@dataclass
class _Layer:
    name: str
    entries: list[str]
    joined: list[str] = field(default_factory=list)
    """What else belongs to it, in words."""


def adapted_layers(
    model: nn.Module, groups: Groups, reasons: Mapping[str, str]
) -> tuple[list[tuple[str, list[str]]], dict[str, str]]:
    """The layers of a model with adapters, and the reason for each, given the layers that were found in it.

    All parts of an adapter (A, B, DoRA's magnitude) are in the layer that they adapt; a trained head and its frozen
    copy are one layer; and what does not train goes with the layer before it, so that every layer has something to
    share.
    """
    _refuse_changing_ranks(model)
    _refuse_merged(model)
    layers = [_Layer(name, list(entries)) for name, entries in groups]
    for path in _adapted_modules(model):
        _gather(layers, path)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    trains = {name for name, parameter in parameters.items() if parameter.requires_grad}
    layers = _with_something_to_train([layer for layer in layers if layer.entries], trains)
    found: dict[str, str] = {}
    named: list[tuple[str, list[str]]] = []
    for layer in layers:
        name = _plain_name(layer, trains)
        while name in found:
            name += "'"
        reason = _ANY_PREFIX.sub("", reasons.get(layer.name, ""))
        found[name] = "; ".join(part for part in (reason, *layer.joined) if part)
        named.append((name, layer.entries))
    return named, {name: reason for name, reason in found.items() if reason}


def _refuse_changing_ranks(model: nn.Module) -> None:
    if any(type(module).__name__ == "AdaLoraModel" and _is_peft(module) for module in model.modules()):
        raise LayerError(
            "AdaLoRA moves rank from one adapter to another between training steps, each site in its own way, so its "
            "adapters cannot be averaged; use LoraConfig with a fixed rank"
        )


def _refuse_merged(model: nn.Module) -> None:
    for path, module in model.named_modules():
        if _is_peft(module) and "base_layer" in module._modules and getattr(module, "merged", False):
            raise LayerError(
                f"the adapter of {_short(path)} is merged into its weights, so it would not train; call "
                "unmerge_adapter() first"
            )


def _adapted_modules(model: nn.Module) -> list[str]:
    """The modules that peft put in place of the model's own: a layer with its adapter, a head with its copy."""
    return [
        path
        for path, module in model.named_modules()
        # Children, not attributes: a peft model passes on attributes of the model inside it.
        if path and _is_peft(module) and module._modules.keys() & {"base_layer", _SAVED}
    ]


def _gather(layers: list[_Layer], path: str) -> None:
    """Puts all entries of a module into one layer: that of the weights that it adapts."""
    inside = [(layer, entry) for layer in layers for entry in layer.entries if entry.startswith(f"{path}.")]
    if not inside:
        return
    own = [layer for layer, entry in inside if f"{path}.base_layer." in entry or f"{path}.{_SAVED}." in entry]
    home = (own or [inside[0][0]])[0]
    for layer, entry in inside:
        if layer is not home:
            layer.entries.remove(entry)
            home.entries.append(entry)


def _with_something_to_train(layers: list[_Layer], trains: set[str]) -> list[_Layer]:
    kept: list[_Layer] = []
    leading: list[_Layer] = []
    for layer in layers:
        if trains.intersection(layer.entries):
            for frozen in leading:
                layer.entries[:0] = frozen.entries
                layer.joined.append(f"the frozen {_short(frozen.name)} goes with it")
            leading = []
            kept.append(layer)
        elif kept:
            kept[-1].entries.extend(layer.entries)
            kept[-1].joined.append(f"the frozen {_short(layer.name)} goes with it")
        else:
            leading.append(layer)
    return kept or leading


def _plain_name(layer: _Layer, trains: set[str]) -> str:
    """The layer's name as it would be without adapters: not `q.base_layer+...+default`, but `q`."""
    if "+" not in layer.name:
        return _short(layer.name)
    adapted = [entry.rpartition(".")[0] for entry in layer.entries if entry in trains and _ADAPTER.search(entry)]
    paths = list(dict.fromkeys(_short(path) for path in adapted))
    if not paths:
        return _short(layer.name)
    last = [path.rpartition(".")[2] for path in paths[1:]]
    return "+".join([paths[0], *last]) if len(paths) <= _MOST_NAMES else f"{paths[0]}+...+{last[-1]}"


def _short(name: str) -> str:
    """A module's path without what peft put around and into it.

    >>> _short("base_model.model.bert.encoder.layer.0.attention.self.query.lora_A.default")
    'bert.encoder.layer.0.attention.self.query'
    >>> _short("base_model.model.classifier.modules_to_save.default")
    'classifier'
    """
    plain = _WITHIN.sub("", _PREFIX.sub(r"\1", name))
    return plain or name
