"""How numbers and names are written in a report."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from playerfl import time_left
from playerfl.report.compute.grid import Splits
from playerfl.report.compute.statistics import ENOUGH_RUNS
from playerfl.report.compute.tables import Kind, ScoreCell, ScoreTable
from playerfl.runs.measures.declared import Declared, declared_as

KIND_NAMES = {
    "score": "Performance",
    "fairness": "Fairness (variance over sites)",
    "incentive": "Incentivised participation",
}
SELECTIONS = {
    "by_owner": "sites that share one model all report the round with the lowest validation loss over all sites, "
    "other sites report the round with their own lowest validation loss",
    "client_best": "each site reports the round with its lowest validation loss",
    "round_best": "all sites report the round with the lowest validation loss over all of them",
    "last": "all sites report the last round",
}
F1_CLASSES = {
    "true_or_predicted": "the classes present at a site, in the truth or in the predictions",
    "true": "the classes that are present in the truth at a site; those that are only predicted do not count",
    "all": "all classes of the task; one that a site does not have counts as 0",
}
# What varies between runs, and so what intervals and tests over runs account for.
REACH: dict[Splits, str] = {
    "fixed": "seeds only",
    "per_run": "new patients and seeds",
    "mixed": "seeds and the few splits that the runs share",
    "unknown": "seeds, and for nothing else that is recorded",
}
# Below this, floating point cannot resolve the tail of a distribution.
SMALLEST_P = 1e-15


def small(title: str) -> str:
    """A title within a sentence: in lower case, unless it is an abbreviation or a name.

    >>> small("Macro-F1"), small("AUROC"), small("Brier score"), small("R²")
    ('macro-F1', 'AUROC', 'Brier score', 'R²')
    """
    return title if title.startswith("Brier") or not title[1:2].islower() else title[0].lower() + title[1:]


def table_title(kind: Kind, metric: Declared) -> str:
    """A table's title, with its unit and direction.

    >>> table_title("fairness", declared_as("f1"))
    'Fairness of macro-F1: variance over sites, lower is better'
    >>> table_title("score", declared_as("brier")), table_title("score", declared_as("mae"))
    ('Brier score, lower is better', 'Mean absolute error in units of the target, lower is better')
    """
    if kind == "fairness":
        return f"Fairness of {small(metric.title)}: variance over sites, lower is better"
    if kind == "incentive":
        return f"Incentivised participation by {small(metric.title)}: % of sites better off than under both baselines"
    unit = {"share": " in %", "target": " in units of the target", "": ""}[metric.unit]
    return f"{metric.title}{unit}, {metric.direction} is better"


def table_name(name: str) -> str:
    """A score table's name for people.

    >>> table_name("incentive_f1"), table_name("loss"), table_name("fairness_auroc")
    ('Incentive, F1', 'Loss', 'Fairness, AUROC')
    """
    kind, underscore, metric = name.partition("_")
    of_kind = bool(underscore) and kind in KIND_NAMES
    title = {"f1": "F1"}.get(metric if of_kind else name) or declared_as(metric if of_kind else name).title
    return f"{kind.capitalize()}, {small(title)}" if of_kind else title


def number(value: float, kind: Kind, metric: Declared) -> str:
    """A value of a table as text.

    >>> f1, loss = declared_as("f1"), declared_as("loss")
    >>> number(0.7594, "score", f1), number(0.0003, "fairness", f1), number(float("inf"), "score", loss)
    ('75.9', '3.0e-4', 'diverged')
    """
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "diverged"
    if kind == "fairness":
        return "0" if value == 0 else _scientific(value)
    if kind == "incentive":
        return f"{value:.1f}"
    if metric.in_percent:
        return f"{100 * value:.1f}"
    return f"{value:.3f}" if abs(value) < 1000 else f"{value:.4g}"


def _scientific(value: float) -> str:
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def with_unit(value: float, metric: Declared) -> str:
    """A score for a sentence.

    >>> with_unit(0.7594, declared_as("f1")), with_unit(0.5, declared_as("loss"))
    ('75.9 %', '0.500')
    """
    return number(value, "score", metric) + (" %" if metric.in_percent and math.isfinite(value) else "")


def interval(cell: ScoreCell, table: ScoreTable) -> str:
    """The 95 % interval, the range of a few runs, or nothing for a single run."""
    if math.isnan(cell.low):
        return ""
    ends = [number(end, table.kind, table.declared) for end in (cell.low, cell.high)]
    name = "range " if cell.runs < ENOUGH_RUNS and not ranges_only(table) else ""
    return f"{name}[{ends[0]}, {ends[1]}]"


def interval_head(table: ScoreTable) -> str:
    """The heading of the column of intervals."""
    if ranges_only(table):
        return "range of runs"
    enough = all(cell.runs >= ENOUGH_RUNS for cell in table.cells.values())
    return "95 % interval" if enough else "95 % interval or range"


def ranges_only(table: ScoreTable) -> bool:
    """Whether all intervals are ranges, so that the column's heading says it once."""
    return len(table.tasks) == 1 and all(cell.runs < ENOUGH_RUNS for cell in table.cells.values())


