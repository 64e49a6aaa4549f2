"""Reports and figures as files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from playerfl.errors import ConfigError
from playerfl.report.compute.report import Report
from playerfl.storage.atomic_files import RERUN_HINT, make_directory, write_atomically
from playerfl.storage.csv_table import csv_text

Form = Literal["html", "md", "latex", "csv"]
_FILES: dict[Form, str] = {"html": "report.html", "md": "report.md", "latex": "report.tex", "csv": "tables"}
_FORMS: dict[str, Form] = {".html": "html", ".htm": "html", ".md": "md", ".tex": "latex"}


@dataclass(frozen=True)
class Place:
    """Where a report goes, and as what."""

    form: Form
    path: Path
    """The file; for CSV the folder of the tables."""

    @property
    def figures(self) -> Path:
        return self.path.parent / "figures"


def place_of(out: Path, form: Form | None) -> Place:
    """A name with a report's ending is a file; any other is a folder, which gets the default file of the format.

    Without a format, the ending decides; a folder gets a page.

    >>> place_of(Path("board.html"), None).form, place_of(Path("tables.tex"), None).form
    ('html', 'latex')
    >>> place_of(Path("out"), "md").path.as_posix(), place_of(Path("out"), "csv").path.as_posix()
    ('out/report.md', 'out/tables')
    """
    if not out.suffix or out.is_dir():
        return Place(form or "html", out / _FILES[form or "html"])
    ends_like = _FORMS.get(out.suffix.lower())
    if form == "csv" or out.suffix.lower() == ".csv":
        raise ConfigError(f"--format csv writes several tables; give a folder for --out, not {out}")
    if ends_like is None or ends_like != (form or ends_like):
        wanted = [ending for ending, known in _FORMS.items() if form in (known, None)]
        raise ConfigError(
            f"--out {out}: a report's name must end with {' or '.join(wanted)}; a folder must exist or have no dot in "
            "its name"
        )
    return Place(ends_like, out)


def write_report(report: Report, place: Place, title: str) -> None:
    if place.form == "csv":
        _write_tables(report, place.path)
        return
    from playerfl.report.write import documents

    forms = {"html": documents.as_page, "md": documents.as_markdown, "latex": documents.as_latex}
    try:
        text = forms[place.form](report, title)
    except ImportError as problem:
        raise ConfigError(f"this format needs {problem.name}; pip install 'playerfl[report]'") from problem
    _write(place.path, text)


def _write_tables(report: Report, folder: Path) -> None:
    from playerfl.report.view.facts import records

    for name, rows in records(report).items():
        if not rows:
            continue
        _write(folder / f"{name}.csv", csv_text([list(rows[0]), *(list(row.values()) for row in rows)]))


def _write(place: Path, text: str) -> None:
    make_directory(place.parent)
    # A name from a user's file may hold a lone surrogate, which UTF-8 cannot encode: it becomes a question mark.
    write_atomically(place, text.encode("utf-8", "replace"), RERUN_HINT)


def write_figures(report: Report, folder: Path, formats: Sequence[str]) -> list[Path]:
    """Draws every figure into files named after it."""
    try:
        from playerfl.report.plots.comparison import save
        from playerfl.report.plots.report import report_figures
    except ImportError as problem:
        raise ConfigError("figures need matplotlib; pip install 'playerfl[report]'") from problem
    make_directory(folder)
    return [
        save(figure, folder / f"{name}.{ending}")
        for name, (figure, _) in report_figures(report).items()
        for ending in formats
    ]
