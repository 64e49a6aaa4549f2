"""playerfl with its defaults: the same module and data through `own_task`; --runs: number of seeds in one process."""

from __future__ import annotations

from work import Part, Stopwatch, arguments

from playerfl import own_task
from playerfl.runs.api import run_experiments
from playerfl.runs.experiment import Experiment
from playerfl.runs.run import Progress
from playerfl.version import __version__


def main() -> None:
    work, given = arguments()
    parts = ("train", "validation", "test")
    sites: list[dict[str, Part]] = [{part: getattr(site, part) for part in parts} for site in work.load_sites()]
    task = own_task(work.build_model, sites)
    # As in the other scripts, the optimiser is reset each round, and the last model is used, not the best.
    table = {
        "task": task.name,
        "algorithm": {"name": "fedavg"},
        "rounds": work.rounds,
        "device": "cpu",
        "selection": "last",
        "training": {"batch_size": work.batch, "optimizer_state": "reset"},
    }
    experiments = [Experiment.resolve({**table, "seed": seed}, task) for seed in range(given.runs)]
    watch = Stopwatch(work.rounds)
    losses: list[list[float]] = [[] for _ in range(work.rounds)]
    reached = 0

    def listen(progress: Progress) -> None:
        """An exchange evaluates the last merge and trains the next, so one round passes between two exchanges.

        With several runs side by side, a round ends when the last run reaches it; the clock starts when the first run
        has ended its first round, which can only overestimate the time.
        """
        nonlocal reached
        if progress.done:
            losses[-1].append(progress.validation_loss)
        elif progress.round:
            reached += 1
            if progress.round > 1:
                losses[progress.round - 2].append(progress.validation_loss)
            if reached == 1 or (reached > given.runs and reached % given.runs == 0):
                watch.mark()

    run_experiments(experiments, [None] * given.runs, task, listen)
    # The steps happen inside the library, so only the loss shows that all of them were taken.
    watch.report(__version__, [sum(of_round) / len(of_round) for of_round in losses], None, given.runs)


if __name__ == "__main__":
    main()
