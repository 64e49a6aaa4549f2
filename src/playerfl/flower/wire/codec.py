"""Envelopes and responses as parcels and as Flower's records, bit for bit. Nothing is pickled; nothing is trusted.

The site's agent works with parcels, since Flower would cost it memory; the server works with records.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import torch
from torch import Tensor

from playerfl.errors import ConfigError, PlayerflError
from playerfl.federation.messages import Download, Reply, Request, Score, Upload, Verb
from playerfl.flower.wire.envelopes import Code, Envelope, Privacy, Response
from playerfl.flower.wire.introduction import Introduction
from playerfl.flower.wire.parcel import Parcel, ParcelError, RawArray, parsed_json
from playerfl.weights import Weights, raw

if TYPE_CHECKING:
    from flwr.app import RecordDict

# Not numpy's file format: parsing its header is one more attack surface, and it has no bfloat16.
RAW = "playerfl.raw"
KINDS = {
    str(kind).removeprefix("torch."): kind
    for kind in (
        torch.float16, torch.bfloat16, torch.float32, torch.float64,
        torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool,
    )
}  # fmt: skip
MOST_DIMENSIONS = 16
MOST_NUMBERS = 2**40
"""In one tensor. torch refuses larger shapes with its own error, even if one of their sides is 0."""
MOST_ENTRIES = 100_000
LONGEST_TEXT = 2**22
"""For an introduction, which lists the entries of a model."""
LONGEST_NAME = 200
TEXTS = ("job", "site", "experiment", "version", "model", "after", "schema")
_ENVELOPE_KEYS = frozenset(
    {*TEXTS, "hello", "initial", "verbs", "round", "best-round", "common", "privacy", "merge-sites"}
)

Wanted = TypeVar("Wanted")


class CodecError(PlayerflError):
    """A message is not an envelope, or not a response."""


def encode_envelope(envelope: Envelope) -> RecordDict:
    """An envelope as Flower's records.

    >>> envelope = Envelope("job", "north", "rounds = 2", "0.1", "f00", request=Request(("fit",), Download(3)))
    >>> decode_envelope(encode_envelope(envelope)) == envelope
    True
    """
    from playerfl.flower.wire.records import to_records

    return to_records(envelope_parcel(envelope))


def envelope_parcel(envelope: Envelope) -> Parcel:
    """An envelope as one record of arrays and two of settings."""
    request = envelope.request or Request((), Download(0))
    config: dict[str, Any] = {
        **{name: getattr(envelope, name) for name in TEXTS},
        "hello": envelope.request is None,
        "initial": envelope.initial,
        "verbs": list(request.verbs),
        "round": request.download.round,
        "best-round": -1 if request.best_round is None else request.best_round,
        "common": request.common,
        "privacy": json.dumps(asdict(envelope.privacy)),
        "merge-sites": envelope.merge_sites,
    }
    weights = _arrays({} if envelope.initial else request.download.weights)
    return Parcel("envelope", {"weights": weights}, configs={"envelope": config, "info": dict(request.download.info)})


def decode_envelope(content: Parcel | RecordDict) -> Envelope:
    """The inverse of `envelope_parcel` and `encode_envelope`; CodecError for anything else."""
    parcel = _parcel(content)
    config = _record(parcel.configs, "envelope")
    # What is not understood is not ignored: it may be what whoever sent it relies on.
    names = [*parcel.arrays, *parcel.metrics, *parcel.configs]
    if sorted(names) != ["envelope", "info", "weights"]:
        raise CodecError(f"the envelope holds unexpected records: {_some(names)}")
    if unknown := config.keys() - _ENVELOPE_KEYS:
        raise CodecError(f"the envelope holds unexpected settings: {_some(unknown)}")
    verbs = tuple(_typed(config, "verbs", list))
    if not all(verb in get_args(Verb) for verb in verbs):
        raise CodecError(f"the envelope asks for {verbs!r}, which is not known")
    best = _typed(config, "best-round", int)
    download = Download(
        _typed(config, "round", int),
        _tensors(_record(parcel.arrays, "weights")),
        _info(_record(parcel.configs, "info")),
    )
    request = Request(verbs, download, None if best < 0 else best, _typed(config, "common", bool))
    return Envelope(
        **{name: _typed(config, name, str) for name in TEXTS},
        request=None if _typed(config, "hello", bool) else request,
        initial=_typed(config, "initial", bool),
        privacy=_privacy(_typed(config, "privacy", str)),
        merge_sites=_typed(config, "merge-sites", int),
    )


def _privacy(text: str) -> Privacy:
    try:
        options = json.loads(text)
        return Privacy(**{name: float(value) for name, value in options.items()})
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError, ConfigError) as problem:
        raise CodecError(f"the envelope's privacy options cannot be read ({type(problem).__name__})") from problem


def encode_response(response: Response) -> RecordDict:
    """A response as Flower's records."""
    from playerfl.flower.wire.records import to_records

    return to_records(response_parcel(response))


