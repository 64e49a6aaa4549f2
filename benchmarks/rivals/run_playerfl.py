"""playerfl with its defaults: the same module and data by `own_task`; with --runs, so many seeds in one process."""

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
    # The optimiser starts anew each round, as everywhere here; the last model is wanted, not the best.
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
        """An exchange evaluates the last merge and trains the next: from one to the next, all of a round is done.

        Of several runs side by side, a round has ended when the last of them has reached it; the clock starts when
        the first of them has ended its first round, which can only count too much.
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
    # The steps are inside the library, so that only the loss can show here that they were all taken.
    watch.report(__version__, [sum(found) / len(found) for found in losses], None, given.runs)


if __name__ == "__main__":
    main()
