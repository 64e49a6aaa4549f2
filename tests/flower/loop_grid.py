"""A grid without sockets or Ray: messages are split into Flower's objects, put together again, and handled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, no_object_id_recompute
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

# A message can only be created within a run, which these three identify.
TaskIdentity.task_id = 1
TaskIdentity.run_id = 1
TaskIdentity.node_id = 1

Change = Callable[[str, Message, Message], Message | None]
App = Callable[[Message, Context], Message]


def taken_apart(message: Message) -> tuple[str, dict[str, bytes]]:
    """A message as it travels: its number, and Flower's objects by their numbers."""
    with no_object_id_recompute():
        return message.object_id, {part: thing.deflate() for part, thing in get_all_nested_objects(message).items()}


def put_together(number: str, objects: dict[str, bytes]) -> Message:
    arrived: Any = inflate_object_from_contents(number, dict(objects))
    arrived.metadata.__dict__["_message_id"] = number
    return arrived  # type: ignore[no-any-return]


def over_the_wire(message: Message) -> tuple[Message, int]:
    """What arrives, and how many bytes it was."""
    number, objects = taken_apart(message)
    return put_together(number, objects), sum(map(len, objects.values()))


class LoopGrid:
    """Nodes respond while their message is being pushed. `change` may tamper with a reply, or lose it (None)."""

    def __init__(self, apps: Mapping[str, App], *, named: bool = True, change: Change | None = None) -> None:
        self.apps = apps
        self.numbers = {name: 100 + i for i, name in enumerate(apps)}
        self.named = named
        self.change = change
        self.offline: set[str] = set()
        self.requests: list[tuple[str, Message]] = []
        self.replies: list[tuple[str, Message]] = []
        self.bytes = {"down": 0, "up": 0}
        self.contexts: dict[str, Context] = {}
        self._ready: dict[str, Message] = {}

    def get_nodes(self) -> list[SimpleNamespace]:
        return [
            SimpleNamespace(node_id=number, name=name if self.named else "")
            for name, number in self.numbers.items()
            if name not in self.offline
        ]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        return [self._push(message) for message in messages]

    def _push(self, message: Message) -> str:
        name = next(n for n, number in self.numbers.items() if number == message.metadata.dst_node_id)
        arrived, size = over_the_wire(message)
        number = arrived.metadata.message_id
        message.metadata.__dict__["_message_id"] = number
        self.bytes["down"] += size
        self.requests.append((name, arrived))
        context = self.contexts.setdefault(name, Context(1, self.numbers[name], {}, RecordDict(), {}))
        reply: Message | None = self.apps[name](arrived, context)
        assert reply is not None
        if self.change:
            reply = self.change(name, arrived, reply)
        if reply is not None:
            came, size = (reply, 0) if reply.has_error() else over_the_wire(reply)
            self.bytes["up"] += size
            self.replies.append((name, came))
            self._ready[number] = came
        return number

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        # Last first: nothing may depend on the order of arrival.
        return [self._ready.pop(number) for number in reversed(list(message_ids)) if number in self._ready]


def unreachable(request: Message) -> Message:
    return Message(Error(code=5, reason="Node unavailable"), reply_to=request)


class Clock:
    """Time that passes only while waiting."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
