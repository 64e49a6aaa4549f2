"""Large messages leave the memory as soon as they are dealt with, not when Python looks for objects in a circle."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from flwr.app import Message, RecordDict

from flower.jobs import Job
from flower.loop_grid import LoopGrid
from playerfl.flower.wire.parcel import Parcel, RawArray
from playerfl.flower.wire.records import from_records, to_records


@pytest.fixture
def uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("uncollected")
def test_records_that_were_read_are_not_kept() -> None:
    content = to_records(Parcel("response", {"weights": {"w": RawArray("uint8", (1,), "raw", b"x")}}))
    held = weakref.ref(content)
    assert from_records(content).arrays["weights"]["w"].data == b"x"
    del content
    assert held() is None


class Watching(LoopGrid):
    """Counts the contents of messages that are in memory while the server has one sent or fetched."""

    def __init__(self, grid: LoopGrid) -> None:
        super().__init__(grid.apps)
        self.contents: list[weakref.ref[RecordDict]] = []
        self.most = 0

    def _watch(self, message: Message) -> None:
        self.requests.clear()
        self.replies.clear()
        self.most = max(self.most, sum(content() is not None for content in self.contents))
        self.contents.append(weakref.ref(message.content))

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        for message in messages:
            self._watch(message)
        return super().push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        messages = super().pull_messages(message_ids)
        for message in messages:
            self._watch(message)
        return messages


@pytest.mark.usefixtures("uncollected")
def test_the_server_holds_one_message_at_a_time(tmp_path: Path) -> None:
    job = Job(tmp_path, "fedavg", rounds=2)
    job.grid = watching = Watching(job.grid)
    job.run()
    assert len(watching.contents) > 20
    assert watching.most == 0, "of earlier messages, while another one is sent or fetched"
