"""Terminal tables for layers and recommendations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypedDict

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.tree import Tree

from playerfl.cli.tables.console import wide_console
from playerfl.layers.cut import Cut
from playerfl.layers.cut_summary import CutSummary
from playerfl.layers.layer_map import LayerMap
from playerfl.layers.recommendation import Recommendation
from playerfl.layers.sensitivity import federation_sensitivity
from playerfl.report.formats import size
from playerfl.time_left import duration

if TYPE_CHECKING:
    from torch import nn

    from playerfl.analysis.verify import Verification

_VERDICTS = {"clear": "green", "doubtful": "yellow", "no clear transition": "red"}


class LayerRow(TypedDict):
    """One layer of a model, as `playerfl layers --json` prints it."""

    number: int
    name: str
    parameters: int
    """Trainable scalars."""
    frozen: int
    """Entries that do not train."""
    statistics: int
    """Batch-norm modules with running statistics."""
    tied_with: list[str]
    """Other layers that use one of its entries."""
    entries: list[str]
    reason: str
    """Why it is one layer."""


def layer_rows(layers: LayerMap) -> list[LayerRow]:
    """One row per layer: what it holds, and what matters for a cut next to it."""
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
            "reason": layers.reasons.get(name, ""),
        }
        for number, (name, entries) in enumerate(layers.entries.items(), start=1)
    ]


def print_layers(layers: LayerMap, console: Console, *, title: str) -> None:
    """The layers of a model from input to output."""
    table = Table(title=escape(title), title_justify="left")
    table.add_column("", justify="right")
    table.add_column("layer", overflow="fold")
    table.add_column("trainable", justify="right")
    table.add_column("entries", overflow="fold")
    table.add_column("notes", overflow="fold")
    for row in layer_rows(layers):
        table.add_row(
            str(row["number"]),
            escape(row["name"]),
            f"{row['parameters']:,}",
            escape(_entries(row["name"], row["entries"])),
            escape("; ".join(_notes(row))),
            style="dim" if row["parameters"] == 0 else None,
        )
    console.print(table)


def print_tree(layers: LayerMap, model: nn.Module, console: Console, *, title: str, cut: int | None = None) -> None:
    """The layers as a tree: each with the reason why it is one, and the modules it consists of."""
    tree = Tree(f"[bold]{escape(title)}[/bold]")
    for row in layer_rows(layers):
        why = "; ".join(part for part in (row["reason"], *_notes(row)) if part)
        branch = tree.add(
            f"[bold]{row['number']} {escape(row['name'])}[/bold] · {row['parameters']:,} trainable"
            + (f" · {escape(why)}" if why else ""),
            style="dim" if row["parameters"] == 0 else "",
        )
        for path, entries in _by_module(row["entries"]).items():
            kind = type(model.get_submodule(path)).__name__
            branch.add(f"{escape(path or 'the model itself')} ({escape(kind)}): {escape(', '.join(entries))}")
        if row["number"] == cut:
            tree.add("[magenta]the cut: what follows stays private[/magenta]")
    console.print(tree)


def _by_module(entries: list[str]) -> dict[str, list[str]]:
    """Entries by the path of the module that holds them.

    >>> _by_module(["fc.weight", "fc.bias", "token"])
    {'fc': ['weight', 'bias'], '': ['token']}
    """
    held: dict[str, list[str]] = {}
    for entry in entries:
        path, _, name = entry.rpartition(".")
        held.setdefault(path, []).append(name)
    return held


def _notes(row: LayerRow) -> list[str]:
    notes = []
    if row["parameters"] == 0:
        notes.append("frozen: never sent, ignored by the cut")
    elif row["frozen"]:
        notes.append(f"frozen entries: {row['frozen']}")
    if row["statistics"]:
        notes.append("batch-norm statistics")
    if row["tied_with"]:
        notes.append(f"tied with {', '.join(row['tied_with'])}")
    return notes


def _entries(layer: str, entries: list[str]) -> str:
    """The first few entry names, without the layer's name."""
    short = [entry.removeprefix(f"{layer}.") for entry in entries]
    return ", ".join(short) if len(short) <= 6 else f"{', '.join(short[:4])} … ({len(short)} entries)"


