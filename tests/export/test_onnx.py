"""ONNX files give torch's numbers in onnxruntime, from rows before scaling; if there is none, a sentence says why."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from command_line import playerfl, refused
from export.test_graph import BUNDLED
from playerfl.export.folder import read_folder
from playerfl.export.onnx_file import NoOnnxError, onnx_bytes
from playerfl.export.standalone import Answering, Standalone, named_inputs
from playerfl.export.write import export_model
from zoo.architectures import ZOO

onnxruntime: Any = pytest.importorskip("onnxruntime", reason="ONNX files need playerfl[onnx]")
pytestmark = pytest.mark.slow

SOME = ("two inputs", "LSTM")
"""Each takes seconds."""


def session_of(content: bytes) -> Any:
    return onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])


def compare(model: nn.Module, inputs: Any) -> None:
    named, names = named_inputs(inputs)
    answering = Answering(Standalone(model.eval(), None, names), None, 1.0).eval()
    session = session_of(onnx_bytes(answering, named, "probabilities"))
    (found,) = session.run(["probabilities"], {name: tensor.numpy() for name, tensor in named.items()})
    with torch.inference_mode():
        torch.testing.assert_close(torch.from_numpy(found), answering(*named.values()), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_models(name: str) -> None:
    compare(*BUNDLED[name])


@pytest.mark.parametrize("name", SOME)
def test_other_models(name: str) -> None:
    inputs = ZOO[name].inputs(7, torch.Generator().manual_seed(0))
    single = tuple(x.float() for x in inputs) if isinstance(inputs, tuple) else inputs.float()
    compare(ZOO[name].build(), single)


def test_the_folders_file_scales_rows_itself(place: Path, tmp_path: Path) -> None:
    with contextlib.chdir(place):
        assert export_model("runs/player_fl", "north", tmp_path / "model", onnx="require").why_no_onnx is None
    content = (tmp_path / "model" / "model.onnx").read_bytes()
    model = read_folder(tmp_path / "model")
    raw = torch.tensor([[61.5, 2, 1, 0, 1], [48, 4, 0, 1, 0]], dtype=torch.float64)
    (found,) = session_of(content).run(None, {"inputs": raw.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), model.outputs(raw).softmax(1), rtol=1e-5, atol=1e-5)
    assert str(Path(__file__).parents[2]).encode() not in content, "the file shows where it was made"
    assert "`model.onnx` is the same model" in (tmp_path / "model" / "README.md").read_text()


class Sorting(nn.Linear):
    """Complex numbers are not part of ONNX."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.view_as_real(torch.linalg.eig(x[:, None] * x[..., None])[0])[..., 0])


def test_a_model_that_has_no_onnx_form_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    answering = Answering(Standalone(Sorting(3, 2), None, None), None, 1.0).eval()
    with pytest.raises(NoOnnxError, match="this model cannot be written as ONNX"):
        onnx_bytes(answering, {"inputs": torch.randn(5, 3)}, "probabilities")
    assert capfd.readouterr() == ("", "")


def test_without_onnx_the_folder_is_complete_and_says_why(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    export = ("export", "runs/local", "--site", "north", "--out")
    said = playerfl(*export, tmp_path / "model", cwd=place)
    assert said.returncode == 0
    assert "there is no ONNX file: onnx and onnxruntime are not installed" in said.stderr
    assert "There is no ONNX file" in (tmp_path / "model" / "README.md").read_text()
    assert "pip install 'playerfl[onnx]'" in refused(playerfl(*export, tmp_path / "other", "--onnx", cwd=place))
