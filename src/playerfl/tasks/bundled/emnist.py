"""EMNIST by class: 28x28 handwritten letters and digits, 62 classes, divided among five sites."""

from __future__ import annotations

from functools import partial

from pydantic import Field

from playerfl.data.download.sources import folder_of
from playerfl.data.readers.idx import read_labelled
from playerfl.data.sites import Sites
from playerfl.tasks.bundled.images import ImagePoolOptions, deal_images, grey_network
from playerfl.tasks.task import Task

_FILES = "emnist-byclass-{part}-images-idx3-ubyte", "emnist-byclass-{part}-labels-idx1-ubyte"


class EmnistOptions(ImagePoolOptions):
    """The first 5 x 3,000 training images, as in the authors' code."""

    rows_per_site: int = Field(3000, ge=3)


def load_sites(options: EmnistOptions) -> Sites:
    folder = folder_of("emnist")
    has_train = any(folder.glob(_FILES[0].format(part="train") + "*"))
    part = "train" if has_train else "test"
    notes = [] if has_train else ["read from EMNIST's test file, since the training file is missing"]
    pixels, labels = read_labelled(folder, *(name.format(part=part) for name in _FILES))
    # The files store every image transposed.
    upright = pixels.transpose(0, 2, 1)[:, None]
    return deal_images(upright, labels, options, mean=[0.5], std=[0.5], notes=notes)


TASK = Task(
    name="emnist",
    about="15,000 handwritten letters and digits (28x28, 62 classes), Dirichlet label skew, 3 convolutions + 2 linear",
    load_sites=load_sites,
    build_model=partial(grey_network, classes=62),
    options=EmnistOptions,
    defaults={"training": {"batch_size": 128}},
    paper="EMNIST",
)
