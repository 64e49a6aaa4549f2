"""Shared by the image tasks: normalised pixels, and a pool of a file's first images."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from playerfl.data.examples import TensorExamples
from playerfl.data.sites import Sites
from playerfl.models.cnn import ConvNet
from playerfl.tasks.bundled.pool import PoolOptions, deal_pool
from playerfl.tasks.task import PaperOptions


class ImagePoolOptions(PoolOptions, PaperOptions):
    """Images from one file, divided among sites."""

    rows_per_site: int = Field(2000, ge=3)
    """The pool is the first sites x rows_per_site images of the file."""

    @property
    def wanted(self) -> int:
        """The number of images in the pool."""
        return self.sites * self.rows_per_site


def normalised(pixels: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Bytes (rows, channels, height, width) as (x/255 - mean) / std per channel."""
    centre, scale = (torch.tensor(values).reshape(-1, 1, 1) for values in (mean, std))
    return pixels.float().div_(255).sub_(centre).div_(scale)


def deal_images(
    pixels: NDArray[np.uint8],
    labels: NDArray[np.uint8],
    options: ImagePoolOptions,
    *,
    mean: Sequence[float],
    std: Sequence[float],
    notes: Sequence[str] = (),
) -> Sites:
    """Divides the first images of a file among sites."""
    wanted = options.wanted
    if len(labels) < wanted:
        notes = (*notes, f"the pool has {len(labels):,} images instead of {wanted:,}: the file has no more")
    targets = torch.from_numpy(labels[:wanted].astype(np.int64))
    # Divided as bytes: as floats, the pool would be four times as large, and two copies would be in memory at a time.
    pool = np.require(pixels[:wanted], requirements=["C", "W"])
    sites = deal_pool(TensorExamples(torch.from_numpy(pool), targets), options, notes)
    for name in sites:
        sites[name] = sites[name].mapped(lambda inputs, targets: (normalised(inputs, mean, std), targets))
    return sites


def grey_network(options: ImagePoolOptions, classes: int) -> nn.Module:
    """The paper's network for 28x28 grey images: three 5x5 convolutions with pooling, two linear layers."""
    widths = [options.width(width) for width in (64, 128, 256)]
    model = ConvNet(1, widths, options.width(100), classes, kernel=5, padding=2, pool_after=(1, 2, 3))
    return options.initialised(model)
