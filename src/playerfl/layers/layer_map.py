"""LayerMap: a model's layers, named and ordered from input to output, and the state entries each one owns."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, get_args

from torch import Tensor, nn

from playerfl.errors import LayerError, one_of
from playerfl.layers.adapters import fixed_buffers
from playerfl.layers.derive import Derived, Granularity, derive_layers, reject_lazy
from playerfl.layers.fixed_statistics import fixed_statistics
from playerfl.layers.wrappers import unwrapped
from playerfl.weights import Weights

LayerName = str
TiePolicy = Literal["first", "local", "error"]
BatchNormStatistics = Literal["follow", "local"]


def check_choice(value: object, allowed: Any, what: str) -> None:
    """Refuses a value that the Literal type `allowed` does not list."""
    if value not in get_args(allowed):
        raise LayerError(one_of(value, get_args(allowed), what))


def state_entries(model: nn.Module) -> dict[str, Tensor]:
    """Every tensor that makes up a model's state, tied tensors once: parameters, then persistent buffers."""
    model = unwrapped(model)
    persistent = model.state_dict().keys()
    entries: dict[str, Tensor] = dict(model.named_parameters())
    entries.update((name, buffer) for name, buffer in model.named_buffers() if name in persistent)
    return entries


def frozen_entries(model: nn.Module) -> frozenset[str]:
    """Entries of a model that never change: parameters that do not train, the fixed buffers of adapters, and the
    statistics of frozen norms that stay in evaluation mode."""
    model = unwrapped(model)
    parameters = (name for name, parameter in model.named_parameters() if not parameter.requires_grad)
    return frozenset(parameters) | ((fixed_buffers(model) | fixed_statistics(model)) & state_entries(model).keys())


