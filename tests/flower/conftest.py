"""Jobs in the middle, and institutions to run jobs at."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from flower.institutions import Institutions
from flower.jobs import Job
from playerfl.algorithms import FedPer


@pytest.fixture
def running(tmp_path: Path) -> Job:
    """A job in the middle: every site has answered round 1."""
    job = Job(tmp_path, FedPer(2), rounds=4)
    job.interrupt("site-2", "2:evaluate+fit")
    return job


@pytest.fixture
def institutions(tmp_path: Path) -> Iterator[Institutions]:
    with ExitStack() as stack:
        yield Institutions(tmp_path, stack)
