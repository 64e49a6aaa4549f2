"""Where the time of the bench's workloads goes, and how near their matrix products come to the peak of one core.

    python benchmarks/where_time_goes.py [--only "CNN 28" MLP]

Shares are processor time of one thread. Operations are timed by torch's profiler, which slows down the Python around
them, so the total is that of the same rounds without it, and what no operation accounts for is the engine: messages,
bookkeeping, and calling torch from Python. The peak is the faster of a large matrix product and a large convolution,
measured between the workloads: on AMD processors torch's matrix products (MKL) have half the speed of its convolutions
(oneDNN). Run it on an idle machine: operations are timed by the clock.
(Not called profile.py, because Python's cProfile would import it.)
"""

from __future__ import annotations

import argparse
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import wraps
from typing import Any, TypeVar
from unittest.mock import patch

import torch
from torch.autograd.profiler_util import FunctionEvent
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.flop_counter import FlopCounterMode

from bench import Side, begin, cpu_seconds, prepared
from bounds import cpu_name
from playerfl.learning.stacked import scoring
from playerfl.learning.training import Learner

Call = TypeVar("Call", bound=Callable[..., Any])

WORKS = {
    "CNN 28": Side("CNN 28", 2, "loop"),
    "CNN 32": Side("CNN 32", 2, "loop"),
    "text transformer": Side("text transformer", 5, "loop"),
    "MLP": Side("MLP", 10, "loop"),
    "MLP, 40 models": Side("hospitals", 5, "stacked", 10),
    "MLP, 200 models": Side("hospitals", 3, "stacked", 50),
}
PRODUCTS = ("convolution", "mm", "bmm", "baddbmm", "addmm", "attention", "linear")
COPIES = ("copy_", "cat", "stack", "index", "index_select", "clone", "contiguous", "zero_", "fill_", "embedding")
COLUMNS = ("products", "other arithmetic", "optimiser", "copies", "evaluation", "engine")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=WORKS, default=list(WORKS), metavar="WORK", help="; ".join(WORKS))
    names = parser.parse_args().only
    begin(as_worker=True)
    print(f"{cpu_name()}, {os.cpu_count()} cores, torch {torch.__version__}, 1 thread\n")
    print(f"{'':<24}" + "".join(f"{column:>17}" for column in COLUMNS) + f"{'GFLOP/s':>10}{'of the peak':>13}")
    layers = {name: show(name, WORKS[name]) for name in names}
    for name, lines in layers.items():
        if lines:
            print(f"\n{name}: convolutions, forward and backward")
            print("\n".join(lines))


def show(name: str, side: Side) -> list[str]:
    """Prints a line of the table; returns one about each convolution."""
    run = prepared(side)
    prepared(replace(side, rounds=1))()
    peak = peak_flops()
    total = min(cpu_seconds(run) for _ in range(3))
    with FlopCounterMode(display=False) as counter:
        run()
    with marked(), profile(activities=[ProfilerActivity.CPU], record_shapes=True, acc_events=True) as recorded:
        run()
    events = list(recorded.events() or [])
    seconds = Counter[str]()
    for event in events:
        seconds[kind_of(event)] += event.self_cpu_time_total / 1e6
    in_operations = sum(seconds[column] for column in COLUMNS[:-1])
    total = max(total, in_operations)  # large operations may be slower in the recorded run
    seconds["engine"] = total - in_operations
    shares = "".join(f"{100 * seconds[column] / total:>15.0f} %" for column in COLUMNS)
    in_products = sum(e.self_cpu_time_total / 1e6 for e in events if is_product(e.name))
    rate = counter.get_total_flops() / in_products
    print(f"{name:<24}{shares}{rate / 1e9:>10.1f}{100 * rate / peak:>11.0f} %", flush=True)
    return convolutions(events, peak)


def peak_flops(size: int = 1536, side: int = 32, channels: int = 256) -> float:
    left, right = torch.randn(size, size), torch.randn(size, size)
    images = torch.randn(16, channels, side, side).to(memory_format=torch.channels_last)
    filters = torch.randn(channels, channels, 3, 3).to(memory_format=torch.channels_last)
    fastest = {
        2 * size**3: lambda: left @ right,
        2 * filters.numel() * 16 * side**2: lambda: F.conv2d(images, filters, padding=1),
    }
    return max(flops / min(cpu_seconds(product) for _ in range(5)) for flops, product in fastest.items())


@contextmanager
def marked() -> Iterator[None]:
    """Names the parts of a round that cannot be told by their operations."""
    with ExitStack() as stack:
        for owner, function in ((Learner, "evaluate"), (scoring, "evaluate")):
            stack.enter_context(patch.object(owner, function, named("evaluation", getattr(owner, function))))
        yield


def named(name: str, call: Call) -> Call:
    @wraps(call)
    def inner(*arguments: Any, **options: Any) -> Any:
        with record_function(name):
            return call(*arguments, **options)

    return inner  # type: ignore[return-value]


def kind_of(event: FunctionEvent) -> str:
    """The column of the table that an operation belongs to."""
    if event.name == "evaluation":
        return "engine"
    ancestor = event.cpu_parent
    while ancestor is not None:
        if ancestor.name == "evaluation":
            return "evaluation"
        ancestor = ancestor.cpu_parent
    operation = event.name.rpartition("::")[2]
    if is_product(event.name):
        return "products"
    if "adam" in operation or "sgd" in operation or event.name.startswith("Optimizer"):
        return "optimiser"
    if operation in COPIES:
        return "copies"
    return "other arithmetic" if event.name.startswith("aten::") else "engine"


def is_product(name: str) -> bool:
    operation = name.rpartition("::")[2]
    return name.startswith("aten::") and (operation in PRODUCTS or "convolution" in operation)


def convolutions(events: Sequence[FunctionEvent], peak: float) -> list[str]:
    """One line per layer and direction: its share of the time of all convolutions, and its share of the peak."""
    seconds, flops = Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()
    for event in events:
        if event.name == "aten::mkldnn_convolution":
            direction, images, weight = "forward", *event.input_shapes[:2]
        elif event.name == "aten::convolution_backward":
            direction, images, weight = "backward", *event.input_shapes[1:3]
        else:
            continue
        layer = (f"{weight[1]} to {weight[0]} channels, {images[2]} x {images[3]}", direction)
        # The gradients of the weights and of the inputs; those of the data are not needed.
        products = 1 if direction == "forward" or images[1] in (1, 3) else 2
        seconds[layer] += event.self_cpu_time_total / 1e6
        flops[layer] += 2 * products * math.prod(weight) * images[0] * images[2] * images[3]
    return [
        f"  {' '.join(layer):<40}{100 * spent / seconds.total():>4.0f} % of their time"
        f"{flops[layer] / spent / 1e9:>8.1f} GFLOP/s{100 * flops[layer] / spent / peak:>6.0f} % of the peak"
        for layer, spent in seconds.items()
    ]


if __name__ == "__main__":
    main()