def noise(splits: Collection[Splits]) -> str:
    """What makes runs differ.

    >>> noise({"fixed"}), noise({"per_run"})
    ('seed noise', 'run-to-run noise')
    """
    return "seed noise" if set(splits) <= {"fixed"} else "run-to-run noise"


def interval_name(runs: int) -> str:
    """What to call the interval of a median.

    >>> interval_name(50), interval_name(3)
    ('95 % interval', 'range of 3 runs')
    """
    return "95 % interval" if runs >= ENOUGH_RUNS else f"range of {runs} runs"


def difference(value: float, metric: Declared) -> str:
    """A gain or loss with its sign, in percentage points for shares.

    >>> difference(0.0123, declared_as("f1")), difference(-0.5, declared_as("loss"))
    ('+1.2', '−0.500')
    """
    if math.isnan(value):
        return ""
    if math.isinf(value):
        return "+∞" if value > 0 else "−∞"
    return signed(100 * value, 1) if metric.in_percent else signed(value, 3)


def signed(value: float, digits: int) -> str:
    """A number with its sign, a real minus.

    >>> signed(0.5, 2), signed(-0.5, 1)
    ('+0.50', '−0.5')
    """
    return f"{value:+.{digits}f}".replace("-", "−")


def share(part: float) -> str:
    """A share in percent; 0 % and 100 % mean exactly that.

    >>> share(0.251), share(0.99996), share(1.0), share(1e-5), share(0.0)
    ('25.1 %', '> 99.9 %', '100 %', '< 0.1 %', '0 %')
    """
    if part in (0, 1):
        return f"{100 * part:.0f} %"
    return "< 0.1 %" if part < 0.0005 else "> 99.9 %" if part > 0.9995 else f"{100 * part:.1f} %"


def percent(part: float) -> str:
    """A share in whole percent; 0 % and 100 % mean exactly that.

    >>> percent(0.314), percent(0.001), percent(0.999), percent(1.0)
    ('31 %', '< 1 %', '> 99 %', '100 %')
    """
    if part in (0, 1):
        return f"{100 * part:.0f} %"
    return "< 1 %" if part < 0.005 else "> 99 %" if part > 0.995 else f"{100 * part:.0f} %"


def p_value(p: float) -> str:
    """A p-value with two significant digits.

    >>> p_value(0.01265), p_value(7e-10), p_value(0.6024), p_value(1e-80), p_value(float("nan"))
    ('0.013', '7.0e-10', '0.60', '< 1e-15', 'not computable')
    """
    if math.isnan(p):
        return "not computable"
    if p < SMALLEST_P:
        return f"< {SMALLEST_P:g}"
    if p < 1e-4:
        return _scientific(p)
    return f"{p:.2f}" if p >= 0.095 else f"{p:.2g}"


def p_text(p: float) -> str:
    """A p-value in a sentence.

    >>> p_text(0.01265), p_text(1e-80), p_text(float("nan"))
    ('p = 0.013', 'p < 1e-15', 'not computable')
    """
    written = p_value(p)
    return written if math.isnan(p) else f"p {written}" if written.startswith("<") else f"p = {written}"


def size(count: float) -> str:
    """Bytes in readable units.

    >>> size(8380), size(12), size(3.2e9), size(4e12)
    ('8.4 kB', '12 B', '3.2 GB', '4.0 TB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def duration(seconds: float) -> str:
    """A duration in readable units.

    >>> duration(0.42), duration(75), duration(7300), duration(float("nan"))
    ('0.4 s', '1 min 15 s', '2 h 1 min', 'unknown')
    """
    if not math.isfinite(seconds):
        return "unknown"
    return f"{seconds:.1f} s" if seconds < 60 else time_left.duration(seconds)


def listed(names: Sequence[str]) -> str:
    """Names in a sentence.

    >>> listed(["a", "b", "c"]), listed(["a"]), listed([])
    ('a, b and c', 'a', 'nothing')
    """
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else "nothing"


def ranges(numbers: Sequence[int]) -> str:
    """Numbers in short.

    >>> ranges([0, 1, 2, 5, 7, 8])
    '0–2, 5, 7–8'
    """
    parts: list[list[int]] = []
    for value in numbers:
        if parts and value == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], value]
        else:
            parts.append([value])
    return ", ".join("–".join(str(end) for end in part) for part in parts)
