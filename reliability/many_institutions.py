"""Many institutions on one machine: is every reply received, and does every honest site stay in every round?

    python reliability/many_institutions.py [--sites 20] [--rounds 10] [--deadline 600] [--out DIR]

A real deployment on loopback: TLS, a key per site, an agent and a node per site, FedAvg on a small network. All start
at the same time, so that the SuperLink is under the load that makes it lose replies. The exit status is 1 if a site was
late, offline or refused in any round, or if the result differs from that of one process.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from playerfl.flower.deployment import Deployment
from playerfl.flower.operate.app_folder import write_app_folder
from playerfl.flower.operate.demo import start_site
from playerfl.flower.operate.enrolment import enrol, site_statuses
from playerfl.flower.operate.job_monitor import follow, submit
from playerfl.flower.operate.keys import write_key_pair
from playerfl.flower.operate.launch import ServerHome
from playerfl.flower.operate.processes import LOOPBACK, Running, ending_on_signals, free_port, wait_for_port
from playerfl.flower.server.files import SITES
from playerfl.flower.server.job_status import PARTICIPATION
from playerfl.runs.api import run_experiments
from playerfl.runs.experiment import Experiment
from playerfl.weights import digest
from promises import line

JOB = "load"


def experiment_of(sites: int, rounds: int) -> Experiment:
    settings = {"task": "synthetic", "rounds": rounds, "device": "cpu", "selection": "client_best"}
    return Experiment.resolve({**settings, "algorithm": {"name": "fedavg"}, "data": {"sites": sites, "rows": 60}})


def deployed(folder: Path, experiment: Experiment, sites: list[str], deadline: float) -> tuple[ServerHome, float]:
    """Runs the job; returns the server's directory and the seconds from its submission to its end."""
    home, port = ServerHome(folder / "server"), free_port()
    home.prepare((), port)
    with ending_on_signals(), ExitStack() as stack:
        link = stack.enter_context(Running(home.superlink(port), home.environment(), folder / "superlink.log"))
        wait_for_port(port, link)
        keys = {site: write_key_pair(site, folder / site) for site in sites}
        for site, (_, public) in keys.items():
            enrol(home, public, site)
        for site, (private, _) in keys.items():
            address = f"{LOOPBACK}:{port}"
            stack.enter_context(start_site(site, private, address, home, folder, experiment.task))
        ends = time.monotonic() + 60 * len(sites)
        while (online := sum(site.status == "online" for site in site_statuses(home))) < len(sites):
            if time.monotonic() > ends:
                raise SystemExit(f"only {online} of {len(sites)} sites came online; logs are in {folder}")
            time.sleep(5)
        write_app_folder(folder / "app", Deployment(JOB, tuple(sites), experiment.to_toml(), deadline=deadline))
        started = time.monotonic()
        ended = follow(home, JOB, submit(home, folder / "app"), lambda _: None)
        seconds = time.monotonic() - started
    if not ended.completed:
        raise SystemExit(f"the job failed: {ended.detail}; logs are in {folder}")
    return home, seconds


def main(sites: int, rounds: int, deadline: float, folder: Path) -> bool:
    experiment = experiment_of(sites, rounds)
    names = [f"site-{number}" for number in range(sites)]
    home, seconds = deployed(folder, experiment, names, deadline)
    with (home.jobs / JOB / PARTICIPATION).open(newline="", encoding="utf-8") as table:
        rows = list(csv.DictReader(table))
    outcomes = Counter(row["outcome"] for row in rows)
    by_round: dict[tuple[str, str], float] = {}
    for row in rows:
        by_round[row["round"], row["verbs"]] = float(row["seconds"])
    longest = max(by_round.values())
    log = (folder / "superlink.log").read_text(errors="replace")
    lost = log.count("database is locked")
    models = json.loads((home.jobs / JOB / SITES).read_text(encoding="utf-8"))["models"]
    [alone] = run_experiments([experiment], [None])
    same = models == {site: digest(weights) for site, weights in alone.weights.items()}
    title = f"{sites} sites, {rounds} rounds"
    held = [
        line(f"{title}: messages and their outcomes", str(dict(outcomes)), set(outcomes) == {"answered"}),
        line(f"{title}: longest exchange, of a deadline of {deadline:g} s", f"{longest:.0f} s", longest < deadline),
        line(f"{title}: result equals one process, bit for bit", str(same), same),
    ]
    line(f"{title}: median exchange, whole job", f"{median(by_round.values()):.1f} s, {seconds:.0f} s")
    line(f"{title}: asked again; database locked", f"{log.count('asked again')}; {lost}")
    return all(held)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--deadline", type=float, default=600.0)
    parser.add_argument("--out", type=Path, help="keep all files here")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="playerfl-load-") as temporary:
        sys.exit(not main(given.sites, given.rounds, given.deadline, given.out or Path(temporary)))
