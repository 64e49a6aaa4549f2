"""Reports and figures as files."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from playerfl.errors import ConfigError, RunDirectoryError
from playerfl.report.report import Report

Form = Literal["html", "md", "latex", "csv"]
_FILES = {"html": "report.html", "md": "report.md", "latex": "report.tex", "csv": "tables"}
_SUFFIXES = {"html": (".html", ".htm"), "md": (".md",), "latex": (".tex",)}


def write_report(report: Report, form: Form, out: Path, title: str) -> Path:
    """Writes a report into a file, or into the usual file of a folder; says where it is."""
    if form == "csv":
        if out.suffix == ".csv":
            raise ConfigError(f"--format csv writes several tables; give a folder for --out, not {out}")
        return _write_tables(report, out / _FILES[form] if out.name == "report" else out)
    place = out if out.suffix in _SUFFIXES[form] else out / _FILES[form]
    if form == "html":
        try:
            from playerfl.report.page import page

            text = page(report, title)
        except ImportError as problem:
            raise ConfigError(f"the page needs {problem.name}; pip install 'playerfl[report]'") from problem
    else:
        from playerfl.report.documents import Latex, Markdown, document

        text = document(report, title, Markdown() if form == "md" else Latex())
    _write(place, text)
    return place


def _write_tables(report: Report, folder: Path) -> Path:
    from playerfl.report.tidy import tidy

    for name, rows in tidy(report).items():
        if not rows:
            continue
        text = io.StringIO()
        writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        _write(folder / f"{name}.csv", text.getvalue())
    return folder


def _write(place: Path, text: str) -> None:
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
    except OSError as problem:
        raise RunDirectoryError(f"cannot write {place}: {problem.strerror or problem}") from problem


def write_figures(report: Report, folder: Path, formats: Sequence[str]) -> list[Path]:
    """Draws every figure into files named after it."""
    try:
        from playerfl.report.figures import save
        from playerfl.report.paper_figures import report_figures
    except ImportError as problem:
        raise ConfigError("pictures are drawn with matplotlib; pip install 'playerfl[report]'") from problem
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise RunDirectoryError(f"cannot write {folder}: {problem.strerror or problem}") from problem
    found = []
    for name, (figure, _) in report_figures(report).items():
        found += [save(figure, folder / f"{name}.{ending}") for ending in formats]
    return found
