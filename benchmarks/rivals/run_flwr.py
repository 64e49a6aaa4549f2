"""Flower's simulation with Ray: one actor on one core.

Its quickest reasonable configuration: FedAvg from the Message API; model and data are kept in the actor between
messages; the average is evaluated by the server's `evaluate_fn`, since evaluation at the sites would be a second
exchange of messages per round. FedProx's term is in the training code, as its documentation says. Every run of a
comparison is a simulation of its own.
"""

from __future__ import annotations

import functools
from importlib.metadata import version

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from processes import FamilyClock, Settings, inherited, runs
from torch import nn
from work import Site, Stopwatch, adamw, batches, evaluate, train_epoch

client_app = ClientApp()


@functools.cache
def loaded() -> tuple[Settings, list[Site], nn.Module]:
    """Once per actor. `run_simulation` passes no settings to an actor, but the actor inherits the environment."""
    settings = inherited()
    return settings, settings.work.load_sites(), settings.work.build_model(settings.run.seed, tuned=settings.tuned)


@client_app.train()
def train(message: Message, context: Context) -> Message:
    settings, sites, model = loaded()
    work, run, number = settings.work, settings.run, int(context.node_config["partition-id"])
    round_ = int(message.content["config"]["server-round"]) - 1
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    source = batches(work, sites[number].train, number, round_, run.seed)
    steps = train_epoch(model, adamw(model, tuned=settings.tuned), source, run.proximal)
    counts = MetricRecord({"num-examples": work.rows, "steps": steps})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": counts}), reply_to=message)


def simulate(settings: Settings, watch: Stopwatch) -> int:
    """One run; returns the number of steps."""
    work, steps = settings.work, 0
    sites, model = work.load_sites(), work.build_model(settings.run.seed, tuned=settings.tuned)

    def evaluate_merged(round_: int, arrays: ArrayRecord) -> None:
        if round_ > 0:
            model.load_state_dict(arrays.to_torch_state_dict())
            watch.mark(evaluate(model, sites))

    server_app = ServerApp()

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        nonlocal steps
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

    resources = {"init_args": {"num_cpus": 1}, "client_resources": {"num_cpus": 1.0, "num_gpus": 0.0}}
    run_simulation(server_app, client_app, num_supernodes=work.sites, backend_config=resources)
    return steps


def main() -> None:
    watch, steps = None, 0
    for settings in runs():
        watch = watch or Stopwatch(settings.work, FamilyClock())
        steps += simulate(settings, watch)
    if watch:
        watch.report(version("flwr"), steps)


if __name__ == "__main__":
    # Objects defined in __main__ are pickled by value with every message, so an actor could not cache anything.
    import run_flwr

    run_flwr.main()
