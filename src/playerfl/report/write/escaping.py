"""Escaping: data is text in every format, never markup or a command. For CSV, see `storage.csv_table`."""

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
    "ρ": r"$\rho$",
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
