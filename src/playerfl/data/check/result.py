"""DataCheck: what a check found, as plain data that can be printed, drawn or written as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Severity = Literal["stop", "warning", "note"]
_ORDER: dict[Severity, int] = {"stop": 0, "warning": 1, "note": 2}
_SHOWN = 5
# What TOML would not read as a number or as true.
_PLAIN = re.compile(r"(?!(?:true|false|inf|nan)$)[^\W\d][\w.-]*")
Counts = Mapping[str, Mapping[str, int]]
"""Rows of each label at each site."""


@dataclass(frozen=True)
class Finding:
    """One thing to know, in a sentence, and the setting that changes it."""

    severity: Severity
    """`stop`: nothing trains before it is changed; `warning`: results may mislead; `note`: what was assumed."""
    topic: str
    """What it is about, in one word, such as "labels" or "units"."""
    text: str
    setting: str | None = None
    """What to set, such as data.group=patient_id."""
    column: str | None = None
    sites: tuple[str, ...] = ()


@dataclass(frozen=True)
class SiteColumn:
    """One column of one site; the numbers are None where the column holds no numbers."""

    rows: int
    missing: int
    distinct: int
    low: float | None = None
    low_5: float | None = None
    """The 5th percentile."""
    median: float | None = None
    high_95: float | None = None
    """The 95th percentile."""
    high: float | None = None
    spread: float | None = None
    """The robust spread."""


@dataclass(frozen=True)
class ColumnProfile:
    """One column at all sites."""

    name: str
    kind: str
    sites: Mapping[str, SiteColumn]


@dataclass
class DataCheck:
    """What is known about the sites' data."""

    task: str
    rows: dict[str, int] = field(default_factory=dict)
    groups: dict[str, int] | None = None
    """Groups per site, if the rows are grouped."""
    target: str | None = None
    classes: dict[str, dict[str, int]] = field(default_factory=dict)
    """Rows of each class at each site; empty if the target is a number."""
    columns: list[ColumnProfile] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def add(
        self,
        severity: Severity,
        topic: str,
        text: str,
        setting: str | None = None,
        column: str | None = None,
        sites: Iterable[str] = (),
    ) -> None:
        self.findings.append(Finding(severity, topic, text, setting, column, tuple(sites)))

    def having(self, severity: Severity) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == severity]

    @property
    def sorted_findings(self) -> list[Finding]:
        """The worst first, otherwise in the order in which they were found."""
        return sorted(self.findings, key=lambda finding: _ORDER[finding.severity])

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "findings": [asdict(finding) for finding in self.sorted_findings]}


def listing(names: Sequence[str], most: int = _SHOWN) -> str:
    """Names in a sentence.

    >>> listing(["a"]), listing(["a", "b", "c"]), listing(list("abcdefg"), most=2)
    ('a', 'a, b and c', 'a, b and 5 more')
    """
    if len(names) > most + 1:
        return f"{', '.join(names[:most])} and {len(names) - most:,} more"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def set_to(name: str, value: str) -> str:
    """What to set, with quotes unless the value is a plain word.

    >>> set_to("group", "patient"), set_to("group", "patient id"), set_to("target", "2024")
    ('data.group=patient', 'data.group="patient id"', 'data.target="2024"')
    """
    return f"data.{name}={value if _PLAIN.fullmatch(value) else one_or_list([value])}"


def one_or_list(texts: Sequence[str]) -> str:
    """The value of a setting that takes one text or a list of them.

    >>> one_or_list(["a"]), one_or_list(["a", "b"])
    ('"a"', '["a", "b"]')
    """
    # A text in TOML is written as in JSON.
    quoted = [json.dumps(text, ensure_ascii=False) for text in texts]
    return quoted[0] if len(quoted) == 1 else f"[{', '.join(quoted)}]"
