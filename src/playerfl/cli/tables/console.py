"""The console that tables are printed on, and tables that fit on it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

Column = tuple[str, Sequence[str]]
"""A heading and its cells, which may hold markup."""


def wide_console(*, stderr: bool = False) -> Console:
    """As wide as the terminal; 120 columns when piped, so that tables are not truncated."""
    console = Console(highlight=False, stderr=stderr)
    return console if console.is_terminal else Console(highlight=False, stderr=stderr, width=120)


def fitting_tables(
    title: str, names: Column, blocks: Sequence[Sequence[Column]], width: int, below: int = 0
) -> list[Table]:
    """One table, or several below each other where the columns do not fit side by side; each starts with the names.

    The columns of a block stay together. `below`: how many rows at the end are set off by a line.
    """
    room = width - _wide(names) - 1
    groups: list[list[Column]] = [[]]
    for block in blocks:
        if groups[-1] and sum(map(_wide, [*groups[-1], *block])) > room:
            groups.append([])
        groups[-1] += block
    return [_table("" if number else title, names, group, below) for number, group in enumerate(groups)]


def _table(title: str, names: Column, columns: Sequence[Column], below: int) -> Table:
    table = Table(title=title or None, title_justify="left")
    table.add_column(names[0], overflow="fold")
    for heading, _ in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    last = len(names[1]) - below
    for row, name in enumerate(names[1]):
        cells = [column[row] for _, column in columns]
        if row == last:
            table.add_section()
        if row < last or any(cells):
            table.add_row(name, *cells)
    return table


def _wide(column: Column) -> int:
    """The width of a column with its padding and one border."""
    return max(Text.from_markup(text).cell_len for text in (column[0], *column[1])) + 3
