"""What a message costs the programs that handle it: processor seconds, fitted to real deployments."""

from __future__ import annotations

import math
from dataclasses import dataclass

from playerfl.flower.wire.records import FEW, SMALL_BYTES

BYTES_PER_PARAMETER = 4
CHUNK_BYTES = 5 * 2**20
"""Flower cuts arrays into objects of this size."""
_FRAME_OBJECTS = 6
"""Objects of a message besides its arrays: the message, its records of settings and numbers, and what holds them."""
FRAME_BYTES = 6_000
"""Settings and names in a message without weights: the experiment is part of every envelope."""


@dataclass(frozen=True)
class Size:
    """A message as Flower carries it: every object is a request of its own, and a row in the server's database."""

    bytes: float
    objects: int

    @classmethod
    def of(cls, parameters: float, tensors: int, *, packed: bool = True) -> Size:
        """The size of a message with this model, if its tensors have the same size.

        >>> Size.of(1_000_000, 4)
        Size(bytes=4006000.0, objects=14)
        >>> Size.of(100_000_000, 4).objects    # each tensor of 100 MB is cut into 20 pieces
        90
        >>> Size.of(1_000_000, 100).objects, Size.of(1_000_000, 100, packed=False).objects    # small ones travel as one
        (8, 206)
        """
        weights = BYTES_PER_PARAMETER * parameters
        if packed and tensors > FEW and weights / tensors < SMALL_BYTES:
            tensors = 1
        chunks = tensors * max(1, math.ceil(weights / tensors / CHUNK_BYTES))
        return cls(float(weights + FRAME_BYTES), _FRAME_OBJECTS + tensors + chunks)


@dataclass(frozen=True)
class ProgramCost:
    """Processor seconds that a program spends on a message, on each of its objects, and on each byte."""

    message: float = 0.0
    object: float = 0.0
    byte: float = 0.0

    def of(self, size: Size) -> float:
        """Seconds for a message that passes once.

        >>> ProgramCost(0.1, 0.01, 1e-9).of(Size(bytes=1e9, objects=20))
        1.3
        """
        return self.message + self.object * size.objects + self.byte * size.bytes


@dataclass(frozen=True)
class Costs:
    """Processor seconds by program. A message passes each of them on its way to the site, and on its way back."""

    link: ProgramCost = ProgramCost()
    """Flower's SuperLink, each time a message comes in or goes out."""
    job: ProgramCost = ProgramCost()
    """The job's process at the server: encoding, decoding, checking."""
    node: ProgramCost = ProgramCost()
    """A site's node."""
    agent: ProgramCost = ProgramCost()
    """A site's agent besides training: building the model, checking, reading and writing the site's state."""
    look: float = 0.0
    """The SuperLink's cost of one poll for a message or a response."""
    merge: float = 0.0
    """Merging, per parameter and site."""


@dataclass(frozen=True)
class Memory:
    """Bytes that a program holds at its peak: without weights, in buffers that fill up with the first megabytes of
    messages, and per byte of a message."""

    base: float
    buffers: float
    per_byte: float

    def of(self, message: float) -> float:
        """For messages of this size.

        >>> memory = Memory(100e6, 600e6, 1.0)
        >>> memory.of(10e6), memory.of(1e9)
        (260000000.0, 1700000000.0)
        """
        return self.base + min(self.buffers, _FILLING * message) + self.per_byte * message


_FILLING = 15.0

# benchmarks/scale.py --only costs, on two cores of an AMD EPYC (Zen 3) under load, Flower 1.41.
MEASURED = Costs(
    link=ProgramCost(message=0.0, object=0.0049, byte=3.1e-9),
    job=ProgramCost(message=0.0032, object=0.00081, byte=5.9e-9),
    node=ProgramCost(message=0.0, object=0.0052, byte=6.7e-9),
    agent=ProgramCost(message=0.0047, object=0.00024, byte=5.7e-8),
    look=0.016,
    merge=6.6e-9,
)
# Peaks with messages of 13 kB and 40 MB; those of the SuperLink, the job and the node grow by less per byte in larger
# ones (reliability/large_model.py, and messages of 300 MB). The agent's is that of reliability/large_model.py.
MEMORY = {
    "link": Memory(162e6, 600e6, 1.0),
    "job": Memory(342e6, 350e6, 6.5),
    "node": Memory(147e6, 230e6, 2.3),
    "agent": Memory(288e6, 0.0, 9.0),
    "state": Memory(0.0, 0.0, 9.0),
}
