"""Who gains and who loses, over all methods: every site's mean gain over training alone."""

from __future__ import annotations

from playerfl.report.compute.report import Report
from playerfl.report.compute.sites import MeanGain, MethodGains
from playerfl.report.formats import difference, small
from playerfl.report.view.parts import NOTHING, Column, Facts, Head, TableCell, TableView, fields

# With more sites, documents show only how many gain and lose.
_MOST_SITES = 8


def gains(report: Report) -> Facts[tuple[MethodGains, MeanGain]]:
    """For CSV and JSON: a record per task, method, metric and site."""
    return Facts(
        "mean_gains",
        [
            Column("task", "", lambda g: g[0].task),
            Column("algorithm", "", lambda g: g[0].algorithm),
            Column("metric", "", lambda g: g[0].metric),
            Column("runs", "", lambda g: g[0].runs),
            *(Column(column.key, "", lambda g, of=column.value: of(g[1])) for column in _OF_A_SITE),  # type: ignore[misc]
        ],
        [(one, site) for metric in report.grid.metrics for one in report.method_gains(metric) for site in one.sites],
    )


_OF_A_SITE = fields("site", "value", "low", "high", "clear", "ahead")


def gains_view(report: Report, task: str, metric: str) -> TableView | None:
    """The methods on a task, and how many sites each leaves better and worse off; None without a baseline."""
    methods = [one for one in report.method_gains(metric) if one.task == task]
    if not methods:
        return None
    sites = [site.site for site in methods[0].sites]
    shown = sites if len(sites) <= _MOST_SITES else []
    counts = ("sites that gain", "sites that lose", "better off, sites x runs")
    unit = ", points" if methods[0].declared.in_percent else ""
    rows = [
        (
            TableCell(one.algorithm),
            *(_cell(site, one) for site in one.sites if shown),
            TableCell(str(one.better), one.better),
            TableCell(str(one.worse), one.worse),
            TableCell(f"{one.ahead} of {len(one.sites) * one.runs}", one.ahead),
        )
        for one in methods
    ]
    remark = (
        f"The mean over {methods[0].runs} runs of {small(methods[0].declared.title)} minus that of "
        f"{report.choices.baseline_local} in the same run{unit}; positive is better for the site. Bold: the 95 % "
        "bootstrap interval over runs excludes 0 (not corrected for the number of sites and methods)."
    )
    if report.grid.redraws_sites(task):
        remark += " Every run draws its own sites, so a column is a different site in every run."
    return TableView(
        f"What every method means for the sites of {task}",
        (Head("method", words=True), *map(Head, shown), *map(Head, counts)),
        tuple(rows),
        remark=remark,
        metric=metric,
        name="mean_gains",
        sortable=True,
        filtered=True,
    )


def _cell(site: MeanGain, method: MethodGains) -> TableCell:
    text = difference(site.value, method.declared)
    tone = "gain" if site.value > 0 else "loss" if site.value < 0 else ""
    return TableCell(text, site.value, bold=site.clear, tone=tone) if text else NOTHING
