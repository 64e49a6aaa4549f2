"""The parts of a report, without a format: facts with named columns, and sections of paragraphs, lists and tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, ClassVar, Generic, TypeVar

Item = TypeVar("Item")
Value = float | int | str | bool | None


@dataclass(frozen=True)
class TableCell:
    """What one cell shows."""

    text: str
    value: float | None = None
    """What the cell is sorted by: NaN comes last, None sorts by the text."""
    bold: bool = False
    notes: tuple[str, ...] = ()
    """Further, smaller lines."""
    tone: str = ""
    """`gain` or `loss` for a coloured cell."""


NOTHING = TableCell("–", float("nan"))


@dataclass(frozen=True)
class Column(Generic[Item]):
    """One fact about an item, for every format.

    `key` is its name in CSV and JSON, `title` its heading in documents. Where one is empty, the column is left out.
    """

    key: str
    title: str
    value: Callable[[Item], Value]
    text: Callable[[Item], str | TableCell] | None = None
    """How documents show it; default: the value as text."""
    words: bool = False
    """Text, aligned to the left; otherwise a number."""
    note: str = "{}"
    """How it is written as a small line below another value."""

    def cell(self, item: Item) -> TableCell:
        value = self.value(item)
        shown = self.text(item) if self.text else str(value)
        if isinstance(shown, TableCell):
            return shown
        return TableCell(shown, None if self.words or isinstance(value, str | None) else float(value))


def fields(*paths: str) -> list[Column[Any]]:
    """Columns for CSV and JSON only, each an attribute of the item under its own name.

    >>> [column.key for column in fields("task", "cell.low")]
    ['task', 'low']
    """
    return [Column(path.rpartition(".")[2], "", attrgetter(path)) for path in paths]


@dataclass(frozen=True)
class Head:
    """The head of a column in a document."""

    title: str
    words: bool = False


@dataclass(frozen=True)
class TableView:
    """A table as documents show it."""

    kind: ClassVar[str] = "table"
    caption: str
    heads: tuple[Head, ...]
    rows: tuple[tuple[TableCell, ...], ...]
    reference_rows: int = 0
    """How many rows at the end are for reference only."""
    remark: str = ""
    metric: str = ""
    """The page shows this table only while this metric is selected; empty: always."""
    name: str = ""
    sortable: bool = False
    filtered: bool = False
    """Whether the page shows only the rows of the chosen methods and task, by the columns `method` and `task`."""
    folded: bool = False
    """Whether the page shows it collapsed."""


@dataclass(frozen=True)
class Facts(Generic[Item]):
    """Facts of one kind: records for CSV and JSON, tables for documents, from the same columns."""

    name: str
    columns: Sequence[Column[Item]]
    items: Sequence[Item]

    def records(self) -> list[dict[str, Value]]:
        named = [column for column in self.columns if column.key]
        return [{column.key: column.value(item) for column in named} for item in self.items]

    def table(self, caption: str, items: Sequence[Item] | None = None, **options: Any) -> TableView:
        """These items (default: all), by the columns that have a title."""
        titled = [column for column in self.columns if column.title]
        rows = [tuple(column.cell(item) for column in titled) for item in (self.items if items is None else items)]
        heads = tuple(Head(column.title, column.words) for column in titled)
        return TableView(caption, heads, tuple(rows), name=self.name, **options)


@dataclass(frozen=True)
class Paragraph:
    kind: ClassVar[str] = "paragraph"
    text: str


@dataclass(frozen=True)
class Points:
    """A list of sentences, with or without a heading."""

    kind: ClassVar[str] = "points"
    lines: tuple[str, ...]
    title: str = ""
    note: bool = False
    """Whether the page highlights it as a warning."""


Block = Paragraph | Points | TableView


@dataclass(frozen=True)
class Section:
    """A titled part of a report."""

    anchor: str
    title: str
    lead: str = ""
    blocks: tuple[Block, ...] = ()
    interactive: bool = False
    """Whether the page shows controls and figures here, drawn from the same numbers, instead of the blocks."""
    unfolded: bool = False
    """Whether the page shows the section open."""


@dataclass(frozen=True)
class ReportView:
    """A whole report, ready to be written in any format."""

    title: str
    lead: str
    answer: str
    """The answer to the reader's main question, with its uncertainty, in one sentence."""
    sections: tuple[Section, ...]

    @property
    def notes(self) -> dict[str, int]:
        """How many notes each section has that a reader should see before relying on the report."""
        counts = {
            section.anchor: sum(len(b.lines) for b in section.blocks if isinstance(b, Points) and b.note)
            for section in self.sections
        }
        return {anchor: count for anchor, count in counts.items() if count}
