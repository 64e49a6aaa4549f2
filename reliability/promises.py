"""What the scripts here share: a line for a figure and its bound, and work in a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, TypeVar

import torch

Found = TypeVar("Found")


def line(title: str, shown: str, holds: bool | None = None) -> bool:
    """Prints a figure, and whether it keeps what is promised, if anything is."""
    verdict = "" if holds is None else "ok" if holds else "NOT HELD"
    print(f"{title:<66} {shown:<44} {verdict}".rstrip(), flush=True)
    return holds is not False


def alone(work: Callable[..., Found], *arguments: Any) -> Found:
    """Work in a new process with one thread: what ran before neither holds memory nor has warmed anything up."""
    with ProcessPoolExecutor(1, get_context("spawn"), initializer=torch.set_num_threads, initargs=(1,)) as process:
        return process.submit(work, *arguments).result()
