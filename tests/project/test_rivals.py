"""The comparison with other frameworks: the shared work, the verdict, and that nothing is left running."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import time
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


work = loaded("rivals_work", BENCHMARKS / "rivals" / "work.py")
rivals = loaded("rivals_benchmark", BENCHMARKS / "rivals.py")


@pytest.mark.parametrize("name", ["cnn", "mlp"])
def test_all_frameworks_get_the_same_rows_weights_and_batches(name: str) -> None:
    chosen = work.WORKS[name]
    first, second = chosen.load_sites()[-1], chosen.load_sites()[-1]
    assert torch.equal(first.test[0], second.test[0])
    assert [len(part[1]) for part in (first.train, first.validation, first.test)] == [
        chosen.rows,
        chosen.rows // 8,
        chosen.rows // 8,
    ]
    plain, tuned = chosen.build_model().state_dict(), chosen.build_model(tuned=True).state_dict()
    assert all(torch.equal(plain[entry], tuned[entry]) for entry in plain)
    assert torch.equal(chosen.order(1, 2), chosen.order(1, 2))
    assert not torch.equal(chosen.order(1, 2), chosen.order(2, 1))


@pytest.mark.slow
def test_an_epoch_takes_every_step_and_learns() -> None:
    chosen = work.WORKS["mlp"]
    sites, model = chosen.load_sites(), chosen.build_model()
    before = work.evaluate(model, sites)
    optimizer = work.adamw(model, tuned=True)
    for round_ in range(5):
        assert work.train_epoch(model, optimizer, work.batches(chosen, sites[0].train, 0, round_)) == 7
    assert work.evaluate(model, sites) < before - 0.2


def row(title: str, cpu: float, rival: str | None = None, flags: tuple[str, ...] = (), **found: object) -> object:
    run = rivals.Measured(1.0, cpu, 1.0, 1.0, "1", **{"losses": (1.5, 0.5), "steps": 7, **found})
    contender = rivals.Contender(title, "run.py", Path(), flags, rival)
    return rivals.Row(contender, [run], [cpu], [cpu])


def field(**cpu: float) -> list[object]:
    plain = [row(name, seconds, name) for name, seconds in cpu.items()]
    tuned = [row(f"{name}, tuned", seconds * 0.9, name, rivals.TUNED) for name, seconds in cpu.items()]
    return [row("playerfl", 1.0), *plain, *tuned]


def test_the_verdict_names_the_closest_rival() -> None:
    ahead, said = rivals.verdict("mlp", field(slow=3.0, close=1.5))
    assert ahead
    assert "ahead of every rival by a factor of at least 1.50 (close;" in said
    assert "tuned by hand by a factor of at least 1.35 (close;" in said


def test_one_rival_in_front_is_enough_to_lose() -> None:
    ahead, said = rivals.verdict("mlp", field(slow=3.0, close=0.9))
    assert not ahead
    assert "NOT ahead" in said


def test_a_rival_that_could_not_be_measured_is_not_beaten() -> None:
    rows = field(slow=3.0, gone=2.0)
    rows[2].problem = "cannot be installed"  # type: ignore[attr-defined]
    ahead, said = rivals.verdict("mlp", rows)
    assert not ahead
    assert said.endswith("no result for gone")
    assert "| gone | cannot be installed |" in rivals.table(rows)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"losses": (1.501, 0.51)}, ""),
        ({"steps": 6}, "took 6 steps"),
        ({"losses": (1.51, 0.5)}, "validation loss 1.5100 after the first round"),
        ({"losses": (1.5, 0.53)}, "validation loss 0.5300 after the last round"),
    ],
    ids=["same", "steps", "first-loss", "last-loss"],
)
def test_a_rival_must_learn_what_the_bare_loop_learns(found: dict[str, object], said: str) -> None:
    assert rivals.not_the_same(row("slow", 2.0, "slow", **found), row("bare loop", 1.0)).startswith(said)
    assert bool(rivals.not_the_same(row("slow", 2.0, "slow", **found), row("bare loop", 1.0))) == bool(said)


@pytest.mark.system
def test_what_a_run_leaves_behind_is_ended() -> None:
    orphan = "import subprocess, sys, time; print(subprocess.Popen(['sleep', '60']).pid, flush=True); time.sleep(1)"
    process = subprocess.Popen([sys.executable, "-c", orphan], stdout=subprocess.PIPE)
    assert process.stdout
    with process.stdout:
        number = int(process.stdout.readline())
        assert rivals._watched(process, time.monotonic() + 30) > 0
    assert not psutil.pid_exists(number) or psutil.Process(number).status() == psutil.STATUS_ZOMBIE
