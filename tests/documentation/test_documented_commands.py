"""No printed command goes stale: each is checked against the command line, and run on small data."""

from __future__ import annotations

import doctest
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
from matplotlib.figure import Figure

from command_line import playerfl
from documented import ROOT, Printed, blocks, printed_commands
from playerfl.cli.main import app
from playerfl.studies.multiverse.plan import MultiversePlan
from playerfl.studies.plan import Study

PRINTED = printed_commands()
COMMAND_LINE: Any = typer.main.get_command(app)

NAMED_ONLY = {
    "playerfl run": "names the command",
    "playerfl run --open": "names an option; it opens a browser",
    "playerfl export": "names the command",
    "playerfl flower": "names a group of commands",
    "playerfl run --engine flower-simulation": "names an option; tests/flower/test_simulation.py runs it",
}
"""These parse as complete commands, but are only names in a sentence."""

NOT_RUN = {
    "make": "installs an environment; the commands of its recipe are checked against the command line below",
    "playerfl flower up": "runs until it is stopped; tests/flower/test_deployment.py runs it",
    "playerfl flower register": "needs a running server; tests/flower/test_deployment.py runs it",
    "playerfl flower unregister": "needs a running server; tests/flower/test_deployment.py runs it",
    "playerfl flower site": "needs a running server; tests/flower/test_deployment.py runs it",
    "playerfl flower jobs": "needs a site; tests/flower/test_audit.py runs it",
    "playerfl flower approve": "needs a site; tests/flower/test_audit.py runs it",
    "playerfl flower refuse": "needs a site; tests/flower/test_site_control.py decides the same way",
    "playerfl flower stop": "needs a job; tests/flower/test_audit.py and test_operating.py run it",
    "playerfl flower audit": "needs a site; tests/flower/test_audit.py runs it",
    "playerfl flower run": "needs a running server; tests/flower/test_deployment.py runs it",
    "playerfl flower status": "needs a running server; tests/flower/test_deployment.py runs it",
    "playerfl flower renew": "needs a server's directory; tests/flower/test_operating.py runs it",
    "playerfl flower doctor": "needs a server's directory; tests/flower/test_operating.py runs it",
    "playerfl flower demo": "takes minutes; tests/documentation/test_tutorials.py runs it in a notebook",
    "playerfl watch": "runs until it is stopped; tests/live runs it",
    "playerfl run FOLDER -a local -a fedavg -a fedper -a player_fl --open": "opens a browser; tests/live runs it",
    "playerfl run digits -a local -a fedavg --open": "opens a browser; tests/live runs it",
    "playerfl selftest": "tests/identities/test_selftest.py runs it",
    "playerfl data fetch": "downloads; tests/data/download/test_download.py downloads from its own server",
    "playerfl paper thresholds": "needs every dataset and minutes; tests/paper/test_thresholds.py runs a small study",
    "playerfl export --state": "needs a site of a finished job; tests/export/test_site_state.py makes one",
    "playerfl export runs/hospitals/player_fl": "tests/documentation/test_docs_use_the_model.py runs such an export",
    "playerfl predict": "needs an exported model; tests/export/test_predict.py runs it on tables and pictures",
    "playerfl study experiments/heart.toml --backend ray": "needs Ray; tests/studies/test_ray_tasks.py runs it",
}
"""What is not run, and why."""

OTHER_TESTS = {
    "docs/adapters.md": "tests/adapters/test_docs_adapters.py runs them on a small stand-in for the tweets",
    "docs/your-own-data.md": "tests/documentation/test_docs_own_data.py runs them exactly as printed",
    "docs/use-the-model.md": "tests/documentation/test_docs_use_the_model.py runs them exactly as printed",
    "docs/benchmark-your-method.md": "tests/documentation/test_tutorials.py runs them",
    "docs/which-layers.md": "tests/documentation/test_tutorials.py runs them",
}

SMALL = {
    "heart": "synthetic",
    "tweets": "synthetic",
    "fashion_mnist": "synthetic",
    "data.size=small": "data.rows=200",
    "data.alpha=0.1": "data.rows=200",
    "data.rows_per_site=500": "data.rows=200",
    "results/heart": "results/digits",
    "results/2026.1/heart": "results/2026.1/digits",
    **{
        f"results/2026.2/{task}": "results/2026.1/digits"
        for task in ("heart", "digits", "fashion_mnist", "emnist", "cifar10", "isic2019", "tweets")
    },
    "results/when_it_helps": "results/2026.1/digits",
    "results/authors-2024/heart": "results/2026.1/digits",
    "results/multiverse/heart": "runs/heart-multiverse",
    "DIR": "runs/compared",
    "FOLDER": "hospitals",
    "NAME": "digits",
    "FILE": "experiments/heart_multiverse.toml",
    "/etc/playerfl": "etc",
    "/var/lib/playerfl": "lib",
    "/data": "data",
}
"""Words of a command that are replaced so that it runs anywhere within seconds."""


