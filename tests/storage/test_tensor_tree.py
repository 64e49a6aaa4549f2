from __future__ import annotations

import contextlib
import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from playerfl.errors import RunDirectoryError
from playerfl.storage import tensor_tree
from playerfl.storage.atomic_files import write_atomically


def test_every_kind_of_value_comes_back_exactly() -> None:
    tree = {
        "weights": {"a/b": torch.randn(2, 3), "a": {"b": torch.zeros(())}},
        "kinds": [torch.arange(4), torch.tensor([True, False]), torch.randn(2, dtype=torch.float64), torch.zeros(0, 3)],
        "layout": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
        "values": [1, 0.1, float("inf"), "text", None, True, {"nested": []}],
    }
    back = tensor_tree.decode(tensor_tree.encode(tree))
    assert back["values"] == tree["values"]
    for left, right in [
        (tree["weights"]["a/b"], back["weights"]["a/b"]),  # type: ignore[call-overload,index]
        (tree["weights"]["a"]["b"], back["weights"]["a"]["b"]),  # type: ignore[call-overload,index]
        (tree["layout"], back["layout"]),
        *zip(tree["kinds"], back["kinds"], strict=True),
    ]:
        assert left.dtype == right.dtype
        assert torch.equal(left, right)


def test_it_writes_what_safetensors_would(monkeypatch: pytest.MonkeyPatch) -> None:
    from safetensors.torch import save

    kinds = (torch.bool, torch.uint8, torch.int16, torch.float16, torch.bfloat16, torch.int32, torch.float32)
    kinds += (torch.float64, torch.int64)
    tensors = {str(kind).removeprefix("torch."): torch.arange(5).to(kind) for kind in kinds}
    places = {kind: {"__tensor__": [kind, 0, [5]]} for kind in tensors}
    skeleton = json.dumps({"ä": places})
    checked = f"{tensor_tree.fingerprint(skeleton, {kind: [own] for kind, own in tensors.items()})} {skeleton}"
    expected = save(tensors, metadata={"checked tree": checked})
    assert tensor_tree.encode({"ä": tensors}) == expected
    monkeypatch.setattr(tensor_tree, "_BYTES_AT_ONCE", 1)
    assert tensor_tree.encode({"ä": tensors}) == expected


def test_a_tensor_mentioned_twice_comes_back_as_two() -> None:
    shared = torch.ones(2)
    first, second = tensor_tree.decode(tensor_tree.encode([shared, shared]))
    first += 1
    assert second.tolist() == [1, 1]


@given(st.binary(max_size=200))
def test_foreign_bytes_are_refused_by_name(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"not a tree|Expecting|Extra data"):
        tensor_tree.decode(data)


