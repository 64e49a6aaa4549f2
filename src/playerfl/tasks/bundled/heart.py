"""UCI heart disease: patients from four hospitals, 10 measurements, 5 grades of disease."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from playerfl.data.download.sources import folder_of
from playerfl.data.examples import SiteData, TensorExamples, tensor_pair
from playerfl.data.readers.remembered import remembered
from playerfl.data.sites import Sites
from playerfl.errors import DataError
from playerfl.models.mlp import MLP
from playerfl.tasks.bundled.focal import FocalOptions, with_focal_loss
from playerfl.tasks.task import Task, split_site

HOSPITALS = {
    "cleveland": "processed.cleveland.data",
    "hungary": "processed.hungarian.data",
    "switzerland": "processed.switzerland.data",
    "va": "processed.va.data",
}
_COLUMNS = 14
# slope, vessels and thal (columns 10 to 12) are mostly missing outside Cleveland.
_FEATURES = 10
# All but sex, fasting sugar and exercise angina, which are 0 or 1.
_STANDARDISED = [0, 2, 3, 4, 6, 7, 9]


class HeartOptions(FocalOptions):
    """Four hospitals; Switzerland has 30 training rows, fewer than a batch."""

    accept_small_sites: bool = True
    scaling: Literal["client", "pooled_train"] = "client"
    """Standardise with the site's own training rows, or with those of all sites."""


@remembered(len(HOSPITALS))
def read_hospital(path: Path) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The rows of one hospital that have all 10 measurements, and their grades of disease."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as problem:
        raise DataError(f"{path.name} cannot be read: {problem}") from problem
    rows, grades = [], []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        cells = line.split(",")
        if len(cells) != _COLUMNS:
            raise DataError(f"{path.name} has {len(cells)} columns in row {number} instead of {_COLUMNS}")
        if "?" in cells[:_FEATURES] or cells[-1] == "?":
            continue
        try:
            values = [float(cell) for cell in (*cells[:_FEATURES], cells[-1])]
        except ValueError as problem:
            raise DataError(f"{path.name} has text instead of a number in row {number}: {problem}") from problem
        if not all(map(math.isfinite, values)):
            raise DataError(f"{path.name} has a number that is not finite in row {number}")
        if values[-1] not in range(5):
            raise DataError(f"{path.name} has the disease grade {cells[-1]} in row {number}; allowed: 0 to 4")
        rows.append(values[:-1])
        grades.append(int(values[-1]))
    if not rows:
        raise DataError(f"{path.name} has no complete row")
    return np.array(rows, dtype=np.float32), np.array(grades, dtype=np.int64)


def load_sites(options: HeartOptions) -> Sites:
    folder = folder_of("heart")
    split = {}
    for site, name in HOSPITALS.items():
        rows, grades = read_hospital(folder / name)
        examples = TensorExamples(torch.from_numpy(rows), torch.from_numpy(grades))
        split[site] = split_site(examples, options.split_seed, site, shares=options.shares)
    train_rows = {name: tensor_pair(site.train)[0] for name, site in split.items()}
    if options.scaling == "pooled_train":
        train_rows = dict.fromkeys(split, torch.cat(list(train_rows.values())))
    return Sites({name: _standardised(site, train_rows[name]) for name, site in split.items()})


def _standardised(site: SiteData, reference: Tensor) -> SiteData:
    """Scales to zero mean and unit variance on the reference rows; a column that is constant there becomes 0."""
    mean = torch.zeros(_FEATURES)
    scale = torch.ones(_FEATURES)
    mean[_STANDARDISED] = reference[:, _STANDARDISED].mean(0)
    spread = reference[:, _STANDARDISED].std(0, correction=0)
    scale[_STANDARDISED] = torch.where(spread > 0, spread, torch.ones(()))
    return site.mapped(lambda inputs, targets: ((inputs - mean) / scale, targets))


def build_model(options: HeartOptions) -> nn.Module:
    return options.initialised(MLP((_FEATURES, options.width(50), options.width(20), options.width(20), 5)))


TASK = with_focal_loss(
    Task(
        name="heart",
        about="740 patients from 4 hospitals (10 measurements, 5 grades of heart disease), 4 linear layers",
        load_sites=load_sites,
        build_model=build_model,
        options=HeartOptions,
        defaults={"training": {"batch_size": 128}},
        paper="Heart",
    )
)
