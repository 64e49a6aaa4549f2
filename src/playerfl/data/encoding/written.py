"""Numbers formatted for people: 1.234,50 and 1 234 and 1'234 and $5, which a program must not guess."""

from __future__ import annotations

import re

_CURRENCY = r"(?:[$€£¥₹]|USD|EUR|GBP|CHF)"
_GROUP = "[,.'’ \u00a0\u202f]"
_WRITTEN = re.compile(
    rf"(?:{_CURRENCY}\s*)?(?P<sign>[-+]?)(?:{_CURRENCY}\s*)?"
    rf"(?:(?P<first>[1-9]\d{{0,2}})(?P<group>{_GROUP})(?P<rest>\d{{3}}(?:(?P=group)\d{{3}})*)|(?P<whole>\d+))"
    rf"(?:(?P<point>[,.])(?P<decimals>\d+))?(?P<percent>\s*%)?(?:\s*{_CURRENCY})?"
)


def plain_number(text: str) -> str | None:
    """A number as a program writes it; None if the text is not a number with separators or a currency.

    >>> [plain_number(text) for text in ("1.234,50", "1 234", "$1,002.29", "12,5 %", "CHF 9'000")]
    ['1234.50', '1234', '1002.29', '12.5 %', '9000']
    >>> [plain_number(text) for text in ("12.05.2023", "1.234.5", "ward 3", "030 123")]
    [None, None, None, None]
    """
    match = _WRITTEN.fullmatch(text.strip())
    if match is None or (match["group"] and match["group"] == match["point"]):
        return None
    digits = match["whole"] or match["first"] + re.sub(r"\D", "", match["rest"])
    decimals = f".{match['decimals']}" if match["decimals"] else ""
    return f"{match['sign'].replace('+', '')}{digits}{decimals}{' %' if match['percent'] else ''}"
