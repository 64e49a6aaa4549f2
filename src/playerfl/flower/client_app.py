"""The app a SuperNode runs: turns a Flower message into an envelope, and the site's response into a message."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp

from playerfl.errors import ConfigError
from playerfl.flower.site.site import Site, own_setup
from playerfl.flower.wire.codec import CodecError, decode_envelope, encode_response
from playerfl.flower.wire.envelopes import Response, check_site

log = logging.getLogger("playerfl.flower.site")


def make_app(site_of: Callable[[Context], Site]) -> ClientApp:
    """An app with one function behind every kind of message."""
    made = ClientApp()

    def respond(message: Message, context: Context) -> Message:
        # Flower would send the text of an exception to the server, whatever it quotes.
        try:
            site = site_of(context)
            response = site.respond(decode_envelope(message.content))
        except CodecError:
            # Only playerfl writes to a site, so an envelope it cannot read comes from another version.
            log.exception("the server's message could not be read")
            response = Response("", "", code="version")
        except Exception:
            log.exception("a message could not be handled")
            response = Response("", "", code="failed")
        return Message(encode_response(response), reply_to=message)

    def stage(message: Message, context: Context) -> Message:
        from playerfl.flower.wire.secure import respond_to_stage

        try:
            return respond_to_stage(message, context, site_of(context).held)
        except Exception:
            log.exception("a stage of secure aggregation could not be done")
            return Message(Error(2, "the site could not do what was asked"), reply_to=message)

    made.query("hello")(respond)
    made.query("prepare")(respond)
    made.train("round")(respond)
    # Flower's SecAgg+ sends plain "train" messages.
    made.train()(stage)
    return made


def site_from_node(context: Context) -> Site:
    """The site that `playerfl flower site` described to its SuperNode."""
    config = context.node_config

    def text(key: str) -> str | None:
        value: Any = config.get(key)
        return str(value) if value not in (None, "") else None

    name, home = text("site"), text("state")
    if name is None or home is None:
        raise ConfigError("the SuperNode was not started with playerfl flower site: it has no site or state setting")
    data_dir = text("data-dir")
    folder = Path(home)
    _log_to(folder)
    return Site(check_site(name), folder, own_setup(text("task"), Path(data_dir) if data_dir else None, text("device")))


def _log_to(folder: Path) -> None:
    """The site's own log, which nobody else reads."""
    if log.handlers:
        return
    folder.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(folder / "site.log", encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False


app = make_app(site_from_node)
