"""The baseline: FedAvg and FedProx as one would write them in a notebook."""

from __future__ import annotations

import torch
from work import Run, Site, Stopwatch, Work, adamw, batches, evaluate, measure, train_epoch


def train(work: Work, sites: list[Site], run: Run, watch: Stopwatch, tuned: bool) -> int:
    model = work.build_model(run.seed, tuned=tuned)
    common = {name: entry.clone() for name, entry in model.state_dict().items()}
    steps = 0
    for round_ in range(work.rounds):
        collected = []
        for number, site in enumerate(sites):
            model.load_state_dict(common)
            source = batches(work, site.train, number, round_, run.seed)
            steps += train_epoch(model, adamw(model, tuned=tuned), source, run.proximal)
            collected.append({name: entry.clone() for name, entry in model.state_dict().items()})
        common = {name: torch.stack([entries[name] for entries in collected]).mean(0) for name in common}
        model.load_state_dict(common)
        watch.mark(evaluate(model, sites))
    return steps


if __name__ == "__main__":
    measure(train, torch.__version__)
