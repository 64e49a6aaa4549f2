"""Parcels as Flower's records, and back. Needs no torch, so that what Flower starts stays light."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from playerfl.flower.wire.parcel import Parcel, RawArray


def to_records(parcel: Parcel) -> RecordDict:
    content = RecordDict()
    for name, arrays in parcel.arrays.items():
        content[name] = ArrayRecord(
            {entry: Array(a.dtype, tuple(a.shape), a.stype, bytes(a.data)) for entry, a in arrays.items()}
        )
    for name, values in parcel.metrics.items():
        content[name] = MetricRecord(dict(values))
    for name, values in parcel.configs.items():
        content[name] = ConfigRecord(dict(values))
    return content


def from_records(content: RecordDict, kind: str = "", node: int = 0) -> Parcel:
    """The inverse of `to_records`.

    >>> parcel = Parcel("", {"w": {"a": RawArray("uint8", (1,), "raw", b"x")}}, {"m": {"n": 1}}, {"c": {"t": ["x"]}})
    >>> from_records(to_records(parcel)) == parcel
    True
    """
    return Parcel(
        kind,
        {
            name: {entry: RawArray(a.dtype, tuple(a.shape), a.stype, a.data) for entry, a in record.items()}
            for name, record in content.array_records.items()
        },
        {name: dict(record) for name, record in content.metric_records.items()},
        {name: dict(record) for name, record in content.config_records.items()},
        node,
    )
