"""Kills in a real deployment: TLS, keys, three sites, and every program that takes part, killed in the middle of a job.

    python reliability/deployment_kills.py [--kills 60] [--seed 0] [--privacy none,noise,secure]
                                           [--only agent,node,superlink,coordinator,server] [--out DIR]

A job for each privacy option, one after the other. About once a round, one to four programs are killed (SIGKILL) at
a random time within a round:

  agent        a site's agent; its node ends with it, and both are started again
  node         a site's node, in whose process the relay ("postman") is; the site starts it again by itself
  superlink    Flower's server; `playerfl flower up` then ends, and is started again
  coordinator  the process of the job; the server submits it again by itself
  server       `playerfl flower up` with everything it has started; it is started again

Programs are started again as a service manager does it. A job is not: only if a site was lost in the middle of a secure
aggregation, the job ends, says so, and is submitted again. At the end the server's and the sites' models and the scores
are compared byte for byte with those of the same job without sockets and without kills, which equals that of one
process. With SecAgg+, the numbers of the nodes, which decide how uploads are rounded, are the same in both jobs. The
exit status is 1 if anything differs.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from flower.held_task import SITES, held
from flower.institutions import Institutions, experiment_of
from flower.jobs import Job
from kills import PRIVACY
from playerfl.flower.deployment import Deployment
from playerfl.flower.operate.app_folder import write_app_folder
from playerfl.flower.operate.job_monitor import submit
from playerfl.flower.operate.launch import ServerHome
from playerfl.flower.operate.processes import FlowerError, descendants, ending_on_signals
from playerfl.flower.operate.register import KeyRegister
from playerfl.flower.server.job_status import JobStatus, read_status
from playerfl.flower.site.files.names import OWN

VICTIMS = ("agent", "node", "superlink", "coordinator", "server")
ROUND_SECONDS = 6.0
"""About as long as a round takes."""
MOST_AT_ONCE = 4
LONGEST_SECONDS = 600.0
"""Without progress; a killed node is admitted again after 20 s here."""
COMPARED = ("model.safetensors", "common.safetensors", "scores.csv")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default=",".join(VICTIMS), help=f"any of {', '.join(VICTIMS)}")
    parser.add_argument("--privacy", default=",".join(PRIVACY), help=f"any of {', '.join(PRIVACY)}")
    parser.add_argument("--out", type=Path, help="a new folder, which is kept")
    arguments = parser.parse_args()
    options = arguments.privacy.split(",")
    torch.set_num_threads(1)
    differ = 0
    with tempfile.TemporaryDirectory() as temporary, ending_on_signals(), ExitStack() as stack:
        folder = arguments.out or Path(temporary)
        deployment = Killed(folder / "broken", stack, arguments.only.split(","))
        for i, how in enumerate(options):
            kills = arguments.kills // len(options) + (i < arguments.kills % len(options))
            since = time.monotonic()
            whole = undisturbed(folder / "whole", how, kills + 2, deployment.node_numbers())
            done = deployment.run(whole, how, kills, random.Random(f"{arguments.seed} {how}"))
            different = deployment.differing(whole, how)
            differ += bool(different)
            told = ", ".join(f"{count} {victim}" for victim, count in sorted(Counter(done).items()))
            result = f"different: {', '.join(different)}" if different else "the same result"
            print(f"{how:<7} {len(done)} kills ({told}): {result}  ({time.monotonic() - since:.0f} s)", flush=True)
    sys.exit(1 if differ else 0)


def undisturbed(home: Path, how: str, rounds: int, node_numbers: dict[str, int]) -> Job:
    """The job without sockets and without kills; it is called like its privacy option."""
    experiment = experiment_of(rounds)
    job = Job(home, "fedper", held(), sites=SITES)
    job.grid.numbers = node_numbers
    job.experiment = experiment
    job.deployment = Deployment(how, SITES, experiment.to_toml(), min_sites=3, deadline=1e6, privacy=PRIVACY[how])
    for site in SITES:
        keep_secret(home / site, site)
    job.run()
    if how == "none":
        job.assert_equals_in_process()
    return job


def keep_secret(state: Path, site: str) -> None:
    """What a site's noise is derived from; otherwise every site makes a secret of its own."""
    (state / OWN).mkdir(parents=True, exist_ok=True)
    (state / OWN / "noise.key").write_bytes(site.encode().ljust(32, b"."))


