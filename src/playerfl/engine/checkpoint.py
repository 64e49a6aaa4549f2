"""Trees of tensors and values as one safetensors file: written atomically, read back exactly, nothing pickled."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from playerfl.errors import RunDirectoryError
from playerfl.weights import digest

_TENSOR = "__tensor__"
_CHECKED = "checked tree"


def encode(tree: Any) -> bytes:
    """A tree of dicts, lists, tensors and JSON values as bytes.

    All tensors of one kind are laid end to end: hundreds of small ones would take longer to name than to write.

    >>> decode(encode({"step": 3, "w": {"a": torch.ones(2)}}))
    {'step': 3, 'w': {'a': tensor([1., 1.])}}
    """
    packing = _Packing()
    skeleton = json.dumps(packing.without_tensors(tree))
    flat = {kind: torch.cat(tensors) for kind, tensors in packing.tensors.items()}
    # In one entry: the library writes several in any order, and the same tree must give the same bytes.
    return save(flat, metadata={_CHECKED: f"{fingerprint(skeleton, flat)} {skeleton}"})


def fingerprint(skeleton: str, flat: Mapping[str, Tensor]) -> str:
    """Of everything in the file: a bit that flips on a disk must not become another result."""
    return hashlib.blake2b(skeleton.encode() + digest(flat).encode(), digest_size=16).hexdigest()


class _Packing:
    """Takes the tensors out of a tree. One that is mentioned often (a model many sites keep) is stored once."""

    def __init__(self) -> None:
        self.tensors: dict[str, list[Tensor]] = {}
        self._ends: dict[str, int] = {}
        # The tensor is kept beside its place: one made on the way and dropped could leave its id to another.
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
    """What `encode` was given; ValueError if these are not its bytes."""
    try:
        told = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
        flat = load(data)
        if _CHECKED not in told:  # as earlier versions wrote it
            return _with_tensors(json.loads(told["tree"]), flat)
        known, _, skeleton = told[_CHECKED].partition(" ")
        if known != fingerprint(skeleton, flat):
            raise ValueError("it was changed since it was written")
        return _with_tensors(json.loads(skeleton), flat)
    except (SafetensorError, LookupError, TypeError, AttributeError, RuntimeError, UnicodeError) as problem:
        raise ValueError(f"not a tree of tensors and values ({type(problem).__name__}: {problem})") from problem


def _with_tensors(tree: Any, packed: Mapping[str, Tensor]) -> Any:
    if isinstance(tree, dict):
        if tree.keys() == {_TENSOR}:
            kind, start, shape = tree[_TENSOR]
            size = math.prod(shape)
            if start < 0 or start + size > len(packed[kind]):
                raise IndexError(f"a tensor reaches beyond the {len(packed[kind])} numbers there are")
            return packed[kind][start : start + size].reshape(shape).clone()
        return {key: _with_tensors(value, packed) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_with_tensors(value, packed) for value in tree]
    return tree


def read(path: Path) -> Any:
    """Reads a file that `write_atomically(path, encode(tree))` wrote."""
    try:
        return decode(path.read_bytes())
    except (OSError, ValueError) as problem:
        raise RunDirectoryError(f"{path} cannot be read as a checkpoint: {problem}") from problem
