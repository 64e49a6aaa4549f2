"""Tables of layers and recommendations for the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from playerfl.cli.tables.console import wide_console
from playerfl.layers.layer_map import LayerMap
from playerfl.layers.meaning import Meaning
from playerfl.layers.recommendation import Recommendation
from playerfl.layers.sensitivity import federation_sensitivity
from playerfl.report.write.formats import size

_VERDICTS = {"clear": "green", "doubtful": "yellow", "no clear transition": "red"}


def layer_rows(layers: LayerMap) -> list[dict[str, Any]]:
    """One row a layer: what it holds, and what a cut near it should know."""
    tied = {layer: [other for other in users if other != layer] for users in layers.tied.values() for layer in users}
    return [
        {
            "number": number,
            "name": name,
            "parameters": layers.num_parameters[name],
            "frozen": sum(entry in layers.frozen for entry in entries),
            "statistics": sum(entry.endswith("running_mean") for entry in entries if entry in layers.buffers),
            "tied_with": tied.get(name, []),
            "entries": list(entries),
        }
        for number, (name, entries) in enumerate(layers.entries.items(), start=1)
    ]


def print_layers(layers: LayerMap, console: Console, *, title: str, cut: int | None = None) -> None:
    """The layers of a model from input to output, before anything runs."""
    table = Table(title=escape(title), title_justify="left")
    table.add_column("", justify="right")
    table.add_column("layer", overflow="fold")
    table.add_column("trains", justify="right")
    table.add_column("entries", overflow="fold")
    table.add_column("notes", overflow="fold")
    for row in layer_rows(layers):
        notes = []
        if row["parameters"] == 0:
            notes.append("frozen: never travels, is skipped by the cut")
        elif row["frozen"]:
            notes.append(f"{row['frozen']} entries frozen")
        if row["statistics"]:
            notes.append("batch-norm statistics")
        if row["tied_with"]:
            notes.append(f"tied with {', '.join(row['tied_with'])}")
        table.add_row(
            str(row["number"]),
            escape(row["name"]),
            f"{row['parameters']:,}",
            escape(_entries(row["name"], row["entries"])),
            escape("; ".join(notes)),
            style="dim" if row["parameters"] == 0 else None,
            end_section=row["number"] == cut,
        )
    console.print(table)


def _entries(layer: str, entries: list[str]) -> str:
    """Entry names without the layer's own, a few of them."""
    short = [entry.removeprefix(f"{layer}.") for entry in entries]
    return ", ".join(short) if len(short) <= 6 else f"{', '.join(short[:4])} … ({len(short)} entries)"


def print_recommendation(found: Recommendation) -> None:
    """The cut layer by layer, the verdict, the evidence, what it means, and every doubt in a sentence."""
    console = wide_console()
    console.print(_scores(found))
    colour = _VERDICTS[found.verdict]
    here, total = found.cut.index, len(found.cut.layers)
    share = (
        f"the first {here} of {total} layers"
        if here < total
        else f"all {total} layers"
        if total > 1
        else "the only layer"
    )
    console.print(
        f"[bold]Federate {share}[/bold]: {escape(found.cut.reason)}.\n"
        f"Verdict: [bold {colour}]{found.verdict}[/bold {colour}]."
    )
    for doubt in found.doubts:
        console.print(f"[yellow]Doubt:[/yellow] {escape(doubt)}.")
    for caveat in found.caveats:
        console.print(f"[yellow]Note:[/yellow] {escape(caveat)}.")
    console.print()
    console.print(_evidence(found))
    if found.meaning:
        console.print()
        print_cut_summary(found.meaning, console)


def _scores(found: Recommendation) -> Table:
    table = Table(title="Which layers to federate", title_justify="left")
    table.add_column("layer", overflow="fold")
    for heading in ("score s", "sensitivity F", "jump"):
        table.add_column(heading, justify="right")
    table.add_column("decision")
    cut = found.cut
    sensitivity = federation_sensitivity(cut.importance)
    for number, layer in enumerate(cut.layers):
        ratio = cut.ratios[number - 1] if number else None
        table.add_row(
            escape(layer),
            f"{cut.importance[layer]:.3g}",
            f"{sensitivity[layer]:.3g}",
            "" if ratio is None else f"x {ratio:.3g}",
            "[green]federated[/green]" if number < cut.index else "[magenta]private[/magenta]",
            end_section=number + 1 == cut.index,
        )
    return table


