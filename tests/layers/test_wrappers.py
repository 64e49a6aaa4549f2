"""Models inside wrappers, and models that cannot be looked into."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import distributed, nn

from playerfl.errors import LayerError
from playerfl.layers.cut_summary import summarise_cut
from playerfl.layers.layer_map import LayerMap
from playerfl.layers.probe import SensitivityProbe
from playerfl.layers.recommend import recommend

EXAMPLE = torch.zeros(2, 4)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("wrap", [pytest.param(torch.compile, marks=pytest.mark.slow, id="compile"), nn.DataParallel])
def test_a_wrapped_model_has_the_layers_of_the_model_inside(wrap: Callable[[nn.Module], nn.Module]) -> None:
    wrapped = wrap(net())
    layers = LayerMap.of(wrapped, EXAMPLE)
    assert layers == LayerMap.of(net(), EXAMPLE)
    assert layers.notes == (f"names are those of the model inside {type(wrapped).__name__}",)
    probe = SensitivityProbe(wrapped, example=EXAMPLE)
    probe.record(gradients={name: torch.ones_like(p) for name, p in probe.model.named_parameters()})
    recommendation = recommend({"north": probe.profile()}, wrapped)
    assert recommendation.summary is not None
    assert summarise_cut(wrapped, layers, 1).federated_keys == ("0.weight", "0.bias")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_compiled_part_is_looked_into() -> None:
    model = nn.Sequential(torch.compile(net()), nn.Linear(2, 2))
    assert LayerMap.of(model, EXAMPLE).names == ("0._orig_mod.0", "0._orig_mod.2", "1")


@pytest.mark.filterwarnings("ignore")
def test_a_model_for_several_processes_is_unwrapped(tmp_path: Path) -> None:
    store = distributed.FileStore(str(tmp_path / "store"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        assert LayerMap.of(nn.parallel.DistributedDataParallel(net()), EXAMPLE).names == ("0", "2")
    finally:
        distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("example", [None, EXAMPLE], ids=["registered", "flow"])
def test_torchscript_is_refused_and_the_message_says_what_to_give(example: object) -> None:
    says = r"is a TorchScript model .* build the Python model it was made from, and load its weights"
    for model in (torch.jit.script(net()), torch.jit.trace(net(), EXAMPLE)):
        with pytest.raises(LayerError, match=f"the model {says}"):
            LayerMap.of(model, example)
    with pytest.raises(LayerError, match=f"^0 {says}"):
        LayerMap.of(nn.Sequential(torch.jit.script(net()), nn.Linear(2, 2)), example)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_an_exported_program_is_refused_in_words() -> None:
    program = torch.export.export(net(), (EXAMPLE,))
    with pytest.raises(LayerError, match="give the Python model that it was exported from"):
        LayerMap.of(program.module(), EXAMPLE)
    with pytest.raises(LayerError, match=r"expected a torch model \(an nn.Module\), not ExportedProgram"):
        LayerMap.of(program, EXAMPLE)  # type: ignore[arg-type]
