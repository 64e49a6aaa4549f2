"""Many small arrays travel as one of Flower's objects, and nobody can use that to smuggle anything past the checks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from flwr.app import Array, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from torch import nn

from federations import sites
from flower.jobs import Job
from playerfl.federation.messages import Download, Reply, Request, Upload
from playerfl.flower.plan.costs import Size
from playerfl.flower.wire.codec import CodecError, decode_envelope, decode_response, encode_envelope, encode_response
from playerfl.flower.wire.envelopes import Envelope, Response
from playerfl.flower.wire.parcel import Parcel, RawArray
from playerfl.flower.wire.records import FEW, PACKED, SMALL_BYTES, from_records, to_records
from playerfl.tasks.task import own_task

SMALL = {f"{i}.weight": torch.full((2, 3), float(i)) for i in range(40)}
LARGE = {"large": torch.arange(SMALL_BYTES // 4, dtype=torch.float32)}
WEIGHTS = {**dict(list(SMALL.items())[:20]), **LARGE, **SMALL}
RESPONSE = Response("north", "1:fit", Reply(Upload(3, WEIGHTS)))


def test_the_weights_come_back_in_their_order_bit_for_bit() -> None:
    envelope = Envelope("job", "north", "", "1", "f", request=Request(("fit",), Download(3, WEIGHTS)))
    for weights in (
        decode_response(encode_response(RESPONSE)).reply.upload.weights,  # type: ignore[union-attr]
        decode_envelope(encode_envelope(envelope)).request.download.weights,  # type: ignore[union-attr]
    ):
        assert list(weights) == list(WEIGHTS)
        assert all(torch.equal(weights[name], entry) for name, entry in WEIGHTS.items())


def test_only_small_arrays_are_packed_and_only_if_there_are_many() -> None:
    assert encode_response(RESPONSE)["weights"].keys() == {"large", PACKED}
    few = replace(RESPONSE, reply=Reply(Upload(3, dict(list(SMALL.items())[:FEW]))))
    assert encode_response(few)["weights"].keys() == few.reply.upload.weights.keys()  # type: ignore[union-attr]


def test_what_flower_reads_itself_is_not_packed() -> None:
    arrays = {name: RawArray("float32", (2, 3), "raw", bytes(24)) for name in SMALL}
    assert to_records(Parcel("secure", {"w": arrays}))["w"].keys() == SMALL.keys()


def test_a_message_has_as_many_objects_as_a_plan_counts() -> None:
    def objects(weights: dict[str, torch.Tensor]) -> int:
        content = encode_response(replace(RESPONSE, reply=Reply(Upload(3, weights))))
        message = Message(content, 1, "train.round")
        return len(get_all_nested_objects(message))

    different = {name: entry + torch.rand(2, 3) for name, entry in SMALL.items()}
    assert objects(different) == Size.of(6 * 40, 40).objects
    few = {f"{i}": torch.rand(3 * SMALL_BYTES) for i in range(2)}
    assert objects(few) == Size.of(6 * SMALL_BYTES, 2).objects


def repacked(change: Callable[[dict[str, RawArray], list[str]], None]) -> RecordDict:
    """A response whose packed arrays and their names were changed."""
    content = encode_response(RESPONSE)
    arrays = {name: RawArray("float32", (2, 3), "playerfl.raw", bytes(24)) for name in SMALL}
    names = [*arrays, "large"]
    change(arrays, names)
    inner = b"".join(Parcel(PACKED, {PACKED: arrays}, configs={"order": {"names": names}}).pieces())
    content["weights"][PACKED] = Array("uint8", (len(inner),), PACKED, inner)
    return content


def test_repacking_alone_changes_nothing() -> None:
    assert from_records(repacked(lambda _, __: None)).arrays["weights"].keys() == WEIGHTS.keys()


@pytest.mark.parametrize(
    "change",
    [
        lambda arrays, _: arrays.pop("3.weight"),
        lambda _, names: names.remove("large"),
        lambda _, names: names.append("3.weight"),
        lambda _, names: names.append("another"),
        lambda arrays, _: arrays.update(large=RawArray("float32", (1,), "playerfl.raw", bytes(4))),
        lambda arrays, names: (
            arrays.update(large=RawArray("float32", (1,), "playerfl.raw", bytes(4))),
            names.append("large"),
        ),
    ],
)
def test_names_that_do_not_fit_are_refused(change: Callable[[dict[str, RawArray], list[str]], None]) -> None:
    with pytest.raises(CodecError, match="cannot be unpacked"):
        decode_response(repacked(change))


@pytest.mark.parametrize("data", [b"", b"playerfl 1\n", bytes(100), b"playerfl 1\n" + b"\xff" * 16])
def test_bytes_that_are_no_parcel_are_refused(data: bytes) -> None:
    content = encode_response(RESPONSE)
    content["weights"][PACKED] = Array("uint8", (len(data),), PACKED, data)
    with pytest.raises(CodecError, match="cannot be unpacked"):
        decode_response(content)


def test_a_pack_in_a_pack_stays_closed() -> None:
    inner = RawArray("uint8", (1,), PACKED, b"x")
    content = repacked(lambda arrays, _: arrays.update({"3.weight": inner}))
    with pytest.raises(CodecError, match="not accepted"):
        decode_response(content)


def test_a_deep_model_over_flower_equals_one_process(tmp_path: Path) -> None:
    def deep() -> nn.Module:
        return nn.Sequential(*(part for _ in range(12) for part in (nn.Linear(6, 6), nn.Tanh())), nn.Linear(6, 3))

    job = Job(tmp_path, "fedavg", own_task(deep, sites(3)), rounds=2)
    job.run()
    assert any(PACKED in message.content["weights"] for _, message in job.grid.replies)
    job.assert_equals_in_process()
