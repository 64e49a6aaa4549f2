"""The tutorials as notebooks: examples/*.ipynb, made from the pages in docs/, so that neither can go stale.

python tools/notebooks.py              write the notebooks; cells that have not changed keep what they show
python tools/notebooks.py --execute    also run every cell and store what it shows (minutes)
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TUTORIALS = {
    "benchmark-your-method.md": "benchmark_your_method.ipynb",
    "which-layers.md": "which_layers.ipynb",
}
DATA = ROOT / "examples" / "hospitals"
"""Next to the notebooks, and copied to where they are run."""
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
            named = re.search(r"Save this as `([\w.-]+)`:$", prose)
            file = named[1] if named else None
        language, content, picture = part.groups()
        if picture:
            yield "code", f'from IPython.display import Image\n\nImage("{picture}")'
        elif file:
            yield "code", f"%%writefile {file}\n{content.rstrip()}"
        elif language == "bash":
            yield "code", "\n".join(map(_as_cell_line, content.splitlines()))
        elif language == "python":
            yield "code", content.rstrip()
        elif language == "csv":
            yield "markdown", part[0]
        file = None
    if rest := page[begun:].strip():
        yield "markdown", _linked(rest)


def _as_cell_line(command: str) -> str:
    """In a notebook, nobody can answer a command's questions.

    >>> _as_cell_line("playerfl list tasks"), _as_cell_line("playerfl flower demo --ask")
    ('!playerfl list tasks', '!yes 2>/dev/null | playerfl flower demo --ask')
    """
    return f"!yes 2>/dev/null | {command}" if "--ask" in command.split() else f"!{command}"


def _linked(prose: str) -> str:
    """Links to other pages as seen from examples/."""
    return re.sub(r"\]\(([\w-]+\.md)", r"](../docs/\1", prose)


def with_outputs(content: dict[str, Any], stored: dict[str, Any]) -> dict[str, Any]:
    """A notebook whose code cells show what the same cells of a stored one show."""
    shown = {"".join(cell["source"]): cell for cell in stored["cells"] if cell["cell_type"] == "code"}
    for cell in content["cells"]:
        if cell["cell_type"] == "code" and (known := shown.get("".join(cell["source"]))):
            cell |= {key: known[key] for key in ("execution_count", "outputs")}
    return {**content, "metadata": stored["metadata"]}


def executed(content: dict[str, Any], folder: Path, seconds: int = 900) -> dict[str, Any]:
    """Runs every cell in a folder, beside a copy of the hospitals; an error in a cell is raised."""
    import nbformat
    from nbclient import NotebookClient

    os.environ["COLUMNS"] = "100"
    shutil.copytree(DATA, folder / DATA.name)
    book = nbformat.reads(json.dumps(content), as_version=4)
    NotebookClient(book, timeout=seconds, resources={"metadata": {"path": str(folder)}}).execute()
    for cell in book.cells:
        # Times of execution, which differ in every run.
        cell.metadata.clear()
        if cell.get("outputs") and all(output.output_type == "stream" for output in cell.outputs):
            text = settled("".join(output.text for output in cell.outputs))
            cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=text)]
    return json.loads(nbformat.writes(book))  # type: ignore[no-any-return]


def settled(text: str) -> str:
    """What a terminal shows in the end: without colours and without the progress that was drawn over.

    >>> settled("1 of 2\\r2 of 2\\n" + chr(27) + "[1A" + chr(27) + "[2Kdone" + chr(27) + "[0m\\r\\n")
    'done\\n'
    """
    lines = [""]
    for piece in re.split(r"(\x1b\[[0-9;?]*[A-Za-z]|\r\n|\n|\r)", text):
        if piece in ("\r\n", "\n"):
            lines.append("")
        elif piece == "\r" or piece.endswith("[2K"):
            lines[-1] = ""
        elif up := re.fullmatch(r"\x1b\[(\d*)A", piece):
            del lines[len(lines) - min(int(up[1] or 1), len(lines) - 1) :]
        elif not piece.startswith("\x1b"):
            lines[-1] += piece
    return "\n".join(line.rstrip() for line in lines).rstrip() + "\n"


def main() -> None:
    import tempfile

    for page, name in TUTORIALS.items():
        content = notebook((ROOT / "docs" / page).read_text(encoding="utf-8"))
        target = ROOT / "examples" / name
        if "--execute" in sys.argv[1:]:
            with tempfile.TemporaryDirectory() as folder:
                content = executed(content, Path(folder))
        elif target.exists():
            content = with_outputs(content, json.loads(target.read_text(encoding="utf-8")))
        target.write_text(json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
        print(target)


if __name__ == "__main__":
    main()
