"""Loads an exported model with torch alone. Every model folder has a copy of this file:

from load_model import load
model = load(".")
model.predict([{"age": 61, "sex": "female"}])

Rows are read as `playerfl predict` reads them, or refused with a ValueError. A warning names values that are far from
those the model was trained with. The folder is data: this file runs none of its code, and only the operations listed in
ALLOWED.
"""

import json
import math
import operator
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from playerfl.data.encoding.forms import FORMS, may_hold_flags

ALLOWED = frozenset(  # one long text is easier to read than 200 quoted names
    """
    __and__ __or__ __xor__ _adaptive_avg_pool2d _log_softmax _native_batch_norm_legit_no_training
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

EMPTY = frozenset(
    {"", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA"}
    | {"NULL", "NaN", "None", "n/a", "nan", "null"}
)
"""What stands for a missing value in a CSV file."""
SCALE = ("centre", "spread", "robust")
LARGEST = 3e38
"""Anything larger is infinity in float32."""


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
        inputs = self.inputs(rows)
        odd = [f"row {i + 1} ({', '.join(names)})" for i, names in enumerate(self.outside(inputs)) if names]
        if odd:
            more = ", …" if len(odd) > 5 else ""
            warnings.warn(f"outside the training range: {', '.join(odd[:5])}{more}", stacklevel=2)
        return self.predictions(inputs)

    def inputs(self, rows: list[dict[str, Any]]) -> torch.Tensor:
        """Rows of a table as the program takes them (float64, before scaling; nan for a missing value)."""
        table = self.about["encoding"].get("table")
        if table is None:
            raise ValueError("this model does not take rows of a table; give tensors to model.predictions")
        if not isinstance(rows, list | tuple) or not rows or not all(isinstance(row, Mapping) for row in rows):
            raise ValueError("give a list of rows, each a dict from column names to values")
        return torch.tensor([_row(i + 1, row, table) for i, row in enumerate(rows)], dtype=torch.float64)

    def outside(self, *inputs: torch.Tensor) -> list[list[str]]:
        """Of each row, the columns with a value outside the range of the training rows; none if it is not known.

        Of images, as the program takes them, whether their brightness or contrast is.
        """
        return self.beyond(picture_measures(inputs[0]) if "pictures" in self.about["encoding"] else inputs)

    def beyond(self, inputs: "tuple[torch.Tensor, ...]") -> list[list[str]]:
        """The same from what the ranges are about: a program's inputs, or measures of images."""
        names: list[list[str]] = [[] for _ in range(len(inputs[0]))]
        for limits in self.about.get("ranges", []):
            values = inputs[limits["input"]].reshape(len(inputs[0]), -1)
            if limits["position"] is not None:
                values = values[:, limits["position"]]
            beyond = (values < limits["low"]) | (values > limits["high"])
            if limits["position"] is None:  # of many numbers, such as pixels, a few are always far from the others
                beyond = beyond.double().mean(1) > 0.01
            for row in beyond.nonzero().flatten().tolist():
                if limits["column"] not in names[row]:
                    names[row].append(limits["column"])
        return names

    def predictions(self, *inputs: torch.Tensor) -> list[dict[str, float]]:
        """The same from tensors, as `about["inputs"]` describes them."""
        output, target = self.program(*inputs).double(), self.about["encoding"]["target"]
        if not bool(output.isfinite().all()):
            raise ValueError("the model gives no number for some rows; an input is nan or infinite, or it diverged")
        if target["classes"]:
            return [dict(zip(target["classes"], row, strict=True)) for row in output.softmax(1).tolist()]
        numbers = output.reshape(len(output), -1).mul(target["spread"]).add(target["mean"])
        names = (
            [target["name"]] if numbers.shape[1] == 1 else [f"{target['name']} {i}" for i in range(numbers.shape[1])]
        )
        return [dict(zip(names, row, strict=True)) for row in numbers.tolist()]


def picture_measures(pictures: torch.Tensor) -> "tuple[torch.Tensor]":
    """The brightness and the contrast of each image."""
    numbers = pictures.reshape(len(pictures), -1).double()
    return (torch.stack([numbers.mean(1), numbers.std(1)], 1),)


def _row(number: int, row: Mapping[str, Any], table: dict[str, Any]) -> list[float]:
    """The inputs of a row before scaling."""
    kinds = [column["kind"] for column in table["columns"]]
    names = [kind["name"] for kind in kinds]
    if lacking := [name for name in names if name not in row]:
        raise ValueError(f"row {number} has no column {', '.join(map(repr, lacking))}; the model needs it")
    if others := [name for name in row if name not in names and name not in table["ignored"]]:
        raise ValueError(f"row {number} has a column {others[0]!r}, which the model does not know")
    inputs: list[float] = []
    for column, kind in zip(table["columns"], kinds, strict=True):
        try:
            cell = _cell(row[kind["name"]], kind, table["missing_codes"])
            scale = column["scales"][0] if kind["kind"] == "number" else None
            if isinstance(cell, bool) and scale and not may_hold_flags(*(scale[n] for n in SCALE)):
                raise ValueError(f"{cell} is not a number; the model was trained with numbers")
            inputs += _numbers(cell, kind, table["fills_missing"])
        except (ValueError, TypeError) as problem:
            raise ValueError(f"row {number}, column {kind['name']!r}: {problem}") from None
    if all(map(math.isnan, inputs)):
        raise ValueError(f"row {number} has no values")
    return inputs


def _cell(value: Any, kind: dict[str, Any], codes: list[str]) -> "bool | float | str | None":
    """A cell as a number, true, false or a text; None for a missing value."""
    type_name = type(value).__name__
    if value is None or type_name in ("NAType", "NaTType") or (isinstance(value, str) and value in EMPTY):
        return None
    as_text = kind["as_text"] and not type_name.startswith("float")
    cell = (str(value).strip() or None) if as_text else parsed(value)
    if isinstance(cell, float) and abs(cell) > LARGEST:
        raise ValueError(f"{cell} is too large")
    for code in codes:
        column, equals, meant = code.rpartition("=")
        if (not equals or column.strip() == kind["name"]) and cell is not None:
            same = parsed(meant)
            if same is not None and spelled(same) == spelled(cell):
                return None
    return cell


def parsed(value: Any) -> "bool | float | str | None":
    """What is in a cell, as a number if it can be read as one."""
    if type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    if isinstance(value, bytes | bytearray):
        raise ValueError(f"{value[:40]!r} is neither a number nor a text")
    if not isinstance(value, str):
        try:
            number = float(value)
        except OverflowError:  # an integer of more than 308 digits
            return math.inf
        return None if math.isnan(number) else number
    text = value.strip()
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if not text or text.lower() == "nan":
        return None
    try:
        # Python reads 1_000 as a number, but in a table it is text.
        return text if "_" in text else float(text)
    except ValueError:
        return text


def spelled(cell: "bool | float | str") -> str:
    """A cell as the name of a category: a number as one would type it."""
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell)


