"""`playerfl flower plan`: how long a round will take, before there is a federation."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from playerfl.cli.messages import say
from playerfl.cli.options import Json, examples

if TYPE_CHECKING:
    from playerfl.flower.plan.forecast import Plan

PLAN_EXAMPLES = examples(
    "flower plan --sites 50 --parameters 100e6 --site-mbits 20 --training 300 --slow 1",
    "flower plan --sites 12 --parameters 2e6 --training 60 --kills 0.05 --ask-again 120 --json",
)


def plan(
    sites: Annotated[int, typer.Option(min=1, help="How many sites take part.")],
    parameters: Annotated[
        float, typer.Option(help="Parameters of the shared layers, e.g. 25e6; private layers are not sent.")
    ],
    training: Annotated[float, typer.Option(help="Seconds a typical site takes to train and evaluate, per round.")],
    tensors: Annotated[int, typer.Option(min=1, help="Number of tensors that hold these parameters.")] = 50,
    spread: Annotated[
        float, typer.Option(min=0, help="Spread of training times: the standard deviation of their logarithm.")
    ] = 0.2,
    slow: Annotated[int, typer.Option(min=0, help="How many sites are slow.")] = 0,
    slowness: Annotated[float, typer.Option(min=0, help="How many times as long a slow site takes to train.")] = 4.0,
    site_mbits: Annotated[float, typer.Option(help="Megabits per second of each site's line.")] = 100.0,
    server_mbits: Annotated[float, typer.Option(help="Megabits per second of the server's line.")] = 1000.0,
    delay: Annotated[
        float, typer.Option(min=0, help="Round-trip time between a site and the server, in seconds.")
    ] = 0.03,
    kills: Annotated[float, typer.Option(min=0, max=1, help="Probability that a site is killed in a round.")] = 0.0,
    deadline: Annotated[float, typer.Option(help="Seconds a round waits for its sites.")] = 3600.0,
    ask_again: Annotated[
        float, typer.Option(help="Seconds before a site that has not responded is asked again; doubles each time.")
    ] = 30.0,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds to simulate.")] = 3,
    seed: Annotated[int, typer.Option(help="Seed of the random draws.")] = 0,
    as_json: Json = False,
) -> None:
    """Simulate a federation: how long a round takes, what limits it, and how much memory, disk and bandwidth it needs.

    Nothing is started. The simulation sends every message, with costs measured on real deployments;
    docs/scale.md says how accurate it is. Exits with code 1 if sites would miss the deadline.
    """
    from playerfl.flower.plan.federation import Federation
    from playerfl.flower.plan.forecast import plan as planned

    federation = Federation(
        sites=sites,
        parameters=round(parameters),
        tensors=tensors,
        training=training,
        spread=spread,
        slow=slow,
        slowness=slowness,
        site_mbits=site_mbits,
        server_mbits=server_mbits,
        delay=delay,
        kills=kills,
        deadline=deadline,
        ask_again=ask_again,
    )
    result = planned(federation, rounds=rounds, seed=seed)
    if as_json:
        typer.echo(json.dumps({**asdict(result), "seconds": result.forecast.seconds}, indent=1))
    else:
        _show(result)
    if not result.complete:
        least = min(one.answered for one in result.forecast.rounds)
        say(f"playerfl: only {least} of {sites} sites respond before the deadline of {deadline:g} s in some round")
        raise typer.Exit(1)


def _show(plan: Plan) -> None:
    from playerfl.report.formats import size
    from playerfl.time_left import duration

    federation, forecast, needs = plan.federation, plan.forecast, plan.needs
    message = federation.message
    typer.echo(
        f"{federation.sites} sites, {federation.parameters:,} parameters: {size(message.bytes)} in {message.objects} "
        "objects each way, per site and round"
    )
    lines = {
        "a round (median)": duration(forecast.seconds),
        "the longest of " + str(len(forecast.rounds)): duration(forecast.longest),
        **{f"  {what}": duration(seconds) for what, seconds in sorted(plan.without.items(), key=lambda one: one[1])},
        "the server's line carries, per round": f"{size(forecast.bytes_out)} out, {size(forecast.bytes_in)} in",
        "the server is busy": ", ".join(f"{name} {share:.0%}" for name, share in forecast.busy.items()),
        "the server needs": f"{size(needs.server_memory)} of memory, {size(needs.server_disk)} of disk",
        "a site needs, beyond its data": f"{size(needs.site_memory)} of memory, {size(needs.site_disk)} of disk",
    }
    for name, value in lines.items():
        typer.echo(f"{name:<40}{value}")
    if plan.sent_again:
        again = round(1.5 * forecast.longest)
        say(
            f"sites are asked again after {federation.asks_after:g} s, before they can have responded, so messages "
            f"travel more than once; set --ask-again {again} --deadline {5 * again}"
        )
