"""Introduction: what a site says about itself before training starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from playerfl.data.schema import Schema
from playerfl.errors import LayerError
from playerfl.flower.wire.check_summary import CheckSummary
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
    check: CheckSummary | None = None
    """What the site's policy shares of its data check."""

    def to_json(self) -> dict[str, Any]:
        return {
            "examples": self.examples,
            "layers": self.layers.to_json(),
            "torch": self.torch,
            "device": self.device,
            "schema": self.schema and self.schema.to_json(),
            **({"check": self.check.to_json()} if self.check else {}),
        }

    @classmethod
    def from_json(cls, table: Any) -> Introduction:
        """The inverse of `to_json`; ValueError if `table` is anything else."""
        try:
            examples = table["examples"]
            if type(examples) is not int or examples < 1:
                raise ValueError("the number of examples must be a positive integer")
            layers = LayerMap.from_json(table["layers"])
            schema = None if table.get("schema") is None else Schema.from_json(table["schema"])
            check = None if table.get("check") is None else CheckSummary.from_json(table["check"])
            return cls(examples, layers, str(table["torch"])[:20], str(table["device"])[:20], schema, check)
        except (KeyError, TypeError, AttributeError, OverflowError, LayerError) as problem:
            raise ValueError(f"fields are missing or have the wrong type ({type(problem).__name__})") from problem
