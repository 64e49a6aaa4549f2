"""FashionMNIST: 28x28 images of clothes, 10 classes, divided among five sites."""

from __future__ import annotations

from functools import partial

from pydantic import Field

from playerfl.data.download.sources import folder_of
from playerfl.data.readers.hub_tables import hub_pictures, hub_table
from playerfl.data.readers.idx import read_labelled
from playerfl.data.sites import Sites
from playerfl.tasks.bundled.images import ImagePoolOptions, deal_images, grey_network
from playerfl.tasks.task import Task


class FashionMnistOptions(ImagePoolOptions):
    """The first 5 x 2,000 training images, as in the authors' code."""

    rows_per_site: int = Field(2000, ge=3)


def load_sites(options: FashionMnistOptions) -> Sites:
    folder = folder_of("fashion_mnist")
    table = hub_table(folder)
    if table and not any(folder.glob("train-images-idx3-ubyte*")):
        colours, labels = hub_pictures(table, "image", "label", 10, 28, options.wanted)
        return deal_images(colours[:, :1], labels, options, mean=[0.5], std=[0.5])
    pixels, labels = read_labelled(folder, "train-images-idx3-ubyte", "train-labels-idx1-ubyte")
    return deal_images(pixels[:, None], labels, options, mean=[0.5], std=[0.5])


TASK = Task(
    name="fashion_mnist",
    about="10,000 images of clothes (28x28), Dirichlet label skew, 3 convolutions + 2 linear layers",
    load_sites=load_sites,
    build_model=partial(grey_network, classes=10),
    options=FashionMnistOptions,
    defaults={"training": {"batch_size": 128}},
    paper="FMNIST",
)
