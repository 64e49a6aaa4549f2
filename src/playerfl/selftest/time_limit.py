"""A limit on the time that a user's code may take, where the platform has a timer that interrupts it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class TimeUpError(BaseException):
    """Raised inside the code that takes too long; not an Exception, so that `except Exception` does not stop it."""


@contextmanager
def time_limit(seconds: float, module: str) -> Iterator[None]:
    """Raises TimeUpError after some seconds, and says where code of `module` was then.

    Without an interval timer (on Windows), or outside the main thread, there is no limit.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_: int, frame: FrameType | None) -> None:
        raise TimeUpError(f"did not finish within {seconds:g} s{_place(frame, module)}")

    handler = signal.signal(signal.SIGALRM, interrupt)
    # Code that swallows every exception is interrupted again.
    before = signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *before)
        signal.signal(signal.SIGALRM, handler)


def _place(frame: FrameType | None, module: str) -> str:
    while frame is not None:
        if frame.f_globals.get("__name__") == module:
            return f"; it was on line {frame.f_lineno}, in {frame.f_code.co_qualname}"
        frame = frame.f_back
    return ""