@dataclass(frozen=True)
class LayerMap:
    """A model's layers from input to output; each owns some state entries. Disjoint and complete.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> layers = LayerMap.of(net)
    >>> layers.names, layers.entries["2"]
    (('0', '2'), ('2.weight', '2.bias'))
    >>> layers.num_parameters
    {'0': 9, '2': 4}
    """

    entries: Mapping[LayerName, tuple[str, ...]]
    num_parameters: Mapping[LayerName, int]
    """Trainable scalars of each layer: the paper's n_l."""
    frozen: frozenset[str] = frozenset()
    """What never changes (see `frozen_entries`): every site has it already, so it is never sent."""
    buffers: frozenset[str] = frozenset()
    """Tensors that are not parameters and change in training, such as batch-norm statistics."""
    tied: Mapping[str, tuple[LayerName, ...]] = field(default_factory=dict)
    """Entries that more than one layer uses, with those layers."""
    statistics: BatchNormStatistics = "follow"
    """Whether buffers travel with their layer or stay at the site."""
    reasons: Mapping[LayerName, str] = field(default_factory=dict, compare=False)
    """Why each of them is a layer; empty if that is not known."""
    notes: tuple[str, ...] = field(default=(), compare=False)
    """What a user should know about how the layers were found."""

    @classmethod
    def of(
        cls,
        model: nn.Module,
        example: object = None,
        *,
        tie_policy: TiePolicy = "first",
        statistics: BatchNormStatistics = "follow",
        granularity: Granularity = "block",
    ) -> LayerMap:
        """The model's own `layer_groups()`, or one layer per block.

        Give an `example` batch if you can: blocks and their order are then found in a forward pass, otherwise they are
        guessed from the model's definition. `granularity="module"` makes every module a layer, so that a cut may run
        through a block. A tensor used by two layers belongs to the first of them (`tie_policy="first"`) or to the last
        ("local": it is private if any layer that uses it is).
        """
        inner = unwrapped(model)
        check_choice(tie_policy, TiePolicy, "tie_policy")
        check_choice(statistics, BatchNormStatistics, "statistics")
        check_choice(granularity, Granularity, "granularity")
        reject_lazy(inner)
        declared = getattr(inner, "layer_groups", None)
        derived = Derived(list(declared())) if callable(declared) else derive_layers(inner, example, granularity)
        layers = cls.from_groups(inner, derived.groups, tie_policy, statistics)
        wrapped = () if inner is model else (f"names are those of the model inside {type(model).__name__}",)
        return replace(layers, reasons=derived.reasons, notes=(*derived.notes, *wrapped))

    @classmethod
    def from_groups(
        cls,
        model: nn.Module,
        groups: Sequence[tuple[LayerName, Sequence[str]]],
        tie_policy: TiePolicy = "first",
        statistics: BatchNormStatistics = "follow",
    ) -> LayerMap:
        """Layers as listed, by name and entries, input to output."""
        model = unwrapped(model)
        tensors = state_entries(model)
        aliases = _first_names(model)
        parameters = dict(model.named_parameters())

        users: dict[str, list[LayerName]] = {}
        for layer, members in groups:
            for member in members:
                entry = aliases.get(member, member)
                if entry not in tensors:
                    raise LayerError(f"layer {layer!r}: {one_of(member, tensors, 'entry')}")
                if layer not in users.setdefault(entry, []):
                    users[entry].append(layer)
        names = [layer for layer, _ in groups]
        if len(set(names)) != len(names):
            raise LayerError(f"layer names must differ; the model declares {', '.join(names)}")
        _buffers_follow_their_module(users, tensors, parameters)
        if missing := [name for name in tensors if name not in users]:
            raise LayerError(f"the model's layer_groups() leaves out {', '.join(missing)}; every entry needs a layer")
        owning = {layers[-1 if tie_policy == "local" else 0] for layers in users.values()}
        tied = {
            entry: tuple(dict.fromkeys(_owning_from(names, user, owning) for user in layers))
            for entry, layers in users.items()
        }
        tied = {entry: layers for entry, layers in tied.items() if len(layers) > 1}
        if tied and tie_policy == "error":
            entry, layers_of = next(iter(tied.items()))
            raise LayerError(
                f"{entry} is used by the layers {', '.join(layers_of)}; set tie_policy to 'first' or 'local' "
                "to say where it belongs"
            )
        owner = {entry: layers[-1 if tie_policy == "local" else 0] for entry, layers in users.items()}
        _join_heads_without_weights(owner, users, names, parameters)
        entries = {
            layer: tuple(entry for entry in tensors if owner[entry] == layer)
            for layer in names
            if layer in owner.values()
        }
        frozen = frozen_entries(model)
        sizes = {
            layer: sum(parameters[e].numel() for e in members if e in parameters and e not in frozen)
            for layer, members in entries.items()
        }
        buffers = frozenset(tensors.keys() - parameters.keys() - frozen)
        return cls(entries, sizes, frozen, buffers, tied, statistics)

    def to_json(self) -> dict[str, Any]:
        return {
            "entries": {layer: list(entries) for layer, entries in self.entries.items()},
            "num_parameters": dict(self.num_parameters),
            "frozen": sorted(self.frozen),
            "buffers": sorted(self.buffers),
            "tied": {entry: list(users) for entry, users in self.tied.items()},
            "statistics": self.statistics,
        }

    @classmethod
    def from_json(cls, table: Mapping[str, Any]) -> LayerMap:
        """The inverse of `to_json`; ValueError, KeyError, TypeError or AttributeError if it is anything else.

        >>> layers = LayerMap({"0": ("0.weight", "0.bias")}, {"0": 9})
        >>> LayerMap.from_json(layers.to_json()) == layers
        True
        """
        sizes = {str(layer): int(size) for layer, size in table["num_parameters"].items()}
        if sizes.keys() != table["entries"].keys() or table["statistics"] not in ("follow", "local"):
            raise ValueError("the layers' sizes or statistics do not match the layers")
        entries = {str(layer): tuple(map(str, members)) for layer, members in table["entries"].items()}
        every = [entry for members in entries.values() for entry in members]
        if len(set(every)) < len(every) or not {*table["frozen"], *table["buffers"], *table["tied"]} <= set(every):
            raise ValueError("an entry is in two layers, or in none")
        return cls(
            entries,
            sizes,
            frozenset(map(str, table["frozen"])),
            frozenset(map(str, table["buffers"])),
            {str(entry): tuple(map(str, users)) for entry, users in table["tied"].items()},
            table["statistics"],
        )

    def difference(self, other: LayerMap) -> str | None:
        """The first entry that two maps place differently, in words; None if they agree.

        >>> one, two = LayerMap({"a": ("x", "y")}, {"a": 2}), LayerMap({"a": ("x",), "b": ("y",)}, {"a": 1, "b": 1})
        >>> one.difference(two)
        "y belongs to layer 'a' in one and to 'b' in the other"
        """
        homes = [{e: layer for layer, entries in m.entries.items() for e in entries} for m in (self, other)]
        for entry in dict.fromkeys([*homes[0], *homes[1]]):
            here, there = homes[0].get(entry), homes[1].get(entry)
            if here is None or there is None:
                return f"{entry} is in only one of them"
            if here != there:
                return f"{entry} belongs to layer {here!r} in one and to {there!r} in the other"
        if self.names != other.names:
            return "they have the same layers in a different order"
        for layer, size in self.num_parameters.items():
            if size != other.num_parameters[layer]:
                size_there = other.num_parameters[layer]
                return f"layer {layer!r} has {size:,} trainable parameters in one and {size_there:,} in the other"
        return None

    @property
    def names(self) -> tuple[LayerName, ...]:
        return tuple(self.entries)

    @cached_property
    def all_entries(self) -> tuple[str, ...]:
        """Every entry, layer by layer."""
        return tuple(name for names in self.entries.values() for name in names)

    @cached_property
    def trained(self) -> tuple[str, ...]:
        """The parameters that train, layer by layer."""
        return tuple(name for name in self.all_entries if name not in self.frozen and name not in self.buffers)

    @property
    def local_statistics(self) -> bool:
        """Whether sites keep their own batch-norm statistics, so that no two of them predict alike."""
        return self.statistics == "local" and bool(self.buffers)

    @property
    def never_sent(self) -> frozenset[str]:
        """Entries that never leave a site, whatever the algorithm."""
        return self.frozen | self.buffers if self.statistics == "local" else self.frozen

    def select(self, weights: Mapping[str, Tensor], layers: Iterable[LayerName] | None = None) -> Weights:
        """The entries of some layers, in the order of the model."""
        if layers is None:
            return {name: weights[name] for name in self.all_entries if name in weights}
        chosen = tuple(layers)
        if unknown := [layer for layer in chosen if layer not in self.entries]:
            raise LayerError(f"layer {unknown[0]!r} is unknown; the model has {', '.join(self.names)}")
        members = (name for layer in self.names if layer in chosen for name in self.entries[layer])
        return {name: weights[name] for name in members if name in weights}

    def travelling(self, weights: Mapping[str, Tensor], layers: Iterable[LayerName] | None = None) -> Weights:
        """Like `select`, without the entries that are never sent."""
        selected, never_sent = self.select(weights, layers), self.never_sent
        return {name: w for name, w in selected.items() if name not in never_sent} if never_sent else selected

    def straddling(self, cut: int) -> dict[str, tuple[LayerName, ...]]:
        """Tied entries with users on both sides of a cut after `cut` layers."""
        if cut >= len(self.names):
            return {}
        federated = set(self.names[:cut])
        return {
            entry: layers
            for entry, layers in self.tied.items()
            if any(layer in federated for layer in layers) and not all(layer in federated for layer in layers)
        }

    def in_order(self, names: Sequence[LayerName]) -> LayerMap:
        """The same layers in another order: for a map made without an example batch and scores made with one."""
        if sorted(names) != sorted(self.names):
            raise LayerError(
                f"these are the layers {', '.join(names)}, but the model has {', '.join(self.names)}; give the model "
                "that was measured"
            )
        entries = {name: self.entries[name] for name in names}
        return replace(self, entries=entries, num_parameters={name: self.num_parameters[name] for name in names})

    def cut_warnings(self, cut: int) -> list[str]:
        """What a user should know about a cut after `cut` layers: ties and batch-norm statistics on both sides."""
        astride = self.straddling(cut)
        ties = [
            f"{what} is used by {listed(users)}, on both sides of the cut"
            for what, users in self.shared().items()
            if any(entry in astride for entry in self._entries_of(what))
        ]
        return [*ties, *self._norms_astride(cut)]

    def shared(self) -> dict[str, tuple[LayerName, ...]]:
        """What more than one layer uses: whole modules, or single entries; with those layers.

        >>> ties = {"norm.weight": ("a", "b"), "norm.bias": ("a", "b")}
        >>> LayerMap({"a": ("norm.weight", "norm.bias"), "b": ("x",)}, {}, tied=ties).shared()
        {'norm': ('a', 'b')}
        """
        users_of: dict[str, tuple[LayerName, ...]] = {}
        for entry, users in self.tied.items():
            module = entry.rpartition(".")[0]
            inside = [other for other in self.all_entries if module and other.startswith(f"{module}.")]
            whole = len(inside) > 1 and all(self.tied.get(other) == users for other in inside)
            users_of[module if whole else entry] = users
        return users_of

    def _entries_of(self, what: str) -> list[str]:
        return [entry for entry in self.tied if entry == what or entry.startswith(f"{what}.")]

    def _norms_astride(self, cut: int) -> list[str]:
        home = {entry: layer for layer, members in self.entries.items() for entry in members}
        federated = set(self.names[:cut])
        statistics = [entry for entry in home if entry in self.buffers and entry.endswith("running_mean")]
        warnings = []
        for entry in statistics:
            norm = entry.removesuffix("running_mean")
            sides = {home[other] in federated for other in home if other.startswith(norm)}
            if len(sides) > 1:
                warnings.append(f"the batch norm {norm.rstrip('.')} has entries on both sides of the cut")
        shared = list(dict.fromkeys(home[entry] for entry in statistics if home[entry] in federated))
        kept = list(dict.fromkeys(home[entry] for entry in statistics if home[entry] not in federated))
        if self.statistics == "follow" and shared and kept:
            warnings.append(
                f"batch-norm statistics lie on both sides of the cut: averaged over sites in {some(shared)}, each "
                f"site's own in {some(kept)}; bn_stats='local' keeps all of them at the site"
            )
        return warnings


