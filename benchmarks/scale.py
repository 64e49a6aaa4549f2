"""The tables of docs/scale.md: what was run here, what the simulation predicts for it, and larger federations.

    python benchmarks/scale.py [--only process,costs,deployments,rounds]

process       The largest runs in one process, beside what a run of a tenth of the size predicts.
costs         Fits the costs of a message to deployments with two sites, and prints them for flower/plan/costs.py.
deployments   Measured rounds of other deployments, beside simulated ones.
rounds        Simulated rounds of federations that are too large for this machine. Takes seconds; nothing is measured.

Tables are printed as Markdown. Deployments take about two minutes each; run them on an idle machine, since all programs
share its cores.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from bench import cpu_name, own_process
from growth import INPUTS, Size
from playerfl.flower.plan.costs import MEASURED
from playerfl.flower.plan.federation import Federation
from playerfl.flower.plan.forecast import needs
from playerfl.flower.plan.simulate import simulate
from playerfl.report.formats import size as readable_bytes
from playerfl.studies.backends.memory import peak, resident
from playerfl.time_left import duration

ROW_BYTES = 4 * INPUTS + 8
"""A row of growth.py: its inputs and its target."""
ROUNDS = 10
PATIENCE = 3.0
"""An idle node looks for a message every so many seconds."""
CALIBRATION = [("small", 2), ("many", 2), ("large", 2)]
CHECKED = [("small", 3), ("many", 2), ("small", 5), ("medium", 3)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS), help=f"any of {', '.join(PARTS)}")
    parts = parser.parse_args().only.split(",")
    print(f"{cpu_name()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    for part in parts:
        print(PARTS[part](), "\n", flush=True)
    sys.exit(0)


def table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """In Markdown; all columns but the first are aligned to the right."""
    lines = [heading, ["---", *["--:"] * (len(heading) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


# What ran in one process.


@dataclass(frozen=True)
class Case:
    """A run, a smaller one that predicts it, and a larger one that this machine cannot hold or wait for."""

    name: str
    ran: Size
    smaller: Size
    times: float
    """How many times as large the run is."""
    beyond: str
    beyond_times: float
    """How many times as large as the run."""


CASES = [
    Case("500 sites, 1,800 parameters", Size(500, 2), Size(50, 2), 10, "1,000 sites", 2),
    Case(
        "2 sites, 100 million parameters",
        Size(2, 1, 10_000),
        Size(2, 1, 3_160),
        Size(width=10_000).parameters / Size(width=3_160).parameters,
        "2 sites, a billion parameters",
        1e9 / Size(width=10_000).parameters,
    ),
    Case(
        "1 site, 10 million rows",
        Size(1, 1, 32, 10**7),
        Size(1, 1, 32, 10**6),
        10,
        "1 site, a terabyte of rows",
        1e12 / ROW_BYTES / 10**7,
    ),
]


def measured_run(size: Size) -> tuple[float, float]:
    """CPU seconds per round, and bytes at the peak beyond what the process held before."""
    Size(rounds=1).seconds("ours")
    before = resident()
    return size.seconds("ours") / size.rounds, peak() - before


def alone(size: Size) -> tuple[float, float]:
    with own_process() as process:
        return process.submit(measured_run, size).result()


def process_table() -> str:
    rows = []
    for case in CASES:
        (small_seconds, small_bytes), (seconds, held) = alone(case.smaller), alone(case.ran)
        rows.append(
            [
                case.name,
                f"{small_seconds * case.times:.1f} s",
                f"{seconds:.1f} s",
                readable_bytes(small_bytes * case.times),
                readable_bytes(held),
                case.beyond,
                duration(seconds * case.beyond_times),
                readable_bytes(held * case.beyond_times),
            ]
        )
    heading = ["ran here, per round", "time predicted", "measured", "memory predicted", "measured"]
    return table([*heading, "not run", "time", "memory"], rows)


# Deployments.


def costs_text() -> str:
    from deployments import fitted, measure

    measured = [measure(shape, sites) for shape, sites in CALIBRATION]
    costs, memory = fitted(measured)
    return "\n".join([*(f"{one}" for one in measured), f"{costs}", f"{memory}"])


def deployments_table() -> str:
    from deployments import measure

    rows = []
    for shape, sites in CHECKED:
        one = measure(shape, sites)
        simulated = simulate(one.federation, MEASURED, rounds=ROUNDS)
        rows.append(
            [
                f"{sites} sites, {one.parameters:,} parameters",
                f"{one.spent['link']:.2f} s",
                f"{link_seconds(one.federation):.2f} s",
                f"{one.seconds:.1f} s",
                f"{simulated.seconds:.1f} s",
                f"{os.getloadavg()[1]:.0f}",
            ]
        )
        print(one, flush=True)
    heading = [
        "deployment on this machine",
        "SuperLink's processor time per round",
        "simulated",
        "a round",
        "simulated",
    ]
    return table([*heading, "load of the machine"], rows)


def link_seconds(federation: Federation) -> float:
    """Simulated processor seconds of the SuperLink per round, which other programs on the machine do not change."""
    forecast = simulate(replace(federation, cores=0), MEASURED, rounds=ROUNDS)
    return forecast.busy["SuperLink"] * sum(one.seconds for one in forecast.rounds) / ROUNDS


# Simulated federations.

OFFICE = Federation(sites=10, parameters=25_000_000, tensors=160, training=300.0, ask_again=1e6, deadline=1e6)
"""Ten hospitals with 100 Mbit/s, a server with 1 Gbit/s, a ResNet-50, and five minutes of training."""
FEDERATIONS = {
    "10 sites, 25 million parameters (a ResNet-50)": OFFICE,
    "50 sites, 100 million, 20 Mbit/s, one site four times as slow": replace(
        OFFICE, sites=50, parameters=100_000_000, tensors=200, site_mbits=20.0, slow=1
    ),
    "100 sites, 25 million": replace(OFFICE, sites=100),
    "10 sites, a billion": replace(OFFICE, parameters=1_000_000_000, tensors=400),
    "10 sites, a billion, lines of 1 Gbit/s, of the server 10 Gbit/s": replace(
        OFFICE, parameters=1_000_000_000, tensors=400, site_mbits=1000.0, server_mbits=10_000.0
    ),
}


def rounds_table() -> str:
    rows = []
    for name, federation in FEDERATIONS.items():
        forecast, needed = simulate(federation, MEASURED, rounds=1), needs(federation)
        rows.append(
            [
                name,
                duration(forecast.seconds),
                f"{forecast.busy['SuperLink']:.0%}",
                f"{forecast.busy['line out']:.0%}",
                readable_bytes(forecast.bytes_out),
                readable_bytes(needed.server_memory),
                readable_bytes(needed.server_disk),
                readable_bytes(needed.site_memory),
            ]
        )
    heading = ["simulated", "a round", "SuperLink busy", "its line busy", "sent each way"]
    return table([*heading, "memory of the server", "its disk", "memory of a site"], rows)


def hierarchy_table() -> str:
    """One server for all, against groups with a server each whose means are merged by another one."""
    rows = []
    for sites, groups in ((100, 10), (1000, 32)):
        group = replace(OFFICE, sites=-(-sites // groups))
        in_group = simulate(group, MEASURED, rounds=1).seconds
        above = replace(OFFICE, sites=groups, training=in_group, spread=0.0, site_mbits=OFFICE.server_mbits)
        rows.append(
            [
                f"{sites:,} sites, 25 million parameters",
                f"{sites * MEASURED.look / PATIENCE:.0%}",
                f"{groups} x {group.sites}",
                duration(in_group),
                duration(simulate(above, MEASURED, rounds=1).seconds),
            ]
        )
    heading = ["", "load of one SuperLink from idle nodes' polling alone", "groups", "a round of a group"]
    return table([*heading, "with the server above them"], rows)


PARTS: dict[str, Callable[[], str]] = {
    "process": process_table,
    "costs": costs_text,
    "deployments": deployments_table,
    "rounds": lambda: f"{rounds_table()}\n\n{hierarchy_table()}",
}


if __name__ == "__main__":
    main()
