"""Tasks by name, folder, file and module."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import playerfl
from command_line import playerfl as command
from command_line import refused
from playerfl.errors import PlayerflError
from playerfl.tasks import TASKS
from playerfl.tasks.load import load_task

OWN = """
import torch
from torch import nn
import playerfl

def hospital(number):
    x = torch.randn(90, 4, generator=torch.Generator().manual_seed(number))
    return x, x[:, :2].argmax(1)

task = playerfl.own_task(lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)),
                         {"north": hospital(1), "south": hospital(2)})

def make():
    return task

def needs(argument):
    return task

def fails():
    raise ValueError("no such\\nfile")

def nothing():
    return None

number = 3
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    file = tmp_path / "mytask.py"
    file.write_text(OWN)
    return file


def test_a_bundled_name_wins_over_a_folder_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits").mkdir()
    assert load_task("digits") is TASKS["digits"]
    assert load_task("./digits").name == "./digits"


@pytest.mark.parametrize("name", ["task", "make"])
def test_a_task_or_a_function_that_makes_one(own: Path, name: str) -> None:
    loaded = load_task(f"{own}:{name}")
    assert loaded.name == f"{own}:{name}"
    assert playerfl.run(loaded.name, "fedavg", rounds=1).sites == ["north", "south"]


def test_importing_leaves_the_process_and_the_folder_as_they_were(own: Path) -> None:
    paths = list(sys.path)
    load_task(f"{own}:task")
    assert sys.path == paths
    assert "mytask" not in sys.modules
    assert [path.name for path in own.parent.iterdir()] == ["mytask.py"]


def test_a_file_is_run_once_until_it_changes(own: Path) -> None:
    counted = own.with_name("count.txt")
    own.write_text(f"with open({str(counted)!r}, 'a') as file:\n    file.write('x')\n{OWN}")
    load_task(f"{own}:task")
    load_task(f"{own}:task")
    assert counted.read_text() == "x"
    own.write_text(own.read_text() + "changed = task\n")
    load_task(f"{own}:changed")
    assert counted.read_text() == "xx"


def test_a_file_may_import_its_neighbours_but_hide_nothing(own: Path) -> None:
    own.with_name("own_neighbour.py").write_text("from mytask_source import task\n")
    own.rename(own.with_name("mytask_source.py"))
    own.with_name("torch.py").write_text("raise RuntimeError('hides torch')\n")
    try:
        assert load_task(f"{own.with_name('own_neighbour.py')}:task").name.endswith("own_neighbour.py:task")
    finally:
        sys.modules.pop("mytask_source", None)


def test_a_task_in_a_module(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (own.parent / "wards").mkdir()
    own.rename(own.parent / "wards" / "hearts.py")
    (own.parent / "wards" / "broken.py").write_text("import absent_package\n")
    monkeypatch.syspath_prepend(str(own.parent))
    assert load_task("wards.hearts:task").name == "wards.hearts:task"
    with pytest.raises(PlayerflError, match=r"there is no module wards\.lungs; install it, or give its file"):
        load_task("wards.lungs:task")
    with pytest.raises(PlayerflError, match=r"importing wards\.broken failed: ModuleNotFoundError: No module named"):
        load_task("wards.broken:task")
    with pytest.raises(PlayerflError, match=r"wards\.hearts has no 'tsk'; did you mean 'task'\?"):
        load_task("wards.hearts:tsk")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("tsk", "mytask.py has no 'tsk'; did you mean 'task'? it has fails, hospital, make, needs, nothing, task"),
        ("", "mytask.py: lacks a name; write it after the colon"),
        ("number", "mytask.py:number is of type int; it must be a playerfl.Task"),
        ("nn", "mytask.py:nn is of type module"),
        ("nothing", "mytask.py:nothing is of type NoneType"),
        ("needs", "mytask.py:needs cannot be called without arguments: missing a required argument: 'argument'"),
        ("fails", "calling mytask.py:fails failed on line 20: ValueError: no such file"),
    ],
)
def test_objects_that_are_not_tasks_are_refused_in_one_sentence(own: Path, name: str, sentence: str) -> None:
    assert sentence in refused(command("run", f"mytask.py:{name}", cwd=own.parent))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("x = 1\nimport absent_package\n", "failed on line 2: ModuleNotFoundError: No module named 'absent_package'"),
        ("x = 1\ny = (\n", "importing mytask.py failed on line 2: SyntaxError: '(' was never closed"),
        ("def f():\n    return 1 / 0\nf()\n", "failed on line 2: ZeroDivisionError: division by zero"),
        ("raise SystemExit(3)", "failed on line 1: SystemExit: 3"),
        ("assert False", "failed on line 1: AssertionError"),
        ("\0", "importing mytask.py failed"),
    ],
)
def test_a_file_that_fails_gives_one_sentence(own: Path, content: str, sentence: str) -> None:
    own.write_text(content)
    before = set(sys.modules)
    assert sentence in refused(command("run", "mytask.py:task", cwd=own.parent))
    assert not [name for name in set(sys.modules) - before if name.startswith("playerfl_own")]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("absent.py:task", "there is no file absent.py in "),
        ("mytask.py", "name the task in it, as in mytask.py:task"),
        ("digit", "unknown task 'digit'; did you mean 'digits'? allowed: "),
        ("./absent", "unknown task './absent'; allowed: "),
        ("north.csv", "north.csv is a file; give a folder with one file per site"),
        ("x" * 5000, "unknown task"),
        ("a\0b", "unknown task"),
        ("a-b:task", "unknown task 'a-b:task'"),
        (":", "unknown task ':'"),
        ("", "unknown task ''"),
    ],
)
def test_unknown_names_are_refused(own: Path, text: str, sentence: str) -> None:
    (own.parent / "north.csv").write_text("a,b\n1,2\n")
    said = refused(command("run", text, cwd=own.parent))
    assert sentence in said
    if "unknown task" in sentence:
        assert said.endswith(", or a folder, or FILE.py:NAME")


@pytest.mark.slow
def test_the_task_as_an_option(own: Path) -> None:
    run = ("run", "-a", "local", "--rounds", 1, "-q", "--out", "o")
    assert command(*run, "--task", "mytask.py:task", cwd=own.parent).returncode == 0
    assert 'task = "mytask.py:task"\n' in (own.parent / "o" / "experiment.toml").read_text()
    assert "give the task once" in refused(command("run", "digits", "--task", "synthetic", cwd=own.parent))
    assert command("run", "--resume", "o", "-q", cwd=own.parent).returncode == 0


def test_the_default_run_directory_has_a_plain_name(own: Path) -> None:
    said = command("run", f"{own}:task", "-a", "local", "--rounds", 1, "-q", cwd=own.parent)
    assert "results: runs/mytask.py-task-local-seed0-1" in said.stderr


def test_a_task_in_an_experiment_must_be_a_string(tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text("task = [3]\n")
    assert "task must be a string, not [3]" in refused(command("run", "--config", "e.toml", cwd=tmp_path))
