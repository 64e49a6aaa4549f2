"""Real deployments on this machine, measured round by round: what each program spends, and how long rounds take.

Used by scale.py. A deployment is a SuperLink with TLS, and an agent and a node per site, as in
reliability/many_institutions.py.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "reliability"))

import deployed_models
from bench import cpu_seconds
from many_institutions import JOB, deployed
from playerfl.flower.plan.costs import Costs, Memory, ProgramCost, Size
from playerfl.flower.plan.federation import Federation
from playerfl.flower.server.job_status import JobStatus
from playerfl.runs.api import run_experiments
from playerfl.runs.experiment import Experiment
from playerfl.weights import weighted_mean

ROLES = {
    "flower-superlink": "link",
    "flwr-serverapp": "job",
    "playerfl.flower.node": "node",
    "flower site": "agent",
}
IDLE_SECONDS = 20.0
PATIENCE = 3.0


@dataclass(frozen=True)
class Deployed:
    """What a deployment took, per round; processor seconds by program, for all sites together."""

    shape: str
    sites: int
    message: Size
    parameters: int
    seconds: float
    spent: dict[str, float]
    training: float
    """Processor seconds of a site's training and evaluation in one round, measured in one process."""
    look: float
    """Processor seconds of the SuperLink for a look of an idle node."""
    peaks: dict[str, int]
    """Bytes at the peak, of the largest process of each program; `state` is a file."""

    @property
    def federation(self) -> Federation:
        """The same, for the simulation: one machine, and lines that cost nothing."""
        return Federation(
            self.sites,
            self.parameters,
            tensors=tensors_of(self.shape),
            training=self.training,
            spread=0.0,
            site_mbits=1e6,
            server_mbits=1e6,
            delay=0.0,
            cores=psutil.cpu_count() or 1,
        )


@dataclass
class _Watch:
    """Samples all programs of a deployment whenever the job's status changes."""

    samples: dict[int, tuple[float, Counter[str]]] = field(default_factory=dict)
    peaks: Counter[str] = field(default_factory=Counter)
    look: float = 0.0
    sites: int = 1

    def ready(self) -> None:
        time.sleep(5)
        before = self.spent()["link"]
        time.sleep(IDLE_SECONDS)
        self.look = (self.spent()["link"] - before) / (self.sites * IDLE_SECONDS / PATIENCE)

    def changed(self, status: JobStatus) -> None:
        spent = self.spent()
        if status.round is not None and status.round not in self.samples:
            self.samples[status.round] = (status.seconds, spent)

    def spent(self) -> Counter[str]:
        seconds = Counter[str]()
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error, OSError, StopIteration):
                command = " ".join(process.cmdline())
                role = next(role for words, role in ROLES.items() if words in command)
                times = process.cpu_times()
                seconds[role] += times.user + times.system
                lines = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii").splitlines()
                peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
                self.peaks[role] = max(self.peaks[role], 1024 * peak)
        return seconds


def experiment_of(shape: str, rounds: int) -> Experiment:
    file = Path(deployed_models.__file__).resolve()
    settings = {"task": f"{file}:{shape}", "rounds": rounds, "device": "cpu", "selection": "client_best"}
    return Experiment.resolve({**settings, "algorithm": {"name": "fedavg"}, "data": {"accept_small_sites": True}})


def tensors_of(shape: str) -> int:
    return 2 * (deployed_models.SHAPES[shape][0] + 1)


