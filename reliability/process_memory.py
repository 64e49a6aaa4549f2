"""How much memory programs hold while they work, as Linux counts it; other systems do not say.

RSS counts every page a process has mapped, so pages of libraries count in every process that uses them. PSS divides
such pages among their users: the sum of PSS is what all programs together really take. Private pages are those that
nobody else has, including pages of libraries that only this process has mapped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import NamedTuple

EVERY_SECONDS = 0.5


class Held(NamedTuple):
    """Megabytes of one process at one moment, or of several together."""

    rss: float
    pss: float
    private: float

    def __add__(self, other: Held) -> Held:  # type: ignore[override]
        return Held(*(one + two for one, two in zip(self, other, strict=True)))


def held(pid: int) -> Held | None:
    """None if the process is gone, or where the system does not say."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]
        sizes = {name: int(rest.split()[0]) / 1000 for name, _, rest in (line.partition(":") for line in lines)}
        return Held(sizes["Rss"], sizes["Pss"], sizes["Private_Clean"] + sizes["Private_Dirty"])
    except (OSError, ValueError, KeyError, IndexError):
        return None


def children(pid: int) -> list[int]:
    with suppress(OSError):
        listed = [file.read_text().split() for file in Path(f"/proc/{pid}/task").glob("*/children")]
        return [int(child) for of_thread in listed for child in of_thread]
    return []


class Sampler:
    """Looks at some processes twice a second, for a block."""

    def __init__(self, processes: Callable[[], Mapping[str, int]]) -> None:
        """`processes`: the process ids by name, asked for every time."""
        self._processes = processes
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self.samples: dict[str, list[Held]] = {}

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._over.wait(EVERY_SECONDS):
            for name, pid in self._processes().items():
                if now := held(pid):
                    self.samples.setdefault(name, []).append(now)

    def peak(self, name: str) -> Held:
        """The moment at which the process had the most resident memory."""
        return max(self.samples[name], key=lambda sample: sample.rss)

    def typical(self, name: str) -> Held:
        """The medians over all moments."""
        return Held(*(median(values) for values in zip(*self.samples[name], strict=True)))
