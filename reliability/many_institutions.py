"""Many institutions on one machine: is every reply received, and does every honest site stay in every round?

    python reliability/many_institutions.py [--sites 20] [--rounds 10] [--deadline 600] [--task synthetic]
                                            [--algorithm fedavg] [--out DIR]

A real deployment on loopback: TLS, a key per site, an agent and a node per site, a small network. All start at the same
time, so that the SuperLink is under the load that makes it lose replies. The exit status is 1 if a site was late,
offline or refused in any exchange, if it was left out of one, or if the result differs from that of one process. Memory
is that of a site's agent and node, sampled while the job runs (Linux only).
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
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
from playerfl.flower.server.job_status import PARTICIPATION, JobStatus
from playerfl.flower.site.files.names import LOG
from playerfl.runs.api import run_experiments
from playerfl.runs.experiment import Experiment
from playerfl.weights import digest
from process_memory import Held, Sampler, children
from promises import line

JOB = "load"


def experiment_of(task: str, algorithm: str, sites: int, rounds: int) -> Experiment:
    data = {"sites": sites, **({"rows": 60} if task == "synthetic" else {})}
    settings = {"task": task, "rounds": rounds, "device": "cpu", "selection": "client_best"}
    return Experiment.resolve({**settings, "algorithm": {"name": algorithm}, "data": data})


def deployed(
    folder: Path,
    experiment: Experiment,
    sites: list[str],
    deadline: float,
    ready: Callable[[], None] = lambda: None,
    changed: Callable[[JobStatus], None] = lambda _: None,
) -> tuple[ServerHome, float, Sampler]:
    """Runs the job; returns the server's directory, the seconds from its submission to its end, and the memory.

    `ready` is called when all sites are online, and `changed` whenever the status of the job has changed.
    """
    home, port = ServerHome(folder / "server"), free_port()
    home.prepare((), port)
    with ending_on_signals(), ExitStack() as stack:
        link = stack.enter_context(Running(home.superlink(port), home.environment(), folder / "superlink.log"))
        wait_for_port(port, link)
        keys = {site: write_key_pair(site, folder / site) for site in sites}
        for site, (_, public) in keys.items():
            enrol(home, public, site)
        address = f"{LOOPBACK}:{port}"
        agents = {
            site: stack.enter_context(start_site(site, private, address, home, folder, experiment)).pid
            for site, (private, _) in keys.items()
        }
        ends = time.monotonic() + 60 * len(sites)
        while (online := sum(site.status == "online" for site in site_statuses(home))) < len(sites):
            if time.monotonic() > ends:
                raise SystemExit(f"only {online} of {len(sites)} sites came online; logs are in {folder}")
            time.sleep(5)
        ready()
        write_app_folder(folder / "app", Deployment(JOB, tuple(sites), experiment.to_toml(), deadline=deadline))
        started = time.monotonic()
        with Sampler(lambda: site_processes(agents)) as memory:
            ended = follow(home, JOB, submit(home, folder / "app"), changed)
        seconds = time.monotonic() - started
    if not ended.completed:
        raise SystemExit(f"the job failed: {ended.detail}; logs are in {folder}")
    return home, seconds, memory


def site_processes(agents: dict[str, int]) -> dict[str, int]:
    """Each site's agent, and the node that it has started."""
    nodes = {f"{site} node {i}": child for site, pid in agents.items() for i, child in enumerate(children(pid))}
    return {**{f"{site} agent": pid for site, pid in agents.items()}, **nodes}


def show_memory(title: str, memory: Sampler, sites: list[str]) -> None:
    """The site with the largest peak, and the median site."""
    if not memory.samples:
        return

    def of_site(site: str, how: Callable[[str], Held]) -> Held:
        return sum((how(name) for name in memory.samples if name.startswith(f"{site} ")), Held(0, 0, 0))

    for words, how in (("at its peak", memory.peak), ("typically", memory.typical)):
        by_site = sorted(of_site(site, how) for site in sites)
        for which, one in (("median", by_site[len(by_site) // 2]), ("largest", by_site[-1])):
            line(
                f"{title}: {which} site {words}", f"RSS {one.rss:.0f}, PSS {one.pss:.0f}, private {one.private:.0f} MB"
            )
    for kind in ("agent", "node"):
        peaks = sorted(memory.peak(name) for name in memory.samples if f" {kind}" in name)
        one = peaks[len(peaks) // 2]
        line(
            f"{title}: median {kind} at its peak", f"RSS {one.rss:.0f}, PSS {one.pss:.0f}, private {one.private:.0f} MB"
        )
    everything = sum((memory.typical(name) for name in memory.samples), Held(0, 0, 0))
    line(f"{title}: all sites together, typically", f"PSS {everything.pss:.0f} MB")


def main(task: str, algorithm: str, sites: int, rounds: int, deadline: float, folder: Path) -> bool:
    experiment = experiment_of(task, algorithm, sites, rounds)
    names = [f"site-{number}" for number in range(sites)]
    home, seconds, memory = deployed(folder, experiment, names, deadline)
    with (home.jobs / JOB / PARTICIPATION).open(newline="", encoding="utf-8") as table:
        rows = list(csv.DictReader(table))
    outcomes = Counter(row["outcome"] for row in rows)
    incomplete = [key for key, count in Counter((row["round"], row["verbs"]) for row in rows).items() if count < sites]
    by_round: dict[tuple[str, str], float] = {}
    for row in rows:
        by_round[row["round"], row["verbs"]] = float(row["seconds"])
    longest = max(by_round.values())
    locked = (folder / "superlink.log").read_text(errors="replace").count("database is locked")
    repeated = sum((folder / site / "state" / LOG).read_text().count("responded again") for site in names)
    models = json.loads((home.jobs / JOB / SITES).read_text(encoding="utf-8"))["models"]
    [alone] = run_experiments([experiment], [None])
    same = models == {site: digest(weights) for site, weights in alone.weights.items()}
    title = f"{sites} sites, {rounds} rounds"
    kept = [
        line(f"{title}: messages and their outcomes", str(dict(outcomes)), set(outcomes) == {"answered"}),
        line(f"{title}: exchanges without one of the sites", str(incomplete or "none"), not incomplete),
        line(f"{title}: longest exchange, of a deadline of {deadline:g} s", f"{longest:.0f} s", longest < deadline),
        line(f"{title}: result equals one process, bit for bit", str(same), same),
    ]
    line(f"{title}: median exchange, whole job", f"{median(by_round.values()):.1f} s, {seconds:.0f} s")
    line(f"{title}: answers lost and sent again; Flower's database locked", f"{repeated}; {locked}")
    show_memory(title, memory, names)
    return all(kept)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--deadline", type=float, default=600.0)
    parser.add_argument("--task", default="synthetic", help="a bundled task with the option data.sites")
    parser.add_argument("--algorithm", default="fedavg")
    parser.add_argument("--out", type=Path, help="keep all files here")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="playerfl-load-") as temporary:
        folder = given.out or Path(temporary)
        sys.exit(not main(given.task, given.algorithm, given.sites, given.rounds, given.deadline, folder))
