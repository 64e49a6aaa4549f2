"""Escaping: data is text in every format, never markup, a command or a formula."""

from __future__ import annotations

import re

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
    "✕": r"$\times$",
    "∞": r"$\infty$",
    "χ": r"$\chi$",
    "²": r"\textsuperscript{2}",
    "⁻": r"\textsuperscript{$-$}",
    "■": r"\rule{1ex}{1ex}",
    "–": "--",
    "’": "'",
    "“": "``",
    "”": "''",
    "…": r"\ldots{}",
}


def markdown(text: str) -> str:
    r"""Text for GitHub's Markdown: no markup, HTML or formula, and no list or heading at its start.

    >>> print(markdown("a|b <b> $x$"), markdown("- item"), markdown("1. item"))
    a\|b &lt;b&gt; \$x\$ \- item 1\. item
    """
    marked = re.sub(r"([\\`*_\[\]|~#$!])", r"\\\1", re.sub(r"\s+", " ", text))
    marked = marked.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"^(\d*)([-+=.)])", r"\1\\\2", marked) if re.match(r"[-+=]|\d+[.)](\s|$)", marked) else marked


def latex(text: str) -> str:
    r"""Text that every LaTeX compiles; characters it may lack are written as their code points.

    >>> print(latex("50 % & x_1"), latex("[2mm]"), latex("医"))
    50 \% \& x\_1 {}[2mm] {}[U+533B]
    """
    written = "".join(map(_in_latex, re.sub(r"\s+", " ", text)))
    # After \\ and \item these would be options of the command before them.
    return "{}" + written if written.startswith(("[", "*")) else written


def _in_latex(character: str) -> str:
    if character in _LATEX:
        return _LATEX[character]
    return character if character.isprintable() and character < "\u0180" else f"[U+{ord(character):04X}]"


def csv_value(value: object) -> object:
    """A value for a CSV file; text that a spreadsheet would take for a formula gets an apostrophe in front.

    >>> csv_value("=1+1"), csv_value("-x"), csv_value(-0.5), csv_value("PLayer-FL")
    ("'=1+1", "'-x", -0.5, 'PLayer-FL')
    """
    if isinstance(value, str) and (value.lstrip()[:1] in set("=+-@＝＋－＠") or value[:1] in set("\t\r\n")):
        return f"'{value}"
    return value
