"""A griffe extension: doctests in docstrings become code blocks; Markdown would render them as quotations."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension


class DoctestBlocks(Extension):
    """Puts fences around every block of lines that starts with a prompt."""

    def on_instance(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """A docstring with its doctests in fences.

    >>> fenced("Adds.\\n\\n>>> 1 + 1\\n2")
    'Adds.\\n\\n```pycon\\n>>> 1 + 1\\n2\\n```'
    """
    return re.sub(r"(?m)^>>> (?:.+\n?)+", lambda block: f"```pycon\n{block[0].rstrip()}\n```\n", text).rstrip()
