"""The specification curve: a method's rank under every protocol, above the choices that each protocol makes."""

from __future__ import annotations

from itertools import groupby
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from playerfl.report.compute.multiverse import Multiverse
from playerfl.report.names import method_name
from playerfl.report.plots.comparison import COLOURS
from playerfl.report.view.multiverse import factor_name, finding, rank_text

_WIDTH = 9.0
_CURVE_HEIGHT = 2.6
_ROW_HEIGHT = 0.165
# Letters of a title that fit into a line.
_LETTERS = 95


def multiverse_figure(multiverse: Multiverse, method: str | None = None) -> tuple[Figure, list[Axes]]:
    """Above: the method's rank (default: PLayer-FL's) by protocol, best first. Below: what each protocol chooses."""
    method = method or multiverse.subject
    rows = _rows(multiverse)
    matrix_height = _ROW_HEIGHT * max(2, len(rows))
    figure = Figure(figsize=(_WIDTH, _CURVE_HEIGHT + matrix_height + 1.2), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(_CURVE_HEIGHT, matrix_height))
    _draw_curve(above, multiverse, method)
    _draw_choices(below, multiverse, method, rows)
    title = finding(multiverse, method).replace("; ", ";\n", 1)
    figure.suptitle("\n".join(fill(line, _LETTERS) for line in title.splitlines()), fontsize=11, parse_math=False)
    return figure, [above, below]


def _rows(multiverse: Multiverse) -> list[tuple[int, int | None]]:
    """Factor and value of each row of the matrix; None for a factor's head. Factors with one value are left out."""
    return [
        (number, value)
        for number, factor in enumerate(multiverse.factors)
        if len(factor.values) > 1
        for value in (None, *range(len(factor.values)))
    ]


def _draw_curve(axes: Axes, multiverse: Multiverse, method: str) -> None:
    positions = np.arange(len(multiverse.protocols) + 1)
    name, rival = method_name(method), multiverse.rival(method)
    looks: list[tuple[str, str, dict[str, Any]]] = [(method, name, {"color": COLOURS[0], "linewidth": 2.4})]
    if rival is not None:
        best = f"{method_name(rival)}, the best other method"
        looks.append((rival, best, {"color": COLOURS[2], "linewidth": 1.5, "linestyle": "--"}))
    rest = [other for other in multiverse.methods if other not in (method, rival)]
    grey = {"color": "0.8", "linewidth": 0.8}
    labels = ["the rest, each in its own order", *("" for _ in rest[1:])]
    looks += [(other, label, grey) for other, label in zip(rest, labels, strict=False)]
    lines = {}
    for other, label, look in reversed(looks):
        drawn = axes.stairs(sorted(multiverse.ranks(other)), positions, baseline=None, **look)
        if label:
            lines[label] = drawn
    count = len(multiverse.methods)
    axes.set_ylim(count + 0.6, 0.4)
    axes.set_yticks(sorted({1, *range(4, count, 4), count}) if count > 6 else range(1, count + 1))
    axes.set_ylabel("rank (1 is best)")
    axes.tick_params(labelbottom=False)
    axes.spines[["top", "right"]].set_visible(False)
    shown = axes.legend(lines.values(), lines.keys(), reverse=True, frameon=False, fontsize=9, ncols=3,
                        loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0)  # fmt: skip
    for text in shown.get_texts():
        text.set_parse_math(False)


def _draw_choices(axes: Axes, multiverse: Multiverse, method: str, rows: list[tuple[int, int | None]]) -> None:
    order = multiverse.ordered(method)
    deciding = multiverse.of(method).decided_by
    medians = multiverse.median_ranks(method)
    for row, (number, value) in enumerate(rows):
        factor = multiverse.factors[number]
        colour = COLOURS[5] if factor.name == deciding else "0.25"
        if value is None:
            axes.axhline(row - 0.5, color="0.85", linewidth=0.8)
            continue
        chosen = [multiverse.protocols[i].choices[number] == value for i in order]
        axes.broken_barh(_stretches(chosen), (row - 0.36, 0.72), color=colour, linewidth=0)
        median = medians[number][value]
        if median is not None:
            axes.text(1.012, row, rank_text(median), transform=axes.get_yaxis_transform(), fontsize=8, va="center")
    if rows:
        axes.text(1.012, -0.2, "median\nrank", transform=axes.get_yaxis_transform(), fontsize=8, va="bottom")
    labels = [
        factor_name(multiverse.factors[number].name) if value is None else multiverse.factors[number].values[value]
        for number, value in rows
    ]
    axes.set_yticks(range(len(rows)), [_shortened(label) for label in labels], fontsize=8, parse_math=False)
    for (number, value), label in zip(rows, axes.get_yticklabels(), strict=True):
        if value is None:
            label.set_fontweight("bold")
            label.set_color(COLOURS[5] if multiverse.factors[number].name == deciding else "black")
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, len(order))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(f"protocols, sorted by the rank of {method_name(method)}", parse_math=False)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _stretches(chosen: list[bool]) -> list[tuple[float, float]]:
    """Where a choice is made, as (start, length).

    >>> _stretches([True, True, False, True])
    [(0, 2), (3, 1)]
    """
    stretches: list[tuple[float, float]] = []
    start = 0
    for made, members in groupby(chosen):
        length = len(list(members))
        if made:
            stretches.append((start, length))
        start += length
    return stretches


def _shortened(text: str) -> str:
    return text if len(text) <= 28 else f"{text[:27]}…"
