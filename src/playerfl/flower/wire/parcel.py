"""Parcel: the records of one message as plain values, and its frame on a socket. Needs neither Flower nor torch."""

from __future__ import annotations

import base64
import hashlib
import json
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from playerfl.errors import PlayerflError

MAGIC = b"playerfl 1\n"
_LENGTHS = 16
"""Bytes of the two lengths after the magic: the header's and the arrays'."""
MOST_HEADER_BYTES = 2**24
"""Names, shapes and settings; read, they take up to thirty times this in memory."""
MOST_BYTES = 2**33
"""The longest message that is accepted, unless the reader sets a lower limit."""
_PIECE = 2**20
_PARTS = {"kind", "node", "server", "arrays", "metrics", "configs"}
_SCALARS = (bool, int, float, str, bytes)

Values = dict[str, Any]
"""The values of a record: scalars, and lists of scalars."""


class ParcelError(PlayerflError):
    """Bytes are not a parcel, or one that is too large."""


class RawArray(NamedTuple):
    """A tensor as it travels; nothing about it has been checked."""

    dtype: str
    shape: tuple[int, ...]
    stype: str
    data: bytes | memoryview


@dataclass(frozen=True)
class Parcel:
    """The content of one message: named records of arrays, metrics and settings."""

    kind: str
    """Tells the other end what to do with it; the two ends agree on the values."""
    arrays: Mapping[str, Mapping[str, RawArray]] = field(default_factory=dict)
    metrics: Mapping[str, Values] = field(default_factory=dict)
    configs: Mapping[str, Values] = field(default_factory=dict)
    node: int = 0
    """The number of the node that it was sent to, which secure aggregation needs."""
    server: str = ""
    """The server (NAME:PORT) that the node is connected to, by the node's own account."""

    def pieces(self) -> list[bytes | memoryview]:
        """Its bytes, without a copy of the arrays.

        >>> parcel = Parcel("hello", {"weights": {"w": RawArray("uint8", (2,), "raw", b"ab")}}, configs={"c": {"n": 1}})
        >>> again = from_bytes(b"".join(parcel.pieces()))
        >>> again == parcel, again.configs["c"]["n"]
        (True, 1)
        """
        header = {
            "kind": self.kind,
            "node": self.node,
            **({"server": self.server} if self.server else {}),
            "arrays": {
                record: [[name, a.dtype, list(a.shape), a.stype, len(a.data)] for name, a in arrays.items()]
                for record, arrays in self.arrays.items()
            },
            "metrics": {record: _plain(values) for record, values in self.metrics.items()},
            "configs": {record: _plain(values) for record, values in self.configs.items()},
        }
        text = json.dumps(header, separators=(",", ":")).encode()
        data = [array.data for arrays in self.arrays.values() for array in arrays.values()]
        lengths = len(text).to_bytes(8, "little") + sum(map(len, data)).to_bytes(8, "little")
        return [MAGIC + lengths + text, *data]

    def drop_arrays(self) -> None:
        """Frees the memory of the arrays: a connection keeps its parcel for as long as the site trains."""
        object.__setattr__(self, "arrays", {})

    def sha256(self) -> str:
        """The SHA-256 of its bytes."""
        hashed = hashlib.sha256()
        for piece in self.pieces():
            hashed.update(piece)
        return hashed.hexdigest()

    @property
    def num_bytes(self) -> int:
        return sum(map(len, self.pieces()))


def from_bytes(data: bytes | bytearray) -> Parcel:
    """The inverse of `Parcel.pieces`; ParcelError for anything else."""
    start = len(MAGIC) + _LENGTHS
    header_bytes, data_bytes = _lengths(bytes(data[:start]), MOST_BYTES)
    if len(data) != start + header_bytes + data_bytes:
        raise ParcelError("the parcel's lengths do not fit its bytes")
    return _parsed(bytes(data[start : start + header_bytes]), memoryview(data)[start + header_bytes :])


def send(connection: socket.socket, parcel: Parcel) -> None:
    for piece in parcel.pieces():
        connection.sendall(piece)


