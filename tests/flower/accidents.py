"""What can go wrong with a site's response on its way to the server."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from flwr.app import Message

from flower.loop_grid import unreachable
from playerfl.flower.wire.codec import decode_envelope


class StoppedError(Exception):
    """The server was stopped."""


def key_of(request: Message) -> str:
    return decode_envelope(request.content).key


@dataclass
class Accident:
    """Happens to a site's responses to some keys, at most `times` times. `happen` returns what arrives, or None."""

    site: str
    keys: Collection[str]
    happen: Callable[[Message, Message], Message | None]
    times: int = 1

    def __call__(self, name: str, request: Message, response: Message) -> Message | None:
        if name != self.site or not self.times or key_of(request) not in self.keys:
            return response
        self.times -= 1
        return self.happen(request, response)


def stop(*_: object) -> None:
    raise StoppedError


def lost(request: Message, _: Message) -> Message:
    """Flower reports that the node is gone."""
    return unreachable(request)


def nothing_arrives(_: Message, __: Message) -> None:
    """No response arrives before the deadline."""
