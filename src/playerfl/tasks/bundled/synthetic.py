"""Made-up sites that share a feature map but may disagree about labels: for tests and benchmarks."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from playerfl.data.examples import SiteData, TensorExamples
from playerfl.errors import DataError
from playerfl.models.mlp import MLP
from playerfl.seeding import generator_for
from playerfl.tasks.task import DataOptions, Task, split_site

_MOST_NUMBERS = 100_000_000
# With a label shift, a site's rows are drawn from this many times as many.
_POOL = 8


class SyntheticOptions(DataOptions):
    """The size of the made-up problem, and how its sites differ."""

    added: ClassVar[frozenset[str]] = frozenset({"shift", "strength", "norm"})

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
    shift: Literal["none", "labels", "features", "both"] = "none"
    """How sites differ beyond the names of their classes: in how common each class is (Dirichlet), in the scale and
    the zero point of every feature, as with different measuring devices, or in both."""
    strength: float = Field(1.0, gt=0, le=100)
    """The shift's size: the Dirichlet concentration is 0.5 / strength, scales are exp(strength/2 · normal), zero points
    strength · normal."""
    norm: bool = False
    """Whether the network has batch norm after each hidden layer."""


def load_sites(options: SyntheticOptions) -> dict[str, SiteData]:
    """Labels are the largest output of a fixed random network, permuted at each site if `labels` is "own"."""
    pool = options.rows * (_POOL if options.shift in ("labels", "both") else 1)
    numbers = options.sites * pool * max(options.features, options.classes)
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
        inputs = torch.randn(pool, options.features, generator=rng)
        scores = (inputs @ hidden).tanh() @ outputs
        targets = (scores - scores.mean(0)).argmax(1)
        if options.labels == "own":
            targets = torch.randperm(options.classes, generator=rng)[targets]
        examples, name = _shifted(TensorExamples(inputs, targets), options, i), f"site-{i}"
        sites[name] = split_site(examples, options.split_seed, name, shares=options.shares)
    return sites


def _shifted(examples: TensorExamples, options: SyntheticOptions, site: int) -> TensorExamples:
    """The rows that a site has, as its devices measure them."""
    rng = generator_for(options.data_seed, "shift", site)
    if options.shift in ("labels", "both"):
        # The site has its own share of every class.
        shares = _dirichlet(0.5 / options.strength, options.classes, rng)
        counts = torch.bincount(examples.targets, minlength=options.classes).clamp_min(1)
        wanted = (shares / counts)[examples.targets].clamp_min(1e-12)
        examples = examples.rows(torch.multinomial(wanted, options.rows, generator=rng))
    if options.shift in ("features", "both"):
        scale = (options.strength / 2 * torch.randn(options.features, generator=rng)).exp()
        zero = options.strength * torch.randn(options.features, generator=rng)
        examples = TensorExamples(examples.inputs * scale + zero, examples.targets)  # type: ignore[operator]
    return examples


def _dirichlet(concentration: float, classes: int, rng: torch.Generator) -> Tensor:
    """One draw, by numpy, whose gamma variates can be seeded."""
    seed = int(torch.randint(2**62, (), generator=rng))
    drawn = np.random.default_rng(seed).dirichlet(np.full(classes, concentration))
    return torch.from_numpy(drawn)


def build_model(options: SyntheticOptions) -> nn.Module:
    return MLP((options.features, 64, 64, 64, options.classes), norm=options.norm)


TASK = Task(
    name="synthetic",
    about="made-up sites with a common feature map and different labels, 4 linear layers",
    load_sites=load_sites,
    build_model=build_model,
    options=SyntheticOptions,
    defaults={"rounds": 20, "training": {"learning_rate": 5e-3, "batch_size": 32}},
)
