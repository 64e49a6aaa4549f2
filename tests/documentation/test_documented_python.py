"""The Python code printed in the documentation runs, on small data; doctests are run by pytest itself."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import playerfl
from documented import PAGES, ROOT, blocks
from site_pages import MODULES

ELSEWHERE = {
    "docs/adapters.md": "tests/adapters/test_docs_adapters.py runs its blocks",
    "docs/your-own-data.md": "tests/documentation/test_docs_own_data.py runs its blocks",
    "docs/use-the-model.md": "tests/documentation/test_docs_use_the_model.py runs its block in a model folder",
    "docs/benchmark-your-method.md": "tests/documentation/test_tutorials.py runs its blocks",
    "docs/probe.md": "needs a Trainer; tests/integrations/test_hugging_face.py has the same lines",
}

SMALL = {
    'analyze_layers("heart"': 'analyze_layers("synthetic", settings={"data.rows": 60}',
    "rounds=20": "rounds=1",
    "seeds=[0, 1, 2]": "seeds=[0]",
    "seeds=5": "seeds=1, backend='serial', settings={'rounds': 1}",
    'study("experiments/digits.toml")': 'study("experiments/digits.toml", backend="serial")',
    'tasks=["digits"]': 'tasks=["synthetic"]',
    '"digits", "fedavg"': '"synthetic", "fedavg"',
    '"heart"': '"synthetic"',
}

STUDY = 'name = "digits"\ntasks = ["synthetic"]\nalgorithms = ["local", "fedavg"]\nseeds = 1\n[settings]\nrounds = 1\n'


def printed() -> dict[str, list[str]]:
    """The blocks of each page that are neither doctests nor run elsewhere."""
    found = {}
    for page in PAGES:
        name = str(page.relative_to(ROOT))
        code = [b for b in blocks(page.read_text(encoding="utf-8"), "python") if not b.startswith(">>>")]
        if code and name not in ELSEWHERE:
            found[name] = code
    return found


def given() -> dict[str, Any]:
    """What a reader has: a model, data of two sites, a loop."""
    inputs = torch.randn(90, 8, generator=torch.Generator().manual_seed(0))
    targets = inputs[:, :3].argmax(1)

    def make_model() -> nn.Module:
        return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))

    def train_one_epoch(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    model = make_model()
    return {
        "playerfl": playerfl, "inputs": inputs, "targets": targets, "dataset": TensorDataset(inputs, targets),
        "make_model": make_model, "train_one_epoch": train_one_epoch, "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("page", sorted(printed()))
def test_the_blocks_of_a_page_run_in_their_order(page: str, tmp_path: Path) -> None:
    names = given()
    with contextlib.chdir(tmp_path):
        Path("experiments").mkdir()
        Path("experiments", "digits.toml").write_text(STUDY)
        for algorithm in ("local", "fedavg", "player_fl") if page == "docs/report.md" else ():
            for seed in (0, 1):
                playerfl.run("synthetic", algorithm, rounds=1, seed=seed, out=f"runs/heart/{algorithm}-{seed}")
        for block in printed()[page]:
            for words, small in SMALL.items():
                block = block.replace(words, small)
            exec(compile(block, page, "exec"), names)
            if "result.cut.federated  #" in block:
                assert f"result.cut.federated  # {names['result'].cut.federated}" in block


def test_the_reference_has_every_module_the_documentation_imports_from() -> None:
    pages = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    named = set(re.findall(r"from (playerfl\.[\w.]+) import", pages))
    assert named
    assert named <= MODULES.keys()
