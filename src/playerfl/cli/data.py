"""`playerfl data`: checks your data; lists, downloads and plots datasets."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

import typer

from playerfl.cli.options import DataDir, Json, Quiet, examples

if TYPE_CHECKING:
    from rich.progress import TaskID

    from playerfl.data.check.result import DataCheck
    from playerfl.data.download.sources import Source
    from playerfl.runs.experiment import Experiment
    from playerfl.tasks.task import Task

data_app = typer.Typer(
    name="data",
    help="Check your data; list, fetch and plot datasets.",
    epilog=examples("data check ./hospitals", "data list", "data fetch heart"),
    no_args_is_help=True,
    rich_markup_mode="rich",
)

_SECONDS_BETWEEN_LINES = 5.0
_MOST_TRIED_CELLS = 5_000_000
_CELLS_PER_IMAGE = 1_000


@data_app.command(
    name="list",
    epilog=examples("data list", "data list --data-dir /data --json"),
)
def list_(
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """List all datasets: whether they are present, their size and licence, and where to get them."""
    from playerfl.data.download.directory import data_directory, use_data_directory
    from playerfl.data.download.sources import SOURCES

    with use_data_directory(data_dir):
        directory = str(data_directory())
        datasets = [_described(source) for source in SOURCES.values()]
    if as_json:
        typer.echo(json.dumps({"directory": directory, "datasets": datasets}, indent=1))
    else:
        _print_table(directory, datasets)


class DatasetRow(TypedDict):
    """One dataset in the list."""

    name: str
    about: str
    present: bool
    folder: str
    bytes: int | None
    """On disk, if present."""
    download_bytes: int | None
    licence: str
    page: str
    commands: list[str]
    by_hand: str


def _described(source: Source) -> DatasetRow:
    place = source.place()
    return {
        "name": source.name,
        "about": source.about,
        "present": place is not None,
        "folder": str(place or source.home),
        "bytes": None if place is None else sum(p.stat().st_size for p in place.rglob("*") if p.is_file()),
        "download_bytes": sum(file.size for file in source.files) or None,
        "licence": source.licence,
        "page": source.page,
        "commands": source.commands,
        "by_hand": source.instructions,
    }


def _print_table(directory: str, datasets: list[DatasetRow]) -> None:
    from rich.filesize import decimal
    from rich.markup import escape
    from rich.table import Table

    from playerfl.cli.tables.console import wide_console

    table = Table(show_lines=True)
    for heading in ("dataset", "present", "size"):
        table.add_column(heading, no_wrap=True)
    table.add_column("licence, and where the data are or how to get them", overflow="fold")
    for dataset in datasets:
        size = dataset["bytes"] if dataset["present"] else dataset["download_bytes"]
        if dataset["present"]:
            where = [f"in {dataset['folder']}", dataset["page"]]
        else:
            where = [*dataset["commands"], dataset["page"]] if dataset["commands"] else [dataset["by_hand"]]
        table.add_row(
            dataset["name"],
            "[green]yes[/green]" if dataset["present"] else "no",
            "" if size is None else decimal(size),
            escape("\n".join([f"licence: {dataset['licence']}", *where])),
        )
    console = wide_console()
    console.print(table)
    console.print("Sizes are those on disk, or those of the download if the dataset is not present.")
    console.print(f"Data directory: {escape(directory)}", soft_wrap=True)


@data_app.command(
    epilog=examples("data fetch heart", "data fetch cifar10 --data-dir /data", "data fetch isic2019 --hub"),
)
def fetch(
    name: Annotated[str, typer.Argument()],
    data_dir: DataDir = None,
    hub: Annotated[
        bool,
        typer.Option(
            "--hub",
            help="Download from the Hugging Face Hub instead; the files are then not checked against known hashes.",
        ),
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Download a dataset from its official source into the data directory and check it.

    NAME is a dataset from `playerfl data list`. Run the same command again to resume an interrupted download.
    """
    from playerfl.data.download.directory import use_data_directory
    from playerfl.data.download.fetch import fetch as fetch_dataset
    from playerfl.data.download.sources import source_of

    with use_data_directory(data_dir), _shown(quiet=quiet) as progress:
        source = source_of(name)
        place = fetch_dataset(name, progress, hub=hub)
    typer.echo(f"licence of {name}: {source.licence}, see {source.page}", err=True)
    typer.echo(place)


