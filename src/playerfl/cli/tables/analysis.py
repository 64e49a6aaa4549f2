"""Tables of analyses for the terminal."""

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


def print_analysis(analysis: LayerAnalysis) -> None:
    """Each quantity by layer at the three moments, then how it goes with sensitivity."""
    console = wide_console()
    for quantity, title in QUANTITIES.items():
        table = Table(title=f"{title}: mean of sites (smallest to largest)", title_justify="left")
        table.add_column("layer", overflow="fold")
        for moment in MOMENTS:
            table.add_column(moment, justify="right")
        for place, layer in enumerate(analysis.layers):
            table.add_row(escape(layer), *(_cell(analysis, quantity, moment, place) for moment in MOMENTS))
        console.print(table)
    console.print(_correlations(analysis))
    console.print(
        "ρ is Spearman's over layers, the mean of sites and seeds, with a 95 % bootstrap interval over those. F never "
        "falls with depth, so its ρ is that of depth itself; that of the layer score s says more. With few layers "
        "ρ is coarse."
    )
    for note in analysis.notes:
        console.print(f"[yellow]Note:[/yellow] {escape(note)}.")


def _cell(analysis: LayerAnalysis, quantity: str, moment: str, place: int) -> str:
    values = [curve[place] for curve in analysis.curves(quantity, moment).values() if curve[place] == curve[place]]
    if not values:
        return "–"
    error = analysis.errors(quantity, moment).get(analysis.layers[place])
    said = f"{fmean(values):.3g} ({min(values):.3g} to {max(values):.3g})"
    return f"{said} ± {error:.1g}" if error is not None else said


def _correlations(analysis: LayerAnalysis) -> Table:
    table = Table(title="Rank correlation with the other quantities", title_justify="left")
    table.add_column("moment")
    table.add_column("of")
    others = ("gradient_variance", "hessian", "cka")
    for other in others:
        table.add_column({"gradient_variance": "gradient variance", "hessian": "Hessian", "cka": "CKA"}[other])
    for moment, measures in analysis.correlations().items():
        for measure, by in measures.items():
            cells = [escape(_rho(by[other])) for other in others]
            table.add_row(moment, {"score": "s", "sensitivity": "F"}[measure], *cells)
    return table


def _rho(found: Correlation | None) -> str:
    if found is None:
        return "–"
    interval = f" [{found.low:+.2f}, {found.high:+.2f}]" if found.curves > 1 else " (one curve: no interval)"
    return f"{found.value:+.2f}{interval}"


def print_sweep(sweep: Sweep) -> None:
    """Every cut's score, then what each way of choosing one loses."""
    console = wide_console()
    what = "macro-F1" if sweep.metric == "f1" else "minus the loss"
    title = f"{sweep.task}: {what} of every cut, {sweep.rounds} rounds, {len(sweep.seeds)} seeds"
    table = Table(title=escape(title), title_justify="left")
    table.add_column("federated layers")
    for heading in ("validation", "test", "best in"):
        table.add_column(heading, justify="right")
    bests = [sweep.best_cut(seed) for seed in sweep.seeds]
    for cut in range(len(sweep.layers) + 1):
        own = [sweep.of(seed)[cut] for seed in sweep.seeds]
        name = "none" if cut == 0 else f"{cut}, up to {sweep.layers[cut - 1]}"
        count = bests.count(cut)
        table.add_row(
            escape(name),
            _spread([score.validation for score in own]),
            _spread([score.test for score in own]),
            f"[green]{count} of {len(bests)} seeds[/green]" if count else "",
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
        "± is the standard deviation over seeds. Regret on test data may be negative: it was not chosen on it."
    )


def _spread(values: list[float] | tuple[float, ...]) -> str:
    return f"{fmean(values):.4f} ± {spread(values):.4f}"


def print_drift(drift: Drift) -> None:
    """The cut of every measured round, and whether it moved."""
    table = Table(title=escape(f"{drift.task}: sensitivity measured again"), title_justify="left")
    for heading in ("round", "cut after", "resampled batches agree", "threshold may be", "verdict"):
        table.add_column(heading, justify="right")
    for round_, found in drift.rounds.items():
        interval = found.interval
        table.add_row(
            str(round_),
            str(found.cut.index),
            "" if found.agreement is None else f"{found.agreement:.0%}",
            "" if interval is None else f"{interval[0]:.3g} to {interval[1]:.3g}",
            found.verdict,
        )
    console = wide_console()
    console.print(table)
    console.print(f"{str(drift).capitalize()}.")
