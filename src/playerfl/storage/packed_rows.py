"""Rows of a table by column, as tensors of the smallest type that holds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Row = Sequence[str | int | float]


def packed(rows: Sequence[Row]) -> dict[str, Any]:
    """Rows of equal types by column: texts as indices into the distinct combinations, numbers as tensors.

    >>> packed([("a", 1, 0.5), ("b", 2, 0.25)])["texts"]
    [['a'], ['b']]
    >>> unpacked(packed([("a", 1, 0.5), ("b", 2, 0.25)]))
    [('a', 1, 0.5), ('b', 2, 0.25)]
    """
    if not rows:
        return {"kinds": [], "texts": [], "places": torch.empty(0, dtype=torch.int16), "numbers": []}
    kinds = ["text" if isinstance(v, str) else "float" if isinstance(v, float) else "int" for v in rows[0]]
    columns = list(zip(*rows, strict=True))
    texts = list(zip(*(column for column, kind in zip(columns, kinds, strict=True) if kind == "text"), strict=True))
    places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
    return {
        "kinds": kinds,
        "texts": [list(text) for text in places],
        "places": _integers([places[text] for text in texts]),
        "numbers": [
            _integers(column) if kind == "int" else torch.tensor(column, dtype=torch.float64)
            for column, kind in zip(columns, kinds, strict=True)
            if kind != "text"
        ],
    }


def _integers(values: Sequence[Any]) -> Tensor:
    """A tensor of the smallest type that holds these integers."""
    largest = max(map(abs, values))
    kind = torch.int16 if largest < 2**15 else torch.int32 if largest < 2**31 else torch.int64
    return torch.tensor(values, dtype=kind)


def unpacked(table: Mapping[str, Any]) -> list[Row]:
    """The inverse of `packed`."""
    places = table["places"].tolist()
    texts = iter(zip(*table["texts"], strict=True))
    numbers = iter(table["numbers"])
    columns: list[list[Any]] = []
    for kind in table["kinds"]:
        if kind == "text":
            words = next(texts)
            columns.append([words[place] for place in places])
        else:
            columns.append(next(numbers).tolist())
    return list(zip(*columns, strict=True))
