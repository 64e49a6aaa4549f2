"""All architectures of the zoo, by name: how to build each, and an example batch."""

from __future__ import annotations

from zoo.attentive import ATTENTIVE
from zoo.beside import BESIDE
from zoo.blocks import BLOCKS
from zoo.entering import ENTERING
from zoo.other import OTHER
from zoo.parameters import PARAMETERS
from zoo.recurrent import RECURRENT
from zoo.shared import SHARED
from zoo.streams import STREAMS
from zoo.vision import VISION

REAL = {
    **VISION,
    **ATTENTIVE,
    **OTHER,
    **RECURRENT,
    **SHARED,
    **BLOCKS,
    **PARAMETERS,
    **BESIDE,
    **STREAMS,
    **ENTERING,
}
