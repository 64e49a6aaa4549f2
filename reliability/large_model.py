"""A model of 100 million parameters at 10 sites in one process: peak memory against its bound.

    python reliability/large_model.py [--sites 10] [--width 4096] [--rounds 2]

FedAvg with AdamW, optimiser state reset each round, float32, a run directory with checkpoints, one thread. Memory is
counted in models (M = 4 bytes a parameter), beyond what the process holds before the model is made:

  4 M   the scratch model, its gradients, the common model, the initial model
  2 M   the optimiser of the site that trains
  1 M   the aggregation buffer: one upload on its way to disk, or the new common model while uploads are read entry by
        entry; and some entries in float64 at a time, for which 0.5 M are allowed

Holding all uploads until the merge would take another M for every site but one. With persistent optimiser state (the
default) every site keeps 2 M more for good: that is the sites' own, on one machine each in a deployment. The exit
status is 1 if the peak is above the bound.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import playerfl
from playerfl.seeding import generator_for
from playerfl.studies.memory import peak, resident
from promises import alone, line

FEATURES, CLASSES, HIDDEN = 64, 10, 6
BOUND = 7.5


def wide(width: int) -> nn.Module:
    """An MLP with HIDDEN square layers."""
    square = [part for _ in range(HIDDEN) for part in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(nn.Linear(FEATURES, width), nn.ReLU(), *square, nn.Linear(width, CLASSES))


def made_up(site: int) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = torch.randn(40, FEATURES, generator=generator_for(site, "inputs"))
    return inputs, inputs[:, :CLASSES].argmax(1)


def measured(sites: int, width: int, rounds: int) -> dict[str, Any]:
    build = partial(wide, width)
    settings = {"training.optimizer_state": "reset", "training.batch_size": 32, "data.accept_small_sites": True}
    data = {f"site-{i:02}": made_up(i) for i in range(sites)}
    # Whatever is loaded at the first run only.
    playerfl.run(playerfl.own_task(partial(wide, 8), data), "fedavg", rounds=1, settings=settings)
    before, since = resident(), time.monotonic()
    peaks: list[int] = []
    with torch.device("meta"):
        parameters = sum(parameter.numel() for parameter in build().parameters())
    with tempfile.TemporaryDirectory() as folder:
        result = playerfl.run(
            playerfl.own_task(build, data),
            "fedavg",
            rounds=rounds,
            settings=settings,
            out=Path(folder) / "run",
            listener=lambda _: peaks.append(peak() - before),
        )
        losses = [row[5] for row in result.score_rows if row[3:5] == ("train", "loss")]
        written = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
    return {
        "parameters": parameters,
        "before": before,
        "rounds": peaks[-1],
        "all": peak() - before,
        "written": written,
        "seconds": time.monotonic() - since,
        "losses": losses,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, default=10)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    found = alone(measured, arguments.sites, arguments.width, arguments.rounds)
    model = 4 * found["parameters"]
    print(f"{found['parameters'] / 1e6:.1f} million parameters (M = {model / 1e9:.2f} GB), {arguments.sites} sites")
    line("held before the model is made", f"{found['before'] / 1e9:.2f} GB")
    rounds, whole = found["rounds"], found["all"]
    held = line(
        f"peak over {arguments.rounds} rounds, beyond that; bound {BOUND} M",
        f"{rounds / 1e9:.2f} GB, {rounds / model:.2f} M",
        rounds <= BOUND * model,
    )
    line("the same with all uploads held until the merge, as a sum", f"{BOUND + arguments.sites - 1:.1f} M")
    held &= line("peak with the result, every site's model written", f"{whole / 1e9:.2f} GB, {whole / model:.2f} M")
    line("files at the end", f"{found['written'] / 1e9:.2f} GB")
    line("mean training loss of the first and the last round", losses(found["losses"], arguments.sites))
    line("time", f"{found['seconds']:.0f} s")
    sys.exit(0 if held else 1)


def losses(values: list[float], sites: int) -> str:
    return f"{sum(values[:sites]) / sites:.3f}, {sum(values[-sites:]) / sites:.3f}"


if __name__ == "__main__":
    main()
