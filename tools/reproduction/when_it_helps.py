"""When does PLayer-FL help? The table and the figure of the designed study.

The questions and statistics are those of the plan in experiments/README.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from playerfl.report.compute.report import build_report
from playerfl.report.compute.statistics import (
    RESAMPLES,
    Array,
    detectable,
    differences,
    holm,
    percentile_interval,
    wilcoxon,
)
from playerfl.report.formats import listed, p_text, signed
from playerfl.report.names import method_name
from playerfl.studies.collecting import collect
from reproduction.markdown import ROOT, filled, point, table_of

ARCHIVE = ROOT / "results" / "when_it_helps"
FIGURE = ROOT / "docs" / "images" / "guide-when-it-helps.png"
SUBJECT, ALONE, AVERAGED, LAST_PRIVATE = map(method_name, ("player_fl", "local", "fedavg", "fedper"))
LAYERS = 5
COLOURS = {200: "#d55e00", 1000: "#0072b2"}


@dataclass(frozen=True)
class Cell:
    """One degree of skew and one size of sites."""

    alpha: float
    rows: int
    scores: dict[str, Array]
    """Macro-F1 in % by method, one value per run; a fixed cut is called "cut 2"."""
    accuracies: dict[str, Array]
    """The same for accuracy."""
    cuts: tuple[int, ...]
    """Where PLayer-FL cut in each run."""
    learnt: bool

    @property
    def name(self) -> str:
        return f"α = {self.alpha:g}, {self.rows:,} rows"

    def gains(self, rival: str) -> Array:
        """What PLayer-FL is ahead of a rival in each run."""
        return np.asarray(self.scores[SUBJECT] - self.scores[rival])


@cache
def cells() -> tuple[Cell, ...]:
    """From strong to weak skew, small sites first; empty until the study is archived."""
    if not ARCHIVE.is_dir():
        return ()
    report = build_report(collect(ARCHIVE))
    grid, table, accuracy = report.grid, report.table("f1"), report.table("accuracy")
    assert table is not None
    assert accuracy is not None
    found = []
    for task in grid.tasks:
        scores, accuracies, cuts = {}, {}, ()
        for label in table.algorithms:
            runs = grid.results(task, label)
            algorithm = next(iter(runs.values())).experiment["algorithm"]
            fixed = algorithm.get("fixed_cut")
            name = method_name(algorithm["name"]) if fixed is None else f"cut {fixed}"
            scores[name] = 100 * np.array(table.cells[label, task].per_run)
            accuracies[name] = 100 * np.array(accuracy.cells[label, task].per_run)
            if name == SUBJECT:
                cuts = tuple(int(runs[seed].layers["decision"]["index"]) for seed in sorted(runs))
        data = next(iter(grid.results(task, table.algorithms[0]).values())).experiment["data"]
        found.append(
            Cell(data["alpha"], data["rows_per_site"], scores, accuracies, cuts, task not in report.not_learnt)
        )
    return tuple(sorted(found, key=lambda cell: (cell.alpha, cell.rows)))


def learnt() -> tuple[Cell, ...]:
    return tuple(cell for cell in cells() if cell.learnt)


def rivals() -> list[str]:
    return [name for name in cells()[0].scores if name != SUBJECT]


def verdict(gains: Array) -> str:
    """Three runs allow no test, so all of them must agree.

    >>> verdict(np.array([1.0, 2.0, 0.5])), verdict(np.array([1.0, -2.0, 0.5])), verdict(np.array([-1.0, -2.0]))
    ('helps', 'undecided', 'harms')
    """
    return "helps" if (gains > 0).all() else "harms" if (gains < 0).all() else "undecided"


def effect(rival: str, first: Callable[[Cell], bool], second: Callable[[Cell], bool]) -> tuple[float, float, float]:
    """The mean gain in some cells less that in others, with its bootstrap interval; runs are drawn within cells."""
    rng = np.random.default_rng(0)

    def drawn(chosen: Callable[[Cell], bool]) -> tuple[float, Array]:
        every = [cell.gains(rival) for cell in learnt() if chosen(cell)]
        resampled = [gains[rng.integers(len(gains), size=(RESAMPLES, len(gains)))].mean(axis=1) for gains in every]
        return float(np.mean([gains.mean() for gains in every])), np.mean(resampled, axis=0)

    (one, ones), (other, others) = drawn(first), drawn(second)
    low, high = percentile_interval(ones - others)
    return one - other, float(low), float(high)


def effects(rival: str) -> dict[str, tuple[float, float, float]]:
    """Of label skew and of the size of sites on the gain over a rival; without those that have no cells to compare."""
    alphas, sizes = sorted({cell.alpha for cell in learnt()}), sorted({cell.rows for cell in learnt()})
    found = {}
    if len(alphas) > 1:
        ends = alphas[0], alphas[-1]
        found[f"strong skew (α = {ends[0]:g}) minus weak skew (α = {ends[1]:g})"] = effect(
            rival, lambda c: c.alpha == ends[0], lambda c: c.alpha == ends[1]
        )
    if len(sizes) > 1:
        found[f"{sizes[0]:,} rows minus {sizes[-1]:,} rows"] = effect(
            rival, lambda c: c.rows == sizes[0], lambda c: c.rows == sizes[-1]
        )
    return found


def gain_table() -> str:
    """The gain over every rival in every cell, with the range of the runs and what the cell could have shown."""
    heads = ["label skew and rows per site", "macro-F1 %", "cut after layer"]
    heads += [f"ahead of {name}" for name in rivals()]
    rows = []
    for cell in cells():
        row = [cell.name + ("" if cell.learnt else " (not learnt)"), f"{cell.scores[SUBJECT].mean():.1f}"]
        row.append(", ".join(map(str, sorted(set(cell.cuts)))))
        for rival in rivals():
            gains = cell.gains(rival)
            shown = f"{signed(gains.mean(), 1)} ({signed(gains.min(), 1)} to {signed(gains.max(), 1)})"
            clear = cell.learnt and verdict(gains) != "undecided"
            row.append((f"**{shown}**" if clear else shown) + f", {detectable(gains):.1f}")
        rows.append(row)
    return table_of(heads, rows)


def tests() -> list[tuple[str, float, float, int]]:
    """For every rival: the mean gain over all runs, its p-value, and the number of runs."""
    every = {rival: np.concatenate([cell.gains(rival) for cell in learnt()]) for rival in rivals()}
    raw = [float(wilcoxon(differences(gains, np.zeros_like(gains))[None])[0]) for gains in every.values()]
    corrected = holm(np.array(raw))
    return [
        (rival, float(gains.mean()), float(p), len(gains))
        for (rival, gains), p in zip(every.items(), corrected, strict=True)
    ]


def where(wanted: str, rival: str) -> list[str]:
    return [cell.name for cell in learnt() if verdict(cell.gains(rival)) == wanted]


def finding(rival: str) -> str:
    """How often PLayer-FL helps, in a few words: the title of a figure."""
    helps, harms, count = len(where("helps", rival)), len(where("harms", rival)), len(learnt())
    settings = f"all {count} settings" if helps == count else f"{helps} of {count} settings"
    text = f"{SUBJECT} is ahead of {rival} in {settings}"
    return f"{text}, behind in {harms}" if harms else text


def best_depth(cell: Cell) -> int:
    """The cut with the best mean macro-F1; 0 is training alone, all layers is FedAvg."""
    by_depth = {depth: scores.mean() for depth, scores in depths(cell).items()}
    return max(by_depth, key=lambda depth: by_depth[depth])


def depths(cell: Cell) -> dict[int, Array]:
    """Scores by the number of shared layers. The measured cut counts only where all runs agree on it."""
    found = {0: cell.scores[ALONE], LAYERS: cell.scores[AVERAGED]}
    found |= {int(name.removeprefix("cut ")): scores for name, scores in cell.scores.items() if name.startswith("cut ")}
    if len(set(cell.cuts)) == 1:
        found.setdefault(cell.cuts[0], cell.scores[SUBJECT])
    return dict(sorted(found.items()))


def section() -> str:
    """The section of the guide; empty until the study is archived."""
    if not learnt():
        return ""
    tested = [f"{signed(mean, 1)} over {rival} ({p_text(p)})" for rival, mean, p, _ in tests()]
    bests: dict[int, list[str]] = {}
    for cell in learnt():
        bests.setdefault(best_depth(cell), []).append(cell.name)
    ends = {0: "none (training alone)", LAYERS: "all (FedAvg)"}
    deepest = [f"{ends.get(depth, depth)} at {listed([f'({n})' for n in bests[depth]])}" for depth in sorted(bests)]
    runs = tests()[0][3]
    return "\n\n".join(
        [
            "## When does PLayer-FL help?",
            filled(
                "`experiments/when_it_helps.toml`: FashionMNIST, five sites, three degrees of label skew, two sizes of "
                "sites, three runs each, by a plan written before the runs (`experiments/README.md`)."
            ),
            f"![{finding(ALONE)}; {finding(AVERAGED)}.](images/{FIGURE.name})",
            filled(
                "How many points of macro-F1 PLayer-FL is ahead of each rival: the mean of three runs, their range, "
                "and the smallest difference that could have been shown (80 % power). Bold: all three runs agree. "
                "“cut 2”: PLayer-FL with the cut fixed after layer 2."
            ),
            gain_table(),
            "\n".join(
                [
                    _verdicts(ALONE),
                    _verdicts(AVERAGED),
                    point(
                        f"Over all {runs} runs, the mean gain of PLayer-FL is {listed(tested)} (Wilcoxon's test, "
                        "Holm's correction)."
                    ),
                    *(
                        point(f"How the gain over {rival} depends on the setting: {text}.")
                        for rival in (ALONE, AVERAGED)
                        if (text := factors(rival))
                    ),
                    *(
                        point(f"By accuracy, {SUBJECT} is ahead of {rival} by {by_accuracy(rival)}.")
                        for rival in (ALONE, AVERAGED)
                    ),
                    point(f"The best number of shared layers, by mean macro-F1: {'; '.join(deepest)}."),
                ]
            ),
        ]
    )


def factors(rival: str) -> str:
    """The effects of skew and size on the gain, in words."""
    text = []
    for name, (value, low, high) in effects(rival).items():
        doubt = "" if low > 0 or high < 0 else ", not distinguishable from 0"
        text.append(f"{name} {signed(value, 1)} points ({signed(low, 1)} to {signed(high, 1)}{doubt})")
    return "; ".join(text)


def by_accuracy(rival: str) -> str:
    gains = np.concatenate([cell.accuracies[SUBJECT] - cell.accuracies[rival] for cell in learnt()])
    return f"{signed(gains.mean(), 1)} points on average, in {int(np.sum(gains > 0))} of {len(gains)} runs"


def _verdicts(rival: str) -> str:
    """The settings that the rest of the sentence does not account for are named."""
    text = [f"**{finding(rival)}**"]
    for wanted, words in (("harms", "behind"), ("undecided", "the runs disagree with each other")):
        if places := where(wanted, rival):
            text.append(f"{words} at {listed([f'({place})' for place in places])}")
    return point(f"{'; '.join(text)}.")


def draw(target: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.5, 3.6), layout="constrained")
    axes = figure.subplots(1, 3, width_ratios=(1, 1, 1.2))
    for axis, rival in zip(axes, (ALONE, AVERAGED), strict=False):
        _draw_gains(axis, rival)
    _draw_depths(axes[2])
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.title.set_fontsize(8.5)
    figure.savefig(target, dpi=160)


def _draw_gains(axis: Any, rival: str) -> None:
    alphas = sorted({cell.alpha for cell in cells()})
    for rows, colour in COLOURS.items():
        of_size = [cell for cell in cells() if cell.rows == rows]
        shift = -0.06 if rows == min(COLOURS) else 0.06
        places = [alphas.index(cell.alpha) + shift for cell in of_size]
        axis.plot(
            places,
            [cell.gains(rival).mean() for cell in of_size],
            color=colour,
            marker="o",
            label=f"{rows:,} rows per site",
        )
        for place, cell in zip(places, of_size, strict=True):
            face = colour if cell.learnt else "none"
            runs = cell.gains(rival)
            axis.scatter([place] * len(runs), runs, s=14, edgecolors=colour, facecolors=face, alpha=0.5)
    axis.axhline(0, color="#555", linewidth=0.8)
    axis.set_xticks(range(len(alphas)), [f"{alpha:g}" for alpha in alphas])
    axis.set(xlabel="Dirichlet's α: strong to weak label skew", ylabel=f"macro-F1 points ahead of {rival}")
    axis.set_title(finding(rival))
    axis.legend(frameon=False, fontsize=8)


def _draw_depths(axis: Any) -> None:
    styles = dict(zip(sorted({cell.alpha for cell in cells()}), ("-", "--", ":"), strict=False))
    for cell in cells():
        by_depth = depths(cell)
        means = [scores.mean() for scores in by_depth.values()]
        axis.plot(
            list(by_depth), means, color=COLOURS[cell.rows], linestyle=styles[cell.alpha], marker=".", label=cell.name
        )
        if cell.learnt:
            axis.plot(
                best_depth(cell), max(means), marker="o", markersize=8, color=COLOURS[cell.rows], fillstyle="none"
            )
    axis.set_xticks(range(LAYERS + 1), ["0\n(Local)", *map(str, range(1, LAYERS)), f"{LAYERS}\n(FedAvg)"])
    axis.set(xlabel="shared layers", ylabel="macro-F1, %")
    inner = sum(0 < best_depth(cell) < LAYERS for cell in learnt())
    axis.set_title(f"Sharing some layers is best in {inner} of {len(learnt())} settings (circles)")
    axis.legend(frameon=False, fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))


def when_part() -> str:
    """The finding of the designed study; empty until it is archived."""
    if not learnt():
        return ""
    text = "; ".join(finding(rival) for rival in (ALONE, AVERAGED))
    return filled(
        f"**When does it help?** Over {len(learnt())} settings of label skew and rows per site on FashionMNIST, {text}"
        ": [the designed study](guide.md#when-does-player-fl-help)."
    )