def is_listed(command: Printed, names: dict[str, str]) -> bool:
    """A name in NAMED_ONLY must be the whole text, one in NOT_RUN only its beginning."""
    return command.text in names or any(name in NOT_RUN and command.text.startswith(f"{name} ") for name in names)


def understood(arguments: list[str]) -> None:
    """Parses as the command line would; a wrong option, command or value is an exception with `format_message`."""
    command: Any = COMMAND_LINE
    context, rest = command.make_context("playerfl", list(arguments), resilient_parsing=True), list(arguments)
    while hasattr(command, "commands"):
        if not rest or rest[0] == "--version":
            return
        name, command, rest = command.resolve_command(context, rest)
        group = hasattr(command, "commands")
        context = command.make_context(name, list(rest), parent=context, resilient_parsing=group)


def objection(command: Printed) -> str | None:
    """What the command line objects to; a sentence may name a command without its required arguments."""
    try:
        understood(without_redirection(command.arguments)[0])
    except Exception as problem:
        return problem.format_message() if hasattr(problem, "format_message") else repr(problem)
    return None


def without_redirection(arguments: list[str]) -> tuple[list[str], str | None]:
    if ">" not in arguments:
        return arguments, None
    at = arguments.index(">")
    return arguments[:at], arguments[at + 1]


@pytest.mark.parametrize("command", [c for c in PRINTED if c.text.startswith("playerfl ")], ids=lambda c: c.text)
def test_the_command_line_understands_it(command: Printed) -> None:
    problem = objection(command)
    if command.whole or not (problem or "").startswith("Missing "):
        assert problem is None, f"{command.place} prints  {command.text}"
    for word in command.arguments:
        if word.startswith(("experiments/", "examples/")):
            file = word.partition(":")[0]
            assert (ROOT / file).exists(), f"{command.place}: there is no {file}"


@pytest.mark.parametrize("command", [c for c in PRINTED if c.text.startswith("make ")], ids=lambda c: c.text)
def test_make_knows_the_target_and_the_command_line_its_recipe(command: Printed) -> None:
    output = subprocess.run(["make", "-n", *command.arguments], cwd=ROOT, capture_output=True, text=True)
    assert output.returncode == 0, output.stderr
    for line in re.findall(r"bin/(playerfl [^|;>&)\n]+)", output.stdout.replace("$study", "heart")):
        assert objection(Printed(line.strip(), "Makefile")) is None


def test_the_lists_name_nothing_that_is_not_printed() -> None:
    for names in (NAMED_ONLY, NOT_RUN):
        for name in names:
            assert any(is_listed(command, {name: ""}) for command in PRINTED), f"{name} is printed nowhere"


@pytest.mark.parametrize(
    "file",
    sorted(ROOT.glob("experiments/**/*.toml")),
    ids=lambda file: file.relative_to(ROOT / "experiments").as_posix(),
)
def test_study_files_are_read(file: Path) -> None:
    if file.stem.endswith("multiverse"):
        assert MultiversePlan.from_toml(file).universes
    elif not file.stem.startswith("thresholds"):
        assert Study.from_toml(file).algorithms


def test_every_study_file_is_listed() -> None:
    text = (ROOT / "experiments" / "README.md").read_text()
    assert [file.name for file in ROOT.glob("experiments/*.toml") if f"`{file.name}`" not in text] == []


def run_here() -> list[Printed]:
    listed = {**NAMED_ONLY, **NOT_RUN}
    return [
        command
        for command in PRINTED
        if command.place not in OTHER_TESTS and not is_listed(command, listed) and objection(command) is None
    ]


MODULE = """
import torch
from torch import nn


def make_model():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3), nn.Linear(3, 3))


def make_sites():
    x = torch.randn(60, 8, generator=torch.Generator().manual_seed(0))
    return {"north": (x, x[:, :3].argmax(1)), "south": (x + 0.1, x[:, :3].argmax(1))}
"""


