"""Trees of tensors and values as one safetensors file: written atomically, read back exactly, nothing pickled."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor

from playerfl.errors import RunDirectoryError

_TENSOR = "__tensor__"


def encode(tree: Any) -> bytes:
    """A tree of dicts, lists, tensors and JSON values as bytes.

    >>> decode_bytes(encode({"step": 3, "w": {"a": torch.ones(2)}}))
    {'step': 3, 'w': {'a': tensor([1., 1.])}}
    """
    tensors: dict[str, Tensor] = {}
    skeleton = _without_tensors(tree, "", tensors)
    return save(tensors, metadata={"tree": json.dumps(skeleton)})


def _without_tensors(tree: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(tree, Tensor):
        name = path if path not in tensors else f"{path}#{len(tensors)}"
        # A copy of its own for every mention: safetensors refuses tensors that share memory.
        tensors[name] = tree.detach().cpu().clone(memory_format=torch.contiguous_format)
        return {_TENSOR: name}
    if isinstance(tree, Mapping):
        return {key: _without_tensors(value, f"{path}/{key}", tensors) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_without_tensors(value, f"{path}/{i}", tensors) for i, value in enumerate(tree)]
    return tree


def decode_bytes(data: bytes) -> Any:
    """What `encode` was given."""
    header_size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + header_size])
    return _with_tensors(json.loads(header["__metadata__"]["tree"]), load(data))


def read(path: Path) -> Any:
    """Reads a file that `write_atomically(path, encode(tree))` wrote."""
    try:
        with safe_open(path, framework="pt") as file:
            tree = json.loads((file.metadata() or {})["tree"])
            return _with_tensors(tree, {name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, ValueError) as problem:
        raise RunDirectoryError(f"{path} cannot be read as a checkpoint: {problem}") from problem


def _with_tensors(tree: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(tree, dict):
        if tree.keys() == {_TENSOR}:
            return tensors[tree[_TENSOR]]
        return {key: _with_tensors(value, tensors) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_with_tensors(value, tensors) for value in tree]
    return tree


def write_atomically(path: Path, data: bytes) -> None:
    """Replaces a file so that a crash leaves either the old one or the new one, never half of one."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_directory(path.parent)
    except OSError as problem:
        temporary.unlink(missing_ok=True)
        raise storage_error(path, problem) from problem


def sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def storage_error(path: Path, problem: OSError) -> RunDirectoryError:
    """One sentence for a failed write: what, why, and what to do."""
    remedy = {
        errno.ENOSPC: "free some space",
        errno.EDQUOT: "free some of your quota",
        errno.EFBIG: "allow larger files",
        errno.EACCES: "choose a directory you may write to",
        errno.EPERM: "choose a directory you may write to",
        errno.EROFS: "choose a directory that is not read-only",
    }.get(problem.errno or 0, "mend that")
    return RunDirectoryError(f"cannot write {path}: {problem.strerror or problem}; {remedy} and continue with --resume")
