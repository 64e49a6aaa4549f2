"""The comparison with other frameworks: the same work for all, the verdict, and that nothing is left running."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import psutil
import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def loaded(name: str, file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


# Under the names by which the script imports them.
loaded("bounds", BENCHMARKS / "bounds.py")
environments = loaded("rival_environments", BENCHMARKS / "rival_environments.py")
results = loaded("rival_table", BENCHMARKS / "rival_table.py")
rivals = loaded("rivals_benchmark", BENCHMARKS / "rivals.py")
work = loaded("rivals_work", BENCHMARKS / "rivals" / "work.py")


@pytest.mark.parametrize(("name", "parameters"), [("cnn", 98_442), ("mlp", 9_541), ("seeds", 9_541)])
def test_all_frameworks_get_the_same_rows_weights_and_batches(name: str, parameters: int) -> None:
    chosen = work.WORKS[name]
    first, second = chosen.load_sites()[-1], chosen.load_sites()[-1]
    assert torch.equal(first.test[0], second.test[0])
    assert [len(part[1]) for part in (first.train, first.validation, first.test)] == [
        chosen.rows,
        chosen.rows // 8,
        chosen.rows // 8,
    ]
    plain, tuned = chosen.build_model(3).state_dict(), chosen.build_model(3, tuned=True).state_dict()
    assert all(torch.equal(plain[entry], tuned[entry]) for entry in plain)
    assert sum(entry.numel() for entry in plain.values()) == parameters
    assert not torch.equal(plain["fc1.weight"], chosen.build_model(4).state_dict()["fc1.weight"])
    assert torch.equal(chosen.order(1, 2, 3), chosen.order(1, 2, 3))
    orders = [chosen.order(*where) for where in ((1, 2, 3), (2, 1, 3), (1, 3, 3), (1, 2, 4))]
    assert not any(torch.equal(orders[0], other) for other in orders[1:])


def test_a_comparison_is_three_methods_with_ten_seeds_each() -> None:
    chosen = work.WORKS["seeds"]
    assert len(chosen.runs) == 30 == len(set(chosen.runs))
    # The first seed is a whole comparison, for rivals that are given only that.
    assert [run.proximal for run in replace(chosen, seeds=1).runs] == [0.0, 0.1, 1.0]
    assert (chosen.warm_up, work.WORKS["mlp"].warm_up) == (chosen.rounds, 1)


@pytest.mark.slow
def test_an_epoch_takes_every_step_and_learns() -> None:
    chosen = work.WORKS["mlp"]
    sites, model = chosen.load_sites(), chosen.build_model()
    before = work.evaluate(model, sites)
    optimizer = work.adamw(model, tuned=True)
    for round_ in range(5):
        steps = work.train_epoch(model, optimizer, work.batches(chosen, sites[0].train, 0, round_))
        assert steps * chosen.sites == chosen.steps
    assert work.evaluate(model, sites) < before - 0.2


def test_the_proximal_term_pulls_back_with_its_strength() -> None:
    model = torch.nn.Linear(1, 1, bias=False)
    pull = work.proximal_term(model, 0.5)
    with torch.no_grad():
        model.weight += 3.0
    pull().backward()
    assert pull().item() == pytest.approx(0.5 / 2 * 3.0**2)
    assert model.weight.grad is not None
    assert model.weight.grad.item() == pytest.approx(0.5 * 3.0)


def row(title: str, cpu: float, rival: str | None = None, flags: tuple[str, ...] = (), **found: object) -> object:
    run = results.Measured(1.0, cpu, 1.0, 1.0, "1", **{"losses": ((1.5, 0.5),), "steps": 7, **found})
    contender = results.Contender(title, "run.py", Path(), flags, rival)
    return results.Row(contender, [run], [cpu], [cpu])


def field(**cpu: float) -> list[object]:
    plain = [row(name, seconds, name) for name, seconds in cpu.items()]
    tuned = [row(f"{name}, tuned", seconds * 0.5, name, results.TUNED) for name, seconds in cpu.items()]
    return [row("playerfl", 1.0), *plain, *tuned]


def test_the_verdict_compares_each_rival_with_its_goal(capsys: pytest.CaptureFixture[str]) -> None:
    assert results.verdict("mlp", field(slow=3.0, close=2.0))
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("mlp: close, processor time relative to playerfl's ")
    assert lines[1].endswith("at least 2.00  ok")
    assert "  2.00  (wall 2.00)" in lines[1]
    assert lines[3].startswith("mlp: close, tuned, ")
    assert lines[3].endswith("at least 1.00  ok")


@pytest.mark.parametrize(
    ("work_", "close", "broken"), [("mlp", 1.9, 2), ("cnn", 1.9, 1), ("cnn", 2.0, 0), ("seeds", 7.9, 1)]
)
def test_one_rival_within_the_goal_is_enough_to_break_it(
    work_: str, close: float, broken: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert results.verdict(work_, field(slow=30.0, close=close)) == (broken == 0)
    assert capsys.readouterr().out.count("BROKEN") == broken


def test_a_rival_that_could_not_be_measured_is_not_beaten(capsys: pytest.CaptureFixture[str]) -> None:
    rows = field(slow=30.0, gone=20.0)
    rows[2].problem = "cannot be installed"  # type: ignore[attr-defined]
    assert not results.verdict("mlp", rows)
    assert "no result" in capsys.readouterr().out.splitlines()[1]
    assert "| gone | cannot be installed |" in results.table(rows)


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ({"losses": ((1.501, 0.51),)}, ""),
        ({"losses": ((1.501,),)}, ""),
        ({"steps": 6}, "took 6 steps"),
        ({"losses": ((1.51, 0.5),)}, "validation loss 1.5100 after the first round"),
        ({"losses": ((1.5, 0.53),)}, "validation loss 0.5300 after the last round"),
        ({"losses": ((1.5, 0.5), (1.5, 0.53))}, "validation loss 0.5300 after the last round"),
    ],
    ids=["same", "fewer-rounds", "steps", "first-loss", "last-loss", "second-run"],
)
def test_a_rival_must_learn_what_the_bare_loop_learns(found: dict[str, object], text: str) -> None:
    bare = row("bare loop", 1.0, losses=((1.5, 0.5), (1.5, 0.5)))
    problem = results.not_the_same(row("slow", 2.0, "slow", **found), bare)
    assert problem.startswith(text)
    assert bool(problem) == bool(text)


def test_slow_rivals_do_less_and_only_once() -> None:
    pythons = {"pfl": Path("python"), "nvflare": Path("python")}
    rows = rivals.contenders("seeds", pythons, {})
    assert [(r.contender.title, r.contender.flags, r.contender.once) for r in rows[2:]] == [
        ("pfl", (), False),
        ("nvflare", ("--seeds", "1"), True),
    ]
    quick = rivals.contenders("mlp", pythons, {}, quick=True)
    assert [r.contender.title for r in quick[2:]] == ["pfl", "pfl, tuned", "nvflare"]


def test_a_missing_clone_is_explained() -> None:
    text = environments.how_to_get("pfllib")
    assert "git clone --depth 1 https://github.com/TsingZ0/PFLlib" in text
    assert "PFLLIB=DIR" in text


@pytest.mark.system
@pytest.mark.parametrize("name", ["playerfl", *environments.RIVALS])
def test_every_framework_takes_the_steps_of_the_bare_loop(name: str) -> None:
    """Three rounds of the small work, with what is installed."""
    flags: tuple[str, ...] = ("--rounds", "3")
    python = Path(sys.executable)
    if name in environments.RIVALS:
        python = environments.ENVIRONMENTS / name / "bin" / "python"
        if not (environments.ENVIRONMENTS / name / ".complete").is_file():
            pytest.skip(f"{name} is not installed; `make bench-rivals` installs it")
        if environments.RIVALS[name].repository:
            if name.upper() not in os.environ:
                pytest.skip(f"{name}: {environments.how_to_get(name)}")
            flags += ("--source", os.environ[name.upper()])
    core = max(os.sched_getaffinity(0))
    bare = results.Contender("bare loop", "run_bare.py", Path(sys.executable), ("--rounds", "3"))
    other = results.Contender(name, f"run_{name}.py", python, flags, None if name == "playerfl" else name)
    rows = [results.Row(contender, [rivals.measure(contender, "mlp", core)]) for contender in (bare, other)]
    assert results.not_the_same(rows[1], rows[0]) == ""
    assert len(rows[1].runs[0].losses[0]) == 3


@pytest.mark.system
def test_what_a_run_leaves_behind_is_ended() -> None:
    orphan = "import subprocess, sys, time; print(subprocess.Popen(['sleep', '60']).pid, flush=True); time.sleep(1)"
    process = subprocess.Popen([sys.executable, "-c", orphan], stdout=subprocess.PIPE)
    assert process.stdout
    with process.stdout:
        number = int(process.stdout.readline())
        assert rivals._watched(process, time.monotonic() + 30) > 0
    assert not psutil.pid_exists(number) or psutil.Process(number).status() == psutil.STATUS_ZOMBIE