def response_parcel(response: Response) -> Parcel:
    """A response as records: arrays are the uploaded weights, metrics are counts and scores, settings are the rest.

    The reply's confusion matrices are left out: they stay at the site.
    """
    reply = response.reply or Reply(Upload(0))
    numbers: dict[str, Any] = {"num-examples": reply.upload.num_examples}
    if reply.scores:
        numbers["scores"] = [float(score.value) for score in reply.scores]
    config: dict[str, Any] = {
        "site": response.site,
        "key": response.key,
        "code": response.code or "",
        "has-reply": response.reply is not None,
        "score-names": [f"{s.stage}/{s.round}/{s.split}/{s.metric}" for s in reply.scores],
        "introduction": json.dumps(response.introduction.to_json() if response.introduction else None),
        "fingerprint": response.fingerprint,
    }
    return Parcel(
        "response",
        {"weights": _arrays(reply.upload.weights)},
        {"numbers": numbers},
        {"info": dict(reply.upload.info), "response": config},
    )


def decode_response(content: Parcel | RecordDict) -> Response:
    """The inverse of `response_parcel` and `encode_response`; CodecError for anything else."""
    parcel = _parcel(content)
    names = [*parcel.arrays, *parcel.metrics, *parcel.configs]
    if sorted(names) != ["info", "numbers", "response", "weights"]:
        raise CodecError(f"the response holds unexpected records: {_some(names)}")
    config = _record(parcel.configs, "response")
    numbers = _record(parcel.metrics, "numbers")
    if not numbers.keys() <= {"num-examples", "scores"}:
        raise CodecError(f"the response holds unexpected numbers: {_some(numbers)}")
    upload = Upload(
        _typed(numbers, "num-examples", int),
        _tensors(_record(parcel.arrays, "weights")),
        _info(_record(parcel.configs, "info")),
    )
    code = _typed(config, "code", str)
    if max(len(_typed(config, name, str)) for name in ("site", "key", "fingerprint")) > LONGEST_NAME:
        raise CodecError(f"its name, key or fingerprint has more than {LONGEST_NAME} characters")
    if code not in ("", *get_args(Code)):
        raise CodecError(f"the response has the unknown code {code[:20]!r}")
    values = numbers.get("scores", [])
    names = _typed(config, "score-names", list)
    if not isinstance(values, list) or len(values) != len(names):
        raise CodecError("the response has scores without names, or names without scores")
    scores = tuple(_score(name, value) for name, value in zip(names, values, strict=True))
    return Response(
        site=_typed(config, "site", str),
        key=_typed(config, "key", str),
        reply=Reply(upload, scores) if _typed(config, "has-reply", bool) else None,
        code=code or None,  # type: ignore[arg-type]
        introduction=_introduction(_typed(config, "introduction", str)),
        fingerprint=_typed(config, "fingerprint", str),
    )


def _some(names: Iterable[str]) -> str:
    """A few of the names that somebody else chose."""
    return ", ".join(ascii(name[:40]) for name in sorted(names)[:5])


def _introduction(text: str) -> Introduction | None:
    if len(text) > LONGEST_TEXT:
        raise CodecError(f"its introduction has {len(text)} characters, more than {LONGEST_TEXT}")
    try:
        table = parsed_json(text)
        return None if table is None else Introduction.from_json(table)
    except (ValueError, RecursionError) as problem:
        raise CodecError(f"its introduction cannot be used: {str(problem)[:100]}") from problem


