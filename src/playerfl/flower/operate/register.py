"""KeyRegister: which key belongs to which site. Flower's list of nodes shows no names, so the server keeps its own."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from playerfl.errors import RunDirectoryError
from playerfl.flower.operate.keys import fingerprint_of
from playerfl.storage.atomic_files import RERUN_HINT, write_atomically
from playerfl.storage.ownership import as_owner_of

if TYPE_CHECKING:
    from playerfl.federation.messages import SiteId

REGISTER = "sites.json"


@dataclass(frozen=True)
class RegisteredKey:
    """A site's key, as an operator admitted it."""

    name: SiteId
    node_id: str
    """Flower's number for the key."""
    fingerprint: str
    registered: str


class KeyRegister:
    """HOME/sites.json: one key per name, one name per key."""

    def __init__(self, home: Path) -> None:
        self.file = home / REGISTER

    def read(self) -> dict[SiteId, RegisteredKey]:
        """The registered keys by name."""
        try:
            table = json.loads(self.file.read_text(encoding="utf-8"))
            keys = [RegisteredKey(**entry) for entry in table["sites"]]
            if not all(type(value) is str for key in keys for value in vars(key).values()):
                raise TypeError("a value is not a string")
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as problem:
            raise RunDirectoryError(
                f"{self.file} cannot be read ({problem}); restore it from a backup: it says whose key is whose"
            ) from problem
        return {key.name: key for key in keys}

    def put(self, name: SiteId, node_id: str, fingerprint: str) -> None:
        """Records a key under a name, replacing any earlier one."""
        registered = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self._write({**self.read(), name: RegisteredKey(name, node_id, fingerprint, registered)})

    def remove(self, name: SiteId) -> None:
        self._write({other: key for other, key in self.read().items() if other != name})

    def _write(self, keys: dict[SiteId, RegisteredKey]) -> None:
        table = {"sites": [asdict(key) for _, key in sorted(keys.items())]}
        with as_owner_of(self.file.parent):
            write_atomically(self.file, (json.dumps(table, indent=1) + "\n").encode(), RERUN_HINT)


def names_by_key(home: Path) -> Callable[[Any], SiteId | None]:
    """A function from Flower's nodes to their sites' names, as registered at the moment of the call.

    It returns None for a node that must not take part: its key is not the one that is registered under its name, or
    it has no name, although the server knows keys.
    """
    register = KeyRegister(home)
    fingerprints: dict[bytes, str] = {}

    def name_of(node: Any) -> SiteId | None:
        keys = register.read()
        if not keys:
            return str(node.name or "")
        public = bytes(node.public_key)
        if public not in fingerprints:
            fingerprints[public] = fingerprint_of(public)
        for name, key in keys.items():
            if key.fingerprint == fingerprints[public]:
                return name
        # Registered by Flower's own command, without ours: under a free name only.
        return None if not node.name or node.name in keys else str(node.name)

    return name_of
