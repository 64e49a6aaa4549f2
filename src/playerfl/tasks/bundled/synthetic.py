"""Made-up sites that share a feature map but may disagree about labels: for tests and benchmarks."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import nn

from playerfl.data.examples import SiteData, TensorExamples
from playerfl.errors import DataError
from playerfl.models.mlp import MLP
from playerfl.seeding import generator_for
from playerfl.tasks.task import DataOptions, Task, split_site

_MOST_NUMBERS = 100_000_000


class SyntheticOptions(DataOptions):
    """The size of the made-up problem."""

    sites: int = Field(4, ge=1, le=10_000)
    """How many sites are made up."""
    rows: int = Field(200, ge=3, le=10_000_000)
    """Rows per site."""
    features: int = Field(13, ge=1, le=100_000)
    """Columns of numbers to predict from."""
    classes: int = Field(5, ge=2, le=100_000)
    """Classes to predict."""
    labels: Literal["shared", "own"] = "own"
    """Whether all sites number the classes alike, or each site has its own permutation."""
    data_seed: int = Field(42, ge=0)
    """Decides the made-up rows."""


def load_sites(options: SyntheticOptions) -> dict[str, SiteData]:
    """Labels are the largest output of a fixed random network, permuted at each site if `labels` is "own"."""
    numbers = options.sites * options.rows * max(options.features, options.classes)
    if numbers > _MOST_NUMBERS:
        raise DataError(
            f"this would generate {numbers:,} numbers; the limit is {_MOST_NUMBERS:,}, so reduce data.sites, "
            "data.rows, data.features or data.classes"
        )
    teacher_rng = generator_for(options.data_seed, "teacher")
    hidden = torch.randn(options.features, 32, generator=teacher_rng) / options.features**0.5
    outputs = torch.randn(32, options.classes, generator=teacher_rng)
    sites = {}
    for i in range(options.sites):
        rng = generator_for(options.data_seed, "site", i)
        inputs = torch.randn(options.rows, options.features, generator=rng)
        scores = (inputs @ hidden).tanh() @ outputs
        targets = (scores - scores.mean(0)).argmax(1)
        if options.labels == "own":
            targets = torch.randperm(options.classes, generator=rng)[targets]
        examples, name = TensorExamples(inputs, targets), f"site-{i}"
        sites[name] = split_site(examples, options.split_seed, name, shares=options.shares)
    return sites


def build_model(options: SyntheticOptions) -> nn.Module:
    return MLP((options.features, 64, 64, 64, options.classes))


TASK = Task(
    name="synthetic",
    about="made-up sites with a common feature map and different labels, 4 linear layers",
    load_sites=load_sites,
    build_model=build_model,
    options=SyntheticOptions,
    defaults={"rounds": 20, "training": {"learning_rate": 5e-3, "batch_size": 32}},
)
