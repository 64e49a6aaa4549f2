"""Handwritten digits: 1,797 real 8x8 images that come with the package, so that nothing needs downloading."""

from __future__ import annotations

import gzip
from functools import cache
from importlib.resources import files

import numpy as np
import torch
from torch import nn

from playerfl.data.examples import TensorExamples
from playerfl.data.sites import Sites
from playerfl.models.cnn import ConvNet
from playerfl.tasks.bundled.pool import PoolOptions, deal_pool
from playerfl.tasks.task import Task


@cache
def read_digits() -> TensorExamples:
    """The images, scaled to [-1, 1], and their labels; read once and shared, so callers must not change them."""
    with (files(__package__) / "files" / "digits.csv.gz").open("rb") as packed, gzip.open(packed, "rt") as lines:
        table = np.loadtxt(lines, delimiter=",", dtype=np.float32)
    images = torch.from_numpy(table[:, :-1]).reshape(-1, 1, 8, 8) / 8 - 1
    return TensorExamples(images, torch.from_numpy(table[:, -1].astype(np.int64)))


def load_sites(options: PoolOptions) -> Sites:
    return deal_pool(read_digits(), options)


def build_model(options: PoolOptions) -> nn.Module:
    return ConvNet(1, widths=(16, 32, 64), hidden=32, classes=10, pool_after=(1, 2))


TASK = Task(
    name="digits",
    about="1,797 handwritten digits (8x8), Dirichlet label skew, 3 convolutions + 2 linear layers",
    load_sites=load_sites,
    build_model=build_model,
    options=PoolOptions,
    defaults={"rounds": 30, "training": {"learning_rate": 2e-3, "batch_size": 16}},
)
