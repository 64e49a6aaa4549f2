"""The handwritten digits that come with the package."""

from __future__ import annotations

import hashlib
from importlib.resources import files

import torch

from playerfl.tasks.bundled.digits import read_digits


def test_the_file_is_scikit_learns_to_the_byte() -> None:
    shipped = (files("playerfl.tasks.bundled") / "digits.csv.gz").read_bytes()
    assert hashlib.sha256(shipped).hexdigest() == "09f66e6debdee2cd2b5ae59e0d6abbb73fc2b0e0185d2e1957e9ebb51e23aa22"


def test_pixels_are_scaled_to_plus_and_minus_one() -> None:
    digits = read_digits()
    assert digits.inputs.shape == (1797, 1, 8, 8)
    # The file has 0 to 16; every step of an eighth is exact in float32.
    assert torch.equal(digits.inputs.unique(), torch.arange(-8, 9) / 8)
    assert torch.equal(digits.targets.unique(), torch.arange(10))
