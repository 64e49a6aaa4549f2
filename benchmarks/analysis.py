"""What the layer analysis costs on one core: the processor time of each part against its bound.

python benchmarks/analysis.py
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch
from torch import nn

from playerfl.analysis.cka import gram, representations, similarity_between_sites
from playerfl.analysis.hessian import hessian_traces
from playerfl.layers.layer_map import LayerMap
from playerfl.learning.losses import cross_entropy
from playerfl.models.cnn import ConvNet
from playerfl.models.mlp import MLP


def small_network() -> nn.Module:
    """FashionMNIST's network at a quarter of its widths."""
    return ConvNet(1, (16, 32, 64), 25, 10, kernel=5, padding=2, pool_after=(1, 2, 3))


def heart_exactly() -> None:
    model = MLP((10, 50, 20, 20, 5))
    batch = torch.randn(256, 10), torch.randint(5, (256,))
    traces = hessian_traces(model, [batch], cross_entropy, LayerMap.of(model))
    assert all(trace.method == "exact" for trace in traces.values())


def network_estimated() -> None:
    model = small_network()
    batch = torch.randn(256, 1, 28, 28), torch.randint(10, (256,))
    hessian_traces(model, [batch], cross_entropy, LayerMap.of(model), method="hutchinson", probes=32)


def five_sites_compared() -> None:
    inputs = torch.randn(512, 1, 28, 28)
    grams = {}
    for site in "abcde":
        model = small_network()
        outputs = representations(model, inputs, LayerMap.of(model))
        grams[site] = {layer: gram(x) for layer, x in outputs.items()}
    similarity_between_sites(grams)


ROWS: list[tuple[str, Callable[[], None], float]] = [
    ("Hessian trace of all layers of the heart network, exact, 256 rows", heart_exactly, 5.0),
    ("Hessian trace of all layers of the small CNN, 32 probes, 256 rows", network_estimated, 60.0),
    ("CKA of 5 sites on 512 inputs, all layers of the small CNN", five_sites_compared, 5.0),
]


def main() -> None:
    torch.set_num_threads(1)
    held = True
    for title, work, bound in ROWS:
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        held &= cpu <= bound
        verdict = "ok" if cpu <= bound else "ABOVE"
        print(f"{title:<68} {cpu:6.2f} s (wall {wall:.2f} s)   at most {bound:g} s  {verdict}", flush=True)
    sys.exit(0 if held else 1)


if __name__ == "__main__":
    main()
