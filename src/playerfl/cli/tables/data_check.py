"""The tables and sentences of a data check."""

from __future__ import annotations

import re
import shlex

from rich.markup import escape
from rich.table import Table

from playerfl.cli.tables.console import wide_console
from playerfl.data.check.result import ColumnProfile, DataCheck, Finding, SiteColumn
from playerfl.runs.settings_table import parse_setting
from playerfl.wording import counted

_MOST_CLASSES = 12
_MOST_COLUMNS = 40
_MOST_SITES = 6
_MOST_SHORT = 8
_QUOTED = re.compile(r'"(?:\\.|[^"\\])*"')
_ASSIGNMENT = re.compile(rf'(?:\[(?:{_QUOTED.pattern}|[^\]"])*\]|{_QUOTED.pattern}|[^\s"\[])+')
_TONES = {"stop": "bold red", "warning": "yellow", "note": "dim"}


def print_check(check: DataCheck) -> None:
    """Sites and classes, columns by site, and what was found."""
    console = wide_console()
    if check.rows:
        # As the table's title, it would be as narrow as the table.
        if check.target:
            console.print(f"[italic]{escape(f'target: {check.target}')}[/italic]", soft_wrap=True)
        console.print(_sites_table(check))
    odd = {(finding.column, site) for finding in _problems(check) for site in finding.sites}
    if check.columns:
        columns = sorted(check.columns, key=lambda column: not any(column.name == name for name, _ in odd))
        for start in range(0, len(check.rows), _MOST_SITES):
            console.print(_columns_table(columns, list(check.rows)[start : start + _MOST_SITES], odd))
        if len(columns) > _MOST_COLUMNS:
            console.print(f"{len(columns) - _MOST_COLUMNS} more columns; --json has all of them")
    for finding in check.sorted_findings:
        console.print(_sentence(finding), soft_wrap=True)
    console.print(summary(check))


def print_short_check(check: DataCheck) -> None:
    """On stderr, before training: one line per problem and per guess, and where to read more."""
    console = wide_console(stderr=True)
    rows = ", ".join(f"{site} {count:,}" for site, count in check.rows.items())
    console.print(escape(f"data check: {rows or 'no rows'} rows; {summary(check)}"), soft_wrap=True)
    shown = [*_problems(check), *(f for f in check.having("note") if f.topic in ("target", "kind"))]
    for finding in shown[:_MOST_SHORT]:
        console.print(_sentence(finding), soft_wrap=True)
    if _problems(check):
        more = f"{len(shown) - _MOST_SHORT} more; see all: " if len(shown) > _MOST_SHORT else "the whole check: "
        console.print(escape(f"{more}playerfl data check {check.task}"), soft_wrap=True)


def summary(check: DataCheck) -> str:
    """How many findings of each kind.

    >>> summary(DataCheck("x"))
    'nothing to stop training, 0 warnings'
    """
    stops, warnings = len(check.having("stop")), len(check.having("warning"))
    stopping = f"{counted(stops, 'problem')} to fix before training" if stops else "nothing to stop training"
    return f"{stopping}, {counted(warnings, 'warning')}"


def _problems(check: DataCheck) -> list[Finding]:
    return [*check.having("stop"), *check.having("warning")]


def _sentence(finding: Finding) -> str:
    tone = _TONES[finding.severity]
    setting = f" [cyan]{escape(f'[set {in_shell(finding.setting)}]')}[/cyan]" if finding.setting else ""
    return f"[{tone}]{finding.severity}[/{tone}] {escape(finding.text)}{setting}"


def in_shell(setting: str) -> str:
    """A finding's setting with quotes where a shell would change what comes after --set.

    >>> print(in_shell('data.missing_codes="crp=-999" data.missing=mean (or drop)'))
    data.missing_codes="crp=-999" data.missing=mean (or drop)
    >>> print(in_shell('data.recode=["a: 1=0", "b: 1=0"]'))
    'data.recode=["a: 1=0", "b: 1=0"]'
    """
    parts = _ASSIGNMENT.findall(setting)
    remark = next((i for i, part in enumerate(parts) if part.startswith("(")), len(parts))
    return " ".join([*map(_pasted, parts[:remark]), *parts[remark:]])


def _pasted(assignment: str) -> str:
    if "=" not in assignment or re.fullmatch(r"[\w.]+='[^']*'", assignment):
        return assignment
    quoted = _QUOTED.findall(assignment)
    plain = re.fullmatch(r"[\w.=/,:+%@-]*", _QUOTED.sub("", assignment)) and not re.search(r"[$`\\!]", "".join(quoted))
    unchanged = plain and parse_setting(assignment.replace('"', "")) == parse_setting(assignment)
    return assignment if unchanged else shlex.quote(assignment)


def _sites_table(check: DataCheck) -> Table:
    table = Table()
    classes = list(check.classes)[:_MOST_CLASSES]
    table.add_column("site", no_wrap=True)
    for heading in ("rows", *(["groups"] if check.groups else []), *classes):
        table.add_column(escape(heading), justify="right", overflow="fold")
    if len(check.classes) > _MOST_CLASSES:
        table.add_column(f"{len(check.classes) - _MOST_CLASSES} more", justify="right")
    for site, rows in check.rows.items():
        cells = [escape(site), f"{rows:,}"]
        if check.groups:
            cells.append(f"{check.groups.get(site, 0):,}")
        cells += [_count(check.classes[name].get(site, 0)) for name in classes]
        if len(check.classes) > _MOST_CLASSES:
            cells.append(f"{sum(check.classes[name].get(site, 0) for name in list(check.classes)[_MOST_CLASSES:]):,}")
        table.add_row(*cells)
    return table


def _count(count: int) -> str:
    return f"{count:,}" if count else "[yellow]0[/yellow]"


def _columns_table(columns: list[ColumnProfile], sites: list[str], odd: set[tuple[str | None, str]]) -> Table:
    table = Table(
        title="columns: median (smallest to largest); categories; missing values",
        title_justify="left",
    )
    table.add_column("column", overflow="fold")
    table.add_column("kind", no_wrap=True)
    for site in sites:
        table.add_column(escape(site), overflow="fold")
    for column in columns[:_MOST_COLUMNS]:
        cells = []
        for site in sites:
            text = escape(_shown(column.sites.get(site)))
            cells.append(f"[yellow]! {text}[/yellow]" if (column.name, site) in odd else text)
        table.add_row(escape(column.name), column.kind, *cells)
    return table


def _shown(of_site: SiteColumn | None) -> str:
    if of_site is None:
        return "?"
    gaps = f", {of_site.missing / of_site.rows:.0%} missing" if of_site.missing else ""
    if of_site.median is None:
        values = f"{of_site.distinct:,} different" if of_site.distinct else "empty"
        return values + gaps
    return f"{of_site.median:.4g} ({of_site.low:.4g} to {of_site.high:.4g}){gaps}"
