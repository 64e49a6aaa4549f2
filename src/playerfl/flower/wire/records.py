"""Parcels as Flower's records, and back. Needs no torch, so that what Flower starts stays light.

Flower carries every array as two objects or more, each with its own requests and rows in the server's database: 20 ms
of the server's processor per site and object, however small. Many small arrays therefore travel packed into one.
"""

from __future__ import annotations

from collections.abc import Mapping

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from playerfl.flower.wire.parcel import Parcel, ParcelError, RawArray, from_bytes

OURS = ("envelope", "response")
"""The kinds of parcels that both ends read with `from_records`; Flower reads those of its own secure aggregation."""
PACKED = "playerfl.packed"
"""The name and encoding of an array that holds others, as the bytes of a parcel."""
SMALL_BYTES = 2**20
"""Larger arrays travel as they are: copying them would cost more than their objects."""
FEW = 16
"""Up to this many small arrays travel as they are."""


def to_records(parcel: Parcel) -> RecordDict:
    content = RecordDict()
    for name, arrays in parcel.arrays.items():
        arrays = _packed(arrays) if parcel.kind in OURS else arrays
        content[name] = ArrayRecord(
            {entry: Array(a.dtype, tuple(a.shape), a.stype, bytes(a.data)) for entry, a in arrays.items()}
        )
    for name, values in parcel.metrics.items():
        content[name] = MetricRecord(dict(values))
    for name, values in parcel.configs.items():
        content[name] = ConfigRecord(dict(values))
    return content


def from_records(content: RecordDict, kind: str = "", node: int = 0) -> Parcel:
    """The inverse of `to_records`; ParcelError if packed arrays cannot be unpacked.

    >>> parcel = Parcel("", {"w": {"a": RawArray("uint8", (1,), "raw", b"x")}}, {"m": {"n": 1}}, {"c": {"t": ["x"]}})
    >>> from_records(to_records(parcel)) == parcel
    True
    """
    # Not `content.array_records`, which makes an object that refers to itself and to the content: the weights would
    # stay in memory until Python next looks for such circles.
    records = content.items()
    return Parcel(
        kind,
        {
            name: _unpacked({entry: RawArray(a.dtype, tuple(a.shape), a.stype, a.data) for entry, a in record.items()})
            for name, record in records
            if isinstance(record, ArrayRecord)
        },
        {name: dict(record) for name, record in records if isinstance(record, MetricRecord)},
        {name: dict(record) for name, record in records if isinstance(record, ConfigRecord)},
        node,
    )


def _packed(arrays: Mapping[str, RawArray]) -> Mapping[str, RawArray]:
    small = {entry: array for entry, array in arrays.items() if len(array.data) < SMALL_BYTES}
    if len(small) <= FEW or PACKED in arrays:
        return arrays
    packed = b"".join(Parcel(PACKED, {PACKED: small}, configs={"order": {"names": list(arrays)}}).pieces())
    large = {entry: array for entry, array in arrays.items() if entry not in small}
    return {**large, PACKED: RawArray("uint8", (len(packed),), PACKED, packed)}


def _unpacked(arrays: Mapping[str, RawArray]) -> Mapping[str, RawArray]:
    """The arrays in their own order. Nothing about those inside has been checked, either."""
    packed = arrays.get(PACKED)
    if packed is None or packed.stype != PACKED:
        return arrays
    inner = from_bytes(bytes(packed.data))
    small = inner.arrays.get(PACKED, {})
    large = {name: array for name, array in arrays.items() if name != PACKED}
    names = inner.configs.get("order", {}).get("names")
    found = {**small, **large}
    # Each name once: none may hide another, not even one that is both inside and outside.
    order = [str(name) for name in names] if isinstance(names, list) else []
    if sorted(order) != sorted(found) or len(found) != len(small) + len(large):
        raise ParcelError("the names of packed arrays do not fit the arrays")
    return {name: found[name] for name in order}
