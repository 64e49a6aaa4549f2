"""playerfl with its defaults: the same module and data through `own_task`; a comparison is a study.

A study runs in this process, which has the settings of a study's worker, and writes its files, as always.
"""

from __future__ import annotations

import time

from playerfl_task import WORK, task
from work import Stopwatch, Work, report

from playerfl import study
from playerfl.runs.api import run_experiments
from playerfl.runs.experiment import Experiment
from playerfl.runs.memory import keep_freed_memory
from playerfl.runs.result import RunResult
from playerfl.runs.run import Progress
from playerfl.studies.backends.memory import settle_imports
from playerfl.version import __version__


def settings(work: Work) -> dict[str, object]:
    """As in the other scripts, the optimiser is reset each round, and the last model is used, not the best."""
    return {
        "rounds": work.rounds,
        "device": "cpu",
        "selection": "last",
        "training": {"batch_size": work.batch, "optimizer_state": "reset"},
    }


def one_run(work: Work) -> None:
    experiment = Experiment.resolve({**settings(work), "task": task.name, "algorithm": "fedavg", "seed": 0}, task)
    watch = Stopwatch(work)

    def listen(progress: Progress) -> None:
        """An exchange evaluates the last merge and trains the next, so one round passes between two exchanges."""
        if progress.round and not progress.done:
            watch.mark(progress.validation_loss)
        elif progress.done:
            watch.losses.append(progress.validation_loss)

    run_experiments([experiment], [None], task, listen)
    # The first exchange of a round tells the loss after the round before it.
    del watch.losses[0]
    watch.report(__version__, None)


def comparison(work: Work) -> None:
    keep_freed_memory()
    settle_imports()
    methods = [{"name": "fedprox", "mu": mu} if mu else {"name": "fedavg"} for mu in work.proximals]
    plan = {
        "tasks": ["playerfl_task:task"],
        "algorithms": methods,
        "learning_rates": [1e-3],
        "settings": settings(work),
    }
    # Everything that happens only once, as in the first run of the other frameworks.
    study({**plan, "name": "first", "seeds": 1, "algorithms": methods[:1]}, backend="serial", quiet=True)
    first, cpu = time.monotonic(), time.process_time()
    result = study({**plan, "name": "all", "seeds": work.seeds}, backend="serial", quiet=True)
    wall, cpu = time.monotonic() - first, time.process_time() - cpu
    rounds = len(result.results) * work.rounds
    losses = [validation_losses(run) for run in result.results]
    report(__version__, first=first, wall=wall, cpu=cpu, rounds=rounds, losses=losses, steps=None)


def validation_losses(run: RunResult) -> list[float]:
    """After each round, the mean over sites."""
    scores = run.scores
    chosen = scores[(scores["split"] == "validation") & (scores["metric"] == "loss")]
    return [float(mean) for _, mean in sorted(chosen.groupby("round")["value"].mean().items())]


if __name__ == "__main__":
    (one_run if len(WORK.runs) == 1 else comparison)(WORK)
