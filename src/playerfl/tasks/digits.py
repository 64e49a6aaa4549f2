"""Handwritten digits: 1,797 real 8x8 images that scikit-learn ships, so that nothing needs downloading."""

from __future__ import annotations

import gzip
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from pydantic import Field
from torch import nn

from playerfl.data.examples import SiteData, TensorExamples
from playerfl.data.partition import dirichlet_partition
from playerfl.errors import DataError
from playerfl.models.cnn import ConvNet
from playerfl.tasks.task import DataOptions, Task, split_site


class DigitsOptions(DataOptions):
    """The digits dealt to sites with label skew."""

    sites: int = Field(5, ge=1)
    alpha: float = Field(0.5, gt=0)
    """Dirichlet concentration: small for sites with few classes, large for equal sites."""
    min_size: int = Field(50, ge=1)
    partition_seed: int = Field(42, ge=0)


def read_digits() -> TensorExamples:
    """The images, scaled to [-1, 1], and their labels."""
    # Read from scikit-learn's folder: importing it takes longer than the rest of the start-up together.
    spec = find_spec("sklearn")
    folders = list(spec.submodule_search_locations or []) if spec else []
    files = [Path(folder) / "datasets" / "data" / "digits.csv.gz" for folder in folders]
    found = next((file for file in files if file.is_file()), None)
    if found is None:
        raise DataError("the digits come with scikit-learn, which is not installed; pip install scikit-learn")
    with gzip.open(found, "rt") as lines:
        table = np.loadtxt(lines, delimiter=",", dtype=np.float32)
    images = torch.from_numpy(table[:, :-1]).reshape(-1, 1, 8, 8) / 8 - 1
    return TensorExamples(images, torch.from_numpy(table[:, -1].astype(np.int64)))


def load_sites(options: DigitsOptions) -> dict[str, SiteData]:
    digits = read_digits()
    parts = dirichlet_partition(
        digits.targets.numpy(),
        options.sites,
        options.alpha,
        seed=options.partition_seed,
        min_size=options.min_size,
    )
    width = len(str(options.sites - 1))
    return {
        f"site-{i:0{width}}": split_site(digits.rows(torch.from_numpy(part)), options.split_seed, f"site-{i:0{width}}")
        for i, part in enumerate(parts)
    }


def build_model(options: DigitsOptions) -> nn.Module:
    return ConvNet(1, widths=(16, 32, 64), hidden=32, classes=10, pool_after=(1, 2))


TASK = Task(
    name="digits",
    about="1,797 handwritten digits (8x8), Dirichlet label skew, 3 convolutions + 2 linear layers",
    load_sites=load_sites,
    build_model=build_model,
    options=DigitsOptions,
    defaults={"rounds": 30, "training": {"learning_rate": 2e-3, "batch_size": 16}},
)
