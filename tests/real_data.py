"""Marks tests that need a real dataset."""

from __future__ import annotations

import pytest

from playerfl.data.download.sources import folder_of
from playerfl.errors import DataError


def needs(name: str) -> pytest.MarkDecorator:
    """Skips a test if the dataset is not available."""
    try:
        folder_of(name)
    except DataError as absent:
        return pytest.mark.skip(reason=f"needs real data: {absent}")
    return pytest.mark.filterwarnings("error")