MULTIVERSE = """
task = "synthetic"
algorithms = ["local", "fedavg"]
learning_rates = [0.1]
seeds = 2
tuning_seeds = 1
settings = { rounds = 1 }
computed = { rates = ["loss"], selection = ["by_owner", "last"], measure = ["f1", "loss"] }
"""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the documentation takes for granted: runs, a study, a module, tables."""
    place = tmp_path_factory.mktemp("reader")
    shutil.copytree(ROOT / "examples", place / "examples")
    shutil.copytree(ROOT / "examples" / "hospitals", place / "hospitals")
    shutil.copytree(ROOT / "results" / "2026.1" / "digits", place / "results" / "2026.1" / "digits")
    (place / "mymodule.py").write_text(MODULE)
    own = blocks((ROOT / "docs" / "your-own-data.md").read_text(), "python")
    (place / "mymodel.py").write_text(next(block for block in own if block.startswith("# mymodel.py")))
    (place / "experiment.toml").write_text('task = "synthetic"\nrounds = 1\n')
    median = blocks((ROOT / "docs" / "add-an-algorithm.md").read_text(), "python")[0]
    (place / "mine.py").write_text("".join(e.source for e in doctest.DocTestParser().get_examples(median)))
    (place / "experiments").mkdir()
    for file in ROOT.glob("experiments/*.toml"):
        name = tomllib.loads(file.read_text()).get("name", file.stem)
        if file.stem.endswith("multiverse"):
            (place / "experiments" / file.name).write_text(f'name = "{name}"\n{MULTIVERSE}')
            continue
        small = f'name = "{name}"\ntasks = ["synthetic"]\nalgorithms = ["local", "fedavg"]\nlearning_rates = [0.1]\n'
        (place / "experiments" / file.name).write_text(f"{small}seeds = 2\n[settings]\nrounds = 1\n")
    compared = ("run", "synthetic", "-a", "local", "-a", "fedavg", "-a", "fedprox", "-a", "player_fl", "-q", "--out")
    for out in ("runs/compared", "runs/demo"):
        assert playerfl(*compared, out, "--rounds", "2", cwd=place).returncode == 0
    for study in ("digits", "heart"):
        output = playerfl("study", f"experiments/{study}.toml", "--backend", "serial", "-q", cwd=place)
        assert output.returncode == 0, output.stderr
    many = ("multiverse", "experiments/heart_multiverse.toml", "--out", "runs/heart-multiverse", "--backend", "serial")
    assert playerfl(*many, "-q", cwd=place).returncode == 0
    for name in ("cut", "heart-cut"):
        assert playerfl("probe", "synthetic", "--out", name, "-q", cwd=place).returncode == 0
    for name in ("first", "digits-player_fl-seed0-1"):
        shutil.copytree(place / "runs" / "compared" / "player_fl", place / "runs" / name)
    return place


def made_small(arguments: list[str]) -> list[str]:
    """The same command on small data; a later option wins over an earlier one."""
    small = [SMALL.get(word, word) for word in arguments]
    match small[0]:
        case "run":
            # tests/project/test_demo.py runs digits.
            small = ["synthetic" if word == "digits" else word for word in small]
            return [*small, "-q"] if "--resume" in small else [*small, "--set", "rounds=1", "-q"]
        case "analyze":
            if "synthetic" in small:
                small += ["--set", "data.rows=60", "--set", "data.sites=2"]
            if "--drift" in small:
                small += ["--drift", "1", "--rounds", "3"]
            elif "--sweep" in small:
                small += ["--rounds", "1"]
            else:
                small += ["--rounds", "2", "--hessian", "hutchinson", "--probes", "2", "--rows", "8"]
            return [*small, *(("--seeds", "1") if "--seeds" in small else ()), "-q"]
        case "study":
            return [*small, "--backend", "serial", "-q"]
        case "multiverse":
            return small if "--dry-run" in small else [*small, "--backend", "serial", "-q"]
    return small


def not_painted(figure: Figure, file: Any, **options: object) -> None:
    if hasattr(file, "write"):
        file.write(b"a picture")
    else:
        Path(file).write_bytes(b"a picture")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised by other packages
@pytest.mark.parametrize("command", run_here(), ids=lambda c: c.text)
def test_it_runs(command: Printed, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = shutil.copytree(prepared, tmp_path / "here")
    monkeypatch.delenv("PLAYERFL_DATA", raising=False)
    # Commands run in this process: another test's module of this name may be loaded, and this one must not remain.
    monkeypatch.setitem(sys.modules, "mymodule", None)
    monkeypatch.delitem(sys.modules, "mymodule")
    # Drawing takes most of the time, and is covered by the tests of the figures.
    monkeypatch.setattr(Figure, "savefig", not_painted)
    arguments, redirected = without_redirection(command.arguments)
    if arguments[0] in ("run", "probe") and "--out" in arguments:
        shutil.rmtree(place / arguments[arguments.index("--out") + 1], ignore_errors=True)
    output = playerfl(*made_small(arguments), cwd=place)
    assert output.returncode == 0, output.stderr
    assert "Traceback" not in output.stderr
    assert output.stdout or output.stderr
    if redirected is not None:
        assert output.stdout
