"""Ended runs: a run that ends while a message of it is being received must not keep the node from later messages.

Flower notes a message before it has its pieces, and forgets it again if they cannot be received. But its exception for
a run that has ended is no `Exception`, so then it forgets nothing: the relay waits for the pieces for up to two hours,
and the whole site with it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

_OF_THE_RUN = ("pull_object", "confirm_message_received")
"""What Flower's function is given to receive the pieces of a message."""


class RunEndedError(Exception):
    """The run of a message has ended."""


def forget_messages_of_ended_runs() -> None:
    """Lets Flower's loop treat the end of a run like any other failure to receive a message."""
    import flwr.supernode.start_client_internal as loop
    from flwr.supercore.run import RunNotRunningException

    def failing(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            try:
                return call(*arguments)
            except RunNotRunningException as problem:
                raise RunEndedError("the run has ended") from problem

        return called

    receive: Callable[..., int | None] = loop._pull_and_store_message

    @wraps(receive)
    def received(**given: Any) -> int | None:
        return receive(**{name: failing(value) if name in _OF_THE_RUN else value for name, value in given.items()})

    if not hasattr(receive, "__wrapped__"):
        loop.__dict__["_pull_and_store_message"] = received
