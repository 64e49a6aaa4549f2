"""The layers of real architectures, as a person reads them: layers.txt and hugging_face.txt hold what is expected."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from federations import quick_for
from playerfl.layers.derive import derive_layers
from playerfl.layers.finding.trace import _Recorder
from playerfl.layers.layer_map import LayerMap, state_entries
from playerfl.runs.api import limited_threads
from zoo import REAL
from zoo.recurrent import LstmCell, Unrolled

HERE = Path(__file__).parent
EXPECTED = HERE / "layers.txt"
EXPECTED_OF_HUGGING_FACE = HERE / "hugging_face.txt"


def table(model: nn.Module, example: object, **options: Any) -> list[str]:
    """One line per layer: its name, and its modules and bare parameters without what they share with the name."""
    modules = dict(model.named_modules())
    lines = []
    for name, entries in LayerMap.of(model, example, **options).entries.items():
        parts = []
        for entry in entries:
            path = entry.rpartition(".")[0]
            leaf = next(modules[path].children(), None) is None and not isinstance(
                modules[path], nn.ParameterList | nn.ParameterDict
            )
            part = path if path and leaf else entry
            part = part.split(".parametrizations.")[0].removeprefix(f"{name}.").removesuffix(".in_proj_weight")
            parts.append(part if part != name else ".")
        lines.append(f"{name}: {' '.join(dict.fromkeys(parts))}")
    return lines


def tables(file: Path) -> dict[str, list[str]]:
    """The expected tables: a line `# name`, then one line per layer."""
    found: dict[str, list[str]] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            found[line[2:]] = []
        elif line:
            next(reversed(found.values())).append(line)
    return found


@pytest.mark.parametrize("name", REAL)
def test_layers_are_the_blocks_a_person_sees(name: str) -> None:
    build, example = REAL[name]
    assert table(build(), example()) == tables(EXPECTED)[name]


def test_every_table_has_its_architecture() -> None:
    assert list(tables(EXPECTED)) == list(REAL)
    assert len(REAL) >= 30


@pytest.mark.parametrize(
    "name", quick_for(REAL, "ResNet, basic blocks", "GPT, tied", "ViT, all in one class", "encoder and decoder")
)
def test_every_entry_has_one_layer(name: str) -> None:
    build, example = REAL[name]
    model = build()
    for granularity in ("block", "module"):
        layers = LayerMap.of(model, example(), granularity=granularity)  # type: ignore[arg-type]
        assert sorted(layers.all_entries) == sorted(state_entries(model))


@pytest.mark.parametrize("rows", [1, 3])
def test_the_number_of_examples_does_not_matter(rows: int) -> None:
    for name in ("ResNet, basic blocks", "GPT, tied", "ViT, all in one class"):
        build, example = REAL[name]
        batch = torch.cat([example()] * 2)[:rows]
        assert table(build(), batch) == tables(EXPECTED)[name]


def test_a_model_that_learns_and_sits_on_frozen_parts_has_the_same_layers() -> None:
    build, example = REAL["encoder and decoder"]
    assert table(build().requires_grad_(False), example()) == tables(EXPECTED)["encoder and decoder"]


def test_modules_as_layers_if_asked_for() -> None:
    build, example = REAL["ResNet, basic blocks"]
    lines = table(build(), example(), granularity="module")
    assert lines[:3] == ["conv1: . bn1", "layer1.0.conv1: . layer1.0.bn1", "layer1.0.conv2: . layer1.0.bn2"]


@pytest.mark.slow
def test_a_long_time_loop_takes_little_more_than_its_steps() -> None:
    """It took 11 s: every time step was compared with every other, and torch._dynamo was imported."""
    model = Unrolled(LstmCell)
    started = time.process_time()
    with limited_threads(1):
        layers = LayerMap.of(model, torch.ones(2, 300, dtype=torch.long))
    assert time.process_time() - started < 4
    assert layers.names == LayerMap.of(model, torch.ones(2, 3, dtype=torch.long)).names
    assert not hasattr(_Recorder.__torch_dispatch__, "__wrapped__")


def test_every_layer_has_a_reason() -> None:
    build, example = REAL["ViT, all in one class"]
    reasons = LayerMap.of(build(), example()).reasons
    assert reasons["patch"] == "a module of its own; first follows it; where follows it"
    assert reasons["blocks.0.qkv+proj"] == "attention with its projections, and a shortcut around it"
    assert reasons["out"] == "a module of its own; last feeds it"


def test_a_model_whose_operations_cannot_be_recorded_falls_back_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("not supported\nmore")

    monkeypatch.setattr("playerfl.layers.derive.trace", broken)
    build, example = REAL["ResNet, basic blocks"]
    derived = derive_layers(build(), example())
    assert [name for name, _ in derived.groups] == ["conv1", "layer1.0", "layer1.1", "layer2.0", "layer2.1", "fc"]
    assert "cannot be recorded (RuntimeError: not supported)" in derived.notes[0]


def _hugging_face() -> Iterator[str]:
    from zoo.hugging_face import models

    for name, (model, example) in models().items():
        yield f"# {name}"
        yield from table(model, example)


@pytest.mark.system
@pytest.mark.filterwarnings("ignore")
def test_layers_of_hugging_face_models() -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    found = list(_hugging_face())
    expected = [line for line in EXPECTED_OF_HUGGING_FACE.read_text(encoding="utf-8").splitlines() if line]
    assert found == expected


if __name__ == "__main__":
    # After a change: read the difference as a person would, before you commit it.
    text = "\n\n".join("\n".join([f"# {name}", *table(build(), example())]) for name, (build, example) in REAL.items())
    EXPECTED.write_text(text + "\n", encoding="utf-8")
    EXPECTED_OF_HUGGING_FACE.write_text("\n".join(_hugging_face()).replace("\n#", "\n\n#") + "\n", encoding="utf-8")
