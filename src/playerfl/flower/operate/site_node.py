"""How a site's node and agent are started: folders, permissions, safe flags, safe environment."""

from __future__ import annotations

import secrets
import sys
from dataclasses import dataclass
from pathlib import Path

from playerfl.errors import ConfigError
from playerfl.flower.operate.launch import safe_environment
from playerfl.flower.operate.processes import LOOPBACK
from playerfl.flower.wire.envelopes import check_site
from playerfl.storage.atomic_files import RERUN_HINT, write_atomically
from playerfl.storage.ownership import make_private

# Not parsed here: that would cost the agent, which may be the same process, 12 MB.
_PRIVATE_KEY, _CERTIFICATE = b"-----BEGIN OPENSSH PRIVATE KEY-----", b"-----BEGIN CERTIFICATE-----"
_KINDS = {"key": "site's private key, NAME.key", "ca": "certificate, the server's ca.crt"}


@dataclass(frozen=True)
class SiteNode:
    """The node of a site: it has the key and the connection to the server, and no data."""

    name: str
    key: Path
    server: str
    authority: Path
    home: Path
    """The node's own directory, for Flower's files."""
    agent: Path
    """The socket of the site's agent."""
    port: int = 9094

    def check(self) -> None:
        check_site(self.name)
        for file, what, begins in ((self.key, "key", _PRIVATE_KEY), (self.authority, "ca", _CERTIFICATE)):
            if not file.is_file():
                raise ConfigError(f"there is no file {file}; check --{what}")
            try:
                found = file.read_bytes()
            except OSError as problem:
                raise ConfigError(
                    f"{file} cannot be read by this user ({problem.strerror}); the key belongs to the user that runs "
                    "the node"
                ) from problem
            if begins not in found:
                raise ConfigError(f"{file} is not a {_KINDS[what]}; check --{what}")
        if ":" not in self.server:
            raise ConfigError(f"--server must be NAME:PORT, as in fl.example.org:443, not {self.server!r}")
        for what, text in (("the path of the socket", str(self.agent.resolve())), ("--server", self.server)):
            if any(character in text for character in "\"'\\\n"):
                raise ConfigError(f"{what} must not contain quotes or backslashes, but is {text}")
        make_private(self.home)

    def environment(self) -> dict[str, str]:
        # One pool of memory for all of the node's threads, and a fixed threshold: by default, the larger the messages
        # were, the more freed memory glibc keeps.
        memory = {"MALLOC_ARENA_MAX": "1", "MALLOC_TRIM_THRESHOLD_": str(2**17)}
        return {**safe_environment(self.home.resolve()), **memory}

    def command(self) -> list[str]:
        """Starts the SuperNode with the relay; no app shipped by a server is ever run."""
        secret = self.home.resolve() / "relay.secret"
        # A new one for every start: only the relay in the node's own process may take its messages.
        write_atomically(secret, secrets.token_bytes(32), RERUN_HINT, secret=True)
        return [
            *(sys.executable, "-m", "playerfl.flower.node", str(secret), f"{LOOPBACK}:{self.port}"),
            *("--superlink", self.server),
            *("--root-certificates", str(self.authority.resolve())),
            *("--auth-supernode-private-key", str(self.key.resolve())),
            *("--host", LOOPBACK, "--port", str(self.port)),
            # Flower passes these to the relay; the agent compares the server with its policy.
            *("--node-config", f'agent="{self.agent.resolve()}" server="{self.server}"'),
        ]
