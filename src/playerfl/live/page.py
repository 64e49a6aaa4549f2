"""The live page and its parts as HTML."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from playerfl.errors import ConfigError
from playerfl.live.status import FolderStatus

if TYPE_CHECKING:
    from jinja2 import Environment


def live_page(title: str, status: FolderStatus) -> str:
    """The whole page, as the first request gets it."""
    from markupsafe import Markup

    return (
        _environment()
        .from_string(_asset("page.html"))
        .render(title=title, status=Markup(status_part(status)), script=Markup(_asset("page.js")))
    )


def status_part(status: FolderStatus) -> str:
    """The part that is fetched again every few seconds."""
    return _environment().from_string(_asset("status.html")).render(status=status, points=points)


def content_security_policy() -> str:
    """Only our own script runs, and requests go only to this server."""
    digest = base64.b64encode(hashlib.sha256(_asset("page.js").encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
        "connect-src 'self'; frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def points(curve: Sequence[float], width: float = 300, height: float = 60) -> str:
    """A curve as the points of a line; rounds without a finite value are left out.

    >>> points([2.0, 1.0, 1.5])
    '0.0,3.0 150.0,57.0 300.0,30.0'
    """
    finite = [(place, value) for place, value in enumerate(curve) if math.isfinite(value)]
    low, high = (f(value for _, value in finite) for f in (min, max)) if finite else (0.0, 0.0)
    span = (high - low) or 1.0
    step = width / max(len(curve) - 1, 1)
    return " ".join(f"{step * place:.1f},{3 + (high - value) / span * (height - 6):.1f}" for place, value in finite)


@cache
def _asset(name: str) -> str:
    return files("playerfl.live").joinpath(name).read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    try:
        from jinja2 import Environment, StrictUndefined
    except ImportError as problem:
        raise ConfigError("the live page needs jinja2; pip install 'playerfl[report]'") from problem
    return Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
