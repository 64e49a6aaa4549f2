"""The baseline: FedAvg as one would write it in a notebook."""

from __future__ import annotations

import torch
from work import Stopwatch, adamw, arguments, batches, evaluate, train_epoch


def main() -> None:
    work, given = arguments()
    sites = work.load_sites()
    model = work.build_model(tuned=given.tuned)
    common = {name: entry.clone() for name, entry in model.state_dict().items()}
    watch = Stopwatch(work.rounds)
    losses, steps = [], 0
    for round_ in range(work.rounds):
        collected = []
        for number, site in enumerate(sites):
            model.load_state_dict(common)
            source = batches(work, site.train, number, round_)
            steps += train_epoch(model, adamw(model, tuned=given.tuned), source)
            collected.append({name: entry.clone() for name, entry in model.state_dict().items()})
        common = {name: torch.stack([entries[name] for entries in collected]).mean(0) for name in common}
        model.load_state_dict(common)
        losses.append(evaluate(model, sites))
        watch.mark()
    watch.report(torch.__version__, losses, steps)


if __name__ == "__main__":
    main()