class Killed:
    """A deployment whose programs are killed while jobs run."""

    def __init__(self, folder: Path, stack: ExitStack, victims: Sequence[str]) -> None:
        folder.mkdir(parents=True)
        self.victims = victims
        self.failed = ""
        """When the failure was that the job was last submitted again for."""
        self.here = Institutions(folder, stack)
        self.here.up()
        for site in SITES:
            keep_secret(self.here.state(site), site)
            self.here.join(site)

    def node_numbers(self) -> dict[str, int]:
        return {name: int(key.node_id) for name, key in KeyRegister(self.here.home).read().items()}

    def run(self, whole: Job, job: str, kills: int, rng: random.Random) -> list[str]:
        """Runs a job to its end; returns which programs were killed."""
        self.job, self.app = job, self.here.folder / f"app-{job}"
        # The noise of an answer depends on the whole question, so everything but the times is as in the other job.
        write_app_folder(self.app, replace(whole.deployment, deadline=LONGEST_SECONDS, ask_again=5.0))
        submit(ServerHome(self.here.home), self.app)
        done: list[str] = []
        while len(done) < kills:
            before = self._round()
            self._wait(lambda before=before: self._round() > before)  # type: ignore[misc]
            time.sleep(rng.uniform(0, ROUND_SECONDS))
            if self._status().state == "finished":
                return done
            places = [(victim, site) for victim in self.victims for site in SITES]
            for victim, site in rng.sample(places, min(rng.randint(1, MOST_AT_ONCE), kills - len(done))):
                if self._kill(victim, site):
                    done.append(victim)
                    print(f"{job}: round {self._round()}, killed: {victim} ({site})", file=sys.stderr, flush=True)
        self._wait(lambda: self._status().state == "finished")
        return done

    def _status(self) -> JobStatus:
        status = read_status(self.here.home / "jobs" / self.job)
        if status is not None and status.state in ("failed", "stopped", "ended"):
            if "during secure aggregation" not in status.detail:
                raise SystemExit(f"the job has {status.state}: {status.detail}; logs are in {self.here.folder}")
            if status.updated != self.failed:
                with suppress(FlowerError):
                    submit(ServerHome(self.here.home), self.app)
                    self.failed = status.updated
        return status or JobStatus(self.job, "submitted", "", None, 0, "", {}, 0.0, "")

    def _round(self) -> int:
        status = self._status()
        return -1 if status.round is None else status.round if status.state != "finished" else status.rounds + 1

    def _wait(self, what: Callable[[], bool]) -> None:
        """Until then, the programs that a service manager starts again are started again."""
        ends = time.monotonic() + LONGEST_SECONDS
        while not what():
            if time.monotonic() > ends:
                raise SystemExit(f"no progress within {LONGEST_SECONDS:g} s; logs are in {self.here.folder}")
            if self.here.server.poll() is not None:
                self.here.up()
            for site in SITES:
                if self.here.sites[site].poll() is not None:
                    self.here.begin(site)
            time.sleep(0.5)

    def _kill(self, victim: str, site: str) -> bool:
        """False if the program is not running at the moment."""
        if victim in ("agent", "server"):
            process = self.here.sites[site] if victim == "agent" else self.here.server
            running = process.poll() is None
            process.kill()
            process.wait()
            return running
        of, called = {
            "node": (self.here.sites[site], b"playerfl.flower.node"),
            "superlink": (self.here.server, b"flower-superlink"),
            "coordinator": (self.here.server, b"flwr-serverapp"),
        }[victim]
        pids = [pid for pid in descendants(of.pid) if called in command_of(pid)] if of.poll() is None else []
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        return bool(pids)

    def differing(self, whole: Job, job: str) -> list[str]:
        """What the sites and the server have at the end, compared with the job that nobody disturbed."""
        home = whole.home
        ours = {home / site / job: self.here.state(site) / job for site in SITES}
        ours[home / "jobs" / job] = self.here.home / "jobs" / job
        pairs = [(theirs / name, own / name) for theirs, own in ours.items() for name in COMPARED]
        pairs = [(theirs, own) for theirs, own in pairs if theirs.exists()]
        assert len(pairs) == len(SITES) + 2
        return [str(theirs.relative_to(home)) for theirs, own in pairs if theirs.read_bytes() != own.read_bytes()]


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


if __name__ == "__main__":
    main()
