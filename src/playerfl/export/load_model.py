"""Loads an exported model with torch alone. Every model folder has a copy of this file:

from load_model import load
model = load(".")
model.predict([{"age": 61, "sex": "female"}])

The folder is data: this file runs none of its code, and only the operations listed in ALLOWED.
"""

import json
import math
import operator
from pathlib import Path
from typing import Any

import torch

from playerfl.data.encoding.forms import FORMS

ALLOWED = frozenset(  # one long text is easier to read than 200 quoted names
    """
    _adaptive_avg_pool2d _log_softmax _native_batch_norm_legit_no_training
    _scaled_dot_product_flash_attention_for_cpu _softmax _to_copy _weight_norm abs adaptive_avg_pool1d
    adaptive_avg_pool2d adaptive_max_pool1d adaptive_max_pool2d add addbmm addmm alias all amax amin any arange
    argmax argmin avg_pool1d avg_pool2d avg_pool3d baddbmm batch_norm bitwise_and bitwise_not bitwise_or bitwise_xor
    bmm bucketize cat ceil celu channel_shuffle chunk clamp clamp_max clamp_min clone constant_pad_nd contiguous
    conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d convolution cos cumsum detach diagonal
    div dot dropout einsum elu embedding embedding_bag empty_like eq erf exp expand expand_as expm1 eye
    feature_dropout fill flatten flip floor floor_divide full full_like gather ge gelu glu group_norm gru gt
    hardsigmoid hardswish hardtanh index index_select instance_norm isinf isnan layer_norm le leaky_relu lerp
    lift_fresh lift_fresh_copy linalg_vector_norm linear linspace log log1p log2 log_softmax logical_and logical_not
    logical_or logical_xor logsumexp lstm lt masked_fill matmul max max_pool1d max_pool2d max_pool3d maximum mean
    min minimum mish mm mul mv nan_to_num narrow native_batch_norm native_group_norm native_layer_norm ne neg
    new_full new_ones new_zeros norm ones ones_like pad permute pixel_shuffle pow prelu prod reciprocal
    reflection_pad1d reflection_pad2d relu relu6 remainder repeat repeat_interleave replication_pad1d
    replication_pad2d reshape rms_norm rnn_relu rnn_tanh roll round rsqrt rsub scalar_tensor
    scaled_dot_product_attention scatter select selu sigmoid sign silu sin slice softmax softplus sort split
    split_with_sizes sqrt square squeeze stack std sub sum t tan tanh tile to topk transpose tril triu type_as
    unbind unflatten unfold unsafe_chunk unsafe_split unsqueeze upsample_bicubic2d upsample_bilinear2d
    upsample_nearest1d upsample_nearest2d var var_mean view view_as where zeros zeros_like
    """.split()  # noqa: SIM905
)
NUMBERS = {name: getattr(operator, name) for name in ("add", "sub", "mul", "floordiv", "mod", "neg", "getitem")}
"""Operations on sizes, and `getitem` for operations with several results."""
DTYPES = {
    **{"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "BOOL": torch.bool},
    **{"I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8},
}


def read_tensors(file: Path) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file: the length of a JSON header, the header, and the numbers."""
    content = bytearray(file.read_bytes())
    start = 8 + int.from_bytes(content[:8], "little")
    if start > len(content):
        raise ValueError("its header is longer than the file")
    tensors = {}
    for name, entry in json.loads(content[8:start]).items():
        if name == "__metadata__":
            continue
        dtype, shape, (begin, end) = DTYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
        if not all(type(n) is int and n >= 0 for n in (*shape, begin, end)) or start + end > len(content):
            raise ValueError(f"{name!r} lies outside the file")
        if math.prod(shape) * dtype.itemsize != end - begin:
            raise ValueError(f"{name!r} has the shape {shape}, but {end - begin} bytes")
        empty = begin == end
        flat = (
            torch.empty(0, dtype=dtype)
            if empty
            else torch.frombuffer(content[start + begin : start + end], dtype=dtype)
        )
        tensors[name] = flat.reshape(shape)
    return tensors


class Program:
    """A model as a list of tensor operations, each with its name, its operation and its arguments."""

    def __init__(self, graph: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        self.inputs: list[str] = [str(name) for name in graph["inputs"]]
        self.output: str = graph["output"]
        self.row_by_row: bool = graph["row_by_row"]
        self.constants = {name: tensors[entry] for name, entry in graph["tensors"].items()}
        self.calls = [(name, _operation(called), args, kwargs) for name, called, args, kwargs in graph["calls"]]

    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor:
        """The outputs for some rows; one after another if the operations are for one row only."""
        if not self.row_by_row or len(inputs[0]) == 1:
            return self._run(*inputs)
        return torch.cat([self._run(*(tensor[i : i + 1] for tensor in inputs)) for i in range(len(inputs[0]))])

    def _run(self, *inputs: torch.Tensor) -> torch.Tensor:
        values: dict[str, Any] = {**self.constants, **dict(zip(self.inputs, inputs, strict=True))}
        with torch.inference_mode():
            for name, call, args, kwargs in self.calls:
                values[name] = call(*_value(args, values), **_value(kwargs, values))
        output: torch.Tensor = values[self.output]
        return output


def _operation(called: str) -> Any:
    kind, _, rest = called.partition(".")
    if kind == "number" and rest in NUMBERS:
        return NUMBERS[rest]
    if called == "size":
        return lambda tensor, dim: tensor.shape[dim]
    name, _, overload = rest.partition(".")
    if kind != "aten" or name not in ALLOWED or overload not in getattr(torch.ops.aten, name).overloads():
        raise ValueError(f"the operation {called!r} is not allowed in a model")
    return getattr(getattr(torch.ops.aten, name), overload)


def _value(argument: Any, values: dict[str, Any]) -> Any:
    """An argument: a number, a text, a list, or an object with one of the keys below."""
    if isinstance(argument, list):
        return [_value(item, values) for item in argument]
    if not isinstance(argument, dict):
        return argument
    match next(iter(argument.items()), None):
        case ("value", str(name)):
            return values[name]
        case ("dtype", str(name)) if isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        case ("memory_format", str(name)) if isinstance(getattr(torch, name, None), torch.memory_format):
            return getattr(torch, name)
        case ("float", str(text)):
            return float(text)
    return {name: _value(item, values) for name, item in argument.items()}


class Model:
    """An exported model: `program` takes tensors, `predict` takes rows as they are in a table."""

    def __init__(self, folder: Path) -> None:
        self.about: dict[str, Any] = json.loads((folder / "model.json").read_text(encoding="utf-8"))
        graph = json.loads((folder / "graph.json").read_text(encoding="utf-8"))
        self.program = Program(graph, read_tensors(folder / "weights.safetensors"))

    def predict(self, rows: list[dict[str, Any]]) -> list[dict[str, float]]:
        """One prediction per row: the probability of each class, or the number under the target's name."""
        columns = [column["kind"] for column in self.about["encoding"]["table"]["columns"]]
        inputs = [[number for column in columns for number in _numbers(row[column["name"]], column)] for row in rows]
        if not self.about["encoding"]["table"]["fills_missing"] and any(math.isnan(n) for row in inputs for n in row):
            raise ValueError("a value is missing; the model was trained without missing values")
        return self.predictions(torch.tensor(inputs, dtype=torch.float64))

    def predictions(self, *inputs: torch.Tensor) -> list[dict[str, float]]:
        """The same from tensors, as `about["inputs"]` describes them."""
        output, target = self.program(*inputs), self.about["encoding"]["target"]
        if target["classes"]:
            return [dict(zip(target["classes"], row, strict=True)) for row in output.double().softmax(1).tolist()]
        numbers = output.double().reshape(len(output), -1).mul(target["spread"]).add(target["mean"])
        names = (
            [target["name"]] if numbers.shape[1] == 1 else [f"{target['name']} {i}" for i in range(numbers.shape[1])]
        )
        return [dict(zip(names, row, strict=True)) for row in numbers.tolist()]


def _numbers(value: Any, column: dict[str, Any]) -> list[float]:
    """The model inputs that a cell becomes before scaling; nan for a missing value."""
    kind, name = column["kind"], column["name"]
    missing = value is None or value != value
    if kind == "category":
        text = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
        if not missing and text not in column["categories"]:
            raise ValueError(f"{name}: {value!r} is not one of {', '.join(column['categories'])}")
        return [math.nan if missing else float(text == category) for category in column["categories"]]
    width = 2 if kind in ("ratio", "time") else 1
    if missing:
        return [math.nan] * width
    parsed = FORMS[kind](str(value)) if kind in FORMS else None
    if parsed is None and width == 2:
        raise ValueError(f"{name}: {value!r} is not written as in the training data")
    return list(parsed or [float(value)])


def load(folder: "str | Path" = ".") -> Model:
    """The model in a folder."""
    return Model(Path(folder))
