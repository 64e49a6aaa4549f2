"""The relay: takes messages from Flower's node, passes them to the agent, and hands the responses back.

It replaces the process that Flower would start for every message, to run the server's app. Here no process
is started, and no code that came from the server ever runs: whatever app a job names, the relay is the same.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial

import httpx
from flwr.app import Context, Message
from flwr.common.constant import SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest, SendTaskHeartbeatRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.retry import RetryInvoker, constant
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

log = logging.getLogger("playerfl.flower.node")

LOOK_SECONDS = 0.2
"""Seconds between two polls for a message, over loopback."""
RETRY_SECONDS = 1.0
_PROTECTED = frozenset({"/flwr.proto.Runtime/AcquireTask"})

App = Callable[[Message, Context], Message]


def relay_messages(address: str, secret: bytes, app: App, noted: Callable[[], None] = lambda: None) -> None:
    """Relays messages for as long as the process lives; no failure of a single one ends it.

    `noted` is called when a message has come, and when its answer has gone.
    """
    auth = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=_PROTECTED)
    node = _client(address, auth)
    request = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
    while True:
        try:
            acquired = node.AcquireTask(request)
            if acquired.HasField("task") and acquired.token:
                noted()
                _relay(_client(address, RuntimeTokenHttpInterceptor(acquired.token)), app)
                noted()
            else:
                time.sleep(LOOK_SECONDS)
        except Exception as problem:
            # The node is starting, or stopping, or gave up on the message: the server asks again.
            log.warning("no message could be relayed (%s: %s)", type(problem).__name__, problem)
            time.sleep(RETRY_SECONDS)


def _relay(client: RuntimeHttpClient, app: App) -> None:
    """One message and its response.

    The node gives up on a message without heartbeats, and reports an error to the server. If it were told that the
    message has failed, it would instead wait for the response for ever.
    """
    heart = HeartbeatSender(partial(_beat, client))
    heart.start()
    try:
        message, context, _, _ = pull_task_input(client)
        push_message(client, app(message, context), context)
        push_task_output(client, context, SubStatus.COMPLETED, "")
    finally:
        heart.stop()
        client.close()


def _beat(client: RuntimeHttpClient) -> bool:
    # Flower's own function ends the process when the node has dropped the message; the next one may still be relayed.
    try:
        client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
    except httpx.TransportError:
        return False
    except httpx.HTTPStatusError as problem:
        log.warning("the node no longer waits for this message (%s)", problem.response.status_code)
    return True


def _client(address: str, interceptor: SuperExecAuthHttpInterceptor | RuntimeTokenHttpInterceptor) -> RuntimeHttpClient:
    return RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=True,
        root_certificates=None,
        interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr-clientapp"), interceptor],
        # Flower's own client would end the process if a message has expired.
        retry_invoker=RetryInvoker(lambda: constant(RETRY_SECONDS), httpx.TransportError, max_tries=10, max_time=30.0),
    )