def measure(shape: str, sites: int, rounds: int = 6) -> Deployed:
    """Runs a deployment. The first round is not counted: its model is not sent."""
    experiment = experiment_of(shape, rounds)
    watch = _Watch(sites=sites)
    names = [f"site-{i}" for i in range(sites)]
    with tempfile.TemporaryDirectory(prefix="playerfl-scale-") as temporary:
        folder = Path(temporary)
        deployed(folder, experiment, names, 600.0, watch.ready, watch.changed)
        watch.peaks["state"] = max(file.stat().st_size for file in folder.glob(f"*/state/{JOB}/state.safetensors"))
    whole = {number: sample for number, sample in watch.samples.items() if number >= 1}
    first, last = min(whole), max(whole)
    count = last - first
    spent = {role: (whole[last][1][role] - whole[first][1][role]) / count for role in ROLES.values()}
    seconds = (whole[last][0] - whole[first][0]) / count
    model = deployed_models.__dict__[shape]
    parameters = sum(w.numel() for w in model.build_model(None).parameters())
    size = Size.of(parameters, tensors_of(shape))
    training = _training_seconds(shape)
    return Deployed(shape, sites, size, parameters, seconds, spent, training, watch.look, dict(watch.peaks))


def _training_seconds(shape: str) -> float:
    """Of one site and round, from the difference of a long run and a short one."""
    spent = {rounds: _run_seconds(shape, rounds) for rounds in (2, 2, 12)}
    return (spent[12] - spent[2]) / 10 / deployed_models.SITES


def _run_seconds(shape: str, rounds: int) -> float:
    experiment = experiment_of(shape, rounds)
    return cpu_seconds(lambda: run_experiments([experiment], [None]))


def merge_seconds(parameters: int = 10_000_000, sites: int = 4) -> float:
    """Per parameter and site."""
    uploads = [({"w": torch.randn(parameters)}, 1.0) for _ in range(sites)]
    return min(cpu_seconds(lambda: weighted_mean(uploads)) for _ in range(3)) / parameters / sites


def fitted(measured: list[Deployed]) -> tuple[Costs, dict[str, Memory]]:
    """Costs per message, object and byte, by least squares over deployments of different shapes."""
    merge = merge_seconds()
    look = min(one.look for one in measured)

    def of_link(one: Deployed) -> float:
        # While it waits, each node looks about once per second, and the job asks for each message.
        return one.spent["link"] / one.sites - 1.5 * one.seconds * look

    def of_job(one: Deployed) -> float:
        return one.spent["job"] / one.sites - merge * one.parameters

    def of_agent(one: Deployed) -> float:
        return one.spent["agent"] / one.sites - one.training

    # Each message goes in and out of the SuperLink, down and up; the weights come in only once for all sites.
    link = _least_squares(
        [(4, 4 * m.message.objects, (3 + 1 / m.sites) * m.message.bytes, of_link(m)) for m in measured]
    )
    job = _least_squares([(2, 2 * m.message.objects, 2 * m.message.bytes, of_job(m)) for m in measured])
    node = _least_squares(
        [(2, 2 * m.message.objects, 2 * m.message.bytes, m.spent["node"] / m.sites) for m in measured]
    )
    agent = _least_squares([(1, m.message.objects, m.message.bytes, of_agent(m)) for m in measured])
    memory = {role: _memory(measured, role) for role in (*ROLES.values(), "state")}
    return Costs(link, job, node, agent, look, merge), memory


def _least_squares(rows: list[tuple[float, float, float, float]]) -> ProgramCost:
    """Relative errors count, and no cost is negative."""
    table = torch.tensor(rows, dtype=torch.float64).clamp(min=1e-9)
    factors, wanted = table[:, :3] / table[:, 3:], torch.ones(len(rows), 1, dtype=torch.float64)
    used = [0, 1, 2]
    while True:
        found = torch.linalg.lstsq(factors[:, used], wanted).solution[:, 0].tolist()
        if min(found) >= 0 or len(used) == 1:
            break
        used.pop(found.index(min(found)))
    costs = dict(zip(used, found, strict=True))
    return ProgramCost(*(max(0.0, costs.get(i, 0.0)) for i in range(3)))


def _memory(measured: list[Deployed], role: str) -> Memory:
    least, most = (pick(measured, key=lambda one: one.message.bytes) for pick in (min, max))
    per_byte = (most.peaks[role] - least.peaks[role]) / (most.message.bytes - least.message.bytes)
    return Memory(least.peaks[role] - per_byte * least.message.bytes, per_byte)
