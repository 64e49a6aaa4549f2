"""The verdict of benchmarks/growth.py, and that docs/scale.md shows what its command prints."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
SIZES = [10.0**power for power in range(2, 7)]


@pytest.fixture(scope="module")
def benchmarks() -> Iterator[None]:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    yield
    sys.path.remove(str(ROOT / "benchmarks"))


@pytest.fixture(scope="module")
def growth(benchmarks: None) -> ModuleType:
    return import_module("growth")


def grown(exponent: float, base: float = 0.0) -> list[float]:
    return [base + 1e-6 * size**exponent for size in SIZES]


def test_the_exponent_is_that_of_the_last_two_decades(growth: ModuleType) -> None:
    """Below them, what every run costs anyway is most of the cost."""
    assert growth.Growth(SIZES, grown(1.3)).exponent == pytest.approx(1.3)
    assert growth.Growth(SIZES, grown(1.0, base=2e-3)).exponent == pytest.approx(1.0, abs=0.05)
    least, most = growth.Growth(SIZES, [1, 1, 1, 10, 150]).interval
    assert least < growth.Growth(SIZES, [1, 1, 1, 10, 150]).exponent < most


@pytest.mark.parametrize(
    ("ours", "bare", "held"),
    [(1.0, 1.0, True), (1.09, 1.0, True), (1.2, 1.0, False), (1.24, 1.22, True), (1.24, 1.12, False)],
)
def test_the_processor_is_not_held_against_us(growth: ModuleType, ours: float, bare: float, held: bool) -> None:
    ratio = [a / b for a, b in zip(grown(ours), grown(bare), strict=True)]
    assert growth.holds(growth.Growth(SIZES, grown(ours)), growth.Growth(SIZES, ratio)) is held


@pytest.mark.slow
def test_the_page_shows_what_the_command_prints(benchmarks: None) -> None:
    """The simulated tables, which depend on nothing but the costs in the package."""
    scale = import_module("scale")
    page = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
    for table in (scale.rounds_table(), scale.hierarchy_table()):
        assert table in page, "run benchmarks/scale.py --only rounds, and put its tables into docs/scale.md"
