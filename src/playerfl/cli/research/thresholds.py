"""`playerfl paper thresholds`: which rule and threshold give the cuts that the paper prints."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, TypedDict

import typer

from playerfl.cli.options import DataDir, Quiet, examples
from playerfl.errors import ConfigError

if TYPE_CHECKING:
    from playerfl.paper.thresholds import Case, Choice, StudyTask, ThresholdStudy

THRESHOLDS_EXAMPLES = examples("paper thresholds experiments/thresholds.toml --out results/thresholds")
_KEYS = {"tasks", "modes", "inits", "seeds"}

paper_app = typer.Typer(name="paper", help="Reproduce the PLayer-FL paper.", no_args_is_help=True)


@paper_app.callback()
def _paper() -> None:
    """Keeps `thresholds` a subcommand: typer runs the only command of an app directly."""


@paper_app.command(epilog=THRESHOLDS_EXAMPLES)
def thresholds(
    file: Annotated[Path, typer.Argument(metavar="FILE")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Directory for cases.csv, the summary and the figures.")],
    data_dir: DataDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON on stdout.")] = False,
    quiet: Quiet = False,
) -> None:
    """Measure one epoch for every task, mode, init and seed in FILE, and find thresholds that give the printed cuts.

    Cases that are already in DIR/cases.csv are not measured again.
    """
    from playerfl.data.download.directory import use_data_directory
    from playerfl.paper.threshold_figure import draw_thresholds
    from playerfl.paper.thresholds import CaseTable, choose, measure_missing
    from playerfl.report.plots.comparison import save
    from playerfl.runs.settings_table import read_toml
    from playerfl.storage.atomic_files import RERUN_HINT, write_atomically
    from playerfl.time_left import TimeLeft, duration

    study = _study(read_toml(file))
    pace: TimeLeft | None = None

    def tick(done: int, total: int, what: str) -> None:
        nonlocal pace
        pace = pace or TimeLeft(total)
        seconds = pace.seconds(done)
        if what and not quiet:
            left = "" if seconds is None else f", about {duration(seconds)} left"
            typer.echo(f"{done + 1} of {total}: {what}{left}", err=True)

    with use_data_directory(data_dir):
        cases = measure_missing(study, CaseTable(out / "cases.csv"), tick)
    by_setting: dict[tuple[str, str], list[Case]] = {}
    for case in cases:
        by_setting.setdefault((case.mode, case.init), []).append(case)
    summaries = [_summary(members) for members in by_setting.values()]
    text = json.dumps({"by_setting": summaries}, indent=1)
    write_atomically(out / "thresholds.json", f"{text}\n".encode(), RERUN_HINT)
    for (mode, init), members in by_setting.items():
        figure, _ = draw_thresholds(members, choose(members))
        save(figure, out / f"thresholds-{mode}-{init}.png")
    if as_json:
        typer.echo(text)
    else:
        for summary in summaries:
            _print(summary)
    typer.echo(f"tables and figures: {out}", err=True)


def _study(table: Mapping[str, Any]) -> ThresholdStudy:
    from playerfl.paper.thresholds import ThresholdStudy
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
    return ThresholdStudy([_task(entry) for entry in lists["tasks"]], lists["modes"], lists["inits"], numbers)


def _task(entry: Any) -> StudyTask:
    from playerfl.paper import facts as paper
    from playerfl.paper.thresholds import StudyTask
    from playerfl.tasks.load import load_task

    table = {"name": entry} if isinstance(entry, str) else entry
    if not isinstance(table, Mapping):
        raise ConfigError(f"{entry!r} in tasks must be a name, or a table with a name")
    table = dict(table)
    task = load_task(table.pop("name", ""))
    cut = table.pop("cut", None)
    if cut is None:
        if task.paper is None:
            raise ConfigError(f"the paper prints no cut for {task.name!r}; set one, as in cut = 3")
        cut = paper.protocol(task.paper)["cut"]
    return StudyTask(task.name, cut, dict(_dotted(table)))


def _dotted(table: Mapping[str, Any], before: str = "") -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for key, value in table.items():
        pairs += _dotted(value, f"{before}{key}.") if isinstance(value, Mapping) else [(f"{before}{key}", value)]
    return pairs


Interval = list[float | None] | None


class _LeftOut(TypedDict):
    """The choice made on the other tasks, and the share of this task's cases that it gets right."""

    chosen: dict[str, Any]
    hits: float


