"""Terminal tables for analyses."""

from __future__ import annotations

from statistics import fmean

from rich.markup import escape
from rich.table import Table

from playerfl.analysis.correlation import Correlation
from playerfl.analysis.drift import Drift
from playerfl.analysis.layer_analysis import QUANTITIES, LayerAnalysis
from playerfl.analysis.moments import MOMENTS
from playerfl.analysis.sweep import Sweep, spread
from playerfl.cli.tables.console import wide_console
from playerfl.wording import counted


def print_analysis(analysis: LayerAnalysis) -> None:
    """Each quantity per layer at the three moments, then its correlation with sensitivity."""
    console = wide_console()
    for quantity, title in QUANTITIES.items():
        table = Table(title=f"{title}: mean over sites (range)", title_justify="left")
        table.add_column("layer", overflow="fold")
        for moment in MOMENTS:
            table.add_column(moment, justify="right")
        for place, layer in enumerate(analysis.layers):
            table.add_row(escape(layer), *(_cell(analysis, quantity, moment, place) for moment in MOMENTS))
        console.print(table)
    console.print(_correlations(analysis))
    console.print(
        "ρ is Spearman's rank correlation over layers: the mean over sites and seeds, with a 95 % bootstrap interval. "
        "F never decreases with depth, so its ρ is that of depth itself; the ρ of the layer score s is more "
        "informative. With few layers, ρ is coarse."
    )
    for note in analysis.notes:
        console.print(f"[yellow]Note:[/yellow] {escape(note)}.")


def _cell(analysis: LayerAnalysis, quantity: str, moment: str, place: int) -> str:
    values = [curve[place] for curve in analysis.curves(quantity, moment).values() if curve[place] == curve[place]]
    if not values:
        return "–"
    error = analysis.errors(quantity, moment).get(analysis.layers[place])
    text = f"{fmean(values):.3g} ({min(values):.3g} to {max(values):.3g})"
    return f"{text} ± {error:.1g}" if error is not None else text


def _correlations(analysis: LayerAnalysis) -> Table:
    table = Table(title="Rank correlation with the other quantities", title_justify="left")
    table.add_column("point in training")
    table.add_column("score")
    others = ("gradient_variance", "hessian", "cka")
    for other in others:
        table.add_column({"gradient_variance": "gradient variance", "hessian": "Hessian", "cka": "CKA"}[other])
    for moment, measures in analysis.correlations().items():
        for measure, by in measures.items():
            cells = [escape(_rho(by[other])) for other in others]
            table.add_row(moment, {"score": "s", "sensitivity": "F"}[measure], *cells)
    return table


def _rho(rho: Correlation | None) -> str:
    if rho is None:
        return "–"
    interval = f" [{rho.low:+.2f}, {rho.high:+.2f}]" if rho.curves > 1 else " (one curve: no interval)"
    return f"{rho.value:+.2f}{interval}"


def print_sweep(sweep: Sweep) -> None:
    """The score of every cut, then what each way of choosing one loses."""
    console = wide_console()
    what = "macro-F1" if sweep.metric == "f1" else "negative loss"
    title = f"{sweep.task}: {what} of every cut, {sweep.rounds} rounds, {counted(len(sweep.seeds), 'seed')}"
    table = Table(title=escape(title), title_justify="left")
    table.add_column("shared layers")
    for heading in ("validation", "test", "best in"):
        table.add_column(heading, justify="right")
    bests = [sweep.best_cut(seed) for seed in sweep.seeds]
    for cut in range(len(sweep.layers) + 1):
        scores = [sweep.of(seed)[cut] for seed in sweep.seeds]
        name = "none" if cut == 0 else f"{cut}, up to {sweep.layers[cut - 1]}"
        count = bests.count(cut)
        table.add_row(
            escape(name),
            _spread([score.validation for score in scores]),
            _spread([score.test for score in scores]),
            f"[green]{count} of {counted(len(bests), 'seed')}[/green]" if count else "",
        )
    console.print(table)
    table = Table(title="Regret against the best cut on validation data", title_justify="left")
    table.add_column("way of choosing")
    for heading in ("cuts", "validation", "test"):
        table.add_column(heading, justify="right")
    for regret in sweep.regrets():
        cuts = ", ".join(map(str, regret.cuts)) or f"1 to {len(sweep.layers) - 1}"
        table.add_row(regret.way, cuts, _spread(regret.validation), _spread(regret.test))
    console.print(table)
    console.print(
        "± is the standard deviation over seeds. Regret on test data may be negative: the best cut is chosen on "
        "validation data."
    )


def _spread(values: list[float] | tuple[float, ...]) -> str:
    return f"{fmean(values):.4f} ± {spread(values):.4f}"


def print_drift(drift: Drift) -> None:
    """The cut that every measured round would choose, and whether it moved."""
    table = Table(title=escape(f"{drift.task}: the cut during training"), title_justify="left")
    for heading in ("round", "cut after", "resampled batches agree", "thresholds that give this cut", "verdict"):
        table.add_column(heading, justify="right")
    for round_, recommendation in drift.rounds.items():
        interval = recommendation.interval
        table.add_row(
            str(round_),
            str(recommendation.cut.index),
            "" if recommendation.agreement is None else f"{recommendation.agreement:.0%}",
            "" if interval is None else f"{interval[0]:.3g} to {interval[1]:.3g}",
            recommendation.verdict,
        )
    console = wide_console()
    console.print(table)
    console.print(f"{str(drift).capitalize()}.")
