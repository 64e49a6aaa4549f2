"""`playerfl report`: from runs to tables, figures and one page."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from playerfl.cli.options import examples
from playerfl.wording import counted

REPORT_EXAMPLES = examples(
    "report runs/demo",
    "report runs --metric accuracy --out board.html",
    "report runs --out tables.tex",
    "report runs --format csv --out numbers --figures pdf",
    "report runs --baseline-global fedprox --json > report.json",
    "report runs --f1-labels true",
    "report runs --methods paper",
    "report runs --methods local,fedavg,player_fl",
)


class Form(StrEnum):
    html = "html"
    md = "md"
    latex = "latex"
    csv = "csv"


class Average(StrEnum):
    samples = "samples"
    uniform = "uniform"


class F1Labels(StrEnum):
    true_or_predicted = "true_or_predicted"
    true = "true"
    all = "all"


class FigureFormat(StrEnum):
    png = "png"
    svg = "svg"
    pdf = "pdf"


def report(
    directory: Annotated[Path, typer.Argument(metavar="DIR")],
    baseline_local: Annotated[
        str | None, typer.Option(metavar="NAME", help="The method that stands for training alone (default: local).")
    ] = None,
    baseline_global: Annotated[
        str | None, typer.Option(metavar="NAME", help="The method that stands for plain averaging (default: fedavg).")
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The metric to show first, such as f1, auroc or loss (default: the first that the runs name).",
        ),
    ] = None,
    form: Annotated[
        Form | None,
        typer.Option(
            "--format",
            help="html (a page), md, latex, or csv (tables); default: by the extension of --out, or else html.",
        ),
    ] = None,
    figures: Annotated[
        list[FigureFormat] | None,
        typer.Option("--figures", help="Also write the figures as files in this format; can be repeated."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="A file (.html, .md, .tex), or a folder for report.html, report.md, report.tex or tables/*.csv "
            "(default: DIR/report). Figures go into figures/ in the same folder."
        ),
    ] = None,
    client_average: Annotated[
        Average, typer.Option(help="Weight sites by their number of examples (samples), or equally (uniform).")
    ] = Average.samples,
    per_run: Annotated[
        bool, typer.Option("--per-run", help="Compute fairness and incentive per run, then take the median.")
    ] = False,
    paper: Annotated[
        bool,
        typer.Option("--paper", help="Also show what the PLayer-FL paper prints for these tasks."),
    ] = False,
    f1_labels: Annotated[
        F1Labels,
        typer.Option(
            help="The classes that macro-F1 averages over: those true or predicted at a site, the true ones, or all. "
            "Computed from the runs' confusion matrices, without training again."
        ),
    ] = F1Labels.true_or_predicted,
    methods: Annotated[
        str | None,
        typer.Option(
            metavar="paper|NAMES",
            help="Only these methods, separated by commas; paper: the 12 of the paper's tables (default: all).",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print all numbers as JSON on stdout; no report is written.")
    ] = False,
) -> None:
    """Write a report on the runs in a folder: tables, tests and figures, on one page that needs no network.

    DIR is a run directory, a comparison, a study, a multiverse, or a folder that contains any of these. Runs that have
    not finished are listed as missing; the report covers the others. The main answers are also printed, on stderr;
    stdout has the path of the report.
    """
    from playerfl.report.compute.report import build_report
    from playerfl.report.write.files import place_of, write_figures, write_report
    from playerfl.studies.collecting import collect

    place = place_of(out or directory / "report", form.value if form else None)
    computed = build_report(
        collect(directory),
        baseline_local=baseline_local,
        baseline_global=baseline_global,
        metric=metric,
        client_average=client_average.value,
        per_run=per_run,
        paper=paper,
        f1_labels=f1_labels.value,
        methods="paper" if methods == "paper" else _names(methods),
    )
    if as_json:
        from playerfl.report.compute.comparison import without_nan
        from playerfl.report.view.facts import records

        typer.echo(json.dumps(without_nan(records(computed)), indent=1))
    else:
        from playerfl.cli.tables.report import print_report

        write_report(computed, place, title_of(directory))
        print_report(computed)
        typer.echo(place.path)
    if figures:
        drawn = write_figures(computed, place.figures, [figure.value for figure in figures])
        typer.echo(f"figures: {place.figures} ({counted(len(drawn), 'file')})", err=True)
    if not (computed.grid.runs or computed.multiverses):
        typer.echo("no run has finished yet", err=True)
    for state, gaps in (("not finished", computed.missing), ("failed", computed.failed)):
        if gaps:
            typer.echo(f"runs {state}: {len(gaps)}; the report lists them", err=True)


def _names(methods: str | None) -> list[str] | None:
    return None if methods is None else [name.strip() for name in methods.split(",") if name.strip()]


def title_of(directory: Path) -> str:
    """The title of a report on this folder."""
    return f"Federated learning report: {directory.resolve().name}"
