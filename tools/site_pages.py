"""The pages of the documentation that are generated: commands, settings, Python reference, and the front page.

A hook of mkdocs (mkdocs.yml). Nothing is written to the source tree, so no copy can go stale.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import typer

import playerfl
from playerfl.cli.main import app
from settings_page import settings_page

ROOT = Path(__file__).parents[1]

MODULES = {
    "playerfl.algorithms": "One class per method: its hyper-parameters, and what it does at a site and at the server.",
    "playerfl.federation.client": "What your algorithm may ask of a site.",
    "playerfl.federation.server": "What your algorithm may ask of the server.",
    "playerfl.federation.messages": "The messages between a site and the server.",
    "playerfl.layers.sensitivity": "Layer scores, and how those of many sites are combined.",
    "playerfl.layers.cut": "From scores to a cut.",
    "playerfl.layers.cut_summary": "What a cut shares, in parameters and bytes.",
    "playerfl.layers.export": "A cut in the terms of other frameworks.",
    "playerfl.probe.measure": "One measured epoch at every site.",
    "playerfl.integrations.hugging_face": "The probe inside Hugging Face's Trainer.",
    "playerfl.integrations.lightning": "The probe inside Lightning.",
    "playerfl.analysis.layer_analysis": "How layers generalise: the paper's quantities at three points in training.",
    "playerfl.analysis.figures": "Figures of these analyses.",
    "playerfl.observers.stopping": "Listeners that stop a run.",
    "playerfl.studies.collecting": "Collects all runs below a folder.",
    "playerfl.report.compute.report": "Tables, tests and rankings of the collected runs.",
    "playerfl.errors": "The errors a user can fix.",
}
"""The modules in the reference besides `playerfl` itself: those the documentation imports from, and related ones."""

_ROOT_PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}


def on_files(files: Any, config: Any) -> Any:
    """Adds the generated pages to those of docs/."""
    from mkdocs.structure.files import File

    pages = {
        "reference/commands.md": commands_page(),
        "reference/settings.md": settings_page(),
        "reference/api.md": api_page(),
        "reference/modules.md": modules_page(),
        **{page: _as_page(ROOT / file) for file, page in _ROOT_PAGES.items()},
    }
    for name, content in pages.items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links out of docs/ lead to the generated pages; a link to a file that is not on the site becomes plain text."""
    for name, page in _ROOT_PAGES.items():
        markdown = markdown.replace(f"](../{name})", f"]({page})")
    return re.sub(r"\[([^\]]+)\]\(\.\./[^)]*\)", r"\1", markdown)


def on_page_content(html: str, **_: Any) -> str:
    """The empty corner of a table is not a heading."""
    return html.replace("<th></th>", "<td></td>")


def on_post_page(output: str, **_: Any) -> str:
    """Names the search, which the theme leaves without a name for screen readers."""
    return output.replace('role="dialog"', 'role="dialog" aria-label="Search"', 1)


def _as_page(file: Path) -> str:
    """A file in the root as a page, with its links to docs/ and to other root files adjusted."""
    text = file.read_text(encoding="utf-8").replace("](docs/", "](")
    for name, page in _ROOT_PAGES.items():
        text = text.replace(f"]({name})", f"]({page})")
    return text


def commands() -> Iterator[tuple[str, Any, Any]]:
    """Every command as it is typed, with click's command and context; groups before their commands."""
    top = typer.main.get_command(app)
    yield from _below(top, typer.Context(top, info_name="playerfl"))


def _below(command: Any, context: Any) -> Iterator[tuple[str, Any, Any]]:
    yield context.command_path, command, context
    for name, child in getattr(command, "commands", {}).items():
        yield from _below(child, type(context)(child, info_name=name, parent=context))


def commands_page() -> str:
    parts = ["# Commands", f"Generated from playerfl {playerfl.__version__}; `--help` says the same."]
    for path, command, context in commands():
        depth = "##" if path.count(" ") < 2 else "###"
        usage = " ".join([path, *command.collect_usage_pieces(context)])
        parts += [f"{depth} {path}", f"```text\n{usage}\n```", inspect.cleandoc(command.help or "")]
        rows = [row for parameter in command.get_params(context) if (row := _parameter(parameter, context))]
        if rows:
            parts.append("\n".join(["| option | what it does |", "|---|---|", *rows]))
        if examples := examples_of(command):
            parts.append("```sh\n" + "\n".join(examples) + "\n```")
    return "\n\n".join(parts) + "\n"


def _parameter(parameter: Any, context: Any) -> str | None:
    record = parameter.get_help_record(context)
    if record is None or parameter.param_type_name == "argument" or "--help" in parameter.opts:
        return None
    names, words = (re.sub(r"\s+", " ", text) for text in record)
    return f"| `{names}` | {_in_table(words)} |"


def examples_of(command: Any) -> list[str]:
    """The example commands at the end of its help."""
    return [line.strip() for line in (command.epilog or "").splitlines() if line.strip().startswith("playerfl ")]


def api_page() -> str:
    """Every public name: a table of all, then each in turn."""
    names = [name for name in playerfl.__all__ if not name.startswith("__")]
    rows = [f"| [`{name}`][{_home(name)}] | {_first_sentence(getattr(playerfl, name))} |" for name in names]
    parts = ["# Python", f"All public names of `playerfl`, version {playerfl.__version__}."]
    parts.append("\n".join(["| name | what it is |", "|---|---|", *rows]))
    parts += [f"::: {_home(name)}\n    options:\n      heading_level: 2" for name in names]
    return "\n\n".join(parts) + "\n"


def _home(name: str) -> str:
    return f"{getattr(playerfl, name).__module__}.{name}"


def _first_sentence(documented: Any) -> str:
    paragraph = (inspect.getdoc(documented) or "").split("\n\n")[0].replace("\n", " ")
    return _in_table(re.split(r"(?<=[.])\s", paragraph)[0])


def _in_table(words: str) -> str:
    return words.replace("|", "\\|")


def modules_page() -> str:
    shown = {_home(name) for name in playerfl.__all__ if not name.startswith("__")}
    parts = ["# Modules", "Modules below `playerfl` that you can use directly."]
    for module, summary in MODULES.items():
        parts += [f"## {module}", summary]
        parts += [f"::: {place}" for place in _public(module) if place not in shown]
    return "\n\n".join(parts) + "\n"


def _public(module: str) -> list[str]:
    """Where its classes and functions are defined: those in `__all__`, or else those of the file, in order."""
    loaded = import_module(module)
    exported = [getattr(loaded, name) for name in getattr(loaded, "__all__", ())]
    defined = [one for name, one in vars(loaded).items() if name[0] != "_" and getattr(one, "__module__", "") == module]
    kinds = [one for one in exported or defined if (inspect.isclass(one) or inspect.isfunction(one)) and one.__doc__]
    return [f"{one.__module__}.{one.__qualname__}" for one in kinds]
