"""Tables for the terminal."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from playerfl.cli.tables.console import Column, fitting_tables, wide_console
from playerfl.cli.tables.layers import cut_table
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
    console = wide_console()
    title = f"Which layers to share ({escape(result.algorithm)})"
    console.print(cut_table(cut, title=title, parameters=parameters))
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
    for table in _overview(summaries, baseline or {}, console.width):
        console.print(table)
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
    full = summaries[0].full_fine_tuning_bytes
    if full is not None:
        sent = {summary.algorithm: summary.bytes_up_per_round for summary in summaries}
        console.print(escape(beside_full_fine_tuning(sent, full)))
    if baseline:
        console.print("baseline: each site predicts the most frequent class (or the mean) of its training data.")
    console.print(f"Averages weight sites by their number of examples; fairness is the variance of {first} over sites.")
    reported = SELECTIONS[selection][0].upper() + SELECTIONS[selection][1:]
    console.print(f"{reported}; a method that tunes after the last round reports its tuned model.\n")
    for summary in summaries:
        if summary.gains:
            for table in _gains(summary, console.width):
                console.print(table)
            console.print()
    shown = [summaries[0].metrics[name] for name in _metrics_by_site(summaries[0])]
    if any(metric.lower_is_better for metric in shown) and any(summary.gains for summary in summaries):
        console.print("A positive difference is better for the site, even where a lower value is better.\n")


def beside_full_fine_tuning(sent: Mapping[str, float], full: int) -> str:
    """What a site sends in a round with each algorithm, and what it would send without frozen weights.

    >>> beside_full_fine_tuning({"fedavg": 8972, "fedsa_lora": 4096}, 2_852_364)
    'From a site per round: fedavg 9.0 kB, fedsa_lora 4.1 kB. Full fine-tuning would send 2.9 MB, as much to each site.'
    """
    listed = ", ".join(f"{algorithm} {size(number)}" for algorithm, number in sent.items())
    return f"From a site per round: {listed}. Full fine-tuning would send {size(full)}, as much to each site."


UnseenRow = tuple[str, str, Mapping[str, float]]
"""An algorithm, an unseen site, and its scores."""


def print_unseen(rows: Sequence[UnseenRow], title: str = "Unseen sites, which joined after the last round") -> None:
    """The scores of sites that took no part in training; nothing if there are none."""
    if not rows:
        return
    table = Table(title=escape(title), title_justify="left")
    metrics = list(rows[0][2])
    for heading in ("algorithm", "unseen site"):
        table.add_column(heading, no_wrap=True)
    for metric in metrics:
        table.add_column(escape(metric), justify="right", min_width=6)
    for algorithm, site, scores in rows:
        table.add_row(escape(algorithm), escape(site), *(_number(scores[metric]) for metric in metrics))
    wide_console().print(table)


def _overview(summaries: Sequence[AlgorithmSummary], baseline: Mapping[str, float], width: int) -> list[Table]:
    metrics = list(summaries[0].metrics)

    def column(heading: str, cells: Iterable[str], of_baseline: str = "") -> Column:
        return heading, [*cells, *([of_baseline] if baseline else [])]

    def better_off(summary: AlgorithmSummary) -> str:
        better = summary.incentive and summary.incentive.get(metrics[0])
        return "" if better is None else f"{better:.0f} %"

    def spread(summary: AlgorithmSummary) -> str:
        return "–" if math.isnan(summary.fairness[metrics[0]]) else f"{summary.fairness[metrics[0]]:.2g}"

    blocks = [
        [
            column(
                metric,
                (_number(summary.average[metric]) for summary in summaries),
                _number(baseline[metric]) if metric in baseline else "",
            )
        ]
        for metric in metrics
    ]
    blocks += [
        [column("fairness", map(spread, summaries)), column("better off", map(better_off, summaries))],
        [
            column("to sites", (size(summary.bytes_down) for summary in summaries)),
            column("from sites", (size(summary.bytes_up) for summary in summaries)),
        ],
    ]
    names = column("algorithm", (summary.algorithm for summary in summaries), "[dim]baseline[/dim]")
    title = "Comparison on the sites' test data"
    return fitting_tables(title, names, blocks, width, below=1 if baseline else 0)


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.4f}" if abs(value) < 1000 else f"{value:.5g}"


def _metrics_by_site(summary: AlgorithmSummary) -> list[str]:
    """The metrics that fit side by side; the report has all of them."""
    return ([metric for metric in summary.metrics if metric != "loss"] or ["loss"])[:_SHOWN_METRICS]


def _gains(summary: AlgorithmSummary, width: int) -> list[Table]:
    tested, blocks = summary.test_rows, list[list[Column]]()
    if tested:
        blocks.append([("test rows", [f"{tested[site]:,}" if site in tested else "–" for site in summary.sites])])
    for metric in _metrics_by_site(summary):
        block: list[Column] = [(metric, [_number(scores.get(metric, math.nan)) for scores in summary.sites.values()])]
        if summary.baseline:
            constant = (summary.baseline.get(site, {}).get(metric, math.nan) for site in summary.sites)
            block.append(("baseline", [f"[dim]{_number(value)}[/dim]" for value in constant]))
        for baseline, gains in summary.gains.items():
            cells = [_signed(gains[metric].get(site, math.nan)) for site in summary.sites]
            block.append((f"vs {baseline}", cells))
        blocks.append(block)
    title = f"What each site gains or loses with {summary.algorithm}"
    return fitting_tables(title, ("site", list(map(escape, summary.sites))), blocks, width)


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
    """Every setting with its default, its meaning and what it may be."""
    console = wide_console()
    for entry in entries:
        table = Table(title=f"{entry['name']}: {entry['about']}", title_justify="left")
        table.add_column("setting (--set …)", no_wrap=True)
        table.add_column("meaning")
        for name, value in entry["options"].items():
            meaning = f"{escape(entry['meanings'][name])}\n[dim]{escape(entry['allowed'][name])}[/dim]"
            table.add_row(escape(f"{name} = {json.dumps(value)}"), meaning)
        console.print(table)
    console.print("`playerfl list algorithms` and `playerfl list tasks` have the settings under algorithm. and data.")
