"""Tables for the terminal."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from playerfl.cli.tables.console import wide_console
from playerfl.layers.sensitivity import federation_sensitivity
from playerfl.report.compute.comparison import AlgorithmSummary
from playerfl.report.compute.cost import sends_private_layers
from playerfl.report.formats import SELECTIONS, size
from playerfl.runs.result import RunResult

_SHOWN_METRICS = 2


def print_cut(result: RunResult) -> None:
    """The sensitivity of every layer, the cut, and why it is there."""
    cut = result.cut
    if cut is None:
        return
    parameters = {layer["name"]: layer["parameters"] for layer in result.layers["layers"]}
    table = Table(title=f"Which layers to federate ({result.algorithm})", title_justify="left")
    table.add_column("layer")
    for heading in ("parameters", "score s", "sensitivity F", "jump"):
        table.add_column(heading, justify="right")
    table.add_column("decision")
    sensitivity = federation_sensitivity(cut.importance)
    for number, layer in enumerate(cut.layers):
        ratio = cut.ratios[number - 1] if number else None
        table.add_row(
            escape(layer),
            f"{parameters[layer]:,}",
            f"{cut.importance[layer]:.3g}",
            f"{sensitivity[layer]:.3g}",
            "" if ratio is None else f"x {ratio:.3g}",
            "[green]shared[/green]" if number < cut.index else "[magenta]private[/magenta]",
            end_section=number + 1 == cut.index,
        )
    console = wide_console()
    console.print(table)
    console.print(f"Cut after {cut.index} of {len(cut.layers)} layers: {escape(cut.reason)}.")
    if sends_private_layers(result):
        console.print("[yellow]Note:[/yellow] sites send their private layers too, because private_pull is above 0.")
    for warning in cut.warnings:
        console.print(f"[yellow]Note:[/yellow] {escape(warning)}.")
    console.print()


def print_comparison(
    summaries: Sequence[AlgorithmSummary], selection: str, baseline: Mapping[str, float] | None = None
) -> None:
    """Averages, fairness and cost by algorithm; then gains and losses by site.

    `baseline`: the average of each metric if every site predicts the same for all rows; see `baseline_average`.
    """
    console = wide_console()
    console.print(_overview(summaries, baseline or {}))
    first = next(iter(summaries[0].metrics))
    lower = [name for name, metric in summaries[0].metrics.items() if metric.lower_is_better]
    if lower:
        console.print(f"Lower is better: {', '.join(map(escape, lower))}.")
    for name, metric in summaries[0].metrics.items():
        if metric.averaging:
            console.print(f"{escape(name)}: {escape(metric.averaging)}.")
    for metric_name, sites in summaries[0].undefined.items():
        for site, why in sites.items():
            console.print(f"[yellow]Note:[/yellow] {escape(site)} has no {escape(metric_name)}: {escape(why)}.")
    if baseline:
        console.print("baseline: each site predicts the most frequent class (or the mean) of its training data.")
    console.print(f"Averages weight sites by their number of examples; fairness is the variance of {first} over sites.")
    reported = SELECTIONS[selection][0].upper() + SELECTIONS[selection][1:]
    console.print(f"{reported}; a method that tunes after the last round reports its tuned model.\n")
    for summary in summaries:
        if summary.gains:
            console.print(_gains(summary))
            console.print()


def _overview(summaries: Sequence[AlgorithmSummary], baseline: Mapping[str, float]) -> Table:
    table = Table(title="Comparison on the sites' test data", title_justify="left")
    table.add_column("algorithm", no_wrap=True)
    metrics = list(summaries[0].metrics)
    for metric in metrics:
        table.add_column(metric, justify="right", min_width=6)
    table.add_column("fairness", justify="right", min_width=8)
    for heading in ("better off", "to sites", "from sites"):
        table.add_column(heading, justify="right")
    for summary in summaries:
        better = summary.incentive and summary.incentive.get(metrics[0])
        table.add_row(
            summary.algorithm,
            *(_number(summary.average[metric]) for metric in metrics),
            "–" if math.isnan(summary.fairness[metrics[0]]) else f"{summary.fairness[metrics[0]]:.2g}",
            "" if better is None else f"{better:.0f} %",
            size(summary.bytes_down),
            size(summary.bytes_up),
            end_section=bool(baseline) and summary is summaries[-1],
        )
    if baseline:
        cells = (_number(baseline[metric]) if metric in baseline else "" for metric in metrics)
        table.add_row("[dim]baseline[/dim]", *cells, "", "", "", "")
    return table


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.4f}" if abs(value) < 1000 else f"{value:.5g}"


def _gains(summary: AlgorithmSummary) -> Table:
    metrics = [metric for metric in summary.metrics if metric != "loss"] or ["loss"]
    table = Table(title=f"What each site gains or loses with {summary.algorithm}", title_justify="left")
    table.add_column("site")
    if summary.test_rows:
        table.add_column("test rows", justify="right")
    # More metrics than these do not fit side by side; the report has all of them.
    for metric in metrics[:_SHOWN_METRICS]:
        table.add_column(metric, justify="right")
        for baseline in summary.gains:
            table.add_column(f"vs {baseline}", justify="right")
    for site, scores in summary.sites.items():
        cells = [f"{summary.test_rows[site]:,}" if site in summary.test_rows else "–"] if summary.test_rows else []
        for metric in metrics[:_SHOWN_METRICS]:
            cells.append(_number(scores.get(metric, math.nan)))
            cells += [_signed(gains[metric].get(site, math.nan)) for gains in summary.gains.values()]
        table.add_row(escape(site), *cells)
    return table


def _signed(value: float) -> str:
    if math.isnan(value):
        return "–"
    colour = "green" if value > 0 else "red" if value < 0 else "dim"
    return f"[{colour}]{value:+.4f}[/{colour}]"


def print_identities(rows: Sequence[tuple[str, str, float, float, bool]]) -> None:
    """Identities, their tolerances, and whether they hold."""
    table = Table(title="Identities", title_justify="left")
    for heading in ("this", "must equal", "how closely", "verdict"):
        table.add_column(heading)
    for left, right, tolerance, difference, holds in rows:
        closely = "bit for bit" if tolerance == 0 else f"to within {tolerance:g}"
        verdict = "[green]holds[/green]" if holds else f"[red]differs by {difference:.3g}[/red]"
        table.add_row(escape(left), escape(right), closely, verdict)
    console = wide_console()
    console.print(table)
    held = sum(row[-1] for row in rows)
    console.print(f"{held} of {len(rows)} identities hold.")


def print_catalogue(what: str, entries: Sequence[Mapping[str, Any]]) -> None:
    """Names, what they are, and their options with defaults."""
    table = Table(show_lines=True)
    table.add_column(what)
    table.add_column("what it is")
    prefix = {"algorithms": "algorithm.", "tasks": "data.", "settings": ""}[what]
    table.add_column(f"options (--set {prefix}…)")
    if what == "settings":
        _print_settings(entries)
        return
    for entry in entries:
        options = "\n".join(f"{name} = {json.dumps(value)}" for name, value in entry["options"].items())
        table.add_row(entry["name"], escape(entry["about"]), escape(options))
    wide_console().print(table)


def _print_settings(entries: Sequence[Mapping[str, Any]]) -> None:
    """Every setting with its default and its meaning."""
    console = wide_console()
    for entry in entries:
        table = Table(title=f"{entry['name']}: {entry['about']}", title_justify="left")
        table.add_column("setting (--set …)", no_wrap=True)
        table.add_column("meaning")
        for name, value in entry["options"].items():
            table.add_row(escape(f"{name} = {json.dumps(value)}"), escape(entry["meanings"][name]))
        console.print(table)
    console.print("`playerfl list algorithms` and `playerfl list tasks` have the settings under algorithm. and data.")
