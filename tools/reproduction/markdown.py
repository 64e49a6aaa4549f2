"""Generated parts of a page: Markdown tables and paragraphs, and where on the page they belong."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMES = {
    "fashion_mnist": "FashionMNIST", "emnist": "EMNIST", "cifar10": "CIFAR-10", "isic2019": "ISIC 2019",
    "heart": "Heart", "tweets": "Tweets", "digits": "Digits",
}  # fmt: skip
"""Of tasks, in headings and tables."""


def table_of(heads: Sequence[str], rows: Sequence[Sequence[str]], words: Sequence[bool] | None = None) -> str:
    """A table. `words`: which columns are aligned to the left; default: those in which no cell begins with a number.

    >>> print(table_of(["method", "score"], [["a", "1.5"]]))
    | method | score |
    |---|--:|
    | a | 1.5 |
    """
    if words is None:
        words = [not any(re.match(r"[*+−]*\d", cell) for cell in column) for column in zip(*rows, strict=True)]
    marks = "|".join("---" if left else "--:" for left in words)
    lines = [f"| {' | '.join(row)} |" for row in (heads, *rows)]
    return "\n".join([lines[0], f"|{marks}|", *lines[1:]])


def filled(text: str) -> str:
    """A paragraph in the width of the documentation."""
    return textwrap.fill(text, 140, break_long_words=False, break_on_hyphens=False)


def point(text: str) -> str:
    """A point of a list, in the same width."""
    return textwrap.fill(f"- {text}", 140, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def replaced(page: str, name: str, text: str) -> str:
    """The page with the generated part of this name replaced.

    >>> replaced("a <!-- generated: x -->old<!-- end of x --> b", "x", "new")
    'a <!-- generated: x -->\\n\\nnew\\n\\n<!-- end of x --> b'
    """
    before, begin, rest = page.partition(f"<!-- generated: {name} -->")
    _, end, after = rest.partition(f"<!-- end of {name} -->")
    if not (begin and end):
        raise SystemExit(f"the page has no part called {name}")
    return "".join([before, begin, f"\n\n{text}\n\n" if text else "\n", end, after])