@contextmanager
def _shown(*, quiet: bool) -> Iterator[Callable[[str, int, int | None], None] | None]:
    """A progress bar per file on a terminal, a line every few seconds otherwise; always on stderr."""
    if quiet:
        yield None
        return
    if not sys.stderr.isatty():
        yield _lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[str, TaskID] = {}

        def show(file: str, done: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = bars.add_task(file, total=total)
            bars.update(tasks[file], completed=done, total=total)

        yield show


def _lines() -> Callable[[str, int, int | None], None]:
    last: dict[str, float] = {}

    def show(file: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        if done == total or now - last.setdefault(file, now) >= _SECONDS_BETWEEN_LINES:
            last[file] = now
            typer.echo(f"{file}: {done:,}" + (f" of {total:,} bytes" if total else " bytes"), err=True)

    return show


@data_app.command(
    epilog=examples("data plot digits", "data plot fashion_mnist --set data.alpha=0.1 --out skewed.png"),
)
def plot(
    task: Annotated[str, typer.Argument()],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Figure file: .png, .svg or .pdf (default: TASK-sites.png).")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Data settings, e.g. data.alpha=0.1; can be repeated."),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Plot how many examples of each class every site has.

    TASK is any task that `playerfl run` accepts.
    """
    from playerfl.data.download.directory import use_data_directory
    from playerfl.data.sites import describe
    from playerfl.errors import ConfigError
    from playerfl.runs.experiment import Experiment
    from playerfl.runs.settings_table import with_settings
    from playerfl.tasks.load import load_task

    try:
        from playerfl.report.plots.comparison import partition_figure, save
    except ImportError as problem:
        raise ConfigError("figures need matplotlib; pip install 'playerfl[report]'") from problem
    chosen = load_task(task)
    options = Experiment.resolve(with_settings({"task": task}, settings or []), chosen).data_options(chosen)
    with use_data_directory(data_dir):
        if not chosen.for_options(options).classification:
            raise ConfigError(f"the targets of {task} are numbers, not classes, so there is nothing to count")
        sites = describe(chosen.load_sites(options), classification=True)
    figure, _ = partition_figure(sites, task)
    target = out or Path(f"{Path(task).name.partition(':')[0]}-sites.png")
    typer.echo(save(figure, target))
    for note in sites["notes"]:
        typer.echo(f"note: {note}", err=True)


@data_app.command(
    epilog=examples("data check ./hospitals", "data check ./hospitals --set data.group=patient --strict"),
)
def check(
    task: Annotated[str, typer.Argument()],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Figure file: .png, .svg or .pdf (default: TASK-check.png).")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Data settings, e.g. data.target=outcome; can be repeated."),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with an error if there are warnings.")] = False,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Check the sites' data before training: classes, units, codes, duplicates, columns that give the target away.

    TASK is a folder with one file per site, or any other task that `playerfl run` accepts. Problems that stop training
    give exit code 1; warnings do so with --strict. With --json, a figure is drawn only if --out names one.
    """
    from playerfl.data.download.directory import use_data_directory
    from playerfl.runs.experiment import Experiment
    from playerfl.runs.settings_table import with_settings
    from playerfl.tasks.check import check_task
    from playerfl.tasks.load import load_task

    chosen = load_task(task)
    experiment = Experiment.resolve(with_settings({"task": task}, settings or []), chosen)
    with use_data_directory(data_dir):
        checked = check_task(chosen, experiment.data_options(chosen), experiment.training.batch_size)
        # Other tasks may have models that are slow to build.
        if chosen.check is not None and not checked.having("stop"):
            _try_setup(checked, experiment, chosen)
    if as_json:
        typer.echo(json.dumps(checked.as_dict(), indent=1))
    else:
        from playerfl.cli.tables.data_check import print_check

        print_check(checked)
    if checked.rows and (out is not None or not as_json):
        _draw_check(checked, out, Path(f"{Path(task).resolve().name.partition(':')[0]}-check.png"))
    if checked.having("stop") or (strict and checked.having("warning")):
        raise typer.Exit(1)


def _try_setup(checked: DataCheck, experiment: Experiment, task: Task) -> None:
    """Prepares a run without training, so that what a run would refuse is reported here too."""
    from playerfl.errors import PlayerflError
    from playerfl.runs.setup import prepare_setup

    cells = sum(checked.rows.values()) * max(1, len(checked.columns) or _CELLS_PER_IMAGE)
    if cells > _MOST_TRIED_CELLS:
        checked.add("note", "sample", "too much data to prepare the inputs and the model as a run would")
        return
    try:
        prepare_setup(experiment, task)
    except PlayerflError as problem:
        checked.add("stop", "training", str(problem))


def _draw_check(checked: DataCheck, out: Path | None, default: Path) -> None:
    from playerfl.errors import ConfigError

    try:
        from playerfl.report.plots.comparison import save
        from playerfl.report.plots.data_check import check_figure
    except ImportError as problem:
        if out is not None:
            raise ConfigError("figures need matplotlib; pip install 'playerfl[report]'") from problem
        typer.echo("no figure was drawn: matplotlib is missing; pip install 'playerfl[report]'", err=True)
        return
    figure, _ = check_figure(checked.as_dict())
    typer.echo(f"figure: {save(figure, out or default)}", err=True)
