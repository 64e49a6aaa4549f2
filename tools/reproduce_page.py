"""The generated parts of docs/reproduce.md and docs/guide.md, from the archives below results/.

python tools/reproduce_page.py            print them
python tools/reproduce_page.py --store    put them into the pages, and draw the figure of the designed study

A part stands between two comments of its page. Archive a study in results/2026.2/TASK, and its task is part of every
table from then on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

from reproduction import when_it_helps
from reproduction.claims import claims_part
from reproduction.markdown import ROOT, replaced
from reproduction.methods import methods_table
from reproduction.newer import newer_part
from reproduction.tasks import authors_part, task_parts
from reproduction.thresholds import thresholds_part

PAGES: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "docs/reproduce.md": {
        "tasks": task_parts,
        "when": when_it_helps.when_part,
        "newer": newer_part,
        "authors": authors_part,
        "thresholds": thresholds_part,
        "claims": claims_part,
    },
    "docs/guide.md": {"methods": methods_table, "when": when_it_helps.section},
}


def stored(name: str) -> str:
    """A page with all its generated parts replaced."""
    page = (ROOT / name).read_text(encoding="utf-8")
    for part, make in PAGES[name].items():
        page = replaced(page, part, make())
    return page


if __name__ == "__main__":
    if "--store" in sys.argv[1:]:
        for name in PAGES:
            (ROOT / name).write_text(stored(name), encoding="utf-8")
        if when_it_helps.learnt():
            when_it_helps.draw(when_it_helps.FIGURE)
    else:
        print("\n\n".join(make() for parts in PAGES.values() for make in parts.values()))
