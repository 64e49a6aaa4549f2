"""Uploads that wait on disk: the same bits, in the memory of one upload."""

from __future__ import annotations

import tempfile
import weakref

import pytest
import torch

from federations import assert_same, federate, plain_run, task
from playerfl.algorithms import ALGORITHMS, Algorithm
from playerfl.engine import spool
from playerfl.engine.spool import OnDisk, Spool
from playerfl.errors import RunDirectoryError
from playerfl.federation.messages import Reply, Upload
from playerfl.weights import num_bytes, weighted_mean

OWN_MERGE = [name for name, kind in ALGORITHMS.items() if kind.server_merge is not Algorithm.server_merge]
KINDS = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool)


def reply(value: float, size: int = 8) -> Reply:
    return Reply(Upload(3, {"w": torch.full((size,), value)}))


def test_weights_on_disk_are_those_that_were_written() -> None:
    weights = {str(kind): torch.arange(6).reshape(2, 3).t().to(kind) for kind in KINDS}
    weights |= {"scalar": torch.tensor(-0.0), "empty": torch.empty(0, 3)}
    read = OnDisk(weights)
    assert list(read) == list(weights)
    for name, tensor in weights.items():
        assert read[name].dtype == tensor.dtype and read[name].shape == tensor.shape
        assert torch.equal(read[name], tensor)
    assert str(read["scalar"]) == "tensor(-0.)"


def test_small_uploads_stay_in_memory_and_sizes_are_unchanged() -> None:
    kept = Spool(most=70)
    first, second, third = (kept.keep(reply(value)) for value in (1.0, 2.0, 3.0))
    assert isinstance(first.upload.weights, dict) and isinstance(second.upload.weights, dict)
    assert isinstance(third.upload.weights, OnDisk)
    assert third.upload.num_bytes == num_bytes(third.upload.weights) == 32


@pytest.mark.parametrize("name", ["fedavg", "ditto", "player_fl", *OWN_MERGE])
def test_a_run_whose_uploads_wait_on_disk_has_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    in_memory = plain_run(name, "batch norm")
    monkeypatch.setattr(spool, "HELD_BYTES", 0)
    monkeypatch.setattr("playerfl.weights._BYTES_AT_ONCE", 64)
    on_disk = federate(name, task("batch norm"))
    assert_same(on_disk, in_memory)
    assert list(map(tuple, on_disk.traffic_rows)) == list(map(tuple, in_memory.traffic_rows))


def test_a_mean_reads_one_upload_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most three tensors of one entry are in memory: the first, the one being added, and the sum."""
    living: set[int] = set()
    most = 0

    class Counted(OnDisk):
        def __getitem__(self, name: str) -> torch.Tensor:
            nonlocal most
            tensor = super().__getitem__(name)
            number = len(reads)
            reads.append(number)
            living.add(number)
            most = max(most, len(living))
            weakref.finalize(tensor, living.discard, number)
            return tensor

    reads: list[int] = []
    monkeypatch.setattr("playerfl.weights._BYTES_AT_ONCE", 1)
    parts = [({f"w{i}": torch.full((4,), float(site * i)) for i in range(5)}, site + 1.0) for site in range(6)]
    found = weighted_mean([(Counted(weights), share) for weights, share in parts])
    expected = weighted_mean(parts)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert most <= 3


def test_a_full_disk_is_reported_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    with pytest.raises(RunDirectoryError, match=r"do not fit in .*: No space left on device; free some space"):
        Spool(0).keep(reply(1.0))
