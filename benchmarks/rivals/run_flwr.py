"""Flower's simulation with Ray: one actor on one core.

Its quickest reasonable configuration: FedAvg from the Message API; model and data are kept in the actor between
messages; the average is evaluated by the server's `evaluate_fn`, since evaluation at the sites would be a second
exchange of messages per round.
"""

from __future__ import annotations

import functools
import os
from importlib.metadata import version

import psutil
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn
from work import WORKS, Site, Stopwatch, adamw, arguments, batches, evaluate, train_epoch

# `run_simulation` passes no settings to an actor, but the actor inherits the environment.
WORK, TUNED = "RIVALS_WORK", "RIVALS_TUNED"

client_app = ClientApp()


@functools.cache
def loaded() -> tuple[list[Site], nn.Module]:
    torch.set_num_threads(1)
    work = WORKS[os.environ[WORK]]
    return work.load_sites(), work.build_model(tuned=TUNED in os.environ)


@client_app.train()
def train(message: Message, context: Context) -> Message:
    sites, model = loaded()
    work, number = WORKS[os.environ[WORK]], int(context.node_config["partition-id"])
    round_ = int(message.content["config"]["server-round"]) - 1
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    source = batches(work, sites[number].train, number, round_)
    steps = train_epoch(model, adamw(model, tuned=TUNED in os.environ), source)
    counts = MetricRecord({"num-examples": work.rows, "steps": steps})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": counts}), reply_to=message)


def cpu_of_all_processes() -> float:
    """CPU seconds of this process and its children, which are Ray's."""
    here = psutil.Process()
    times = [process.cpu_times() for process in (here, *here.children(recursive=True))]
    return sum(t.user + t.system for t in times)


def main() -> None:
    work, given = arguments()
    os.environ[WORK] = given.work
    if given.tuned:
        os.environ[TUNED] = "1"
    sites, model = loaded()
    watch = Stopwatch(work.rounds, cpu_of_all_processes)
    losses: list[float] = []

    def evaluate_merged(round_: int, arrays: ArrayRecord) -> None:
        if round_ > 0:
            model.load_state_dict(arrays.to_torch_state_dict())
            losses.append(evaluate(model, sites))
            watch.mark()

    server_app = ServerApp()

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        # A number of sites, not a fraction: not all nodes need to be registered in the first round.
        strategy = FedAvg(
            fraction_evaluate=0.0,
            min_train_nodes=work.sites,
            min_available_nodes=work.sites,
            train_metrics_aggr_fn=lambda replies, _: MetricRecord(
                {"steps": sum(r["metrics"]["steps"] for r in replies)}
            ),
        )
        initial = ArrayRecord(model.state_dict())
        result = strategy.start(grid, initial, num_rounds=work.rounds, evaluate_fn=evaluate_merged)
        steps = sum(int(metrics["steps"]) for metrics in result.train_metrics_clientapp.values())
        watch.report(version("flwr"), losses, steps)

    resources = {"init_args": {"num_cpus": 1}, "client_resources": {"num_cpus": 1.0, "num_gpus": 0.0}}
    run_simulation(server_app, client_app, num_supernodes=work.sites, backend_config=resources)


if __name__ == "__main__":
    # Objects defined in __main__ are pickled by value with every message, so an actor could not cache anything.
    import run_flwr

    run_flwr.main()
