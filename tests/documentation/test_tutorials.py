"""The tutorials: their files, code and commands run as printed, on less data; the notebooks are the same text."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from command_line import playerfl
from documented import ROOT, blocks
from guide_figures import seeds_table
from notebooks import TUTORIALS, executed, notebook

MADE = {"benchmark-your-method.md": "runs/compare/report/report.html", "which-layers.md": "predictions.csv"}
"""What a reader has in the end."""
SMALL = {
    "rounds = 10": "rounds = 1",
    "seeds = 10": "seeds = 2",
    "tuning_seeds = 3": "tuning_seeds = 1",
    "flower demo hospitals": "flower demo hospitals --rounds 2",
}
FILES = re.compile(r"Save this as `([\w.-]+)`:\n\n```\w+\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)


def made_small(text: str) -> str:
    for words, small in SMALL.items():
        text = text.replace(words, small)
    return text


def page_of(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("name", TUTORIALS)
def test_every_step_in_one_process_runs(name: str, tmp_path: Path) -> None:
    page = page_of(name)
    shutil.copytree(ROOT / "examples" / "hospitals", tmp_path / "hospitals")
    files = dict(FILES.findall(page))
    assert files
    for file, content in files.items():
        (tmp_path / file).write_text(made_small(content))
    commands = [line for block in blocks(page, "bash") for line in block.splitlines()]
    assert len(commands) > 3
    for line in commands:
        command, *arguments = line.split()
        assert command == "playerfl"
        if arguments[0] == "flower":
            # Everything after it needs the deployment; the test of the notebook runs it.
            break
        serial = ["--backend", "serial", "-q"] if arguments[0] == "study" and "--dry-run" not in arguments else []
        output = playerfl(*arguments, *serial, cwd=tmp_path)
        assert output.returncode == 0, output.stderr


@pytest.mark.slow
def test_the_limit_cases_of_the_tutorial_hold(tmp_path: Path) -> None:
    page = page_of("benchmark-your-method.md")
    (tmp_path / "mixed_head.py").write_text(dict(FILES.findall(page))["mixed_head.py"])
    checks = next(block for block in blocks(page, "python") if "assert" in block)
    with contextlib.chdir(tmp_path):
        exec(compile(checks, "tutorial", "exec"), {})
        wrong = checks.replace('"algorithm.share": 1.0', '"algorithm.share": 0.9')
        with pytest.raises(AssertionError):
            exec(compile(wrong, "tutorial", "exec"), {})


def sources(content: dict[str, object]) -> list[tuple[str, str]]:
    return [(cell["cell_type"], "".join(cell["source"])) for cell in content["cells"]]  # type: ignore[attr-defined]


@pytest.mark.parametrize(("page", "name"), TUTORIALS.items())
def test_the_notebook_is_the_page(page: str, name: str) -> None:
    stored = json.loads((ROOT / "examples" / name).read_text(encoding="utf-8"))
    assert sources(stored) == sources(notebook(page_of(page))), "run  python tools/notebooks.py --execute"
    assert any(cell.get("outputs") for cell in stored["cells"])


@pytest.mark.system
@pytest.mark.long
@pytest.mark.parametrize("page", TUTORIALS)
def test_the_notebook_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("nbclient", reason="needs nbclient and ipykernel: pip install 'playerfl[dev]'")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    content = notebook(made_small(page_of(page)))
    for cell in content["cells"]:
        # IPython goes on after a command that has failed.
        cell["source"] = [re.sub(r"^!.*", r"\g<0>\nassert _exit_code == 0", line) for line in cell["source"]]
    shown = executed(content, tmp_path)
    outputs = [output for cell in shown["cells"] for output in cell.get("outputs", ())]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == page_of(page).count("](images/")
    assert (tmp_path / MADE[page]).is_file()


@pytest.mark.slow
def test_the_guide_shows_what_the_results_say() -> None:
    assert seeds_table() in page_of("guide.md")
