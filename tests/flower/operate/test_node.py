"""The node beside its site's agent: what goes wrong with one message does not keep it from the next."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("ends", ["pull_object", "confirm_message_received"])
def test_a_run_that_ends_while_its_message_arrives_leaves_nothing_behind(
    ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server was killed at this moment: the site waited two hours for the rest of the message."""
    import flwr.supernode.start_client_internal as loop
    from flwr.app import Message, RecordDict
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
    from flwr.supercore.object_store import ObjectStoreFactory
    from flwr.supercore.run import Run, RunNotRunningException
    from flwr.supernode.nodestate.nodestate_factory import NodeStateFactory

    import flower.loop_grid  # noqa: F401
    from playerfl.flower.node.ended_runs import forget_messages_of_ended_runs

    monkeypatch.setattr(loop, "_pull_and_store_message", loop._pull_and_store_message)
    forget_messages_of_ended_runs()
    stores = ObjectStoreFactory()
    state = NodeStateFactory(stores).state()
    state.set_node_id(1)
    state.store_run(Run.create_empty(1))
    message = Message(RecordDict(), 1, "train")
    message.metadata.__dict__["_message_id"] = message.object_id
    pieces = {number: piece.deflate() for number, piece in get_all_nested_objects(message).items()}

    def over(*_: Any) -> Any:
        raise RunNotRunningException

    calls: dict[str, Any] = {
        "receive": lambda: (message, get_object_tree(message)),
        "pull_object": lambda _, number: pieces[number],
        "confirm_message_received": lambda *_: None,
        ends: over,
    }
    unused = SimpleNamespace(get_run=None, get_fab=None, node_config={}, trusted_entities=None)
    assert loop._pull_and_store_message(state=state, object_store=stores.store(), **calls, **vars(unused)) is None
    assert not state.get_messages_legacy(is_reply=False)
    assert all(task.status.status == "finished" for task in state.get_tasks())


def test_a_message_that_cannot_be_relayed_is_not_said_to_have_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's node waits for ever for the response to a failed message, but reports a silent one as an error."""
    from playerfl.flower.node import relay

    told: list[str] = []
    client: Any = SimpleNamespace(close=lambda: told.append("closed"))
    heart = SimpleNamespace(start=lambda: None, stop=lambda: told.append("no more heartbeats"))
    monkeypatch.setattr(relay, "HeartbeatSender", lambda _: heart)
    monkeypatch.setattr(relay, "pull_task_input", lambda _: (None, None, None, None))
    monkeypatch.setattr(relay, "push_task_output", lambda *_: told.append("over"))

    def broken(*_: Any) -> None:
        raise OSError("gone")

    monkeypatch.setattr(relay, "push_message", broken)
    with pytest.raises(OSError, match="gone"):
        relay._relay(client, lambda message, _: message)
    assert told == ["no more heartbeats", "closed"]
