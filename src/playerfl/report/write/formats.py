"""How numbers and names are written in a report."""

from __future__ import annotations

import math
from collections.abc import Sequence

from playerfl.report.compute.statistics import ENOUGH_RUNS
from playerfl.report.compute.tables import Cell, Kind

METRIC_NAMES = {"f1": "Macro-F1", "accuracy": "Accuracy", "loss": "Loss"}
KIND_NAMES = {
    "score": "Performance",
    "fairness": "Fairness (variance over sites)",
    "incentive": "Incentivised participation",
}
# What floating point can still tell from 0 in a tail of a distribution.
SMALLEST_P = 1e-15
_IN_PERCENT = frozenset({"f1", "accuracy"})


def in_percent(metric: str) -> bool:
    """Whether a metric is a share that people read in percent."""
    return metric in _IN_PERCENT


def metric_name(metric: str) -> str:
    return METRIC_NAMES.get(metric, metric)


def table_title(kind: Kind, metric: str) -> str:
    """What a table shows, with its unit and which way is better.

    >>> table_title("fairness", "f1")
    'Fairness of macro-F1: variance over sites, lower is better'
    """
    name = metric_name(metric)
    small = name[0].lower() + name[1:]
    if kind == "fairness":
        return f"Fairness of {small}: variance over sites, lower is better"
    if kind == "incentive":
        return f"Incentivised participation by {small}: % of sites better off than alone and than FedAvg"
    if in_percent(metric):
        return f"{name} in %, higher is better"
    return f"{name}, lower is better" if metric == "loss" else f"{name}, higher is better"


def number(value: float, kind: Kind, metric: str) -> str:
    """A value of a table as it is printed.

    >>> number(0.7594, "score", "f1"), number(0.0003, "fairness", "f1"), number(float("inf"), "score", "loss")
    ('75.9', '3.0e-4', 'diverged')
    """
    if not math.isfinite(value):
        return "diverged"
    if kind == "fairness":
        mantissa, exponent = f"{value:.1e}".split("e")
        return "0" if value == 0 else f"{mantissa}e{int(exponent)}"
    if kind == "incentive":
        return f"{value:.1f}"
    if in_percent(metric):
        return f"{100 * value:.1f}"
    return f"{value:.3f}" if abs(value) < 1000 else f"{value:.4g}"


def with_unit(value: float, metric: str) -> str:
    """A score for a sentence.

    >>> with_unit(0.7594, "f1"), with_unit(0.5, "loss")
    ('75.9 %', '0.500')
    """
    return number(value, "score", metric) + (" %" if in_percent(metric) and math.isfinite(value) else "")


def interval(cell: Cell, kind: Kind, metric: str, *, name_range: bool = True) -> str:
    """The 95 % interval; of few runs their range, called so; or nothing where one run gives none."""
    if math.isnan(cell.low):
        return ""
    ends = [number(end, kind, metric).replace("diverged", "∞") for end in (cell.low, cell.high)]
    return f"{'range ' if name_range and cell.runs < ENOUGH_RUNS else ''}[{ends[0]}, {ends[1]}]"


def interval_name(runs: int) -> str:
    """What the two ends beside a median are.

    >>> interval_name(50), interval_name(3)
    ('95 % interval', 'range of 3 runs')
    """
    return "95 % interval" if runs >= ENOUGH_RUNS else f"range of {runs} runs"


def difference(value: float, metric: str) -> str:
    """A gain or loss with its sign; points of a percentage for F1 and accuracy.

    >>> difference(0.0123, "f1"), difference(-0.5, "loss")
    ('+1.2', '−0.500')
    """
    if math.isnan(value):
        return ""
    if math.isinf(value):
        return "+∞" if value > 0 else "−∞"
    written = f"{100 * value:+.1f}" if in_percent(metric) else f"{value:+.3f}"
    return written.replace("-", "−")


def p_value(p: float) -> str:
    """A p-value without more digits than it deserves.

    >>> p_value(0.01265), p_value(7e-10), p_value(0.6024), p_value(1e-80), p_value(float("nan"))
    ('0.013', '7.0e-10', '0.60', '< 1e-15', 'not computable')
    """
    if math.isnan(p):
        return "not computable"
    if p < SMALLEST_P:
        return f"< {SMALLEST_P:g}"
    if p < 1e-4:
        mantissa, exponent = f"{p:.1e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    return f"{p:.2f}" if p >= 0.095 else f"{p:.2g}"


def p_said(p: float) -> str:
    """A p-value in a sentence.

    >>> p_said(0.01265), p_said(1e-80), p_said(float("nan"))
    ('p = 0.013', 'p < 1e-15', 'not computable')
    """
    written = p_value(p)
    return written if math.isnan(p) else f"p {written}" if written.startswith("<") else f"p = {written}"


def size(count: float) -> str:
    """Bytes for people.

    >>> size(8380), size(12), size(3.2e9)
    ('8.4 kB', '12 B', '3.2 GB')
    """
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def duration(seconds: float) -> str:
    """Time for people.

    >>> duration(0.42), duration(75), duration(7300), duration(float("nan"))
    ('0.4 s', '1 min 15 s', '2 h 1 min', 'unknown')
    """
    if not math.isfinite(seconds):
        return "unknown"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def listed(names: Sequence[str]) -> str:
    """Names in a sentence.

    >>> listed(["a", "b", "c"]), listed(["a"]), listed([])
    ('a, b and c', 'a', 'nothing')
    """
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else "nothing"


def counted(count: int, what: str, plural: str | None = None) -> str:
    """A number with its noun.

    >>> counted(1, "site"), counted(3, "site"), counted(2, "loss", "losses")
    ('1 site', '3 sites', '2 losses')
    """
    return f"{count:,} {what if count == 1 else plural or what + 's'}"
