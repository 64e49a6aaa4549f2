"""A cut for other frameworks: the values for their settings of partial exchange."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from playerfl.layers.cut_summary import CutSummary


def export_cut(summary: CutSummary) -> dict[str, Any]:
    """Settings for NVFlare, FL4Health and Flower that exchange exactly the federated layers.

    `nvflare_exclude_vars`: the regex of NVFlare's `ExcludeVars` filter, which drops what it matches; put the filter on
    task results (up) and on task data (down). `fl4health_layers_to_transfer`: for `FixedLayerExchanger`.
    `flower_state_dict_keys`: what a ClientApp takes out of `model.state_dict()` and loads back with `strict=False`.
    """
    return {
        "nvflare_exclude_vars": exclusion_regex(summary.private_keys, summary.federated_keys),
        "fl4health_layers_to_transfer": list(summary.federated_keys),
        "flower_state_dict_keys": list(summary.federated_keys),
    }


def exclusion_regex(excluded: Sequence[str], kept: Iterable[str]) -> str:
    """A regex that matches every excluded key and no kept one with `search`; empty if nothing is excluded.

    >>> exclusion_regex(["fc1.weight", "fc1.bias", "fc2.weight"], ["conv.weight", "fc10.weight"])
    '^(fc1\\\\.|fc2\\\\.)'
    >>> exclusion_regex(["block.norm.running_mean"], ["block.norm.weight"])
    '^(block\\\\.norm\\\\.running_mean$)'
    """
    held = list(kept)
    parts: list[str] = []
    for key in excluded:
        if not any(re.match(part, key) for part in parts):
            parts.append(_shortest_prefix(key, held))
    return f"^({'|'.join(parts)})" if parts else ""


def _shortest_prefix(key: str, kept: Sequence[str]) -> str:
    """The outermost module around a key that holds no kept key, else the key itself."""
    steps = key.split(".")
    for depth in range(1, len(steps)):
        prefix = ".".join(steps[:depth]) + "."
        if not any(other.startswith(prefix) for other in kept):
            return re.escape(prefix)
    return re.escape(key) + "$"
