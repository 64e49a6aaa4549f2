"""Unusual values: where new rows differ from everything that the model was trained with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from playerfl.data.encoding.encoding import TableEncoding
from playerfl.export.folder import ExportedModel
from playerfl.export.ranges import RangeRecord, between
from playerfl.wording import counted

OUTSIDE, FILLED = "outside training range", "missing values filled in"
# The chance that this many usual rows lie in the same quarter is one in 500,000.
_ENOUGH_ROWS = 10
_MOST_NAMED = 5


@dataclass(frozen=True)
class Unusual:
    """What predictions must say about the rows they are for."""

    columns: tuple[str, ...]
    """Titles of the remarks on each row."""
    rows: tuple[tuple[str, ...], ...]
    warnings: tuple[str, ...]


def unusual_values(model: ExportedModel, inputs: Sequence[Tensor], places: Sequence[str]) -> Unusual:
    """Compares rows, as the model's program takes them, or measures of images, with the ranges of the training rows.

    `places`: where each row is, for messages.
    """
    encoding = model.encoding.inputs if model.encoding is not None else None
    table = encoding if isinstance(encoding, TableEncoding) else None
    remarks: list[tuple[str, list[str]]] = []
    warnings: list[str] = []
    ranges = model.about.get("ranges")
    if ranges is None:
        warnings.append(
            "this model folder does not say which values its training rows had, so new values are not compared with "
            "them; export the model again"
        )
    elif ranges:
        names = model.model.beyond(tuple(inputs))
        remarks.append((OUTSIDE, ["; ".join(of_row) for of_row in names]))
        warnings += _outside(model, table, inputs, names, places)
        warnings += _shifted(ranges, inputs, len(places))
    if table is not None and table.fills_missing:
        remarks.append((FILLED, _filled(table, inputs[0])))
    rows = tuple(tuple(cells[row] for _, cells in remarks) for row in range(len(places)))
    return Unusual(tuple(title for title, _ in remarks), rows, tuple(warnings))


def _outside(
    model: ExportedModel,
    table: TableEncoding | None,
    inputs: Sequence[Tensor],
    names: Sequence[Sequence[str]],
    places: Sequence[str],
) -> list[str]:
    rows: dict[str, list[int]] = {}
    for row, of_row in enumerate(names):
        for name in of_row:
            rows.setdefault(name, []).append(row)
    if not rows:
        return []
    columns = sorted(rows, key=lambda name: -len(rows[name]))
    each = [
        f"{name!r} in {counted(len(rows[name]), 'row')} ({places[rows[name][0]]}: "
        f"{_compared(model.about['ranges'], table, inputs, name, rows[name][0])})"
        for name in columns[:_MOST_NAMED]
    ]
    more = f"; and {len(columns) - _MOST_NAMED} more columns" if len(columns) > _MOST_NAMED else ""
    odd = sum(map(bool, names))
    return [
        f"{odd} of {counted(len(names), 'row')} {'has' if odd == 1 else 'have'} values outside the usual range of "
        f"{model.about['site']}'s training rows, where the model may only extrapolate: {'; '.join(each)}{more}"
    ]


def _compared(
    ranges: Sequence[RangeRecord], table: TableEncoding | None, inputs: Sequence[Tensor], column: str, row: int
) -> str:
    """The value that is outside, and the range."""
    for limits in ranges:
        if limits["column"] != column:
            continue
        values = inputs[limits["input"]][row].reshape(-1).double()
        values = values if limits["position"] is None else values[limits["position"], None]
        beyond = values[(values < limits["low"]) | (values > limits["high"])]
        if not len(beyond):
            continue
        kind = next((c.kind for c in table.columns if c.kind.name == column), None) if table else None
        if kind is not None and not kind.is_measured:
            assert table is not None and limits["position"] is not None
            return f"no training row has {_meaning(table.input_names[limits['position']], bool(beyond[0]))}"
        return f"{float(beyond[0]):.6g}, usual is {between(limits['low'], limits['high'])}"
    return "unusual"


def _meaning(name: str, value: bool) -> str:
    return f"'{name}'" if " = " in name else f"{name!r} = {str(value).lower()}"


def _shifted(ranges: Sequence[RangeRecord], inputs: Sequence[Tensor], rows: int) -> list[str]:
    """Columns of which all values lie where only a quarter of the training values do: other units, perhaps."""
    warnings = []
    for limits in ranges:
        if limits["middle"] is None or limits["position"] is None:
            continue
        values = inputs[limits["input"]].reshape(rows, -1)[:, limits["position"]].double()
        values = values[~torch.isnan(values)]
        low, high = limits["middle"]
        below = bool((values < low).all())
        if len(values) < _ENOUGH_ROWS or not (below or bool((values > high).all())):
            continue
        side = f"below {low:.4g}" if below else f"above {high:.4g}"
        warnings.append(
            f"all {len(values)} values of {limits['column']!r} ({between(float(values.min()), float(values.max()))}) "
            f"are {side}, as only a quarter of the training values are; are they in the same units?"
        )
    return warnings


def _filled(table: TableEncoding, raw: Tensor) -> list[str]:
    """For each row, the columns whose value is missing."""
    missing = torch.isnan(raw)
    cells: list[list[str]] = [[] for _ in range(len(raw))]
    position = 0
    for column in table.columns:
        for row in missing[:, position].nonzero().flatten().tolist():
            cells[row].append(column.kind.name)
        position += column.kind.width
    return ["; ".join(names) for names in cells]
