"""The handwritten digits that come with the package."""

from __future__ import annotations

import hashlib
from importlib.resources import files

import pytest
import torch

from playerfl.data.examples import tensor_pair
from playerfl.errors import DataError
from playerfl.tasks.bundled.digits import read_digits
from playerfl.tasks.load import load_task


def test_the_file_is_scikit_learns_to_the_byte() -> None:
    shipped = (files("playerfl.tasks.bundled") / "files" / "digits.csv.gz").read_bytes()
    assert hashlib.sha256(shipped).hexdigest() == "09f66e6debdee2cd2b5ae59e0d6abbb73fc2b0e0185d2e1957e9ebb51e23aa22"


def test_pixels_are_scaled_to_plus_and_minus_one() -> None:
    digits = read_digits()
    assert digits.inputs.shape == (1797, 1, 8, 8)
    # The file has 0 to 16; every step of an eighth is exact in float32.
    assert torch.equal(digits.inputs.unique(), torch.arange(-8, 9) / 8)
    assert torch.equal(digits.targets.unique(), torch.arange(10))


@pytest.mark.parametrize("accepted", [False, True])
def test_a_partition_with_a_site_of_one_class_is_drawn_again_unless_accepted(accepted: bool) -> None:
    task = load_task("digits")
    # With this seed, the first draw leaves site-3 a single class to train on.
    options = task.options(alpha=0.1, split="per_run", accept_small_sites=accepted).for_run(40)
    classes = [len(tensor_pair(site.train)[1].unique()) for site in task.load_sites(options).values()]
    assert (min(classes) == 1) == accepted


@pytest.mark.slow
def test_hopeless_partitions_are_refused_with_a_remedy() -> None:
    task = load_task("digits")
    with pytest.raises(DataError, match=r"gave each of the 10 sites a second class to train on; .*accept_small_sites"):
        task.load_sites(task.options(alpha=1e-9, sites=10, min_size=1))
