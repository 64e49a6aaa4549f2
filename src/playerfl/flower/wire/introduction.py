"""Introduction: what a site says about itself before training starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from playerfl.data.schema import Schema
from playerfl.errors import LayerError
from playerfl.layers.layer_map import LayerMap


@dataclass(frozen=True)
class Introduction:
    """How a site's model is divided into layers, how many examples it has, and what its numerical results depend on."""

    examples: int
    layers: LayerMap
    torch: str
    device: str
    schema: Schema | None = None
    """None if the task does not know its columns, or if the site's policy keeps them."""

    def to_json(self) -> dict[str, Any]:
        return {
            "examples": self.examples,
            "layers": layers_to_json(self.layers),
            "torch": self.torch,
            "device": self.device,
            "schema": self.schema and self.schema.to_json(),
        }

    @classmethod
    def from_json(cls, table: Any) -> Introduction:
        """The inverse of `to_json`; ValueError if `table` is anything else."""
        try:
            examples = table["examples"]
            if type(examples) is not int or examples < 1:
                raise ValueError("the number of examples must be a positive integer")
            layers = layers_from_json(table["layers"])
            schema = None if table.get("schema") is None else Schema.from_json(table["schema"])
            return cls(examples, layers, str(table["torch"])[:20], str(table["device"])[:20], schema)
        except (KeyError, TypeError, AttributeError, OverflowError, LayerError) as problem:
            raise ValueError(f"fields are missing or have the wrong type ({type(problem).__name__})") from problem


def layers_to_json(layers: LayerMap) -> dict[str, Any]:
    return {
        "entries": {layer: list(entries) for layer, entries in layers.entries.items()},
        "num_parameters": dict(layers.num_parameters),
        "frozen": sorted(layers.frozen),
        "buffers": sorted(layers.buffers),
        "tied": {entry: list(users) for entry, users in layers.tied.items()},
        "statistics": layers.statistics,
    }


def layers_from_json(table: Mapping[str, Any]) -> LayerMap:
    """The inverse of `layers_to_json`.

    >>> layers = LayerMap({"0": ("0.weight", "0.bias")}, {"0": 9})
    >>> layers_from_json(layers_to_json(layers)) == layers
    True
    """
    sizes = {str(layer): int(size) for layer, size in table["num_parameters"].items()}
    if sizes.keys() != table["entries"].keys() or table["statistics"] not in ("follow", "local"):
        raise ValueError("the layers' sizes or statistics do not match the layers")
    return LayerMap(
        {str(layer): tuple(map(str, entries)) for layer, entries in table["entries"].items()},
        sizes,
        frozenset(map(str, table["frozen"])),
        frozenset(map(str, table["buffers"])),
        {str(entry): tuple(map(str, users)) for entry, users in table["tied"].items()},
        table["statistics"],
    )
