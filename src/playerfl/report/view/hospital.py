"""Sections for readers with data of their own: what is in the data, and how far to trust the probabilities."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from playerfl.report.compute.report import Report
from playerfl.report.formats import number, table_title
from playerfl.report.view.parts import NOTHING, Block, Column, Facts, Head, Points, Section, TableCell, TableView
from playerfl.runs.measures.calibration import ALL_SITES, Calibration, share_interval
from playerfl.runs.measures.declared import declared_as
from playerfl.runs.measures.row_intervals import ReliabilityBin
from playerfl.runs.result import RunResult

_PARTS = {"train": "training rows", "validation": "validation rows", "test": "test rows"}
_SHOWN_CLASSES = 10


def data_section(report: Report) -> Section:
    """Rows and classes by site, and how the data were read."""
    blocks: list[Block] = []
    for task in report.grid.tasks:
        run = next(placed.result for placed in report.grid.runs if placed.task == task)
        blocks.append(_rows_by_site(task, run))
        if warnings := run.data.get("warnings"):
            blocks.append(Points(tuple(warnings), f"What the data check of {task} warned about", note=True))
    if report.data_notes:
        prefix = f"{report.grid.tasks[0]}: " if len(report.grid.tasks) == 1 else ""
        lines = tuple(note.removeprefix(prefix) for note in report.data_notes)
        blocks.append(Points(lines, "How the data were read", note=True))
    return Section("your-data", "The data", blocks=tuple(blocks))


def _rows_by_site(task: str, run: RunResult) -> TableView:
    sites = run.data["sites"]
    totals = {site: _class_totals(record) for site, record in sites.items()}
    labels = sorted({label for counts in totals.values() for label in counts}, key=lambda label: int(label))
    names = run.data.get("class_names", [])
    shown = labels if len(labels) <= _SHOWN_CLASSES else []
    parts = {part: title for part, title in _PARTS.items() if any(part in record for record in sites.values())}
    heads = [Head("site", words=True), *map(Head, parts.values())]
    heads += [Head(_class_name(label, names)) for label in shown]
    rows = []
    for site, record in sorted(sites.items()):
        row = [TableCell(site)]
        for part in parts:
            known: Mapping[str, int] | None = record.get(part)  # type: ignore[assignment]
            row.append(NOTHING if known is None else _count(known["examples"]))
        total = sum(totals[site].values()) or 1
        for label in shown:
            count = totals[site].get(label, 0)
            row.append(TableCell(f"{count:,}", count, notes=(f"({100 * count / total:.0f} %)",)))
        rows.append(tuple(row))
    remark = "Classes are counted over all rows of a site." if shown else ""
    if any(0 in {totals[site].get(label, 0) for label in shown} for site in sites):
        remark += " A site that lacks a class cannot learn it alone, and is not tested on it."
    return TableView(f"Rows of {task} by site", tuple(heads), tuple(rows), remark=remark.strip(), sortable=True)


def _count(rows: int) -> TableCell:
    return TableCell(f"{rows:,}", rows)


def _class_name(label: str, names: list[str]) -> str:
    return names[int(label)] if int(label) < len(names) else f"class {label}"


def _class_totals(record: object) -> Counter[str]:
    totals: Counter[str] = Counter()
    if isinstance(record, Mapping):
        for part in _PARTS:
            totals.update(record.get(part, {}).get("classes", {}))
    return Counter({label: count for label, count in totals.items() if label.isdecimal()})


def calibration_section(report: Report) -> Section:
    """Brier score and calibration error of each method, and the reliability curve of the one the summary is about."""
    two = [task for task in report.grid.tasks if report.grid.classes(task) == 2]
    names = ", ".join(dict.fromkeys(map(report.grid.positive_name, two)))
    named = f" ({names})" if names else ""
    intro = (
        "Of the rows to which a method gives a probability of 30 %, about 30 % should come true. A curve below the "
        f"diagonal is overconfident. With two classes, the probability is that of the positive class{named}; with "
        "more, that of the predicted class."
    )
    whole = [one for one in report.calibrations if one.site == ALL_SITES]
    blocks: list[Block] = [calibration_scores(whole, report.baseline_calibrations)]
    bins = calibration_bins(report)
    own = [item for item in bins.items if item[0].algorithm == report.subject and item[0].site == ALL_SITES]
    if own:
        caption = f"Reliability of {report.subject}, all sites together"
        blocks.append(bins.table(caption, own, folded=True))
    return Section("calibration", "How far to trust the probabilities", intro, tuple(blocks), interactive=True)


def calibration_scores(whole: list[Calibration], baselines: list[Calibration]) -> TableView:
    metrics = [declared_as(name) for name in ("ece", "brier")]
    rows = []
    for one, role in (*((one, "") for one in whole), *((one, " (baseline)") for one in baselines)):
        row = [TableCell(one.algorithm + role), TableCell(one.task)]
        for metric in metrics:
            value, (low, high) = one.score(metric.name), one.interval(metric.name)
            ends = f"rows [{number(low, 'score', metric)}, {number(high, 'score', metric)}]"
            row.append(TableCell(number(value, "score", metric), value, notes=() if math.isnan(low) else (ends,)))
        rows.append((*row, _count(one.rows)))
    heads = [Head("method", words=True), Head("task", words=True)]
    heads += [Head(table_title("score", metric)) for metric in metrics]
    return TableView(
        "Calibration over the test rows of all sites",
        (*heads, Head("test rows")),
        tuple(rows),
        reference_rows=len(baselines),
        sortable=True,
        filtered=True,
    )


def calibration_bins(report: Report) -> Facts[tuple[Calibration, int]]:
    """The points of all reliability curves."""
    return Facts(
        "calibration",
        [
            Column("task", "", lambda b: b[0].task),
            Column("algorithm", "", lambda b: b[0].algorithm),
            Column("site", "", lambda b: b[0].site or "all sites"),
            Column("predicted", "predicted", lambda b: _bin(b).predicted, lambda b: f"{100 * _bin(b).predicted:.1f} %"),
            Column("came_true", "came true", lambda b: _bin(b).came_true, lambda b: f"{100 * _bin(b).came_true:.1f} %"),
            Column("low", "", lambda b: share_interval(_bin(b).came_true, _bin(b).rows)[0]),
            Column("high", "", lambda b: share_interval(_bin(b).came_true, _bin(b).rows)[1]),
            Column("rows", "rows", lambda b: _bin(b).rows),
        ],
        [(one, place) for one in report.calibrations for place in range(len(one.bins))],
    )


def _bin(item: tuple[Calibration, int]) -> ReliabilityBin:
    return item[0].bins[item[1]]
