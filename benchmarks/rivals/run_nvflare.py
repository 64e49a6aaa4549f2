"""NVFlare's simulator: one process for the server and one for each site, all on one core.

Its quickest reasonable configuration: its FedAvg workflow and Client API, with the training script in the site's
process; as many simulator threads as sites, since with fewer it starts a process for every task; no model is saved. The
average is evaluated by the workflow, since evaluation at the sites would be a second exchange of messages per round.
FedProx's term is in the training code. Every run of a comparison is a simulation of its own.
"""

from __future__ import annotations

import json
import os
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.workflows.fedavg import FedAvg
from nvflare.job_config.api import FedJob
from nvflare.job_config.script_runner import ScriptRunner
from processes import FamilyClock, inherited, runs
from work import Stopwatch, evaluate

TOP, RECORD = "RIVALS_TOP", "RIVALS_RECORD"


class MeasuredFedAvg(FedAvg):
    """Its FedAvg workflow, which starts from the common initial weights and evaluates each average."""

    def __init__(self, num_clients: int, num_rounds: int) -> None:
        super().__init__(num_clients=num_clients, num_rounds=num_rounds, persistor_id="", save_filename=None)
        self.num_clients, self.num_rounds = num_clients, num_rounds

    def run(self) -> None:
        settings = inherited()
        self._sites = settings.work.load_sites()
        self._module = settings.work.build_model(settings.run.seed, tuned=settings.tuned)
        self._watch = Stopwatch(settings.work, FamilyClock(int(os.environ[TOP])))
        self._steps = 0.0
        super().run()
        record = {**vars(self._watch), "work": None, "cpu_seconds": None, "steps": round(self._steps)}
        Path(os.environ[RECORD]).write_text(json.dumps(record), encoding="utf-8")

    def load_model(self) -> FLModel:
        return FLModel(params={name: entry.numpy() for name, entry in self._module.state_dict().items()})

    def save_model(self, model: FLModel) -> None:
        self._module.load_state_dict({name: torch.as_tensor(entry) for name, entry in model.params.items()})
        self._watch.mark(evaluate(self._module, self._sites))
        self._steps += model.metrics["steps"] * self.num_clients


def simulate(work_sites: int, rounds: int) -> dict[str, Any]:
    """One run; returns what its server recorded."""
    job = FedJob(name="rivals", min_clients=work_sites)
    job.to_server(MeasuredFedAvg(work_sites, rounds))
    job.to_clients(ScriptRunner(script=str(Path(__file__).with_name("nvflare_site.py"))))
    os.environ[TOP], os.environ[RECORD] = str(os.getpid()), str(Path("record.json").resolve())
    job.simulator_run("workspace", n_clients=work_sites, threads=work_sites)
    record: dict[str, Any] = json.loads(Path("record.json").read_text(encoding="utf-8"))
    Path("record.json").unlink()
    return record


def main() -> None:
    watch, steps, before = None, 0, 0.0
    for settings in runs():
        work = settings.work
        watch = watch or Stopwatch(work)
        own = time.process_time()
        record = simulate(work.sites, work.rounds)
        watch.marks += record["marks"]
        watch.losses += record["losses"]
        steps += record["steps"]
        # All processes of a simulation are new, except this one.
        before += record["cpu"][-1] - own
        watch.cpu += [before] if len(work.runs) > 1 else record["cpu"]
    if watch:
        watch.report(version("nvflare"), steps)


if __name__ == "__main__":
    # The simulator's server imports the workflow by the name of its module.
    import run_nvflare

    run_nvflare.main()
