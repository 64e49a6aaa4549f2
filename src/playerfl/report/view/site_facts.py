"""Facts about single sites: scores, and gains over the baselines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from playerfl.report.compute.report import Report
from playerfl.report.compute.sites import Difference, SiteComparison, SiteRow, UnseenRow
from playerfl.report.formats import difference, number, p_text, with_unit
from playerfl.report.view.parts import NOTHING, Column, Facts, TableCell, Value, fields

_BY_CHANCE = " (may be due to chance)"


@dataclass(frozen=True)
class SiteFact:
    """One site under one algorithm and metric."""

    table: SiteComparison
    row: SiteRow

    def to(self, baseline: str) -> Difference | None:
        return self.row.to_local if baseline == "local" else self.row.to_global

    def gain(self, baseline: str, part: str) -> Value:
        gained = self.to(baseline)
        missing: dict[str, Value] = {"runs": 0, "verdict": ""}
        value: Value = getattr(gained, part) if gained else missing.get(part)
        return value

    def gain_over_rows(self, baseline: str) -> tuple[float | None, float | None]:
        """The interval over test rows."""
        gained = self.to(baseline)
        return (None, None) if gained is None else gained.rows

    @property
    def tested(self) -> TableCell:
        rows = self.row.test_rows
        return NOTHING if rows is None else TableCell(f"{rows:,}", rows)

    @property
    def constant(self) -> TableCell:
        """The score of predicting the same for every row."""
        value = self.row.baseline
        return NOTHING if value is None else TableCell(number(value, "score", self.table.declared), value)

    def shown(self, baseline: str) -> TableCell:
        """The difference, its interval and p-value."""
        gained, metric = self.to(baseline), self.table.declared
        if gained is None:
            return NOTHING
        text, low, high = (difference(x, metric) for x in (gained.value, gained.low, gained.high))
        notes = [f"runs [{low}, {high}]", p_text(gained.p)] if low else []
        if first := difference(gained.rows[0], metric):
            notes.append(f"rows [{first}, {difference(gained.rows[1], metric)}]")
        tone = "gain" if gained.value > 0 else "loss" if gained.value < 0 else ""
        return TableCell(text, gained.value, bold=gained.verdict == "loses", notes=tuple(notes), tone=tone)

    @property
    def score(self) -> TableCell:
        """The score with its interval over test rows, or why there is none."""
        row, metric = self.row, self.table.declared
        if row.undefined:
            return TableCell("–", math.nan, notes=(row.undefined,))
        low, high = (number(end, "score", metric) for end in row.rows)
        notes = () if math.isnan(row.rows[0]) else (f"rows [{low}, {high}]",)
        return TableCell(number(row.score, "score", metric), row.score, notes=notes)

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
        doubt = "" if clear else " (beyond the noise of its test rows)" if gained.beyond_rows else _BY_CHANCE
        return TableCell(words + doubt, tone="gain" if better else "loss")


def sites(report: Report, tables: Sequence[SiteComparison] | None = None) -> Facts[SiteFact]:
    """Every site of these tables (default: all)."""
    shown = report.sites if tables is None else tables
    metric = shown[0].declared if shown else report.declared
    columns: list[Column[SiteFact]] = [
        *fields("table.task", "table.algorithm", "table.metric"),
        Column("site", "site", lambda s: s.row.site, words=True),
        Column("score", metric.title + (", %" if metric.in_percent else ""), lambda s: s.row.score, lambda s: s.score),
        Column("rows_low", "", lambda s: s.row.rows[0]),
        Column("rows_high", "", lambda s: s.row.rows[1]),
        Column("undefined", "", lambda s: s.row.undefined),
    ]
    labels = {"local": report.choices.baseline_local, "global": report.choices.baseline_global}
    joining: Column[SiteFact] = Column("", "joining", lambda s: None, lambda s: s.joining, words=True)
    # What joining means to a site comes first: on a phone, later columns are out of sight.
    for baseline, label in labels.items():
        sign = " (+ is better)" if metric.lower_is_better else ""
        columns += _gain_columns(baseline, f"against {label}{sign}" if label else "")
        columns += [joining] if baseline == "local" and label else []
    known = any(fact.baseline is not None for table in shown for fact in table.rows)
    constant = report.grid.baseline_name([table.task for table in shown]).lower() if known else ""
    counted = any(row.test_rows is not None for table in shown for row in table.rows)
    columns += [
        Column("baseline", constant, lambda s: s.row.baseline, lambda s: s.constant),
        Column("test_rows", "test rows" if counted else "", lambda s: s.row.test_rows, lambda s: s.tested),
        Column("examples", "training rows", lambda s: s.row.examples, lambda s: f"{s.row.examples:,}"),
    ]
    return Facts("sites", columns, [SiteFact(table, row) for table in shown for row in table.rows])


def _gain_columns(baseline: str, title: str) -> list[Column[SiteFact]]:
    name = f"gain_on_{baseline}"
    return [
        Column(name, title, lambda s: s.gain(baseline, "value"), lambda s: s.shown(baseline)),
        Column(f"{name}_low", "", lambda s: s.gain(baseline, "low")),
        Column(f"{name}_high", "", lambda s: s.gain(baseline, "high")),
        Column(f"{name}_rows_low", "", lambda s: s.gain_over_rows(baseline)[0]),
        Column(f"{name}_rows_high", "", lambda s: s.gain_over_rows(baseline)[1]),
        Column(f"{name}_runs", "", lambda s: s.gain(baseline, "runs")),
        Column(f"{name}_p", "", lambda s: s.gain(baseline, "p")),
        Column(f"verdict_on_{baseline}", "", lambda s: s.gain(baseline, "verdict")),
    ]


def unseen(report: Report) -> Facts[UnseenRow]:
    declared = report.grid.declared
    return Facts(
        "unseen",
        [
            Column("task", "task", lambda r: r.task, words=True),
            Column("algorithm", "method", lambda r: r.algorithm, words=True),
            Column("site", "unseen site", lambda r: r.site, words=True),
            Column("metric", "metric", lambda r: r.metric, lambda r: declared[r.metric].title, words=True),
            Column(
                "value",
                "median",
                lambda r: r.value,
                lambda r: TableCell(with_unit(r.value, declared[r.metric]), r.value),
            ),
            Column("runs", "runs", lambda r: r.runs),
        ],
        report.unseen,
    )
