"""CIFAR-10: 32x32 colour images in 10 classes, divided among five sites."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from torch import nn

from playerfl.data.download.sources import folder_of
from playerfl.data.readers.cifar import read_cifar10
from playerfl.data.readers.hub_tables import hub_pictures, hub_table
from playerfl.data.sites import Sites
from playerfl.errors import DataError
from playerfl.models.cnn import ConvNet
from playerfl.tasks.bundled.images import ImagePoolOptions, deal_images
from playerfl.tasks.task import Task

_MEAN, _STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


class Cifar10Options(ImagePoolOptions):
    """All 50,000 training images, as in the authors' code."""

    rows_per_site: int = Field(10_000, ge=3)


def load_sites(options: Cifar10Options) -> Sites:
    folder = folder_of("cifar10")
    files, table = _training_files(folder), hub_table(folder)
    if files:
        pixels, labels = read_cifar10(files)
    elif table:
        pixels, labels = hub_pictures(table, "img", "label", 10, 32, options.wanted)
    else:
        raise DataError(f"{folder.name} has no data_batch*.bin; get CIFAR-10's binary version")
    return deal_images(pixels, labels, options, mean=_MEAN, std=_STD)


def _training_files(folder: Path) -> list[Path]:
    for place in (folder, folder / "cifar-10-batches-bin"):
        # One file per batch, even if it is present both packed and unpacked.
        files = {
            file.name.removesuffix(".gz"): file
            for file in sorted(place.glob("data_batch*"), reverse=True)
            if file.name.endswith((".bin", ".bin.gz"))
        }
        if files:
            return [files[name] for name in sorted(files)]
    return []


def build_model(options: Cifar10Options) -> nn.Module:
    widths = [options.width(width) for width in (64, 128, 256, 512, 512)]
    model = ConvNet(
        3, widths, options.width(100), 10, padding=2, pool_after=(2, 4), dropout=dict.fromkeys(range(1, 6), 0.3)
    )
    return options.initialised(model)


TASK = Task(
    name="cifar10",
    about="50,000 colour images (32x32), Dirichlet label skew, 5 convolutions + 2 linear layers",
    load_sites=load_sites,
    build_model=build_model,
    options=Cifar10Options,
    defaults={"training": {"batch_size": 128}},
    paper="CIFAR",
)