def _evidence(found: Recommendation) -> Table:
    table = Table(title="How far the measurement bears this out", title_justify="left")
    table.add_column("asked of")
    table.add_column("cut after", justify="right")
    table.add_column("finding", overflow="fold")
    here = found.cut.index
    if found.agreement is None:
        table.add_row("batches", "", "measured once, so there is nothing to resample")
    else:
        shares = ", ".join(f"{share:.0%} after {cut}" for cut, share in found.bootstrap.items())
        table.add_row("batches, resampled", _cuts(found.bootstrap, here), f"{shares} ({found.resamples:,} resamples)")
    if found.without_site:
        same = sum(cut == here for cut in found.without_site.values())
        table.add_row(
            "sites, one left out",
            _cuts(found.without_site.values(), here),
            f"{same} of {len(found.without_site)} leave the cut where it is",
        )
        same = sum(cut == here for cut in found.site_alone.values())
        table.add_row(
            "each site alone",
            _cuts(found.site_alone.values(), here),
            f"{same} of {len(found.site_alone)} would cut there by themselves{_named(found.site_alone, here)}",
        )
        loudest = max(found.shares, key=found.shares.__getitem__)
        said = f"{escape(loudest)} supplies {found.shares[loudest]:.0%} of the summed sensitivity"
        table.add_row("loudest site", "", said + ("; it dominates" if found.dominating == loudest else ""))
    if len(found.by_seed) > 1:
        same = sum(cut == here for cut in found.by_seed)
        table.add_row("seeds", _cuts(found.by_seed, here), f"{same} of {len(found.by_seed)} agree")
    if found.interval:
        low, high = found.interval
        table.add_row("threshold", str(here), f"any t from {low:.3g} to {high:.3g} (used: {found.cut.threshold:g})")
    if found.next_best:
        table.add_row("next-best cut", str(found.next_best.cut), escape(found.next_best.reason))
    table.add_row("rules", _cuts(found.rules.values(), here), _answers(found.rules))
    table.add_row("normalisations", _cuts(found.normalisations.values(), here), _answers(found.normalisations))
    return table


def _cuts(cuts: Any, here: int) -> str:
    found = sorted(set(cuts))
    text = ", ".join(map(str, found))
    return f"[green]{text}[/green]" if found == [here] else f"[yellow]{text}[/yellow]"


def _answers(answers: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {cut}" for name, cut in answers.items())


def _named(cuts: Mapping[str, int], here: int) -> str:
    others = [f"{site} after {cut}" for site, cut in cuts.items() if cut != here]
    return escape(f"; {', '.join(others)}") if others else ""


def print_cut_summary(meaning: Meaning, console: Console) -> None:
    """What is shared and what stays, in layers, parameters and bytes, and what the cut parts."""
    table = Table(title="What it means, for one site", title_justify="left")
    table.add_column("")
    for heading in ("federated", "private"):
        table.add_column(heading, justify="right")
    trainable = meaning.federated_parameters + meaning.private_parameters
    table.add_row("layers", str(len(meaning.federated)), str(len(meaning.private)))
    table.add_row("parameters", f"{meaning.federated_parameters:,}", f"{meaning.private_parameters:,}")
    if trainable:
        table.add_row("share of parameters", f"{1 - meaning.private_share:.1%}", f"{meaning.private_share:.1%}")
    saved = size(meaning.bytes_of_whole_model - meaning.bytes_per_round)
    table.add_row("sent a round, down and up each", size(meaning.bytes_per_round), f"saved: {saved}")
    if meaning.frozen_parameters:
        table.add_row("frozen parameters (never travel)", f"{meaning.frozen_parameters:,}", "")
    console.print(table)
    for warning in meaning.warnings:
        console.print(f"[yellow]Note:[/yellow] {escape(warning)}.")
