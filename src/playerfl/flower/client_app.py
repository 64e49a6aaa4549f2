"""The app that a SuperNode runs: passes Flower's messages to the site, and its responses back."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp

from playerfl.errors import ConfigError
from playerfl.flower.site.site import Site, setup_finder
from playerfl.flower.wire.codec import CodecError, decode_envelope, encode_response
from playerfl.flower.wire.envelopes import Response, check_site

log = logging.getLogger("playerfl.flower.site")


def make_app(site_of: Callable[[Context], Site]) -> ClientApp:
    """An app whose messages are handled by the site that `site_of` returns."""
    client_app = ClientApp()

    def respond(message: Message, context: Context) -> Message:
        # Flower would send the text of an exception to the server, with any data it quotes.
        try:
            response = site_of(context).respond(decode_envelope(message.content))
        except CodecError:
            # Only playerfl writes to a site, so an unreadable envelope comes from another version of it.
            log.exception("the server's message could not be read")
            response = Response("", "", code="version")
        except Exception:
            log.exception("a message could not be handled")
            response = Response("", "", code="failed")
        return Message(encode_response(response), reply_to=message)

    def respond_to_secure_aggregation(message: Message, context: Context) -> Message:
        from playerfl.flower.wire.secure import respond_to_stage

        try:
            return respond_to_stage(message, context, site_of(context).held)
        except Exception:
            log.exception("a stage of secure aggregation failed")
            return Message(Error(2, "the site could not do what was asked"), reply_to=message)

    client_app.query("hello")(respond)
    client_app.query("prepare")(respond)
    client_app.train("round")(respond)
    # Flower's SecAgg+ sends plain "train" messages.
    client_app.train()(respond_to_secure_aggregation)
    return client_app


def site_from_node(context: Context) -> Site:
    """The site that `playerfl flower site` configured this SuperNode for."""

    def setting(key: str) -> str | None:
        value = context.node_config.get(key)
        return str(value) if value not in (None, "") else None

    name, home, data_dir = setting("site"), setting("state"), setting("data-dir")
    if name is None or home is None:
        raise ConfigError("the SuperNode has no site or state setting; start it with playerfl flower site")
    _write_log(Path(home))
    find_setup = setup_finder(setting("task"), Path(data_dir) if data_dir else None, setting("device"))
    return Site(check_site(name), Path(home), find_setup)


def _write_log(folder: Path) -> None:
    if log.handlers:
        return
    folder.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(folder / "site.log", encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False


app = make_app(site_from_node)
