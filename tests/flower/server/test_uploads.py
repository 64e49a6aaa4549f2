"""Poisoned uploads are refused and reported, and the round continues."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Array, ConfigRecord, Message, RecordDict

from federations import build, quick_for
from flower.accidents import Accident
from flower.jobs import Job
from playerfl.algorithms import FedLP
from playerfl.engine.handle import handle
from playerfl.engine.scheduler import drive
from playerfl.federation.messages import Request
from playerfl.flower.server.influence import far_away
from playerfl.flower.wire.codec import (
    RAW,
    CodecError,
    decode_envelope,
    decode_response,
    encode_envelope,
    encode_response,
    raw_array,
    to_tensor,
)
from playerfl.flower.wire.envelopes import Envelope, Response

Poison = Callable[[RecordDict], None]


def to_array(tensor: torch.Tensor) -> Array:
    dtype, shape, stype, data = raw_array(tensor)
    return Array(dtype, shape, stype, bytes(data))


class Exploding:
    def __reduce__(self) -> Any:
        return (pytest.fail, ("something was unpickled",))


def entry(record_name: str, key: str, value: Any) -> Poison:
    return lambda content: content[record_name].__setitem__(key, value)


put = partial(entry, "weights")
metric = partial(entry, "numbers")
config = partial(entry, "response")


def fill(value: float) -> Poison:
    return put("0.weight", to_array(torch.full((8, 6), value)))


def without(name: str) -> Poison:
    return lambda content: content["weights"].pop(name)  # type: ignore[union-attr, return-value]


def record(name: str, value: Any) -> Poison:
    return lambda content: content.__setitem__(name, value)


PICKLE = pickle.dumps(Exploding())
POISONS: dict[str, tuple[Poison, str]] = {
    "nan": (fill(float("nan")), "NaN or infinite"),
    "infinite": (fill(float("inf")), "NaN or infinite"),
    "1e30": (fill(1e30), "times the round's median"),
    "wrong shape": (put("0.weight", to_array(torch.zeros(6, 8))), "not (8, 6) torch.float32"),
    "wrong kind": (put("0.weight", to_array(torch.zeros(8, 6, dtype=torch.float64))), "torch.float64, not"),
    "extra name": (put("backdoor", to_array(torch.zeros(1))), "'backdoor', which was not asked for"),
    "private name": (put("6.weight", to_array(torch.zeros(3, 8))), "'6.weight', which was not asked for"),
    "missing name": (without("0.bias"), "lacks entries of the layer '0'"),
    "pickle as bytes": (put("0.weight", Array("float32", (8, 6), RAW, PICKLE)), "cannot be read"),
    "pickle by name": (put("0.weight", Array("object", (1,), "pickle", PICKLE)), "which is not accepted"),
    "numpy file": (put("0.weight", Array(torch.zeros(8, 6).numpy())), "which is not accepted"),
    "endless shape": (put("0.weight", Array("float32", (2**40, 2**40), RAW, b"")), "has 0 bytes"),
    "negative shape": (put("0.weight", Array("float32", (-1,), RAW, b"")), "has the invalid shape"),
    "too many examples": (metric("num-examples", 10**12), "claims 1000000000000 examples"),
    "scores without names": (metric("scores", [0.0, 1.0]), "scores without names"),
    "invented scores": (
        lambda c: (metric("scores", [0.0])(c), config("score-names", ["round/99/test/loss"])(c))[0],
        "a round that was not asked for",
    ),
    "another record": (record("more", ConfigRecord({"a": 1})), "holds unexpected records"),
    "no record": (record("numbers", ConfigRecord({})), "has no record 'numbers'"),
    "other numbers": (metric("extra", 1.0), "holds unexpected numbers"),
    "wrong site name": (config("site", "site-2"), "responds as 'site-2'"),
    "an old response": (config("key", "7:fit"), "to a different request"),
    "an unknown code": (config("code", "ok"), "unknown code"),
    "invalid JSON": (config("introduction", "{" * 10_000), "introduction cannot be used"),
    "unexpected info": (record("info", ConfigRecord({"cut": 9})), "its info holds ['cut']"),
}


def poisoned(tmp_path: Path, poison: Poison, algorithm: Any = "fedper", key: str = "0:fit") -> Job:
    job = Job(tmp_path, algorithm, rounds=1)

    def poison_it(_: Message, response: Message) -> Message:
        poison(response.content)
        return response

    job.tamper(Accident("site-1", [key], poison_it))
    job.run()
    assert job.common and all(bool(torch.isfinite(w).all()) for w in job.common.values())
    return job


@pytest.mark.parametrize(
    "kind",
    quick_for(POISONS, "nan", "1e30", "wrong shape", "extra name", "private name", "pickle as bytes", "invalid JSON"),
)
def test_a_poisoned_upload_is_refused_and_the_round_continues(kind: str, tmp_path: Path) -> None:
    poison, reason = POISONS[kind]
    job = poisoned(tmp_path, poison)
    refused = job.participation("refused")
    assert [(row["site"], row["round"]) for row in refused] == [("site-1", "0")]
    assert reason in refused[0]["reason"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([1.0, 2.0, 3.0], "not a list of 4 numbers"),
        ([1.0, 2.0, 3.0, float("nan")], "finite and non-negative"),
        ([1.0, 2.0, 3.0, -1.0], "finite and non-negative"),
        (["a", "b", "c", "d"], "finite and non-negative"),
        (7.0, "not a list"),
    ],
)
def test_poisoned_importances_are_refused(values: Any, reason: str, tmp_path: Path) -> None:
    job = poisoned(tmp_path, record("info", ConfigRecord({"importance": values})), "player_fl", "0:prepare")
    [refused] = job.participation("refused")
    assert reason in refused["reason"]


@pytest.mark.slow
def test_an_algorithm_may_leave_out_whole_layers_but_not_parts_of_one(tmp_path: Path) -> None:
    job = poisoned(tmp_path, without("0.bias"), FedLP(1.0))
    [refused] = job.participation("refused")
    assert "lacks entries of the layer '0'" in refused["reason"]
    Job(tmp_path / "fine", FedLP(0.5), rounds=3).run()


def test_with_two_sites_the_distant_one_is_found() -> None:
    common = {"w": torch.zeros(2)}
    near, far = {"w": torch.ones(2)}, {"w": torch.full((2,), 30.0)}
    assert far_away({"a": near, "b": far}, common, 20).keys() == {"b"}
    assert far_away({"a": near, "b": far}, common, 40) == {}
    assert far_away({"a": near, "b": far}, common, 0) == {}
    assert far_away({"a": far}, common, 20) == {}


@pytest.mark.parametrize("kind", ["float32", "float64", "float16", "bfloat16", "int64", "uint8", "bool"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3)])
def test_tensors_arrive_bit_for_bit(kind: str, shape: tuple[int, ...]) -> None:
    tensor = (torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 100).to(getattr(torch, kind))
    again = to_tensor("w", raw_array(tensor))
    assert again.dtype == tensor.dtype and torch.equal(again, tensor)


def test_confusion_matrices_do_not_leave_a_site() -> None:
    run = build("fedavg")
    request = Request(("evaluate",), run.algorithm.server_send(run.server, "site-0"))
    reply = drive(handle(run.algorithm, run.clients["site-0"], request, 0, run.evaluation))
    assert set(reply.confusions) == {("round", 0, "validation"), ("round", 0, "test")}
    sent = encode_response(Response("site-0", "key", reply))
    assert sent == encode_response(Response("site-0", "key", replace(reply, confusions={})))
    received = decode_response(sent).reply
    assert received and received.scores == reply.scores and not received.confusions


def test_a_type_that_cannot_be_sent_is_reported() -> None:
    with pytest.raises(CodecError, match="complex64 cannot be sent"):
        raw_array(torch.zeros(1, dtype=torch.complex64))


@pytest.mark.parametrize(
    "options", ["[]", "{", '{"clip": null}', '{"clop": 1}', '{"clip": -1}', "[" * 100_000, "1e999"]
)
def test_a_site_refuses_invalid_privacy_options(options: str) -> None:
    content = encode_envelope(Envelope("job", "north", "rounds = 2", "0.1", "f00"))
    content.config_records["envelope"]["privacy"] = options
    with pytest.raises(CodecError, match="privacy options cannot be read"):
        decode_envelope(content)