class _TaskSummary(TypedDict):
    task: str
    printed_cut: int
    seeds: int
    cumulative_ratio: Interval
    layer_ratio: Interval
    max_jump_hits: int
    default_hits: int
    left_out: NotRequired[_LeftOut]


class _Summary(TypedDict):
    """One mode and initialisation, as written to thresholds.json."""

    mode: str
    init: str
    tasks: list[_TaskSummary]
    common: dict[str, Interval]
    max_jump: float
    chosen: dict[str, Any]
    default: dict[str, Any]
    left_out_hits: float | None


def _summary(cases: Sequence[Case]) -> _Summary:
    """The cases must share mode and initialisation."""
    from playerfl.paper.thresholds import (
        RATIO_RULES,
        Choice,
        choose,
        common_interval,
        default_choice,
        leave_one_out,
        share,
    )

    by_task: dict[str, list[Case]] = {}
    for case in cases:
        by_task.setdefault(case.task, []).append(case)
    judged = leave_one_out(cases) if len(by_task) > 1 else {}
    default = default_choice(cases)
    tasks = []
    for task, members in by_task.items():
        row: _TaskSummary = {
            "task": task,
            "printed_cut": members[0].printed,
            "seeds": len(members),
            "cumulative_ratio": _ends(common_interval(members, "cumulative_ratio")),
            "layer_ratio": _ends(common_interval(members, "layer_ratio")),
            "max_jump_hits": sum(case.max_jump == case.printed for case in members),
            "default_hits": sum(case.hit(default) for case in members),
        }
        if judged:
            chosen, hits = judged[task]
            row["left_out"] = {"chosen": _choice_json(chosen), "hits": hits}
        tasks.append(row)
    return {
        "mode": cases[0].mode,
        "init": cases[0].init,
        "tasks": tasks,
        "common": {rule: _ends(common_interval(cases, rule)) for rule in RATIO_RULES},
        "max_jump": share(cases, Choice("max_jump", None)),
        "chosen": _choice_json(choose(cases)),
        "default": {"rule": default.rule, "threshold": default.threshold, "share": default.share},
        "left_out_hits": sum(hits for _, hits in judged.values()) / len(judged) if judged else None,
    }


def _ends(interval: tuple[float, float] | None) -> Interval:
    return None if interval is None else [interval[0], interval[1] if math.isfinite(interval[1]) else None]


def _choice_json(choice: Choice) -> dict[str, Any]:
    if choice.threshold is None:
        return {"rule": choice.rule, "share": choice.share}
    interval = _ends((choice.low, choice.high))
    return {"rule": choice.rule, "threshold": choice.threshold, "interval": interval, "share": choice.share}


def _print(summary: _Summary) -> None:
    from rich.table import Table

    from playerfl.cli.tables.console import wide_console
    from playerfl.paper.thresholds import interval_text

    console = wide_console()
    title = f"Thresholds that give the printed cut for every seed ({summary['mode']}, {summary['init']} init)"
    table = Table(title=title, title_justify="left")
    table.add_column("task", no_wrap=True)
    for heading in ("printed cut", "cumulative ratio", "layer ratio", "largest jump", "hits when held out"):
        table.add_column(heading, justify="right")
    for row in summary["tasks"]:
        left_out = row.get("left_out")
        table.add_row(
            row["task"],
            str(row["printed_cut"]),
            interval_text(row["cumulative_ratio"]),
            interval_text(row["layer_ratio"]),
            f"{row['max_jump_hits']} of {row['seeds']}",
            f"{left_out['hits']:.0%}" if left_out else "",
        )
    common = summary["common"]
    table.add_section()
    table.add_row(
        "all tasks",
        "",
        interval_text(common["cumulative_ratio"]),
        interval_text(common["layer_ratio"]),
        f"{summary['max_jump']:.0%}",
        "" if summary["left_out_hits"] is None else f"{summary['left_out_hits']:.0%}",
    )
    console.print(table)
    chosen = summary["chosen"]
    threshold = f", t = {chosen['threshold']:.3g}" if "threshold" in chosen else ""
    console.print(f"best by the criterion: {chosen['rule']}{threshold}, {chosen['share']:.0%} at the printed cut")
    default = summary["default"]
    console.print(f"the default: {default['rule']}, t = {default['threshold']:g}, {default['share']:.0%}\n")
