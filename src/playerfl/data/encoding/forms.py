"""Texts that stand for numbers: percentages, ratios such as 120/80, and times of day."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Literal

Form = Literal["percent", "ratio", "time"]
_NUMBER = r"[-+]?\d+(?:\.\d+)?"
_PERCENT = re.compile(rf"({_NUMBER})\s*%")
_RATIO = re.compile(rf"({_NUMBER})\s*/\s*({_NUMBER})")
_TIME = re.compile(r"(\d{1,2}):([0-5]\d)(?::([0-5]\d)(?:\.\d+)?)?\s*([ap]m)?", re.IGNORECASE)


def percent(text: str) -> tuple[float] | None:
    """
    >>> percent("12.5 %"), percent("12")
    ((12.5,), None)
    """
    match = _PERCENT.fullmatch(text)
    return None if match is None else (float(match[1]),)


def ratio(text: str) -> tuple[float, float] | None:
    """
    >>> ratio("120/80"), ratio("01/02/2024")
    ((120.0, 80.0), None)
    """
    match = _RATIO.fullmatch(text)
    return None if match is None else (float(match[1]), float(match[2]))


def time(text: str) -> tuple[float, float] | None:
    """A time of day as a point on a 24-hour clock face, so that 23:59 is next to 00:00.

    >>> [[round(number, 6) for number in time(text)] for text in ("06:00", "6:00 pm")]
    [[1.0, 0.0], [-1.0, -0.0]]
    >>> time("24:30") is None
    True
    """
    match = _TIME.fullmatch(text)
    if match is None:
        return None
    hour, half = int(match[1]), (match[4] or "").lower()
    if hour > 23 or (half and not 1 <= hour <= 12):
        return None
    if half:
        hour = hour % 12 + (12 if half == "pm" else 0)
    turn = 2 * math.pi * (hour + int(match[2]) / 60 + int(match[3] or 0) / 3600) / 24
    return math.sin(turn), math.cos(turn)


def may_hold_flags(centre: float, spread: float, robust: bool) -> bool:
    """Whether a column of numbers with this scale may have held nothing but 1 and 0, as which true and false are read.

    >>> may_hold_flags(0.2, 0.4, False), may_hold_flags(61.0, 12.0, False)
    (True, False)
    """
    return 0 <= centre <= 1 and (robust or abs(spread**2 - centre * (1 - centre)) < 1e-6)


FORMS: dict[Form, Callable[[str], tuple[float, ...] | None]] = {"percent": percent, "ratio": ratio, "time": time}
EXAMPLES: dict[Form, str] = {"percent": "12 %", "ratio": "120/80", "time": "07:30"}
