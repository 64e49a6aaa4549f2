"""Small federations for every test: real training, a few hundred rows, fractions of a second."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from browser import browser

# Here, and in no test file: Playwright runs once per process.
__all__ = ["browser"]

# A shell's background job ignores SIGINT, and so would every process that a test starts in order to interrupt it.
signal.signal(signal.SIGINT, signal.default_int_handler)
# No deadline, since the machine may be busy; the same examples every time, since luck must not decide a test.
settings.register_profile("steady", deadline=None, derandomize=True)
settings.register_profile("quick", settings.get_profile("steady"), max_examples=10)
settings.load_profile("steady")


QUICK_CASES = 3


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests come first. Of a parametrised test, `make quick` runs a few cases spread over all of them."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        test, bracket, _ = item.nodeid.partition("[")
        if bracket and item.get_closest_marker("slow") is None:
            cases.setdefault(test, []).append(item)
    for alike in cases.values():
        quick = alike[:: math.ceil(len(alike) / QUICK_CASES)]
        for item in alike:
            if item not in quick:
                item.add_marker("slow")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    import torch  # not above: the process that hands tests to workers needs none

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """Tests that write files would spend a third of their time on syncing them, and no test cuts the power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield
