"""`playerfl flower audit`: what left a site, whether its log is intact, and whether a layer ever left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from playerfl.cli.options import Json, examples

AUDIT_EXAMPLES = examples(
    "flower audit --state /var/lib/playerfl",
    "flower audit --state /var/lib/playerfl --left fc3",
    "flower audit --state /var/lib/playerfl --json",
)


def audit(
    state: Annotated[Path, typer.Option(help="The site's directory.")],
    left: Annotated[
        str | None,
        typer.Option(metavar="LAYER", help="Say whether this layer or tensor ever left; exit code 1 if so."),
    ] = None,
    job: Annotated[str | None, typer.Option(help="Only this job.")] = None,
    expect: Annotated[
        str | None, typer.Option(metavar="HASH", help="A hash noted earlier, which the log must still contain.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what left this site and what was refused, and verify that the log was not changed.

    The table shortens lists of tensors; --json has every name and shape. The last hash is printed: note it elsewhere
    from time to time, and give it to --expect later. Together with the chain of hashes it shows that no line before it
    was changed or removed.
    """
    from playerfl.cli.flower_jobs import say
    from playerfl.errors import RunDirectoryError
    from playerfl.flower.site.audit import AuditLog
    from playerfl.flower.site.site import AUDIT

    entries = AuditLog(state / AUDIT).entries()
    if expect is not None and expect not in {entry["hash"] for entry in entries}:
        raise RunDirectoryError(f"{state / AUDIT} does not contain the hash {expect}: lines were removed or replaced")
    chosen = [entry for entry in entries if job is None or entry.get("job") == job]
    if left is not None:
        _answer(state, chosen, left)
        return
    if as_json:
        typer.echo(json.dumps(chosen, indent=1))
    else:
        _table(chosen)
    head = entries[-1]["hash"] if entries else "none"
    say(f"{len(entries)} lines, the chain is intact; last hash: {head}")


def _answer(state: Path, entries: list[dict[str, Any]], name: str) -> None:
    """Says whether a layer or a tensor left."""
    from playerfl.cli.site.jobs import contracts
    from playerfl.errors import ConfigError
    from playerfl.flower.site.audit import sent_entries

    layers = {layer: set(entries) for c in contracts(state).values() for layer, entries in c.layers.items()}
    tensors = layers.get(name) or ({name} if any(name in of_layer for of_layer in layers.values()) else set())
    sent = [entry for entry in entries if tensors & sent_entries(entry).keys()]
    if not tensors and not any(name in sent_entries(entry) for entry in entries):
        from playerfl.errors import one_of

        raise ConfigError(one_of(name, layers, "layer"))
    uploads = [entry for entry in entries if sent_entries(entry)]
    if not sent:
        span = f"from {uploads[0]['time']} to {uploads[-1]['time']}" if uploads else "so far"
        typer.echo(f"{name} never left this site: none of {len(uploads)} uploads {span} contains it")
        return
    _table(sent)
    typer.echo(f"{name} left this site in {len(sent)} of {len(uploads)} uploads")
    raise typer.Exit(1)


def _table(entries: list[dict[str, Any]]) -> None:
    from rich.table import Table

    from playerfl.cli.tables.console import wide_console

    table = Table("line", "time", "event", "job", "request", "what", "bytes", "SHA-256", "ε so far")
    for entry in entries:
        epsilon = entry.get("epsilon")
        table.add_row(
            str(entry["n"]),
            str(entry["time"])[:19].replace("T", " "),
            str(entry["event"]),
            str(entry.get("job", "")),
            str(entry.get("key") or "+".join(entry.get("verbs", []))),
            _what(entry),
            str(entry.get("bytes", "")),
            str(entry.get("sha256", ""))[:12],
            "" if epsilon is None else f"{epsilon:.3g}",
        )
    wide_console().print(table)


def _what(entry: dict[str, Any]) -> str:
    from rich.markup import escape

    if entry["event"] == "refused":
        return escape(f"{entry.get('code')}: {entry.get('detail', '')}")
    sent = [f"{name} {'x'.join(map(str, shape)) or '1'}" for name, (_, shape) in (entry.get("entries") or {}).items()]
    parts = [sent[0], f"… {sent[-1]} ({len(sent)} tensors)"] if len(sent) > 4 else sent
    parts += [f"{count} {name}" for name, count in (entry.get("numbers") or {}).items()]
    parts += list(entry.get("introduced", []))
    if entry.get("scores"):
        parts.append(f"{entry['scores']} scores")
    if entry.get("by"):
        parts.append(f"by {entry['by']}")
    if entry.get("masked"):
        parts.insert(0, "masked:")
    return escape(", ".join(parts) or str(entry.get("detail", "")))
