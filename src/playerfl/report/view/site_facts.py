"""Facts about single sites: scores, and gains over the baselines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from playerfl.report.compute.report import Report
from playerfl.report.compute.sites import Difference, SiteRow, SiteTable, UnseenRow
from playerfl.report.formats import difference, in_percent, metric_name, number, p_said, with_unit
from playerfl.report.view.parts import NOTHING, Column, Facts, TableCell, Value, fields


@dataclass(frozen=True)
class SiteFact:
    """One site under one algorithm and metric."""

    table: SiteTable
    row: SiteRow

    def to(self, baseline: str) -> Difference | None:
        return self.row.to_local if baseline == "local" else self.row.to_global

    def gain(self, baseline: str, part: str) -> Value:
        gained = self.to(baseline)
        missing: dict[str, Value] = {"runs": 0, "verdict": ""}
        value: Value = getattr(gained, part) if gained else missing.get(part)
        return value

    def shown(self, baseline: str) -> TableCell:
        """The difference, its interval and p-value."""
        gained, metric = self.to(baseline), self.table.metric
        if gained is None:
            return NOTHING
        text, low, high = (difference(x, metric) for x in (gained.value, gained.low, gained.high))
        notes = (f"[{low}, {high}]", p_said(gained.p)) if low else ()
        tone = "gain" if gained.value > 0 else "loss" if gained.value < 0 else ""
        return TableCell(text, gained.value, bold=gained.verdict == "loses", notes=notes, tone=tone)

    @property
    def joining(self) -> TableCell:
        """What joining the federation means for this site, in words."""
        gained = self.row.to_local
        if gained is None:
            return TableCell("–")
        if gained.value == 0:
            return TableCell("no difference")
        better, clear = gained.value > 0, gained.verdict != "unclear"
        words = ("gains" if better else "harmed by joining") if clear else ("better" if better else "worse")
        return TableCell(words + ("" if clear else " (may be due to chance)"), tone="gain" if better else "loss")


def sites(report: Report, tables: Sequence[SiteTable] | None = None) -> Facts[SiteFact]:
    """Every site of these tables (default: all)."""
    shown = report.sites if tables is None else tables
    metric = shown[0].metric if shown else report.metric
    columns: list[Column[SiteFact]] = [
        *fields("table.task", "table.algorithm", "table.metric"),
        Column("site", "site", lambda s: s.row.site, words=True),
        Column("examples", "examples", lambda s: s.row.examples, lambda s: f"{s.row.examples:,}"),
        Column(
            "score",
            metric_name(metric) + (", %" if in_percent(metric) else ""),
            lambda s: s.row.score,
            lambda s: number(s.row.score, "score", s.table.metric),
        ),
    ]
    labels = {"local": report.choices.baseline_local, "global": report.choices.baseline_global}
    for baseline, label in labels.items():
        columns += _gain_columns(baseline, f"against {label}" if label else "")
    if report.choices.baseline_local:
        columns.append(Column("", "joining", lambda s: None, lambda s: s.joining, words=True))
    return Facts("sites", columns, [SiteFact(table, row) for table in shown for row in table.rows])


def _gain_columns(baseline: str, title: str) -> list[Column[SiteFact]]:
    name = f"gain_on_{baseline}"
    return [
        Column(name, title, lambda s: s.gain(baseline, "value"), lambda s: s.shown(baseline)),
        Column(f"{name}_low", "", lambda s: s.gain(baseline, "low")),
        Column(f"{name}_high", "", lambda s: s.gain(baseline, "high")),
        Column(f"{name}_runs", "", lambda s: s.gain(baseline, "runs")),
        Column(f"{name}_p", "", lambda s: s.gain(baseline, "p")),
        Column(f"verdict_on_{baseline}", "", lambda s: s.gain(baseline, "verdict")),
    ]


def unseen(report: Report) -> Facts[UnseenRow]:
    return Facts(
        "unseen",
        [
            Column("task", "task", lambda r: r.task, words=True),
            Column("algorithm", "method", lambda r: r.algorithm, words=True),
            Column("site", "unseen site", lambda r: r.site, words=True),
            Column("metric", "metric", lambda r: r.metric, lambda r: metric_name(r.metric), words=True),
            Column("value", "median", lambda r: r.value, lambda r: TableCell(with_unit(r.value, r.metric), r.value)),
            Column("runs", "runs", lambda r: r.runs),
        ],
        report.unseen,
    )
