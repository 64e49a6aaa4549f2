"""Models as lists of operations: the same outputs as the model, for all kinds of models; nothing else is run."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from playerfl.export.graph import Graph, NotPortableError, graph_of
from playerfl.export.load_model import ALLOWED, Program
from playerfl.export.standalone import Standalone, named_inputs
from playerfl.models.cnn import ConvNet
from playerfl.models.mlp import MLP
from playerfl.models.transformer import TextTransformer
from zoo.architectures import ZOO

BUNDLED: dict[str, tuple[nn.Module, Tensor]] = {
    "MLP": (MLP((6, 8, 4, 2)), torch.randn(9, 6)),
    "ConvNet": (ConvNet(3, (4, 8), 6, 3, pool_after=(1,), dropout={2: 0.5}), torch.randn(9, 3, 8, 8)),
    "TextTransformer": (TextTransformer(20, 7, 8, 6, 2), torch.randint(0, 20, (9, 7))),
}


SOME = (
    "MLP, weight norm",
    "MLP, one layer used twice",
    "outputs in a tuple",
    "CNN, residual, batch norm",
    "bag of words",
    "transformer, named inputs with a mask",
    "vision transformer",
    "LSTM",
)
"""One of each kind, since a trace takes up to two seconds; the whole zoo was tried once."""


def stored(graph: Graph) -> Program:
    """The operations after they have been through a file."""
    return Program(json.loads(json.dumps(graph.operations)), dict(graph.tensors))


@pytest.mark.slow
@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_models_are_the_same_bit_for_bit(name: str) -> None:
    model, inputs = BUNDLED[name]
    program = stored(graph_of(Standalone(model, None, None).eval(), {"inputs": inputs}))
    with torch.inference_mode():
        for rows in (1, 4, 9):
            assert torch.equal(program(inputs[:rows]), model(inputs[:rows]))


@pytest.mark.slow
@pytest.mark.parametrize("name", SOME)
def test_other_models_are_the_same(name: str) -> None:
    architecture = ZOO[name]
    model = architecture.build().double().eval()
    inputs, names = named_inputs(architecture.inputs(7, torch.Generator().manual_seed(0)))
    whole = Standalone(model, None, names).eval()
    program = stored(graph_of(whole, inputs))
    with torch.inference_mode():
        torch.testing.assert_close(program(*inputs.values()), whole(*inputs.values()), rtol=1e-9, atol=1e-9)


class Deciding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x) if x.sum() > 0 else self.layer(-x)
        return out


class Fourier(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.fft.fft(x).real)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "says"),
    [
        (Deciding(), "what it computes depends on the values of its inputs"),
        (Fourier(3, 2), "it uses the operation aten.fft_fft.default, which the loader does not run"),
    ],
)
def test_a_model_that_cannot_be_stored_says_why(model: nn.Module, says: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(NotPortableError, match=says):
        graph_of(Standalone(model, None, None), {"inputs": torch.randn(4, 3)})
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "called", ["aten.from_file.default", "aten.set_.source_Tensor", "os.system", "aten.add.__class__"]
)
def test_other_operations_are_not_run(called: str) -> None:
    graph: dict[str, Any] = {"inputs": ["x"], "tensors": {}, "output": "y", "row_by_row": False}
    with pytest.raises(ValueError, match="is not allowed in a model"):
        Program({**graph, "calls": [["y", called, [{"value": "x"}], {}]]}, {})(torch.zeros(1))


def test_the_allowed_operations_exist_and_write_to_no_file() -> None:
    for name in ALLOWED:
        operation = getattr(torch.ops.aten, name)
        for overload in operation.overloads():
            schema = getattr(operation, overload)._schema
            assert not any(argument.name == "filename" for argument in schema.arguments), name