def _score(name: object, value: object) -> Score:
    parts = name.split("/") if isinstance(name, str) and len(name) < 200 else []
    if len(parts) != 4 or parts[0] not in ("round", "finish") or not parts[1].isdecimal():
        raise CodecError(f"{str(name)[:40]!r} is not the name of a score")
    if parts[2] not in ("train", "validation", "test") or not isinstance(value, float):
        raise CodecError(f"{str(name)[:40]!r} is not a score")
    return Score(parts[0], int(parts[1]), parts[2], parts[3], value)  # type: ignore[arg-type]


def _parcel(content: Parcel | RecordDict) -> Parcel:
    if isinstance(content, Parcel):
        return content
    from playerfl.flower.wire.records import from_records

    try:
        return from_records(content)
    except ParcelError as problem:
        raise CodecError(f"its arrays cannot be unpacked: {problem}") from problem


def _record(records: Mapping[str, Wanted], name: str) -> Wanted:
    if name not in records:
        raise CodecError(f"the message has no record {name!r}")
    return records[name]


def _typed(record: Mapping[str, Any], key: str, kind: type[Wanted]) -> Wanted:
    value = record.get(key)
    if type(value) is not kind:
        raise CodecError(f"{key} is {type(value).__name__}, not {kind.__name__}")
    return value


def _info(record: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in record.items():
        values = value if isinstance(value, list) else [value]
        if not all(type(one) in (int, float, str) for one in values):
            raise CodecError(f"{key[:40]!r} holds neither numbers nor strings")
    return dict(record)


def _arrays(weights: Mapping[str, Tensor]) -> dict[str, RawArray]:
    return {name: raw_array(tensor) for name, tensor in weights.items()}


def raw_array(tensor: Tensor) -> RawArray:
    kind = str(tensor.dtype).removeprefix("torch.")
    if kind not in KINDS:
        raise CodecError(f"weights of type {kind} cannot be sent; allowed: {', '.join(KINDS)}")
    data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    if sys.byteorder == "big":
        data = data.reshape(-1, tensor.element_size()).flip(1)
    return RawArray(kind, tuple(tensor.shape), RAW, raw(data))


def _tensors(record: Mapping[str, RawArray]) -> Weights:
    if len(record) > MOST_ENTRIES:
        raise CodecError(f"the message holds {len(record)} tensors, more than {MOST_ENTRIES}")
    return {name: to_tensor(name, array) for name, array in record.items()}


def to_tensor(name: str, array: RawArray) -> Tensor:
    """The tensor of an array; refused unless it has exactly the bytes of its type and shape."""
    if array.stype != RAW or array.dtype not in KINDS:
        raise CodecError(
            f"{name[:80]!r} is encoded as {array.stype[:40]!r}/{array.dtype[:40]!r}, which is not accepted"
        )
    kind = KINDS[array.dtype]
    shape = tuple(array.shape)
    sides = [side for side in shape if side != 0]
    if len(shape) > MOST_DIMENSIONS or any(type(side) is not int or side < 0 for side in shape):
        raise CodecError(f"{name[:80]!r} has the invalid shape {str(shape)[:80]}")
    if math.prod(sides) > MOST_NUMBERS:
        raise CodecError(f"{name[:80]!r} has the impossible shape {str(shape)[:80]}; it has {len(array.data)} bytes")
    size = torch.empty((), dtype=kind).element_size()
    if len(array.data) != math.prod(shape) * size:
        raise CodecError(f"{name[:80]!r} has {len(array.data)} bytes, which do not fit {shape} {array.dtype}")
    if not array.data:
        return torch.empty(shape, dtype=kind)
    if sys.byteorder == "big":
        raw = torch.frombuffer(bytearray(array.data), dtype=torch.uint8).reshape(-1, size).flip(1)
        return raw.reshape(-1).view(kind).reshape(shape)
    return torch.frombuffer(bytearray(array.data), dtype=kind).reshape(shape)
