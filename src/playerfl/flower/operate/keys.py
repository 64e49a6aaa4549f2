"""A site's key pair: the private half never leaves the site, the public half is registered at the server."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from playerfl.errors import ConfigError
from playerfl.flower.wire.envelopes import check_site
from playerfl.storage.atomic_files import RERUN_HINT, make_directory, write_atomically


def write_key_pair(name: str, folder: Path) -> tuple[Path, Path]:
    """Writes NAME.key and NAME.pub in OpenSSH's format, which Flower reads; never overwrites a key.

    If only the private key exists, as after a full disk, its public key is written.
    """
    check_site(name)
    private, public = folder / f"{name}.key", folder / f"{name}.pub"
    if public.exists():
        file = private if private.exists() else public
        raise ConfigError(f"{file} already exists; a site keeps its key, so delete it by hand if you want a new one")
    make_directory(folder)
    key = private_key(private, serialization.PrivateFormat.OpenSSH)
    public_bytes = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    write_atomically(public, public_bytes + f" {name}\n".encode(), RERUN_HINT)
    return private, public


def fingerprint_of(public_key: bytes) -> str:
    """A public key's fingerprint, as `ssh-keygen -lf` shows it; from OpenSSH's format or from PEM, which Flower uses.

    Raises ValueError for anything else.
    """
    try:
        pem = public_key.lstrip().startswith(b"-----")
        load = serialization.load_pem_public_key if pem else serialization.load_ssh_public_key
        loaded = load(public_key)
    except (ValueError, UnsupportedAlgorithm, TypeError) as problem:
        raise ValueError(f"not a public key: {problem}") from problem
    if not isinstance(loaded, ec.EllipticCurvePublicKey):
        raise ValueError(f"a key of the kind {type(loaded).__name__}; an elliptic-curve key is needed")
    text = loaded.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    hashed = hashlib.sha256(base64.b64decode(text.split()[1])).digest()
    return f"SHA256:{base64.b64encode(hashed).decode().rstrip('=')}"


def fingerprint_of_site(file: Path) -> str:
    """The fingerprint of a site's key, from the private key itself: a .pub file beside it may be another key's.

    Raises ValueError if it is not a private key that Flower reads, or if the .pub file is another key's.
    """
    try:
        loaded = serialization.load_ssh_private_key(file.read_bytes(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as problem:
        raise ValueError(f"not a private key made by playerfl flower keys ({problem}); give NAME.key") from problem
    form = serialization.PublicFormat.OpenSSH
    shown = fingerprint_of(loaded.public_key().public_bytes(serialization.Encoding.OpenSSH, form))
    public = file.with_suffix(".pub")
    if public.exists() and (other := fingerprint_of(public.read_bytes())) != shown:
        raise ValueError(f"its fingerprint is {shown}, but {public} is another key's, {other}; one of them is old")
    return shown


def private_key(file: Path, form: serialization.PrivateFormat) -> ec.EllipticCurvePrivateKey:
    """The key in a file that only its owner can read; created if it does not exist, never overwritten."""
    if not file.exists():
        key = ec.generate_private_key(ec.SECP384R1())
        secret = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
        write_atomically(file, secret, RERUN_HINT, secret=True)
        return key
    try:
        openssh = form == serialization.PrivateFormat.OpenSSH
        load = serialization.load_ssh_private_key if openssh else serialization.load_pem_private_key
        loaded = load(file.read_bytes(), password=None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as problem:
        raise ConfigError(
            f"{file} already exists but cannot be read ({problem}); delete it by hand if you want a new one"
        ) from problem
    if not isinstance(loaded, ec.EllipticCurvePrivateKey):
        raise ConfigError(
            f"{file} already exists but was not written by playerfl; delete it by hand if you want a new one"
        )
    return loaded
