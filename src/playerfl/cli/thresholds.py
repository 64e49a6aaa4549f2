"""`playerfl paper thresholds`: which rule and threshold give the cuts that the paper prints."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from playerfl.cli.options import Quiet
from playerfl.errors import ConfigError

if TYPE_CHECKING:
    from playerfl.paper.thresholds import Case, Choice

THRESHOLDS_EXAMPLES = """
[bold]Examples[/bold]

  playerfl paper thresholds experiments/thresholds.toml --out results/thresholds
"""
_KEYS = {"tasks", "modes", "inits", "seeds"}

paper_app = typer.Typer(name="paper", help="Reproduce the PLayer-FL paper.", no_args_is_help=True)


@paper_app.callback()
def _paper() -> None:
    """Keeps `thresholds` a subcommand: an app with one command would run it directly."""


@paper_app.command(epilog=THRESHOLDS_EXAMPLES)
def thresholds(
    file: Annotated[Path, typer.Argument(metavar="FILE")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where cases.csv, the summary and the figure go.")],
    data_dir: Annotated[
        Path | None, typer.Option(help="Data directory; default: $PLAYERFL_DATA, else your cache.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The summary as JSON on stdout.")] = False,
    quiet: Quiet = False,
) -> None:
    """Measure one epoch for every task, mode, init and seed of FILE; find the thresholds that give the printed cuts.

    Cases that are already in DIR/cases.csv are not measured again.
    """
    from playerfl.data.download.directory import use_data_directory
    from playerfl.paper.threshold_figure import draw_thresholds
    from playerfl.paper.thresholds import CaseTable, choose, measure_missing
    from playerfl.report.plots.comparison import save
    from playerfl.runs.experiment import read_toml
    from playerfl.storage.atomic_files import RERUN_HINT, write_atomically
    from playerfl.time_left import TimeLeft, duration

    asked = _asked(read_toml(file))

    pace: TimeLeft | None = None

    def tick(done: int, total: int, what: str) -> None:
        nonlocal pace
        pace = pace or TimeLeft(total)
        seconds = pace.seconds(done)
        if what and not quiet:
            left = "" if seconds is None else f", about {duration(seconds)} left"
            typer.echo(f"{done + 1} of {total}: {what}{left}", err=True)

    with use_data_directory(data_dir):
        cases = measure_missing(**asked, table=CaseTable(out / "cases.csv"), tick=tick)
    settings = list(dict.fromkeys(case.setting for case in cases))
    found = {"by_setting": [_summary(cases, setting) for setting in settings]}
    write_atomically(out / "thresholds.json", (json.dumps(found, indent=1) + "\n").encode(), RERUN_HINT)
    for mode, init in settings:
        own = [case for case in cases if case.setting == (mode, init)]
        figure, _ = draw_thresholds(own, choose(own))
        save(figure, out / f"thresholds-{mode}-{init}.png")
    if as_json:
        typer.echo(json.dumps(found, indent=1))
    else:
        for summary in found["by_setting"]:
            _print(summary)
    typer.echo(f"tables and figures: {out}", err=True)


def _asked(table: Mapping[str, Any]) -> dict[str, Any]:
    from playerfl.studies.plan import MOST_SEEDS

    if unknown := sorted(set(table) - _KEYS):
        raise ConfigError(f"unknown key {unknown[0]!r} in the file; allowed: {', '.join(sorted(_KEYS))}")
    if not table.get("tasks"):
        raise ConfigError('tasks is missing in the file; for example tasks = [{ name = "heart" }]')
    lists = {"modes": ["running", "post_epoch"], "inits": ["default", "kaiming"], **table}
    for key in ("tasks", "modes", "inits"):
        if not isinstance(lists[key], list):
            raise ConfigError(f"{key} = {lists[key]!r} must be a list")
    seeds = table.get("seeds", 5)
    if isinstance(seeds, int) and seeds > MOST_SEEDS:
        raise ConfigError(f"seeds = {seeds} is too many; at most {MOST_SEEDS:,} can be measured")
    numbers = list(range(seeds)) if isinstance(seeds, int) else seeds
    if not isinstance(numbers, list) or not numbers or not all(isinstance(n, int) and n >= 0 for n in numbers):
        raise ConfigError(f"seeds = {seeds!r} must be a number of seeds or a list of non-negative integers")
    tasks = [_task(entry) for entry in lists["tasks"]]
    return {"tasks": tasks, "modes": lists["modes"], "inits": lists["inits"], "seeds": numbers}


def _task(entry: Any) -> dict[str, Any]:
    """A task with its printed cut and its settings by dotted name."""
    from playerfl.paper import facts as paper
    from playerfl.runs.experiment import find_task

    table = {"name": entry} if isinstance(entry, str) else entry
    if not isinstance(table, Mapping):
        raise ConfigError(f"{entry!r} in tasks must be a name, or a table with a name")
    table = dict(table)
    task = find_task(table.pop("name", ""))
    cut = table.pop("cut", None)
    if cut is None:
        if task.paper is None:
            raise ConfigError(f"the paper prints no cut for {task.name!r}; set one, as in cut = 3")
        cut = paper.protocol(task.paper)["cut"]
    return {"name": task.name, "cut": cut, "settings": dict(_dotted(table))}


def _dotted(table: Mapping[str, Any], before: str = "") -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for key, value in table.items():
        pairs += _dotted(value, f"{before}{key}.") if isinstance(value, Mapping) else [(f"{before}{key}", value)]
    return pairs


def _summary(cases: Sequence[Case], setting: tuple[str, str]) -> dict[str, Any]:
    from playerfl.paper.thresholds import RATIO_RULES, Choice, choose, common_interval, leave_one_out, share

    own = [case for case in cases if case.setting == setting]
    tasks = list(dict.fromkeys(case.task for case in own))
    out = leave_one_out(own) if len(tasks) > 1 else {}

    def of_task(task: str) -> dict[str, Any]:
        mine = [case for case in own if case.task == task]
        return {
            "task": task,
            "printed_cut": mine[0].printed,
            "seeds": len(mine),
            **{rule: _pair(common_interval(mine, rule)) for rule in RATIO_RULES},
            "max_jump_hits": sum(case.max_jump == case.printed for case in mine),
            **({"left_out": {"chosen": _told(out[task][0]), "hits": out[task][1]}} if task in out else {}),
        }

    return {
        "mode": setting[0],
        "init": setting[1],
        "tasks": [of_task(task) for task in tasks],
        "common": {rule: _pair(common_interval(own, rule)) for rule in RATIO_RULES},
        "max_jump": share(own, Choice("max_jump", None)),
        "chosen": _told(choose(own)),
        "left_out_hits": sum(hits for _, hits in out.values()) / len(out) if out else None,
    }


def _pair(interval: tuple[float, float] | None) -> list[float | None] | None:
    return None if interval is None else [interval[0], interval[1] if math.isfinite(interval[1]) else None]


def _told(choice: Choice) -> dict[str, Any]:
    if choice.threshold is None:
        return {"rule": choice.rule, "share": choice.share}
    interval = _pair((choice.low, choice.high))
    return {"rule": choice.rule, "threshold": choice.threshold, "interval": interval, "share": choice.share}


def _print(summary: Mapping[str, Any]) -> None:
    from rich.table import Table

    from playerfl.cli.tables.console import wide_console

    console = wide_console()
    title = f"Thresholds that give the printed cut at every seed ({summary['mode']}, {summary['init']} init)"
    table = Table(title=title, title_justify="left")
    table.add_column("task", no_wrap=True)
    for heading in ("printed cut", "cumulative ratio", "layer ratio", "largest jump", "left out: hits"):
        table.add_column(heading, justify="right")
    for row in summary["tasks"]:
        left_out = row.get("left_out")
        table.add_row(
            row["task"],
            str(row["printed_cut"]),
            _shown(row["cumulative_ratio"]),
            _shown(row["layer_ratio"]),
            f"{row['max_jump_hits']} of {row['seeds']}",
            f"{left_out['hits']:.0%}" if left_out else "",
        )
    common = summary["common"]
    table.add_section()
    table.add_row(
        "all tasks",
        "",
        _shown(common["cumulative_ratio"]),
        _shown(common["layer_ratio"]),
        f"{summary['max_jump']:.0%}",
        "" if summary["left_out_hits"] is None else f"{summary['left_out_hits']:.0%}",
    )
    console.print(table)
    chosen = summary["chosen"]
    threshold = f", t = {chosen['threshold']:.3g}" if "threshold" in chosen else ""
    console.print(f"best by the criterion: {chosen['rule']}{threshold}, {chosen['share']:.0%} at the printed cut\n")


def _shown(interval: Sequence[float | None] | None) -> str:
    if interval is None:
        return "none"
    low, high = interval
    return f"{low:.3g} to {'∞' if high is None else f'{high:.3g}'}"