def _join_heads_without_weights(
    owner: dict[str, LayerName],
    users: Mapping[str, Sequence[LayerName]],
    names: Sequence[LayerName],
    parameters: Container[str],
) -> None:
    """Gives the buffers of a layer to the layer before it, if all its parameters belong to others: a head that is tied
    to the embedding and has nothing but a constant."""
    trains = {layer for entry, layer in owner.items() if entry in parameters}
    uses = {layer for entry, layers in users.items() if entry in parameters for layer in layers}
    for entry, layer in owner.items():
        earlier = [name for name in names[: names.index(layer)] if name in trains]
        if layer in uses and layer not in trains and earlier:
            owner[entry] = earlier[-1]


def _first_names(model: nn.Module) -> dict[str, str]:
    """Every name of a parameter, and its first one. In a single pass: the attention of torch under peft's LoRA has new
    parameter objects whenever somebody asks for them, so those of two passes cannot be compared."""
    every = list(model.named_parameters(remove_duplicate=False))
    first: dict[int, str] = {}
    return {name: first.setdefault(id(parameter), name) for name, parameter in every}


def listed(names: Sequence[LayerName], most: int = 4) -> str:
    """Layers in a sentence.

    >>> listed(["a", "b"]), listed(["a", "b", "c", "d", "e"])
    ('a and b', 'a, b, c and 2 more layers')
    """
    shown = list(names) if len(names) <= most else [*names[: most - 1], f"{len(names) - most + 1} more layers"]
    return f"{', '.join(shown[:-1])} and {shown[-1]}"


def _owning_from(names: Sequence[LayerName], user: LayerName, owning: Container[LayerName]) -> LayerName:
    """The user itself; if it owns nothing, the next layer that does, which reads its result; else the user."""
    return next((name for name in names[names.index(user) :] if name in owning), user)


def some(names: Sequence[LayerName], most: int = 3) -> str:
    """Layers in words: all if there are few, else the first and the last.

    >>> some(["a", "b"]), some(["a", "b", "c", "d"])
    ('a, b', 'a … d (4 layers)')
    """
    return ", ".join(names) if len(names) <= most else f"{names[0]} … {names[-1]} ({len(names)} layers)"


def _buffers_follow_their_module(
    users: dict[str, list[LayerName]], tensors: Mapping[str, Tensor], parameters: Mapping[str, Tensor]
) -> None:
    """Gives every unclaimed buffer to the layer of its module's parameters, else to that of the nearest module."""
    for name in tensors:
        if name in users or name in parameters:
            continue
        module = name.rpartition(".")[0]
        while True:
            prefix = f"{module}." if module else ""
            sharing = [entry for entry in users if entry.startswith(prefix)]
            if sharing:
                users[name] = [users[sharing[0]][0]]
                break
            if not module:
                break
            module = module.rpartition(".")[0]
