"""Markdown and LaTeX: a document of headings, paragraphs, lists and tables, written in either."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from playerfl.report.compute.missing_runs import MARKS


@dataclass(frozen=True)
class Text:
    """Words that a writer escapes, and how they stand out."""

    words: str
    bold: bool = False
    rest: tuple[str, ...] = ()
    """Further lines of the cell, which do not stand out."""


class Writer(ABC):
    """Collects a document piece by piece."""

    def __init__(self) -> None:
        self.parts: list[str] = []

    @abstractmethod
    def escaped(self, words: str) -> str: ...

    @abstractmethod
    def bold(self, written: str) -> str: ...

    def text(self, text: str | Text) -> str:
        own = text if isinstance(text, Text) else Text(text)
        words = self.escaped(own.words)
        return self.stacked(self.bold(words) if own.bold else words, [self.escaped(line) for line in own.rest])

    @abstractmethod
    def stacked(self, first: str, rest: Sequence[str]) -> str: ...

    @abstractmethod
    def heading(self, words: str, level: int = 2) -> None: ...

    @abstractmethod
    def paragraph(self, words: str) -> None: ...

    @abstractmethod
    def items(self, lines: Sequence[str]) -> None: ...

    @abstractmethod
    def table(self, caption: str, head: Sequence[str], rows: Sequence[Sequence[str | Text]]) -> None: ...

    def finished(self) -> str:
        return "\n".join(self.parts).rstrip() + "\n"


# Columns that are read, not compared: aligned to the left.
_IN_WORDS = {"method", "pair", "site", "task", "table", "measure", "blocks", "printed", "meaning"}
_IN_WORDS |= {"state", "seeds", "why", *MARKS}


class Markdown(Writer):
    """GitHub's Markdown. Whatever could be markup or HTML is escaped."""

    def escaped(self, words: str) -> str:
        marked = re.sub(r"([\\`*_\[\]|~])", r"\\\1", re.sub(r"\s+", " ", words))
        return marked.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")

    def bold(self, written: str) -> str:
        return f"**{written}**"

    def stacked(self, first: str, rest: Sequence[str]) -> str:
        return " ".join((first, *rest))

    def heading(self, words: str, level: int = 2) -> None:
        self.parts += [f"{'#' * level} {self.text(words)}", ""]

    def paragraph(self, words: str) -> None:
        self.parts += [self.text(words), ""]

    def items(self, lines: Sequence[str]) -> None:
        self.parts += [*(f"- {self.text(line)}" for line in lines), ""]

    def table(self, caption: str, head: Sequence[str], rows: Sequence[Sequence[str | Text]]) -> None:
        self.heading(caption, 3)
        self.parts.append("| " + " | ".join(self.text(cell) for cell in head) + " |")
        self.parts.append("|" + "|".join("---" if title in _IN_WORDS else "--:" for title in head) + "|")
        self.parts += ["| " + " | ".join(self.text(cell) for cell in row) + " |" for row in rows]
        self.parts.append("")


_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "≈": r"$\approx$",
    "±": r"$\pm$",
    "−": r"$-$",
    "×": r"$\times$",
    "∞": r"$\infty$",
    "χ": r"$\chi$",
    "²": r"\textsuperscript{2}",
    "⁻": r"\textsuperscript{$-$}",
    "–": "--",
    "’": "'",
    "“": "``",
    "”": "''",
    "…": r"\ldots{}",
}


class Latex(Writer):
    """A document that compiles by itself; the tables need booktabs and can be copied out."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = [
            r"\documentclass[a4paper,10pt]{article}",
            r"\usepackage[utf8]{inputenc}",
            r"\usepackage[T1]{fontenc}",
            r"\usepackage[landscape,margin=18mm]{geometry}",
            r"\usepackage{booktabs,longtable,textcomp}",
            r"\begin{document}",
            "",
        ]

    def escaped(self, words: str) -> str:
        written = "".join(map(_in_latex, re.sub(r"\s+", " ", words)))
        # After \\ and \item these would be options of the command before them.
        return "{}" + written if written.startswith(("[", "*")) else written

    def bold(self, written: str) -> str:
        return rf"\textbf{{{written}}}"

    def stacked(self, first: str, rest: Sequence[str]) -> str:
        return _under_each_other([first, *(rf"{{\scriptsize {line}}}" for line in rest)], "t")

    def heading(self, words: str, level: int = 2) -> None:
        command = {1: "section*", 2: "section*", 3: "subsection*"}[level]
        self.parts += [rf"\{command}{{{self.text(words)}}}", ""]

    def paragraph(self, words: str) -> None:
        self.parts += [self.text(words), ""]

    def items(self, lines: Sequence[str]) -> None:
        self.parts += [r"\begin{itemize}", *(rf"\item {self.text(line)}" for line in lines), r"\end{itemize}", ""]

    def table(self, caption: str, head: Sequence[str], rows: Sequence[Sequence[str | Text]]) -> None:
        columns = "".join(_column(title, [row[i] for row in rows]) for i, title in enumerate(head))
        many = len(head) > _MANY
        self.parts += [
            *([r"\begingroup\setlength{\tabcolsep}{3pt}"] if many else []),
            rf"\begin{{longtable}}{{{columns}}}",
            rf"\caption{{{self.text(caption)}}}\\",
            r"\toprule",
            " & ".join(self._head(title) if many else self.text(title) for title in head) + r" \\",
            r"\midrule",
            r"\endhead",
            *(" & ".join(self.text(cell) for cell in row) + r" \\" for row in rows),
            r"\bottomrule",
            r"\end{longtable}",
            *([r"\endgroup"] if many else []),
            "",
        ]

    def _head(self, title: str) -> str:
        """A head of as many lines as words, so that many columns fit on a page."""
        return _under_each_other([self.escaped(word) for word in title.split()], "b")

    def finished(self) -> str:
        return super().finished() + "\n\\end{document}\n"


# Columns from which on heads are set word under word, and letters from which on a column is set as text.
_MANY = 7
_LONG = 40


def _column(title: str, cells: Sequence[str | Text]) -> str:
    if max((len(cell) for cell in cells if isinstance(cell, str)), default=0) > _LONG:
        return "p{80mm}"
    return "l" if title in _IN_WORDS else "r"


def _under_each_other(lines: Sequence[str], place: str) -> str:
    joined = r"\\".join(lines)
    return rf"\begin{{tabular}}[{place}]{{@{{}}r@{{}}}}{joined}\end{{tabular}}" if len(lines) > 1 else joined


def _in_latex(character: str) -> str:
    """A letter that every LaTeX knows, or else its number: a name in another script must not stop the document."""
    if character in _LATEX:
        return _LATEX[character]
    return character if character.isprintable() and character < "\u0180" else f"[U+{ord(character):04X}]"
