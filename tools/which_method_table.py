"""The table "which method for which data" of docs/algorithms.md, from the archive of its study.

python tools/which_method_table.py            print the table
python tools/which_method_table.py --store    put it into docs/algorithms.md
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean

from playerfl.report.compute.grid import arrange
from playerfl.studies.collecting import collect

ROOT = Path(__file__).parents[1]
ARCHIVE, PAGE = ROOT / "experiments" / "which_method", ROOT / "docs" / "algorithms.md"
COMBINED = {f"player_fl_{base.lower()}": f"PLayer-FL + {base}" for base in ("FedProx", "Ditto", "FedRep")}
SHIFTS = ("labels", "features", "both")
Accuracies = dict[int, float]


def accuracies(archive: Path) -> dict[str, dict[str, Accuracies]]:
    """The mean accuracy over sites in percent, by method, shift and seed."""
    found: dict[str, dict[str, Accuracies]] = defaultdict(lambda: defaultdict(dict))
    for run in arrange(collect(archive).results).runs:
        experiment = run.result.experiment
        mean = fmean(scores["accuracy"] for scores in run.result.site_scores.values())
        found[COMBINED.get(run.algorithm, run.algorithm)][experiment["data"]["shift"]][experiment["seed"]] = 100 * mean
    return found


def cell(own: Accuracies, best: Accuracies) -> str:
    """Bold: the best; ≈: in at least one seed, not behind the best.

    >>> cell({1: 80.0, 2: 84.0}, {1: 81.0, 2: 83.0})
    '82.0 (80–84) ≈'
    """
    mean, low, high = fmean(own.values()), min(own.values()), max(own.values())
    shown = f"**{mean:.1f}**" if own == best else f"{mean:.1f}"
    level = own != best and any(own[seed] >= best[seed] for seed in own)
    return f"{shown} ({low:.0f}–{high:.0f})" + (" ≈" if level else "")


def table(found: dict[str, dict[str, Accuracies]]) -> str:
    """Methods with the same numbers everywhere share a row."""
    best = {shift: max((own[shift] for own in found.values()), key=lambda own: fmean(own.values())) for shift in SHIFTS}
    rows: dict[tuple[str, ...], list[str]] = {}
    for name, own in found.items():
        rows.setdefault(tuple(cell(own[shift], best[shift]) for shift in SHIFTS), []).append(name)
    lines = [f"| {', '.join(names)} | {' | '.join(cells)} |" for cells, names in rows.items()]
    return "\n".join([f"| method | {' | '.join(SHIFTS)} |", "|---|--:|--:|--:|", *lines])


def stored(page: str, new: str) -> str:
    """The page with its table replaced."""
    before, rest = page.split("| method | labels |", 1)
    return before + new + "\n\n" + rest.split("\n\n", 1)[1]


if __name__ == "__main__":
    made = table(accuracies(ARCHIVE))
    print(made)
    if "--store" in sys.argv[1:]:
        PAGE.write_text(stored(PAGE.read_text(encoding="utf-8"), made), encoding="utf-8")
