"""Where tests find real datasets, if they are there at all."""

from __future__ import annotations

import pytest

from playerfl.data.download.sources import folder_of
from playerfl.errors import DataError


def needs(name: str) -> pytest.MarkDecorator:
    """Skips a test where a dataset is not in $PLAYERFL_DATA or another place it is looked for."""
    try:
        folder_of(name)
    except DataError as absent:
        return pytest.mark.skip(reason=f"needs real data: {absent}")
    return pytest.mark.filterwarnings("error")
