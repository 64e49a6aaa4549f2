"""The tables of the threshold study with a split per seed, for docs/reproduce.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from playerfl.paper.thresholds import interval_text
from reproduction.markdown import NAMES, ROOT, filled, table_of

STUDY, FOLDER = "experiments/thresholds_per_run.toml", Path("results") / "thresholds_per_run"
USUAL = ("running", "default")
MODES = {"running": "during training", "post_epoch": "after the epoch"}
INITS = {"default": "torch's initial weights", "kaiming": "kaiming-normal"}


def thresholds_part(folder: Path = ROOT / FOLDER) -> str:
    """The section; empty until the study has been run."""
    file = folder / "thresholds.json"
    if not file.is_file():
        return ""
    by_setting = {(s["mode"], s["init"]): s for s in json.loads(file.read_text(encoding="utf-8"))["by_setting"]}
    usual = by_setting[USUAL]
    seeds = sorted({task["seeds"] for task in usual["tasks"]})
    return "\n\n".join(
        [
            "### With a split per seed",
            filled(
                f"`playerfl paper thresholds {STUDY} --out {FOLDER}`: as above, but every seed divides and splits the "
                f"data anew; {' or '.join(map(str, seeds))} seeds per task. Scores during training, "
                "torch's initial weights:"
            ),
            _by_task(usual),
            table_of(
                [
                    "",
                    "common interval, ratio of layers",
                    "criterion's choice",
                    "hits",
                    "hits when held out",
                    "hits of the default",
                ],
                [
                    [
                        f"{MODES[mode]}, {INITS[init]}",
                        interval_text(setting["common"]["layer_ratio"]),
                        _choice(setting["chosen"]),
                        f"{setting['chosen']['share']:.0%}".replace("%", " %"),
                        _share(setting["left_out_hits"]),
                        _share(setting["default"]["share"]),
                    ]
                    for (mode, init), setting in by_setting.items()
                ],
            ),
            filled(verdict(usual)),
        ]
    )


def verdict(usual: dict[str, Any]) -> str:
    """Whether the default threshold stays, by the plan in experiments/README.md."""
    default, chosen = usual["default"], usual["chosen"]
    text = f"t = {default['threshold']:g} gives {_share(default['share'])} of the printed cuts, the criterion's choice "
    text += f"({_choice(chosen)}) {_share(chosen['share'])}"
    if round(default["share"], 9) >= round(chosen["share"], 9):
        return f"**By the plan written before the study, the default stays**: {text}."
    return f"**By the plan written before the study, the default is to be replaced**: {text}."


def _by_task(setting: dict[str, Any]) -> str:
    rows = [
        [
            NAMES.get(task["task"], task["task"]),
            str(task["printed_cut"]),
            interval_text(task["cumulative_ratio"]),
            interval_text(task["layer_ratio"]),
            f"{task['default_hits']} of {task['seeds']}",
            f"{task['max_jump_hits']} of {task['seeds']}",
            _share(task["left_out"]["hits"]) if "left_out" in task else "",
        ]
        for task in setting["tasks"]
    ]
    heads = ["task", "printed cut", "ratio of sensitivities, as printed", "ratio of layers"]
    return table_of([*heads, "hits of the default", "largest jump", "hits when held out"], rows)


def _choice(chosen: dict[str, Any]) -> str:
    words = {"layer_ratio": "ratio of layers", "cumulative_ratio": "ratio of sensitivities", "max_jump": "largest jump"}
    return words[chosen["rule"]] + (f", t = {chosen['threshold']:.3g}" if "threshold" in chosen else "")


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}".replace("%", " %")
