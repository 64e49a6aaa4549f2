"""The tutorials as notebooks: examples/*.ipynb, made from the pages in docs/, so that neither can go stale.

python tools/notebooks.py              write the notebooks
python tools/notebooks.py --execute    also run every cell and store what it shows (minutes)
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TUTORIALS = {"benchmark-your-method.md": "benchmark_your_method.ipynb"}
_PART = re.compile(r"^```(\w+)\n(.*?)^```$|^<!-- (\S+) -->\n!\[[^\]]*\]\([^)]*\)$", flags=re.MULTILINE | re.DOTALL)


def notebook(page: str) -> dict[str, Any]:
    """A page as a notebook: prose, Python, files to write, commands and pictures. Printed output is left out."""
    cells = [
        {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": source.splitlines(keepends=True)}
        | ({"execution_count": None, "outputs": []} if kind == "code" else {})
        for number, (kind, source) in enumerate(_cells(page))
    ]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def _cells(page: str) -> Iterator[tuple[str, str]]:
    begun = 0
    file = None
    for part in _PART.finditer(page):
        prose = page[begun : part.start()].strip()
        begun = part.end()
        if prose:
            yield "markdown", _linked(prose)
            named = re.search(r"Save this as `([\w.]+)`:$", prose)
            file = named[1] if named else None
        language, content, picture = part.groups()
        if picture:
            yield "code", f'from IPython.display import Image\n\nImage("{picture}")'
        elif file:
            yield "code", f"%%writefile {file}\n{content.rstrip()}"
        elif language == "bash":
            yield "code", "\n".join(f"!{line}" for line in content.splitlines())
        elif language == "python":
            yield "code", content.rstrip()
        file = None
    if rest := page[begun:].strip():
        yield "markdown", _linked(rest)


def _linked(prose: str) -> str:
    """Links to other pages as seen from examples/."""
    return re.sub(r"\]\(([\w-]+\.md)", r"](../docs/\1", prose)


def executed(content: dict[str, Any], folder: Path, seconds: int = 900) -> dict[str, Any]:
    """Runs every cell in a folder; an error in a cell is raised."""
    import nbformat
    from nbclient import NotebookClient

    # Commands run on a terminal there; without these they would redraw their progress hundreds of times.
    os.environ |= {"TERM": "dumb", "NO_COLOR": "1", "COLUMNS": "100"}
    book = nbformat.reads(json.dumps(content), as_version=4)
    NotebookClient(book, timeout=seconds, resources={"metadata": {"path": str(folder)}}).execute()
    for cell in book.cells:
        # Times of execution, which differ in every run.
        cell.metadata.clear()
    return json.loads(nbformat.writes(book))  # type: ignore[no-any-return]


def main() -> None:
    import tempfile

    for page, name in TUTORIALS.items():
        content = notebook((ROOT / "docs" / page).read_text(encoding="utf-8"))
        if "--execute" in sys.argv[1:]:
            with tempfile.TemporaryDirectory() as folder:
                content = executed(content, Path(folder))
        target = ROOT / "examples" / name
        target.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(target)


if __name__ == "__main__":
    main()
