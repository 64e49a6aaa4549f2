"""Trees of tensors and values as one safetensors file: written atomically, read back exactly, nothing pickled."""

from __future__ import annotations

import hashlib
import json
import math
import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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
    metadata = f"{fingerprint(skeleton, packing.tensors)} {skeleton}"
    kinds = [kind for kind in _KINDS if kind in packing.tensors]
    sizes = {kind: sum(tensor.numel() for tensor in packing.tensors[kind]) for kind in kinds}
    yield _head({kind: (kind, [size]) for kind, size in sizes.items()}, {"__metadata__": {_CHECKED: metadata}})
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


def model_pieces(weights: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    """The bytes that `safetensors.torch.save` returns, piece by piece: `save` makes two copies of the whole model."""
    order = list(_KINDS)
    kinds = {name: _kind(tensor) for name, tensor in weights.items()}
    names = sorted(weights, key=lambda name: (order.index(kinds[name]), name))
    yield _head({name: (kinds[name], list(weights[name].shape)) for name in names}, {})
    for name in names:
        yield raw(weights[name])


def _head(entries: Mapping[str, tuple[str, list[int]]], header: dict[str, Any]) -> bytes:
    """The beginning of a safetensors file: kind and shape of every entry, in the order in which they follow."""
    # One metadata entry only: safetensors writes several in arbitrary order, and these bytes must equal its own.
    end = 0
    for name, (kind, shape) in entries.items():
        begin, end = end, end + math.prod(shape) * getattr(torch, kind).itemsize
        header[name] = {"dtype": _KINDS[kind], "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _kind(tensor: Tensor | Unread) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _end_to_end(tensors: Sequence[Tensor | Unread]) -> Iterator[memoryview]:
    """The bytes of tensors of one dtype; small ones are joined, since every piece costs time."""
    for some in some_at_once(enumerate(tensors), _BYTES_AT_ONCE):
        read = [loaded(tensor) for tensor in some.values()]
        yield raw(torch.cat(read) if len(read) > 1 else read[0])


def fingerprint(skeleton: str, tensors: Mapping[str, Sequence[Tensor | Unread]]) -> str:
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
        self.tensors: dict[str, list[Tensor | Unread]] = {}
        self._ends: dict[str, int] = {}
        # The tensor is kept alive alongside its place: otherwise a new one could get the same id.
        self._places: dict[int, tuple[Tensor | Unread, dict[str, Any]]] = {}

    def without_tensors(self, tree: Any) -> Any:
        if isinstance(tree, Tensor | Unread):
            if id(tree) not in self._places:
                self._places[id(tree)] = (tree, self._packed(tree))
            return self._places[id(tree)][1]
        if isinstance(tree, Mapping):
            return {key: self.without_tensors(value) for key, value in tree.items()}
        if isinstance(tree, list | tuple):
            return [self.without_tensors(value) for value in tree]
        return tree

    def _packed(self, tensor: Tensor | Unread) -> dict[str, Any]:
        kind = _kind(tensor)
        start = self._ends.get(kind, 0)
        self._ends[kind] = start + tensor.numel()
        flat = tensor.flat() if isinstance(tensor, Unread) else tensor.detach().cpu().reshape(-1)
        self.tensors.setdefault(kind, []).append(flat)
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


def look_into(path: Path) -> Any:
    """Like `read`, but tensors stay in the file, as `Unread`: a tree may hold several models, of which one is needed.

    The file may be replaced in the meantime, but not changed.
    """
    try:
        with _only_ours():
            file = _TreeFile(path)
            metadata, kinds = file.header()
            if _CHECKED not in metadata:  # as earlier versions wrote it
                return _with_unread(json.loads(metadata["tree"]), kinds)
            known, _, skeleton = metadata[_CHECKED].partition(" ")
            if known != fingerprint(skeleton, {kind: list(whole.in_pieces()) for kind, whole in kinds.items()}):
                raise ValueError("it has been changed since it was written")
            return _with_unread(json.loads(skeleton), kinds)
    except (OSError, ValueError) as problem:
        raise RunDirectoryError(f"{path} cannot be read as a checkpoint: {problem}") from problem


def loaded(tree: Any) -> Any:
    """The tree with every tensor in memory; those that were in a file are new."""
    if isinstance(tree, Unread):
        return tree.read()
    if isinstance(tree, dict):
        return {key: loaded(value) for key, value in tree.items()}
    return [loaded(value) for value in tree] if isinstance(tree, list) else tree


class _TreeFile:
    """An open file, which closes itself when no tensor in it is known any more."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = path.open("rb")
        weakref.finalize(self, self.file.close)

    def header(self) -> tuple[Mapping[str, str], dict[str, Unread]]:
        """The metadata, and all numbers of each kind."""
        size = os.fstat(self.file.fileno()).st_size
        length = int.from_bytes(self.file.read(8), "little")
        data = 8 + length
        if data > size:
            raise ValueError("not a tree of tensors and values (its header is cut off)")
        header = json.loads(self.file.read(length))
        metadata = header.pop("__metadata__")
        kinds = {}
        for kind, entry in header.items():
            begin, end = entry["data_offsets"]
            dtype: torch.dtype = getattr(torch, kind)
            count = (end - begin) // dtype.itemsize
            wanted = {"dtype": _KINDS[kind], "shape": [count], "data_offsets": [begin, end]}
            if entry != wanted or not 0 <= begin <= end <= size - data:
                raise ValueError("not a tree of tensors and values (its header does not fit its bytes)")
            kinds[kind] = Unread(self, data + begin, (count,), dtype)
        return metadata, kinds


@dataclass(frozen=True)
class Unread:
    """A tensor that is still in its file."""

    source: _TreeFile
    start: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.numel() * self.dtype.itemsize

    def flat(self) -> Unread:
        return Unread(self.source, self.start, (self.numel(),), self.dtype)

    def part(self, start: int, shape: Sequence[int]) -> Unread:
        """Some of its numbers, from the `start`-th on."""
        if start < 0 or min(shape, default=0) < 0 or start + math.prod(shape) > self.numel():
            raise IndexError(f"a tensor reaches beyond the {self.numel()} numbers stored")
        return Unread(self.source, self.start + start * self.dtype.itemsize, tuple(shape), self.dtype)

    def in_pieces(self) -> Iterator[Unread]:
        most = _BYTES_AT_ONCE // self.dtype.itemsize
        for start in range(0, self.numel(), most):
            yield self.part(start, (min(most, self.numel() - start),))

    def read(self) -> Tensor:
        tensor = torch.empty(self.shape, dtype=self.dtype)
        try:
            self.source.file.seek(self.start)
            read = self.source.file.readinto(raw(tensor)) if self.nbytes else 0
        except OSError as problem:
            raise RunDirectoryError(f"{self.source.path} cannot be read: {problem.strerror or problem}") from problem
        if read != self.nbytes:
            raise RunDirectoryError(f"{self.source.path} cannot be read: it has become shorter")
        return tensor


def _with_unread(tree: Any, kinds: Mapping[str, Unread]) -> Any:
    if isinstance(tree, dict):
        if tree.keys() == {_TENSOR}:
            kind, start, shape = tree[_TENSOR]
            return kinds[kind].part(start, shape)
        return {key: _with_unread(value, kinds) for key, value in tree.items()}
    return [_with_unread(value, kinds) for value in tree] if isinstance(tree, list) else tree


def read(path: Path) -> Any:
    """Reads a file that `write_atomically(path, encode(tree))` wrote."""
    try:
        # Memory-mapped, not read, so that a large model is in memory only once, as the tensors returned.
        with _only_ours(), safe_open(str(path), "pt") as file:
            packed = {kind: file.get_tensor(kind) for kind in file.keys()}  # noqa: SIM118 it is not a mapping
            return _unpacked(file.metadata(), packed)
    except (OSError, ValueError) as problem:
        raise RunDirectoryError(f"{path} cannot be read as a checkpoint: {problem}") from problem
