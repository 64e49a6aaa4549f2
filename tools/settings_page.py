"""The reference of settings, generated from the classes that define them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from playerfl.algorithms import ALGORITHMS
from playerfl.cli.tables.catalogue import TABLES
from playerfl.runs.experiment import Experiment, MergeOptions, TrainingOptions
from playerfl.runs.settings import QUESTIONS, Setting, settings_of
from playerfl.studies.plan import Study
from playerfl.tasks import TASKS
from playerfl.tasks.folder import folder_task
from playerfl.tasks.task import DataOptions

_INTRODUCTION = """# Settings

Every setting of a run and of a study, generated from the code. `playerfl list settings` prints the first two tables.

Set one with `--set KEY=VALUE` on the command line, or in an experiment file (TOML), where the part before the dot is a
table:

```toml
task = "digits"
rounds = 30

[algorithm]
name = "player_fl"
threshold = 5.0

[training]
learning_rate = 0.001
```

An unknown name or a value that is not allowed ends in one sentence, before anything trains. Defaults are those of the
setting itself; a task may have better ones for its data, and a run records what it used in its `experiment.toml`.

The last column says which question of a study the setting touches:
"""


def settings_page() -> str:
    questions = "\n".join(f"- **{key}**: {question}" for key, question in QUESTIONS.items())
    parts = [_INTRODUCTION.strip(), questions]
    for title, about, settings in sections():
        parts += [title, about, _table(settings)]
    return "\n\n".join(part for part in parts if part) + "\n"


def sections() -> Iterator[tuple[str, str, list[Setting]]]:
    """Heading, a sentence, and the settings, each of them in one section only."""
    yield "## The run", "", settings_of(Experiment, leave_out=TABLES[1:])
    yield "## `[training]`", "How every site trains.", settings_of(TrainingOptions, "training")
    yield "## `[merge]`", "How uploads become one model.", settings_of(MergeOptions, "merge")
    yield from _data_sections()
    yield from _algorithm_sections()
    about = "A study plans many runs; see [studies](../studies.md). Its `[settings]` take everything above."
    yield "## A study file", about, settings_of(Study, "study")


def _data_sections() -> Iterator[tuple[str, str, list[Setting]]]:
    """A section for every class of options with settings of its own, with the tasks that have them."""
    users: dict[type, list[str]] = {}
    for name, task in (*TASKS.items(), ("a folder of your own", folder_task("."))):
        for base in reversed(task.options.__mro__):
            if issubclass(base, DataOptions) and base.__annotations__:
                users.setdefault(base, []).append(name)
    for kind, tasks in users.items():
        declared = [s for s in settings_of(kind, "data") if s.name.partition(".")[2] in kind.__annotations__]
        if declared:
            title = "every task" if kind is DataOptions else ", ".join(tasks)
            yield f"## `[data]` of {title}", (kind.__doc__ or "").splitlines()[0], declared


def _algorithm_sections() -> Iterator[tuple[str, str, list[Setting]]]:
    known: dict[Setting, str] = {}
    for name, kind in ALGORITHMS.items():
        settings = settings_of(kind, "algorithm")
        added = [setting for setting in settings if setting not in known]
        others = sorted({known[setting] for setting in settings if setting in known})
        about = (kind.__doc__ or "").splitlines()[0]
        if others:
            about += f" {'Further settings' if added else 'Its settings'} are those of {' and '.join(others)}."
        if settings:
            yield f"## `[algorithm]` {name}", about, added
        known |= dict.fromkeys(added, f"`{name}`")


def _table(settings: list[Setting]) -> str:
    if not settings:
        return ""
    rows = [
        f"| `{s.name}` | {_cell(s.meaning)} | {_cell(_values(s))} | {_cell(_default(s))} | {s.question} |"
        for s in settings
    ]
    return "\n".join(["| setting | meaning | values | default | question |", "|---|---|---|---|---|", *rows])


def _values(setting: Setting) -> str:
    kind = re.sub(r'"[^"]*"', r"`\g<0>`", setting.kind)
    return f"{kind}; {setting.allowed}" if setting.allowed else kind


def _default(setting: Setting) -> str:
    return setting.default_text if setting.default in ("required", None) else f"`{setting.default_text}`"


def _cell(words: str) -> str:
    return words.replace("|", "\\|").replace('"required"', "required")
