"""Shared by the scripts: printing a figure with its verdict, and work in a separate process."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")


def line(title: str, shown: str, holds: bool | None = None) -> bool:
    """Prints a figure, and whether it keeps the promise, if there is one."""
    verdict = "" if holds is None else "ok" if holds else "BROKEN"
    print(f"{title:<66} {shown:<44} {verdict}".rstrip(), flush=True)
    return holds is not False


def alone(work: Callable[..., Result], *arguments: Any) -> Result:
    """Runs work in a new one-thread process, so that earlier work neither holds memory nor has warmed anything up."""
    with ProcessPoolExecutor(1, get_context("spawn"), initializer=torch.set_num_threads, initargs=(1,)) as process:
        return process.submit(work, *arguments).result()
