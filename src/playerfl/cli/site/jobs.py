"""`playerfl flower jobs`, `approve`, `refuse` and `stop`: a person at a site decides about its jobs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from playerfl.cli.options import Json, examples

if TYPE_CHECKING:
    from playerfl.flower.site.files.contract import Choice, Contract, Decision
    from playerfl.flower.site.policy import Policy

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
    jobs_shown = _jobs_of(state)
    if as_json:
        typer.echo(json.dumps(jobs_shown, indent=1))
        return
    for one in jobs_shown:
        typer.echo(f"{one['job']}: {one['status']}, since {one['since']}, {one['decided']}")
        for line in _about(one):
            typer.echo(f"  {line}")
        if one["status"] == "waiting":
            typer.echo(f"  decide: playerfl flower approve {one['job']} --state {state}   (or refuse)")
    if not jobs_shown:
        typer.echo("no job has reached this site yet")


def ask_about_jobs(site: str, state: Path) -> None:
    """Shows every job that waits for approval at a site, and asks the person at the terminal to decide."""
    from playerfl.cli.messages import say
    from playerfl.errors import ConfigError

    for one in _jobs_of(state) if state.is_dir() else ():
        if one["status"] != "waiting":
            continue
        say(f"\n{site}: may the job {one['job']!r} use your data?")
        for line in _about(one):
            say(f"  {line}")
        answer = ""
        while answer not in ("y", "yes", "n", "no"):
            print(f"{site}: approve? [y/n] ", end="", file=sys.stderr, flush=True)
            try:
                answer = input().strip().lower()
            except EOFError:
                raise ConfigError(
                    "--ask needs someone at the terminal to answer; leave it out to approve everything"
                ) from None
        _decide(state, one["job"], "approved" if answer.startswith("y") else "refused")


def _jobs_of(state: Path) -> list[dict[str, Any]]:
    policy = _policy_in_force(state)
    return [_shown(state, job, policy) for job in job_names(state)]


def _about(job: dict[str, Any]) -> list[str]:
    from playerfl.flower.site.data_check import check_lines

    return [*job["description"], *(check_lines(job["data_check"]) if job.get("data_check") else ())]


def _shown(state: Path, job: str, policy: Policy) -> dict[str, Any]:
    """One job; a damaged one does not hide the others."""
    from playerfl.errors import PlayerflError
    from playerfl.flower.site.data_check import read_check
    from playerfl.flower.site.describe import described
    from playerfl.flower.site.files.contract import Decision, status

    automatic = policy.approval == "automatic"
    try:
        contract, decision = contract_of(state, job), Decision.read(state / job)
        description = described(contract, policy)
    except Exception as problem:
        # The server chose what is described here, and must not be able to hide other jobs.
        reason = (
            str(problem) if isinstance(problem, PlayerflError) else f"it cannot be shown ({type(problem).__name__})"
        )
        return {"job": job, "status": "damaged", "since": "unknown", "decided": reason, "description": []}
    undecided = "approved by the policy" if automatic else "no decision yet"
    return {
        "job": job,
        "status": status(contract, decision, automatic=automatic),
        "since": contract.since,
        "decided": f"{decision.choice} by {decision.by}, {decision.time}" if decision else undecided,
        "latest_round": max(contract.latest_round, 0),
        "shared_layers": contract.cut,
        "description": description,
        "data_check": read_check(state / job),
    }


def _policy_in_force(state: Path) -> Policy:
    """The policy of the agent that last ran here; the strict defaults if there is none that can be read."""
    from playerfl.errors import ConfigError
    from playerfl.flower.site.files.names import OWN, POLICY
    from playerfl.flower.site.policy import Policy

    try:
        return Policy.of(json.loads((state / OWN / POLICY).read_bytes()), str(state / OWN / POLICY))
    except (OSError, ValueError, TypeError, RecursionError, ConfigError):
        return Policy()


def approve(
    job: JobName,
    state: State,
    most_layers: Annotated[
        int | None, typer.Option(help="Maximum number of layers that may leave this site (default: as the job says).")
    ] = None,
) -> None:
    """Let a job use this site's data, as `playerfl flower jobs` describes it. A stopped job continues."""
    _decide(state, job, "approved", most_layers)
    typer.echo(f"{job}: approved")


def refuse(job: JobName, state: State) -> None:
    """Refuse a job: nothing is computed for it here."""
    _decide(state, job, "refused")
    typer.echo(f"{job}: refused")


def stop(job: JobName, state: State) -> None:
    """Stop this site's part in a job: nothing more leaves, not even what is being computed now."""
    _decide(state, job, "stopped")
    typer.echo(f"{job}: stopped")


def _decide(state: Path, job: str, choice: Choice, most_layers: int | None = None) -> None:
    from playerfl.errors import ConfigError, one_of
    from playerfl.flower.site.describe import check_most_layers
    from playerfl.flower.site.files.audit import AuditLog
    from playerfl.flower.site.files.contract import decide
    from playerfl.flower.site.files.names import AUDIT
    from playerfl.storage.ownership import as_owner_of

    known = job_names(state)
    if job not in known:
        raise ConfigError(one_of(job, known, "job"))
    contract = contract_of(state, job)
    check_most_layers(contract, most_layers)

    def record(decision: Decision) -> None:
        facts = {"by": decision.by, "terms": decision.terms, "most_layers": decision.most_layers}
        AuditLog(state / AUDIT).add(choice, job=job, **facts)

    with as_owner_of(state):
        decide(state / job, contract, choice, most_layers, record)


def job_names(state: Path) -> list[str]:
    """The jobs of a site."""
    from playerfl.errors import ConfigError
    from playerfl.flower.site.files.names import CONTRACT

    if not state.is_dir():
        raise ConfigError(f"{state} is not a site's directory; give the --state of playerfl flower site")
    return sorted(file.parent.name for file in state.glob(f"*/{CONTRACT}"))


def contract_of(state: Path, job: str) -> Contract:
    """The contract of a job that is there; RunDirectoryError if it is damaged."""
    from playerfl.errors import RunDirectoryError
    from playerfl.flower.site.files.contract import Contract

    contract = Contract.read(state / job)
    if contract is None:
        raise RunDirectoryError(f"{state / job} has no contract")
    return contract
