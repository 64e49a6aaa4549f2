"""A site's key pair: the private half never leaves the site, the public half is registered at the server."""

from __future__ import annotations

import os
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from playerfl.atomic_files import storage_error
from playerfl.errors import ConfigError
from playerfl.flower.letters import check_site


def write_key_pair(name: str, folder: Path) -> tuple[Path, Path]:
    """Makes NAME.key and NAME.pub in OpenSSH's format, as Flower reads them; never overwrites one."""
    check_site(name)
    private, public = folder / f"{name}.key", folder / f"{name}.pub"
    for file in (private, public):
        if file.exists():
            raise ConfigError(f"{file} exists already; a site keeps its key, so delete it by hand if you mean it")
    key = ec.generate_private_key(ec.SECP384R1())
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    shown = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_secret(private, secret)
        public.write_bytes(shown + f" {name}\n".encode())
    except OSError as problem:
        raise storage_error(folder, problem) from problem
    return private, public


def write_secret(path: Path, data: bytes) -> None:
    """A new file that only its owner can read, from its first byte on."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
