"""Page, Markdown and LaTeX: templates that write the same view of a report."""

from __future__ import annotations

import base64
import hashlib
import math
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from playerfl.report.compute.report import Report
from playerfl.report.formats import KIND_NAMES
from playerfl.report.view.parts import ReportView, TableView
from playerfl.report.view.sections import view
from playerfl.report.write.escaping import latex, markdown
from playerfl.report.write.payload import embedded_json, payload
from playerfl.version import __version__

if TYPE_CHECKING:
    from jinja2 import Environment

# Joined into one script; the last one starts it.
_SCRIPTS = (
    "basics", "saving", "sorting", "chart", "first", "ranks", "sites", "calibration", "curves", "what_if", "multiverse",
    "page",
)  # fmt: skip
# LaTeX: with more columns, heads have one word per line; longer texts make a column a paragraph.
_MANY_COLUMNS = 7
_LONG_TEXT = 40


def as_markdown(report: Report, title: str) -> str:
    """The report as one Markdown file."""
    return _plain_text("report.md", view(report, title), markdown)


def as_latex(report: Report, title: str) -> str:
    """The report as a LaTeX document that compiles by itself; tables can be copied out of it."""
    return _plain_text("report.tex", view(report, title), latex)


def _plain_text(template: str, shown: ReportView, escape: Any) -> str:
    environment = _environment(autoescape=False)
    environment.filters |= {"text": escape, "column": _latex_column}
    rendered = environment.from_string(_asset(template)).render(
        view=shown, many=_MANY_COLUMNS, has_body=lambda section: bool(section.lead or section.blocks)
    )
    return rendered.rstrip() + "\n"


def _latex_column(table: TableView, position: int) -> str:
    if max((len(row[position].text) for row in table.rows), default=0) > _LONG_TEXT:
        return "p{80mm}"
    return "l" if table.heads[position].words else "r"


def as_page(report: Report, title: str) -> str:
    """One self-contained HTML page: no network, readable on a phone and in print."""
    from markupsafe import Markup

    script = "\n".join(_asset(f"scripts/{name}.js") for name in _SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    grid = report.grid
    # Styles and script are ours; everything else is escaped by the template, or as JSON.
    environment = _environment(autoescape=True)
    environment.filters["sorted_by"] = _sorted_by
    return environment.from_string(_asset("page.html")).render(
        view=view(report, title),
        version=__version__,
        css=Markup(_asset("page.css")),
        script=Markup(script),
        script_hash=f"sha256-{digest}",
        data=Markup(embedded_json(payload(report))) if grid.runs or report.multiverses else None,
        metrics=[(m, grid.declared[m].title) for m in sorted(grid.metrics, key=lambda m: m != report.metric)],
        tasks=grid.tasks,
        first_task=next((task for task in grid.tasks if task not in report.not_learnt), ""),
        algorithms=grid.algorithms,
        subject=report.subject,
        has_layers=bool(report.layer_scores),
        kinds=[(kind, KIND_NAMES[kind]) for kind in dict.fromkeys(table.kind for table in report.tables)],
    )


def _sorted_by(value: float | None) -> str:
    """What the page sorts a cell by, as short as sorting allows: there are thousands of cells.

    >>> _sorted_by(1460734.0), _sorted_by(0.19285714285714284), _sorted_by(float("inf")), _sorted_by(float("nan"))
    ('1460734', '0.1928571', 'Infinity', '')
    """
    if value is None or math.isnan(value):
        return ""
    return f"{value:.7g}" if math.isfinite(value) else "Infinity" if value > 0 else "-Infinity"


def _environment(*, autoescape: bool) -> Environment:
    from jinja2 import Environment, StrictUndefined

    return Environment(autoescape=autoescape, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


def _asset(name: str) -> str:
    return (files("playerfl.report") / "assets" / name).read_text(encoding="utf-8")
