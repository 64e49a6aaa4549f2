"""Trees of tensors and values as one safetensors file: written atomically, read back exactly, nothing pickled."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load
from torch import Tensor

from playerfl.errors import RunDirectoryError
from playerfl.weights import raw, some_at_once

_TENSOR = "__tensor__"
_CHECKED = "checked tree"
_BYTES_AT_ONCE = 2**24
# Kinds of numbers by their names in torch and in safetensors files, in the order in which safetensors writes them:
# the widest first, so that all of them are aligned.
_KINDS = {
    "uint64": "U64", "int64": "I64", "float64": "F64", "complex64": "C64", "float32": "F32", "uint32": "U32",
    "int32": "I32", "bfloat16": "BF16", "float16": "F16", "uint16": "U16", "int16": "I16", "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2", "int8": "I8", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip


def encode(tree: Any) -> bytes:
    """A tree of dicts, lists, tensors and JSON values as bytes.

    Tensors of one dtype are stored end to end: naming hundreds of small ones would take longer than writing them.

    >>> decode(encode({"step": 3, "w": {"a": torch.ones(2)}}))
    {'step': 3, 'w': {'a': tensor([1., 1.])}}
    """
    return b"".join(pieces(tree))


def pieces(tree: Any) -> Iterator[bytes | memoryview]:
    """The bytes of `encode` piece by piece, so that a large model is never copied as a whole."""
    packing = _Packing()
    skeleton = json.dumps(packing.without_tensors(tree))
    # One metadata entry only: safetensors writes several in arbitrary order, and these bytes must equal its own.
    metadata = f"{fingerprint(skeleton, packing.tensors)} {skeleton}"
    header: dict[str, Any] = {"__metadata__": {_CHECKED: metadata}}
    end = 0
    kinds = [kind for kind in _KINDS if kind in packing.tensors]
    for kind in kinds:
        count = sum(tensor.numel() for tensor in packing.tensors[kind])
        begin, end = end, end + sum(tensor.nbytes for tensor in packing.tensors[kind])
        header[kind] = {"dtype": _KINDS[kind], "shape": [count], "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for kind in kinds:
        yield from _end_to_end(packing.tensors[kind])


def digest(tree: Any) -> str:
    """A fingerprint of a tree.

    >>> digest({"w": torch.zeros(2)}) == digest({"w": torch.zeros(3)})
    False
    """
    hashed = hashlib.blake2b(digest_size=16)
    for piece in pieces(tree):
        hashed.update(piece)
    return hashed.hexdigest()


def _end_to_end(tensors: Sequence[Tensor]) -> Iterator[memoryview]:
    """The bytes of tensors of one dtype; small ones are joined, since every piece costs time."""
    for some in some_at_once(enumerate(tensors), _BYTES_AT_ONCE):
        yield raw(torch.cat(list(some.values())))


def fingerprint(skeleton: str, tensors: Mapping[str, Sequence[Tensor]]) -> str:
    """A digest of everything in the file: a bit flipped on disk must not become a different result."""
    hashed = hashlib.blake2b(skeleton.encode(), digest_size=16)
    for kind in sorted(tensors):
        hashed.update(kind.encode())
        for piece in _end_to_end(tensors[kind]):
            hashed.update(piece)
    return hashed.hexdigest()


class _Packing:
    """Takes the tensors out of a tree. A tensor that occurs several times (a model many sites keep) is stored once."""

    def __init__(self) -> None:
        self.tensors: dict[str, list[Tensor]] = {}
        self._ends: dict[str, int] = {}
        # The tensor is kept alive alongside its place: otherwise a new one could get the same id.
        self._places: dict[int, tuple[Tensor, dict[str, Any]]] = {}

    def without_tensors(self, tree: Any) -> Any:
        if isinstance(tree, Tensor):
            if id(tree) not in self._places:
                self._places[id(tree)] = (tree, self._packed(tree))
            return self._places[id(tree)][1]
        if isinstance(tree, Mapping):
            return {key: self.without_tensors(value) for key, value in tree.items()}
        if isinstance(tree, list | tuple):
            return [self.without_tensors(value) for value in tree]
        return tree

    def _packed(self, tensor: Tensor) -> dict[str, Any]:
        kind = str(tensor.dtype).removeprefix("torch.")
        start = self._ends.get(kind, 0)
        self._ends[kind] = start + tensor.numel()
        self.tensors.setdefault(kind, []).append(tensor.detach().cpu().reshape(-1))
        return {_TENSOR: [kind, start, list(tensor.shape)]}


def decode(data: bytes) -> Any:
    """The tree that `encode` was given; ValueError if the bytes are not from `encode`."""
    with _only_ours():
        metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
        return _unpacked(metadata, load(data))


def _unpacked(metadata: Mapping[str, str], flat: Mapping[str, Tensor]) -> Any:
    if _CHECKED not in metadata:  # as earlier versions wrote it
        return _with_tensors(json.loads(metadata["tree"]), flat)
    known, _, skeleton = metadata[_CHECKED].partition(" ")
    if known != fingerprint(skeleton, {kind: [numbers] for kind, numbers in flat.items()}):
        raise ValueError("it has been changed since it was written")
    return _with_tensors(json.loads(skeleton), flat)


@contextmanager
def _only_ours() -> Iterator[None]:
    """Turns any error caused by foreign bytes into a ValueError."""
    try:
        yield
    except (SafetensorError, LookupError, TypeError, AttributeError, RuntimeError, UnicodeError) as problem:
        raise ValueError(f"not a tree of tensors and values ({type(problem).__name__}: {problem})") from problem


def _with_tensors(tree: Any, packed: Mapping[str, Tensor]) -> Any:
    if isinstance(tree, dict):
        if tree.keys() == {_TENSOR}:
            kind, start, shape = tree[_TENSOR]
            size = math.prod(shape)
            if start < 0 or start + size > len(packed[kind]):
                raise IndexError(f"a tensor reaches beyond the {len(packed[kind])} numbers stored")
            return packed[kind][start : start + size].reshape(shape).clone()
        return {key: _with_tensors(value, packed) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_with_tensors(value, packed) for value in tree]
    return tree


def read(path: Path) -> Any:
    """Reads a file that `write_atomically(path, encode(tree))` wrote."""
    try:
        # Memory-mapped, not read, so that a large model is in memory only once, as the tensors returned.
        with _only_ours(), safe_open(str(path), "pt") as file:
            packed = {kind: file.get_tensor(kind) for kind in file.keys()}  # noqa: SIM118 it is not a mapping
            return _unpacked(file.metadata(), packed)
    except (OSError, ValueError) as problem:
        raise RunDirectoryError(f"{path} cannot be read as a checkpoint: {problem}") from problem
