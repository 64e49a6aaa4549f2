"""Imports no file in vain: importing all of them takes each worker of `make quick` ten seconds longer."""

from __future__ import annotations

import re
from collections.abc import Generator
from pathlib import Path

import pytest
from _pytest.doctest import DoctestModule

from playerfl.studies.backends.memory import collect_less

# Looking for garbage among all that torch and 3,000 tests keep takes a fifth of the time.
collect_less()

_ALL_SYSTEM = re.compile(r"^pytestmark = (?:\[[^\]]*)?pytest\.mark\.system\b", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves out a file if all of its tests are of the kind `system`, which imports frameworks, and not wanted."""
    if "not system" not in config.option.markexpr or not collection_path.match("test_*.py"):
        return None
    return True if _ALL_SYSTEM.search(collection_path.read_text(encoding="utf-8")) else None


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Looks for doctests only in files that have some."""
    collectors = yield
    if file_path.suffix != ".py" or ">>> " in file_path.read_text(encoding="utf-8"):
        return collectors
    return [collector for collector in collectors if not isinstance(collector, DoctestModule)]
