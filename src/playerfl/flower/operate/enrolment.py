"""Admitting sites, replacing their keys, and excluding them: always by name."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from playerfl.data.check.texts.spelling import LOOK_ALIKES
from playerfl.errors import ConfigError, one_of
from playerfl.flower.operate.keys import fingerprint_of
from playerfl.flower.operate.launch import CONNECTION, ServerHome
from playerfl.flower.operate.processes import FlowerError
from playerfl.flower.operate.register import KeyRegister, RegisteredKey
from playerfl.flower.wire.envelopes import check_site
from playerfl.storage.locking import locked

UNNAMED = "(registered without playerfl)"


@dataclass(frozen=True)
class SiteStatus:
    """A registered site, and what Flower says about its node."""

    name: str
    status: str
    """online, offline, registered (its node has never been online) or unregistered."""
    node_id: str
    fingerprint: str
    registered: str
    since: str
    """Since when its node is online or offline; empty if it has never been online."""


def enrol(
    home: ServerHome, public_key: Path, name: str, *, expected: str | None = None, replace: bool = False
) -> RegisteredKey:
    """Registers a public key under a site's name.

    `expected`: the fingerprint that the site has told the operator. `replace`: the site has a new key; its old one is
    no longer accepted, and a running job continues with the new one.
    """
    check_site(name)
    fingerprint = _fingerprint(public_key)
    if expected is not None and expected.strip() != fingerprint:
        raise ConfigError(
            f"the key in {public_key} has the fingerprint {fingerprint}, not {expected.strip()}; it may have been "
            "swapped on the way, so ask the site for its key again"
        )
    register = KeyRegister(home.path)
    with locked(home.path, wait=True):
        keys = register.read()
        owner = next((key.name for key in keys.values() if key.fingerprint == fingerprint), None)
        if owner is not None:
            raise ConfigError(f"this key is already registered, for {owner}; every site needs a key of its own")
        before = keys.get(name)
        other = look_alike(name, [key.name for key in keys.values()])
        if before is None and other is not None:
            raise ConfigError(
                f"{name} looks like {other}, which is registered ({name!a} and {other!a}); register the site "
                "under a name that cannot be mistaken for it"
            )
        if before is not None and not replace:
            raise ConfigError(
                f"{name} is already registered, with the key {before.fingerprint}; to replace that key, add --replace"
            )
        if before is None and replace:
            raise ConfigError(f"{one_of(name, keys, 'site')}; leave out --replace to register a new site")
        node = str(home.flwr("supernode", "register", str(public_key), CONNECTION, "--name", name)["node-id"])
        # The new key counts before the old one is gone, so that the site is never without one.
        register.put(name, node, fingerprint)
        if before is not None:
            _unregister(home, before)
    return register.read()[name]


def exclude(home: ServerHome, name: str) -> RegisteredKey:
    """Revokes a site's key: Flower accepts nothing more from it, and its name is free again."""
    register = KeyRegister(home.path)
    with locked(home.path, wait=True):
        keys = register.read()
        if name not in keys:
            raise ConfigError(one_of(name, keys, "site"))
        _unregister(home, keys[name])
        register.remove(name)
    return keys[name]


def site_statuses(home: ServerHome) -> list[SiteStatus]:
    """All registered sites by name; then nodes that Flower knows, but the register does not."""
    nodes = {str(node["node-id"]): node for node in home.flwr("supernode", "list", CONNECTION)["nodes"]}
    keys = KeyRegister(home.path).read()
    known = [
        SiteStatus(
            key.name,
            str(nodes[key.node_id]["status"]) if key.node_id in nodes else "unregistered",
            key.node_id,
            key.fingerprint,
            key.registered,
            _since(nodes.get(key.node_id, {})),
        )
        for key in keys.values()
    ]
    ours = {key.node_id for key in keys.values()}
    others = [
        SiteStatus(UNNAMED, str(node["status"]), number, "", "", _since(node))
        for number, node in nodes.items()
        if number not in ours and node["status"] != "unregistered"
    ]
    return sorted(known, key=lambda site: site.name) + others


def _since(node: dict[str, object]) -> str:
    moment = str(node.get("online-at" if node.get("status") == "online" else "offline-at") or "")
    return "" if moment in ("", "N/A") else moment


def _unregister(home: ServerHome, key: RegisteredKey) -> None:
    try:
        home.flwr("supernode", "unregister", key.node_id, CONNECTION)
    except FlowerError as problem:
        # After a crash between the two steps Flower has forgotten the key already.
        statuses = {
            str(node["node-id"]): node["status"] for node in home.flwr("supernode", "list", CONNECTION)["nodes"]
        }
        if statuses.get(key.node_id, "unregistered") != "unregistered":
            raise FlowerError(f"{key.name} could not be unregistered: {problem}") from problem


def _fingerprint(public_key: Path) -> str:
    try:
        return fingerprint_of(public_key.read_bytes())
    except OSError as problem:
        raise ConfigError(f"cannot read {public_key}: {problem.strerror or problem}") from problem
    except ValueError as problem:
        raise ConfigError(
            f"{public_key} is not a public key; a site creates one with playerfl flower keys, and sends NAME.pub"
        ) from problem


def look_alike(name: str, others: Iterable[str]) -> str | None:
    """Another name that looks like this one, in upper or lower case and in any script; None if there is none.

    >>> look_alike("North", ["south", "north"]), look_alike("n\\u043erth", ["north"])
    ('north', 'north')
    >>> look_alike("north", ["north", "north-2"]) is None
    True
    """
    return next((other for other in others if other != name and _shape(other) == _shape(name)), None)


def _shape(name: str) -> str:
    # Accents count, however they are written.
    return unicodedata.normalize("NFKC", name).casefold().translate(LOOK_ALIKES)
