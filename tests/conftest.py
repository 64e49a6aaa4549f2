"""Small federations for every test: real training, a few hundred rows, fractions of a second."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

# Where the tests run in the background, SIGINT is ignored, and would be by every process they start to interrupt it.
signal.signal(signal.SIGINT, signal.default_int_handler)
# A loaded machine must not fail a property, nor luck decide which examples are tried.
settings.register_profile("steady", deadline=None, derandomize=True)
settings.load_profile("steady")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
