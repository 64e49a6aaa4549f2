"""The figure of a data check: rows of each class at each site, and the range of every column by site."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from playerfl.report.plots.comparison import COLOURS

_MOST_COLUMNS = 30
_MOST_CLASSES = 20
_ODD = COLOURS[5]
_WIDEST = 4.0


def check_figure(check: Mapping[str, Any]) -> tuple[Figure, list[Axes]]:
    """Takes what `DataCheck.as_dict` returns. Columns with problems come first, and odd sites are marked."""
    odd = {(f["column"], site) for f in check["findings"] if f["severity"] != "note" for site in f["sites"]}
    named = {f["column"] for f in check["findings"] if f["severity"] != "note"}
    columns = [c for c in check["columns"] if any(s["median"] is not None for s in c["sites"].values())]
    columns = sorted(columns, key=lambda column: column["name"] not in named)[:_MOST_COLUMNS]
    sites = list(check["rows"])
    lines = len(columns) * max(1, len(sites))
    height = min(30.0, max(3.2, 0.6 * len(sites) + 1.5, 0.17 * lines + 1.6))
    figure = Figure(figsize=(11 if columns else 6, height), layout="constrained")
    axes: list[Axes] = list(figure.subplots(1, 2 if columns else 1, squeeze=False)[0])
    _draw_classes(axes[0], check["rows"], check["classes"])
    if columns:
        _draw_columns(axes[1], columns, sites, odd)
    return figure, axes


def _draw_classes(axes: Axes, rows: Mapping[str, int], classes: Mapping[str, Mapping[str, int]]) -> None:
    sites = list(rows)
    left = np.zeros(len(sites))
    counted = classes if 0 < len(classes) <= _MOST_CLASSES else {"rows": rows}
    for number, (name, by_site) in enumerate(counted.items()):
        counts = np.array([by_site.get(site, 0) for site in sites], dtype=float)
        colour, hatch = COLOURS[number % len(COLOURS)], ("", "//", "..")[number // len(COLOURS) % 3]
        axes.barh(range(len(sites)), counts, left=left, color=colour, hatch=hatch, label=name, height=0.7)
        left += counts
    axes.set_yticks(range(len(sites)), sites)
    axes.invert_yaxis()
    axes.set_xlabel("rows")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=min(4, len(counted)), fontsize=9)


def _draw_columns(
    axes: Axes, columns: Sequence[Mapping[str, Any]], sites: Sequence[str], odd: set[tuple[str, str]]
) -> None:
    """Each site's median and its range from the 5th to the 95th percentile, in spreads of all sites' medians."""
    height = 0.8 / len(sites)
    for row, column in enumerate(columns):
        known = {site: of_site for site, of_site in column["sites"].items() if of_site["median"] is not None}
        centre = float(np.median([of_site["median"] for of_site in known.values()]))
        spread = float(np.median([of_site["spread"] for of_site in known.values()])) or 1.0
        for number, site in enumerate(sites):
            if site not in known:
                continue
            low, middle, high = (
                float(np.clip((known[site][at] - centre) / spread, -_WIDEST, _WIDEST))
                for at in ("low_5", "median", "high_95")
            )
            y = row - 0.4 + height * (number + 0.5)
            colour = _ODD if (column["name"], site) in odd else COLOURS[0]
            axes.plot([low, high], [y, y], color=colour, linewidth=1.5, solid_capstyle="butt")
            axes.plot([middle], [y], color=colour, marker="o", markersize=3.5)
    axes.set_yticks(range(len(columns)), [column["name"] for column in columns])
    axes.set_ylim(len(columns) - 0.5, -0.5)
    axes.set_xlim(-_WIDEST - 0.2, _WIDEST + 0.2)
    for row in range(1, len(columns)):
        axes.axhline(row - 0.5, color="0.9", linewidth=0.8)
    axes.set_xlabel("spreads from the median of all sites (beyond 4: at the edge)")
    axes.set_title(f"median and middle 90 % of each site, top to bottom: {', '.join(sites[:6])}", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.plot([], [], color=_ODD, marker="o", label="look at this site")
    if odd:
        axes.legend(frameon=False, loc="lower right", fontsize=8)
