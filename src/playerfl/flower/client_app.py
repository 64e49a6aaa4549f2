"""The relay: passes Flower's messages to the site's agent, and its responses back. It has no torch and no data."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp

from playerfl.errors import ConfigError
from playerfl.flower.node.connection import ask_agent
from playerfl.flower.wire.parcel import Parcel
from playerfl.flower.wire.records import from_records, to_records

log = logging.getLogger("playerfl.flower.node")

Answer = Callable[[Parcel], Parcel]


def make_app(agent_of: Callable[[Context], Answer]) -> ClientApp:
    """An app whose messages are answered by the agent that `agent_of` returns."""
    client_app = ClientApp()

    def respond(message: Message, context: Context, kind: str = "envelope") -> Message:
        # Flower would send the text of an exception to the server, with any data it quotes.
        try:
            response = agent_of(context)(from_records(message.content, kind, message.metadata.dst_node_id))
            return Message(to_records(response), reply_to=message)
        except Exception:
            log.exception("a message could not be passed on")
            return Message(Error(2, "the site's agent did not answer"), reply_to=message)

    def respond_to_secure_aggregation(message: Message, context: Context) -> Message:
        reply = respond(message, context, "secure")
        if reply.has_content() and "response" in reply.content:
            return Message(Error(2, "the site could not do what was asked"), reply_to=message)
        return reply

    client_app.query("hello")(respond)
    client_app.query("prepare")(respond)
    client_app.train("round")(respond)
    # Flower's SecAgg+ sends plain "train" messages.
    client_app.train()(respond_to_secure_aggregation)
    return client_app


def agent_of_node(context: Context) -> Answer:
    """The agent whose socket `playerfl flower site` configured this node with."""
    socket = context.node_config.get("agent")
    if not socket:
        raise ConfigError("the node has no agent; start it with playerfl flower site")
    server = str(context.node_config.get("server", ""))
    return lambda parcel: ask_agent(str(socket), replace(parcel, server=server))


app = make_app(agent_of_node)
