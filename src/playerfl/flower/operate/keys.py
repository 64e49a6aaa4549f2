"""A site's key pair: the private half never leaves the site, the public half is registered at the server."""

from __future__ import annotations

from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from playerfl.errors import ConfigError
from playerfl.flower.wire.envelopes import check_site
from playerfl.storage.atomic_files import RERUN_HINT, make_directory, write_atomically


def write_key_pair(name: str, folder: Path) -> tuple[Path, Path]:
    """Makes NAME.key and NAME.pub in OpenSSH's format, as Flower reads them; never overwrites one.

    To a private key without a public one, as a full disk may leave it, the public one is made.
    """
    check_site(name)
    private, public = folder / f"{name}.key", folder / f"{name}.pub"
    if public.exists():
        file = private if private.exists() else public
        raise ConfigError(f"{file} exists already; a site keeps its key, so delete it by hand if you mean it")
    make_directory(folder)
    key = own_key(private, serialization.PrivateFormat.OpenSSH)
    shown = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    write_atomically(public, shown + f" {name}\n".encode(), RERUN_HINT)
    return private, public


def own_key(file: Path, form: serialization.PrivateFormat) -> ec.EllipticCurvePrivateKey:
    """The key in a file that only its owner can read; made where there is none, never overwritten."""
    if not file.exists():
        key = ec.generate_private_key(ec.SECP384R1())
        secret = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
        write_atomically(file, secret, RERUN_HINT, secret=True)
        return key
    try:
        openssh = form == serialization.PrivateFormat.OpenSSH
        load = serialization.load_ssh_private_key if openssh else serialization.load_pem_private_key
        found = load(file.read_bytes(), password=None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as problem:
        raise ConfigError(
            f"{file} exists already and cannot be read ({problem}); delete it by hand if you mean it"
        ) from problem
    if not isinstance(found, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{file} exists already and was not made here; delete it by hand if you mean it")
    return found
