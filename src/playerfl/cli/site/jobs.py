"""`playerfl flower jobs`, `approve`, `refuse` and `stop`: a person at a site decides about its jobs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from playerfl.cli.options import Json, examples

if TYPE_CHECKING:
    from playerfl.flower.site.contract import Choice, Contract

State = Annotated[Path, typer.Option(help="The site's directory.")]
JobName = Annotated[str, typer.Argument(metavar="JOB")]

JOBS_EXAMPLES = examples("flower jobs --state /var/lib/playerfl", "flower jobs --state /var/lib/playerfl --json")
APPROVE_EXAMPLES = examples("flower approve heart --state /var/lib/playerfl --most-layers 2")
REFUSE_EXAMPLES = examples("flower refuse heart --state /var/lib/playerfl")
STOP_EXAMPLES = examples("flower stop heart --state /var/lib/playerfl")


def jobs(
    state: State,
    as_json: Json = False,
) -> None:
    """Show the jobs of a site: what each will do, which layers leave, and whether it waits for approval."""
    from playerfl.flower.site.contract import Decision, status
    from playerfl.flower.site.data_check import check_lines, read_check
    from playerfl.flower.site.describe import described

    automatic = _approves_by_itself(state)
    by_policy = "approved by the policy" if automatic else "no decision yet"
    found: list[dict[str, Any]] = []
    for job, contract in contracts(state).items():
        decision = Decision.read(state / job)
        found.append(
            {
                "job": job,
                "status": status(contract, decision, automatic=automatic),
                "since": contract.since,
                "decided": f"{decision.choice} by {decision.by}, {decision.time}" if decision else by_policy,
                "latest_round": max(contract.latest_round, 0),
                "shared_layers": contract.cut,
                "description": described(contract),
                "data_check": read_check(state / job),
            }
        )
    if as_json:
        typer.echo(json.dumps(found, indent=1))
        return
    for one in found:
        typer.echo(f"{one['job']}: {one['status']}, since {one['since']}, {one['decided']}")
        for line in one["description"]:
            typer.echo(f"  {line}")
        for line in check_lines(one["data_check"]) if one["data_check"] else ():
            typer.echo(f"  {line}")
        if one["status"] == "waiting":
            typer.echo(f"  decide: playerfl flower approve {one['job']} --state {state}   (or refuse)")
    if not found:
        typer.echo("no job has reached this site yet")


def _approves_by_itself(state: Path) -> bool:
    """Whether the agent that last ran here approves jobs without a person."""
    from playerfl.flower.site.site import OWN, POLICY

    try:
        return bool(json.loads((state / OWN / POLICY).read_bytes())["approval"] == "automatic")
    except (OSError, ValueError, LookupError, TypeError):
        return False


def approve(
    job: JobName,
    state: State,
    most_layers: Annotated[
        int | None, typer.Option(help="The most layers that may leave this site (default: as the job says).")
    ] = None,
) -> None:
    """Let a job use this site's data, as `playerfl flower jobs` describes it. A stopped job may continue."""
    _decide(state, job, "approved", most_layers)


def refuse(job: JobName, state: State) -> None:
    """Refuse a job: nothing is computed for it here."""
    _decide(state, job, "refused")


def stop(job: JobName, state: State) -> None:
    """Stop this site's part in a job: nothing more leaves, not even what is being computed now."""
    _decide(state, job, "stopped")


def _decide(state: Path, job: str, choice: Choice, most_layers: int | None = None) -> None:
    from playerfl.errors import ConfigError, one_of
    from playerfl.flower.site.audit import AuditLog
    from playerfl.flower.site.contract import decide
    from playerfl.flower.site.describe import check_most_layers
    from playerfl.flower.site.site import AUDIT

    known = contracts(state)
    if job not in known:
        raise ConfigError(one_of(job, known, "job"))
    check_most_layers(known[job], most_layers)
    decision = decide(state / job, known[job], choice, most_layers)
    AuditLog(state / AUDIT).add(choice, job=job, by=decision.by, terms=decision.terms, most_layers=decision.most_layers)
    typer.echo(f"{job}: {choice}")


def contracts(state: Path) -> dict[str, Contract]:
    """The jobs of a site by name."""
    from playerfl.errors import ConfigError
    from playerfl.flower.site.contract import CONTRACT, Contract

    if not state.is_dir():
        raise ConfigError(f"{state} is not a site's directory; give the --state of playerfl flower site")
    read = {file.parent.name: Contract.read(file.parent) for file in sorted(state.glob(f"*/{CONTRACT}"))}
    return {job: contract for job, contract in read.items() if contract is not None}