def _numbers(cell: "bool | float | str | None", kind: dict[str, Any], fills_missing: bool) -> list[float]:
    """The model inputs that a cell becomes before scaling; nan for a missing value."""
    form, known = kind["kind"], kind["categories"]
    if cell is None:
        if not fills_missing:
            raise ValueError("the value is missing; the model was trained without missing values")
        return [math.nan] * (len(known) if form == "category" else 2 if form in ("ratio", "time") else 1)
    if form == "category":
        if spelled(cell) not in known:
            raise ValueError(f"{spelled(cell)[:40]!r} is an unknown category; known: {', '.join(known)}")
        return [float(spelled(cell) == category) for category in known]
    numbers = FORMS[form](spelled(cell)) if form in FORMS else None
    if numbers is not None and all(abs(number) <= LARGEST for number in numbers):
        return list(numbers)
    if form in ("ratio", "time") or isinstance(cell, str) or (form == "percent" and isinstance(cell, bool)):
        raise ValueError(f"{str(cell)[:40]!r} is not written like the training data")
    if form == "boolean" and cell not in (0, 1):
        raise ValueError(f"{cell:g} is not true or false")
    return [float(cell)]


def load(folder: "str | Path" = ".") -> Model:
    """The model in a folder."""
    return Model(Path(folder))
