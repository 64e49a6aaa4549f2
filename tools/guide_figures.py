"""The numbers and the figure of docs/guide.md, computed from results/.

python tools/guide_figures.py    print the tables and draw docs/images/guide-seeds.png
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from statistics import fmean

import numpy as np

from playerfl.studies.collecting import collect

ROOT = Path(__file__).parents[1]
RUNS = (3, 5, 10, 20, 50)
DRAWS = 2000
PAIRS = (("player_fl", "fedavg"), ("fedper", "player_fl"), ("fedrep", "fedper"))
NAMES = {"fedavg": "FedAvg", "fedper": "FedPer", "player_fl": "PLayer-FL", "fedrep": "FedRep"}


@cache
def heart() -> dict[str, dict[int, float]]:
    """Macro-F1 in % of every run on heart, by method and seed: the average over sites by training examples."""
    scores: dict[str, dict[int, float]] = {}
    for run in collect(ROOT / "results" / "2026.2" / "heart").results:
        rows = {site: run.data["sites"][site]["train"]["examples"] for site in run.site_scores}
        total = sum(rows[site] * values["f1"] for site, values in run.site_scores.items())
        scores.setdefault(run.algorithm, {})[run.experiment["seed"]] = 100 * total / sum(rows.values())
    return scores


def same_winner(runs: int) -> float:
    """How often the best median of some runs is that of all 50, for runs drawn without replacement."""
    seeds = sorted(heart()["local"])
    table = np.array([[by_seed[seed] for seed in seeds] for by_seed in heart().values()])
    best = int(np.median(table, axis=1).argmax())
    rng = np.random.default_rng(0)
    drawn = (rng.choice(len(seeds), runs, replace=False) for _ in range(DRAWS))
    return fmean(int(np.median(table[:, chosen], axis=1).argmax()) == best for chosen in drawn)


def difference(first: str, second: str) -> tuple[float, float]:
    """The mean and the standard deviation of a paired difference over the runs."""
    values = [heart()[first][seed] - heart()[second][seed] for seed in heart()[first]]
    return float(np.mean(values)), float(np.std(values, ddof=1))


def seeds_table() -> str:
    heads = [f"{NAMES[a]} - {NAMES[b]}" for a, b in PAIRS]
    lines = ["| runs | same winner of 16 | " + " | ".join(heads) + " |", "|--:|--:|" + "--:|" * len(heads)]
    for runs in RUNS:
        cells = []
        for pair in PAIRS:
            mean, deviation = difference(*pair)
            cells.append(f"{mean:+.1f} ± {1.96 * deviation / runs**0.5:.1f}")
        lines.append(f"| {runs} | {same_winner(runs):.0%} | " + " | ".join(cells) + " |")
    return "\n".join(lines).replace("%", " %")


def draw(target: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 2.9), layout="constrained")
    left, right = figure.subplots(1, 2)
    runs = np.arange(2, 51)
    for (first, second), colour in zip(PAIRS, ("#0072b2", "#d55e00", "#009e73"), strict=True):
        mean, deviation = difference(first, second)
        right.plot(runs, 1.96 * deviation / np.sqrt(runs), color=colour, label=f"{NAMES[first]} - {NAMES[second]}")
        right.axhline(abs(mean), color=colour, linewidth=0.8, linestyle=":")
    right.set(
        xlabel="runs", ylabel="± points of macro-F1", title="A difference of 1 point takes 50 runs", ylim=(0, None)
    )
    right.legend(frameon=False, fontsize=8)
    few = [1, 2, 3, 5, 8, 10, 15, 20, 30, 40, 50]
    left.plot(few, [100 * same_winner(count) for count in few], color="#0072b2", marker="o", markersize=3)
    left.set(
        xlabel="runs",
        ylabel="% of draws with the winner of all 50",
        title="Where methods are level, luck names the winner",
        ylim=(0, 105),
    )
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.title.set_fontsize(10)
    figure.savefig(target, dpi=150)


if __name__ == "__main__":
    print(seeds_table())
    draw(ROOT / "docs" / "images" / "guide-seeds.png")
