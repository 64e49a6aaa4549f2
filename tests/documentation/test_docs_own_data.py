"""docs/your-own-data.md is true: its commands, files and sentences are run exactly as printed."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

import documented
from command_line import playerfl, refused
from documented import ROOT

PAGE = (ROOT / "docs" / "your-own-data.md").read_text(encoding="utf-8")


def blocks(kind: str) -> list[str]:
    return documented.blocks(PAGE, kind)


def commands() -> list[list[str]]:
    return [shlex.split(line)[1:] for block in blocks("sh") for line in block.splitlines()]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("reader")
    shutil.copytree(ROOT / "examples", place / "examples")
    for name in ("mytask.py", "mymodel.py"):
        (script,) = (block for block in blocks("python") if block.startswith(f"# {name}"))
        (place / name).write_text(script)
    return place


@pytest.mark.slow
def test_every_command_does_what_the_page_says(place: Path) -> None:
    outputs = [playerfl(*command, *(["-q"] if command[0] == "run" else []), cwd=place) for command in commands()]
    assert [(run.returncode, run.stderr.count("Traceback")) for run in outputs] == [(0, 0)] * 7
    checked, hospitals, pressure, resumed, mine, mine_too, own_model = outputs
    (findings,) = (block for block in blocks("") if block.startswith("warning"))
    assert findings in checked.stdout
    assert (place / "hospitals-check.png").exists()
    assert "What each site gains or loses with player_fl" in hospitals.stdout
    (notes,) = (block for block in blocks("") if block.startswith("note: target"))
    assert notes in hospitals.stderr
    assert "note: kind: a number" in pressure.stderr
    assert sorted(resumed.stdout.splitlines()) == sorted(hospitals.stdout.splitlines())
    assert "Comparison" in mine.stdout
    assert "Cut after" in mine_too.stdout
    assert "What each site gains or loses with player_fl" in own_model.stdout


def test_the_table_shown_is_the_one_that_comes_with_the_project() -> None:
    (shown,) = blocks("csv")
    assert (ROOT / "examples" / "hospitals" / "north.csv").read_text().startswith(shown)


def test_the_loaders_train(capsys: pytest.CaptureFixture[str]) -> None:
    (script,) = (block for block in blocks("python") if "DataLoader" in block)
    names: dict[str, Any] = {}
    exec(compile(script, "your-own-data.md", "exec"), names)
    assert sorted(names["result"].sites) == ["north", "south"]
    assert "north" in capsys.readouterr().out


@pytest.mark.slow
def test_the_sentences_are_those_a_user_gets(tmp_path: Path) -> None:
    (block,) = (block for block in blocks("") if block.startswith("north.csv has no column"))
    header, rows = "age,dose,outcome", [f"{40 + i},{i % 7}.5,{'ab'[i % 2]}" for i in range(40)]
    whole = "\n".join([header, *rows]) + "\n"
    broken = [
        whole.replace("age,", "years,", 1),
        whole.replace("43,", "old,", 1),
        whole.replace("43,", ",", 1),
        "",
    ]
    (tmp_path / "east.csv").write_text(whole)
    for content, sentence in zip(broken, block.splitlines(), strict=True):
        (tmp_path / "north.csv").write_text(content)
        assert refused(playerfl("run", ".", cwd=tmp_path)) == f"playerfl: {sentence}"
