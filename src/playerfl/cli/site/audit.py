"""`playerfl flower audit`: what left a site, whether its log is intact, and whether a layer ever left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from playerfl.cli.options import Json, examples
from playerfl.wording import counted

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
    from playerfl.cli.messages import say
    from playerfl.errors import ConfigError, RunDirectoryError, one_of
    from playerfl.flower.site.files.audit import GAP, AuditLog
    from playerfl.flower.site.files.names import AUDIT

    entries = AuditLog(state / AUDIT).entries()
    if not entries and not (state / AUDIT).exists():
        # An agent writes a line when it starts: in a wrong directory, "nothing left" would be a wrong answer.
        raise ConfigError(f"{state} has no audit log; give the --state of playerfl flower site")
    if expect is not None and expect not in {entry["hash"] for entry in entries}:
        raise RunDirectoryError(f"{state / AUDIT} does not contain the hash {expect}: lines were removed or replaced")
    jobs = sorted({entry["job"] for entry in entries if entry.get("job")})
    if job is not None and job not in jobs:
        # For a mistyped name, "nothing left" would be a wrong answer, too.
        raise ConfigError(one_of(job, jobs, "job"))
    chosen = [entry for entry in entries if job is None or entry.get("job") == job]
    gaps = [str(entry["n"]) for entry in entries if entry["event"] == GAP]
    missing = f"{state / AUDIT}: lines are missing before line {', '.join(gaps)}" if gaps else None
    if left is not None:
        _answer(state, chosen, left, missing)
        return
    if as_json:
        typer.echo(json.dumps(chosen, indent=1))
    else:
        _table(chosen)
    head = entries[-1]["hash"] if entries else "none"
    if missing:
        raise RunDirectoryError(f"{missing}, so it does not show everything that left; last hash: {head}")
    say(f"{counted(len(entries), 'line')}, the chain is intact; last hash: {head}")


def _answer(state: Path, entries: list[dict[str, Any]], name: str, missing: str | None) -> None:
    """Says whether a layer or a tensor left. `missing`: which lines the log lacks."""
    from playerfl.cli.site.jobs import contract_of, job_names
    from playerfl.errors import ConfigError, RunDirectoryError
    from playerfl.flower.site.files.audit import sent_entries

    known = {job: contract_of(state, job) for job in job_names(state)}

    def contains(entry: dict[str, Any]) -> bool:
        # Each job has a model of its own: a layer's name may stand for other tensors elsewhere.
        contract, tensors = known.get(entry.get("job", "")), sent_entries(entry)
        if contract is None:
            # Its contract is gone, and with it what its layers were; parts of modules have the module's name in front.
            return any(tensor == name or tensor.startswith(f"{name}.") for tensor in tensors)
        return bool({name, *contract.used_by(name)} & tensors.keys())

    names = sorted({layer for contract in known.values() for layer in contract.layers})
    sent = [entry for entry in entries if contains(entry)]
    tensors = {tensor for contract in known.values() for of_layer in contract.layers.values() for tensor in of_layer}
    private = name in tensors or any(contract.used_by(name) for contract in known.values())
    if not sent and not private:
        from playerfl.errors import one_of

        raise ConfigError(one_of(name, names, "layer"))
    uploads = [entry for entry in entries if sent_entries(entry)]
    if not sent:
        if missing:
            raise RunDirectoryError(f"{missing}, so it does not show whether {name} ever left")
        span = f"from {uploads[0]['time']} to {uploads[-1]['time']}" if uploads else "so far"
        typer.echo(f"{name} never left this site: none of {counted(len(uploads), 'upload')} {span} contains it")
        return
    _table(sent)
    typer.echo(f"{name} left this site in {len(sent)} of {counted(len(uploads), 'upload')}")
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
            _cell(entry["event"]),
            _cell(entry.get("job", "")),
            _cell(entry.get("key") or "+".join(entry.get("verbs", []))),
            _cell(_what(entry)),
            str(entry.get("bytes", "")),
            str(entry.get("sha256", ""))[:12],
            "" if epsilon is None else f"{epsilon:.3g}",
        )
    wide_console().print(table)


def _cell(text: object) -> str:
    """Names and reasons may come from the server."""
    from rich.markup import escape

    from playerfl.flower.site.printable import printable

    return escape(printable(str(text)))


def _what(entry: dict[str, Any]) -> str:
    """What left or was refused, in words.

    >>> _what({"event": "left", "scores": 1, "times": 32})
    '1 score, sent 32 times so far'
    """
    if entry["event"] == "refused":
        return f"{entry.get('code')}: {entry.get('detail', '')}"
    sent = [f"{name} {'x'.join(map(str, shape)) or '1'}" for name, (_, shape) in (entry.get("entries") or {}).items()]
    parts = [sent[0], f"… {sent[-1]} ({len(sent)} tensors)"] if len(sent) > 4 else sent
    parts += [f"{count} {name}" for name, count in (entry.get("numbers") or {}).items()]
    parts += list(entry.get("introduced", []))
    if entry.get("scores"):
        parts.append(counted(entry["scores"], "score"))
    if entry.get("times"):
        parts.append(f"sent {entry['times']} times so far" if entry["times"] > 2 else "again")
    if entry.get("uncounted"):
        parts.append(f"not in ε: {', '.join(entry['uncounted'])}")
    if entry.get("by"):
        parts.append(f"by {entry['by']}")
    if entry.get("masked"):
        parts.insert(0, "masked:")
    return ", ".join(parts) or str(entry.get("detail", ""))