def print_recommendation(
    recommendation: Recommendation,
    verify_seconds: float | None = None,
    verification: Verification | None = None,
    *,
    verify_seeds: int = 3,
) -> None:
    """The cut, the verdict with every doubt, the evidence, what the cut shares, and what a sweep costs or found."""
    console = wide_console()
    console.print(cut_table(recommendation.cut, title="Which layers to share"))
    colour = _VERDICTS[recommendation.verdict]
    here, total = recommendation.cut.index, len(recommendation.cut.layers)
    share = (
        f"the first {here} of {total} layers"
        if here < total
        else f"all {total} layers"
        if total > 1
        else "the only layer"
    )
    console.print(
        f"[bold]Share {share}[/bold]: {escape(recommendation.cut.reason)}.\n"
        f"Verdict: [bold {colour}]{recommendation.verdict}[/bold {colour}]."
    )
    for doubt in recommendation.doubts:
        console.print(f"[yellow]Doubt:[/yellow] {escape(doubt)}.")
    for line in _next_steps(recommendation, verify_seconds, verification, verify_seeds):
        console.print(line)
    console.print()
    console.print(_evidence(recommendation))
    if recommendation.summary:
        console.print()
        print_cut_summary(recommendation.summary, console)


def _next_steps(
    recommendation: Recommendation, verify_seconds: float | None, verification: Verification | None, seeds: int
) -> Iterator[str]:
    """The alternatives of a cut that is not clear, and what training with them would cost, or showed."""
    if verification is not None:
        colour = "yellow" if verification.told_apart else "green"
        yield (
            f"[bold]Verified:[/bold] [{colour}]{escape(str(verification))}[/{colour}]. Cuts and mean scores: "
            f"{', '.join(f'{cut}: {mean:.3f}' for cut, mean in verification.means.items())}. "
            f"This took {duration(verification.seconds)}{_estimated(verify_seconds)}."
        )
        return
    if recommendation.verdict == "clear" or len(recommendation.cut.layers) == 1:
        return
    if recommendation.alternatives:
        cuts = ", ".join(f"after {cut} ({_last_shared(recommendation, cut)})" for cut in recommendation.alternatives)
        yield f"[yellow]Alternatives:[/yellow] {escape(cuts)}."
    if verify_seconds is not None:
        from playerfl.analysis.verify import cuts_to_verify

        runs = seeds * len(cuts_to_verify(recommendation))
        yield f"To compare them on validation data, add --verify: {runs} runs, about {duration(verify_seconds)}."


def _estimated(seconds: float | None) -> str:
    return "" if seconds is None else f" (estimated: {duration(seconds)})"


def _last_shared(recommendation: Recommendation, cut: int) -> str:
    return f"{recommendation.cut.layers[cut - 1]} is the last shared layer" if cut else "nothing is shared"


def cut_table(cut: Cut, *, title: str, parameters: Mapping[str, int] | None = None) -> Table:
    """The score of every layer, and whether it is shared."""
    table = Table(title=title, title_justify="left")
    table.add_column("layer", overflow="fold")
    for heading in (*(["parameters"] if parameters else []), "score s", "sensitivity F", "jump"):
        table.add_column(heading, justify="right")
    table.add_column("decision")
    sensitivity = federation_sensitivity(cut.importance)
    for number, layer in enumerate(cut.layers):
        ratio = cut.ratios[number - 1] if number else None
        table.add_row(
            escape(layer),
            *([f"{parameters[layer]:,}"] if parameters else []),
            f"{cut.importance[layer]:.3g}",
            f"{sensitivity[layer]:.3g}",
            "" if ratio is None else f"x {ratio:.3g}",
            "[green]shared[/green]" if number < cut.index else "[magenta]private[/magenta]",
            end_section=number + 1 == cut.index,
        )
    return table


