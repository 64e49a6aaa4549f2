"""Spool: a round's uploads wait on disk if together they would take too much memory."""

from __future__ import annotations

import mmap
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from os import SEEK_CUR

import torch
from torch import Tensor

from playerfl.errors import StorageError
from playerfl.federation.messages import Reply, Upload
from playerfl.weights import raw

HELD_BYTES = 2**28
"""How much memory the uploads of one exchange may take."""


class Spool:
    """Takes the replies of one exchange as they come, and writes to disk what does not fit in memory until the merge.

    A mean cannot be accumulated as uploads arrive: which sites it covers is known only once the last one has answered
    and its upload has been checked. So uploads wait, and `weighted_mean` reads them entry by entry.
    """

    def __init__(self, most: int | None = None) -> None:
        """`most`: bytes of uploads to hold in memory; default: HELD_BYTES."""
        self._left = HELD_BYTES if most is None else most

    def keep(self, reply: Reply) -> Reply:
        """The same reply, its weights in memory or on disk."""
        upload = reply.upload
        size = upload.num_bytes
        if size <= self._left:
            self._left -= size
            return reply
        return replace(reply, upload=_Spooled(upload.num_examples, OnDisk(upload.weights), upload.info, size))


@dataclass(frozen=True)
class _Spooled(Upload):
    """An upload on disk, whose size is known without reading it."""

    size: int = 0

    @property
    def num_bytes(self) -> int:
        return self.size


class OnDisk(Mapping[str, Tensor]):
    """Weights in a file without a name, which disappears with the last reference to it or with the process.

    >>> weights = OnDisk({"w": torch.ones(2, 2), "steps": torch.tensor(7)})
    >>> weights["steps"], list(weights)
    (tensor(7), ['w', 'steps'])
    """

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        self._places: dict[str, tuple[int, torch.Size, torch.dtype]] = {}
        try:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 closed with this object
            weakref.finalize(self, self._file.close)
            for name, tensor in weights.items():
                self._file.seek(-self._file.tell() % mmap.ALLOCATIONGRANULARITY, SEEK_CUR)
                self._places[name] = (self._file.tell(), tensor.shape, tensor.dtype)
                self._file.write(raw(tensor))
            self._file.flush()
        except OSError as problem:
            raise StorageError(
                f"the uploads of a round do not fit in {tempfile.gettempdir()}: {problem.strerror or problem}; "
                "free some space there or set TMPDIR to another directory,",
                "continue with --resume",
            ) from problem

    def __getitem__(self, name: str) -> Tensor:
        start, shape, kind = self._places[name]
        size = shape.numel() * kind.itemsize
        if not size:
            return torch.empty(shape, dtype=kind)
        # Mapped, not read: the pages of a copy would be cleared, then filled. Writing to it leaves the file as it is.
        mapped = mmap.mmap(self._file.fileno(), size, access=mmap.ACCESS_COPY, offset=start)
        return torch.frombuffer(mapped, dtype=kind).view(shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)