def receive(connection: socket.socket, most_bytes: int = MOST_BYTES) -> Parcel:
    """Reads one parcel; sizes are checked before memory is taken, and memory only grows with what has arrived."""
    header_bytes, data_bytes = _lengths(bytes(_exactly(connection, len(MAGIC) + _LENGTHS)), most_bytes)
    header = bytes(_exactly(connection, header_bytes))
    return _parsed(header, memoryview(_exactly(connection, data_bytes)))


def _lengths(start: bytes, most_bytes: int) -> tuple[int, int]:
    if len(start) != len(MAGIC) + _LENGTHS or not start.startswith(MAGIC):
        raise ParcelError("these are not the bytes of a parcel")
    header = int.from_bytes(start[-16:-8], "little")
    data = int.from_bytes(start[-8:], "little")
    if header > min(MOST_HEADER_BYTES, most_bytes) or header + data > most_bytes:
        raise ParcelError(f"the parcel has {header + data:,} bytes, but at most {most_bytes:,} are accepted")
    return header, data


def _exactly(connection: socket.socket, count: int) -> bytearray:
    read = bytearray()
    while len(read) < count:
        piece = connection.recv(min(_PIECE, count - len(read)))
        if not piece:
            raise ParcelError(f"the connection ended after {len(read)} of {count} bytes")
        read += piece
    return read


def _parsed(header: bytes, data: memoryview) -> Parcel:
    try:
        table = parsed_json(header, _without_duplicates)
        if not isinstance(table, dict) or {"server", *table} != _PARTS:
            raise ValueError("unknown parts")
        position = 0
        arrays: dict[str, dict[str, RawArray]] = {}
        for record, rows in _table(table["arrays"]).items():
            arrays[record] = {}
            for name, dtype, shape, stype, count in rows:
                if name in arrays[record] or not all(type(text) is str for text in (name, dtype, stype)):
                    raise ValueError("an array's name is repeated or not a text")
                if not isinstance(shape, list) or any(type(side) is not int for side in shape) or len(shape) > 64:
                    raise ValueError("an array's shape is not a list of integers")
                if type(count) is not int or not 0 <= count <= len(data) - position:
                    raise ValueError("an array reaches beyond the data")
                arrays[record][name] = RawArray(dtype, tuple(shape), stype, data[position : position + count])
                position += count
        if position != len(data):
            raise ValueError("there are more bytes than arrays")
        server = table.get("server", "")
        if type(table["kind"]) is not str or type(table["node"]) is not int or type(server) is not str:
            raise ValueError("its kind, node or server has the wrong type")
        metrics = {record: _values(values) for record, values in _table(table["metrics"]).items()}
        configs = {record: _values(values) for record, values in _table(table["configs"]).items()}
        return Parcel(table["kind"], arrays, metrics, configs, table["node"], server)
    except (ValueError, TypeError, RecursionError) as problem:
        raise ParcelError(f"the parcel cannot be read: {str(problem)[:100]}") from problem


def parsed_json(text: str | bytes, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """What somebody else wrote as JSON; ValueError or RecursionError if it cannot be read, or cannot be sent on.

    >>> parsed_json('"caf\\u00e9"')
    'café'
    >>> parsed_json('["\\ud800"]')
    Traceback (most recent call last):
    ValueError: a text holds half of a surrogate pair
    """
    found = json.loads(text, object_pairs_hook=pairs)
    try:
        # JSON can escape half of a surrogate pair, but no file, terminal or message can hold it.
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError as problem:
        raise ValueError("a text holds half of a surrogate pair") from problem
    return found


def _without_duplicates(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for key, value in pairs:
        if key in table:
            raise ValueError("a name is repeated")
        table[key] = value
    return table


def _table(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("a record is not a table")
    return value


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [plain(one) for one in value]
        if isinstance(value, bytes):
            return {"base64": base64.b64encode(value).decode()}
        return value

    return {name: plain(value) for name, value in values.items()}


def _values(values: Any) -> Values:
    def scalar(value: Any) -> Any:
        if isinstance(value, dict):
            if value.keys() != {"base64"}:
                raise ValueError("a value is a table")
            return base64.b64decode(value["base64"], validate=True)
        if type(value) not in _SCALARS:
            raise ValueError(f"a value is a {type(value).__name__}")
        return value

    return {
        name: [scalar(one) for one in value] if isinstance(value, list) else scalar(value)
        for name, value in _table(values).items()
    }