@given(st.integers(-5, 20), st.lists(st.integers(-3, 9), max_size=3))
def test_a_header_that_lies_about_its_tensors_is_refused_or_harmless(start: int, shape: list[int]) -> None:
    from safetensors.torch import save

    tree = json.dumps({"__tensor__": ["float32", start, shape]})
    data = save({"float32": torch.arange(4.0)}, metadata={"tree": tree})
    with contextlib.suppress(ValueError):
        assert tensor_tree.decode(data).numel() <= 4


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"x" + b])
def test_a_damaged_file_is_named(tmp_path: Path, damage: Any) -> None:
    file = tmp_path / "checkpoint.safetensors"
    file.write_bytes(damage(tensor_tree.encode({"a": torch.ones(100)})))
    with pytest.raises(RunDirectoryError, match=r"checkpoint\.safetensors cannot be read"):
        tensor_tree.read(file)


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "state"
    write_atomically(file, b"old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunDirectoryError, match=r"cannot write .*: No space left on device; free some space"):
        write_atomically(file, b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
    assert file.read_bytes() == b"old"


def test_a_bit_that_flips_anywhere_is_noticed() -> None:
    data = tensor_tree.encode({"round": 1, "w": torch.arange(20.0)})
    for place in range(0, len(data), 7):
        flipped = bytearray(data)
        flipped[place] ^= 1
        with contextlib.suppress(ValueError):
            # Blanks that pad the header carry nothing.
            assert tensor_tree.encode(tensor_tree.decode(bytes(flipped))) == data
            assert data[place : place + 1] == b" "


def test_files_of_earlier_versions_are_read() -> None:
    from safetensors.torch import save

    tree = json.dumps({"w": {"__tensor__": ["float32", 1, [2]]}, "round": 3})
    back = tensor_tree.decode(save({"float32": torch.arange(4.0)}, metadata={"tree": tree}))
    assert back["round"] == 3
    assert back["w"].tolist() == [1, 2]


def test_the_same_tree_gives_the_same_bytes() -> None:
    assert len({tensor_tree.encode({"a": torch.ones(2), "b": torch.arange(3)}) for _ in range(20)}) == 1


def test_models_are_written_as_safetensors_would() -> None:
    from safetensors.torch import save

    kinds = (torch.float32, torch.bool, torch.float16, torch.int64, torch.bfloat16, torch.uint8, torch.float64)
    names = [(f"{letter}.{i}", kind) for i, kind in enumerate(kinds) for letter in "bäa"]
    model = {name: torch.arange(6).reshape(2, 3).to(kind) for name, kind in names}
    model |= {"empty": torch.zeros(0, 3), "steps": torch.tensor(7), "turned": torch.arange(6.0).reshape(2, 3).T}
    contiguous = {name: tensor.contiguous() for name, tensor in model.items()}
    for some in (contiguous, {}):
        assert b"".join(tensor_tree.model_pieces(model if some else {})) == save(some)


def test_tensors_stay_in_the_file_until_they_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "state"
    tree = {
        "models": [{"w": torch.randn(3, 4), "steps": torch.tensor(7)}, {"w": torch.zeros(0, 2)}],
        "kinds": [torch.tensor([True, False]), torch.randn(5).double(), torch.ones(2, dtype=torch.bfloat16)],
        "round": 3,
    }
    data = tensor_tree.encode(tree)
    write_atomically(file, data)
    monkeypatch.setattr(tensor_tree, "_BYTES_AT_ONCE", 8)
    seen = tensor_tree.look_into(file)
    # The file may be replaced before they are read.
    write_atomically(file, b"another one")
    assert isinstance(seen["models"][0]["w"], tensor_tree.Unread)
    assert b"".join(tensor_tree.pieces(seen)) == data
    assert tensor_tree.encode(tensor_tree.loaded(seen)) == data
    first, second = tensor_tree.loaded([seen["kinds"][1]] * 2)
    first += 1
    assert torch.equal(second, tree["kinds"][1])  # type: ignore[index]


def test_a_look_into_a_damaged_file_says_so(tmp_path: Path) -> None:
    file = tmp_path / "state"
    whole = tensor_tree.encode({"round": 1, "w": torch.arange(20.0)})
    for place in range(0, len(whole), 7):
        flipped = bytearray(whole)
        flipped[place] ^= 1
        for damaged in (bytes(flipped), whole[:place]):
            file.write_bytes(damaged)
            try:
                assert tensor_tree.encode(tensor_tree.loaded(tensor_tree.look_into(file))) == whole
                assert damaged[place : place + 1] == b" "  # blanks that pad the header carry nothing
            except RunDirectoryError as problem:
                assert "state cannot be read as a checkpoint" in str(problem)


def test_a_file_that_becomes_shorter_while_it_is_read_is_named(tmp_path: Path) -> None:
    file = tmp_path / "state"
    file.write_bytes(tensor_tree.encode({"w": torch.arange(200_000.0)}))
    seen = tensor_tree.look_into(file)
    os.truncate(file, 1000)
    with pytest.raises(RunDirectoryError, match="state cannot be read: it has become shorter"):
        tensor_tree.loaded(seen)