def _evidence(recommendation: Recommendation) -> Table:
    table = Table(title="Evidence for this cut", title_justify="left")
    table.add_column("test")
    table.add_column("cut after", justify="right")
    table.add_column("finding", overflow="fold")
    here = recommendation.cut.index
    if recommendation.agreement is None:
        table.add_row("batches", "", "only one measurement, so there is nothing to resample")
    else:
        shares = ", ".join(f"{share:.0%} after {cut}" for cut, share in recommendation.bootstrap.items())
        table.add_row(
            "batches, resampled",
            _cuts(recommendation.bootstrap, here),
            f"{shares} ({recommendation.resamples:,} resamples)",
        )
    if recommendation.without_site:
        same = sum(cut == here for cut in recommendation.without_site.values())
        table.add_row(
            "sites, one left out",
            _cuts(recommendation.without_site.values(), here),
            f"{same} of {len(recommendation.without_site)} keep the cut",
        )
        same = sum(cut == here for cut in recommendation.site_alone.values())
        table.add_row(
            "each site alone",
            _cuts(recommendation.site_alone.values(), here),
            f"{same} of {len(recommendation.site_alone)} choose the same cut{_named(recommendation.site_alone, here)}",
        )
        largest = max(recommendation.shares, key=recommendation.shares.__getitem__)
        share = f"{escape(largest)} contributes {recommendation.shares[largest]:.0%} of the summed sensitivity"
        table.add_row("largest share", "", share + ("; it dominates" if recommendation.dominating == largest else ""))
    if len(recommendation.by_seed) > 1:
        same = sum(cut == here for cut in recommendation.by_seed)
        table.add_row("seeds", _cuts(recommendation.by_seed, here), f"{same} of {len(recommendation.by_seed)} agree")
    if recommendation.interval:
        low, high = recommendation.interval
        table.add_row(
            "threshold",
            str(here),
            f"any threshold from {low:.3g} to {high:.3g} (used: {recommendation.cut.threshold:g})",
        )
    if recommendation.next_best:
        table.add_row("next-best cut", str(recommendation.next_best.cut), escape(recommendation.next_best.reason))
    table.add_row("rules", _cuts(recommendation.rules.values(), here), _answers(recommendation.rules))
    table.add_row(
        "normalisations", _cuts(recommendation.normalisations.values(), here), _answers(recommendation.normalisations)
    )
    return table


def _cuts(cuts: Any, here: int) -> str:
    distinct = sorted(set(cuts))
    text = ", ".join(map(str, distinct))
    return f"[green]{text}[/green]" if distinct == [here] else f"[yellow]{text}[/yellow]"


def _answers(answers: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {cut}" for name, cut in answers.items())


def _named(cuts: Mapping[str, int], here: int) -> str:
    others = [f"{site} after {cut}" for site, cut in cuts.items() if cut != here]
    return escape(f"; {', '.join(others)}") if others else ""


def print_cut_summary(summary: CutSummary, console: Console) -> None:
    """What is shared and what stays private, in layers, parameters and bytes, with warnings."""
    table = Table(title="What this cut means for one site", title_justify="left")
    table.add_column("")
    for heading in ("shared", "private"):
        table.add_column(heading, justify="right")
    trainable = summary.federated_parameters + summary.private_parameters
    table.add_row("layers", str(len(summary.federated)), str(len(summary.private)))
    table.add_row("parameters", f"{summary.federated_parameters:,}", f"{summary.private_parameters:,}")
    if trainable:
        table.add_row("share of parameters", f"{1 - summary.private_share:.1%}", f"{summary.private_share:.1%}")
    saved = size(summary.bytes_of_whole_model - summary.bytes_per_round)
    table.add_row("sent per round, each way", size(summary.bytes_per_round), f"saved: {saved}")
    if summary.frozen_parameters:
        table.add_row("frozen parameters (never sent)", f"{summary.frozen_parameters:,}", "")
    if summary.bytes_of_full_fine_tuning is not None:
        table.add_row("full fine-tuning would send", size(summary.bytes_of_full_fine_tuning), "")
    console.print(table)
    for warning in summary.warnings:
        console.print(f"[yellow]Note:[/yellow] {escape(warning)}.")
