"""The server's certificate and an authority that signs it, for parties without a common authority."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from playerfl.errors import ConfigError
from playerfl.flower.operate.keys import private_key
from playerfl.storage.atomic_files import RERUN_HINT, make_directory, write_atomically

AUTHORITY_DAYS = 3650
SERVER_DAYS = 825
"""Some clients refuse certificates that are valid for longer."""
WARNING_DAYS = 30
NEXT = "next"
_AUTHORITY = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "playerfl federation")])


def write_certificates(folder: Path, names: Sequence[str]) -> None:
    """Writes ca.crt, server.pem and server.key for a server with these names or addresses.

    The authority's key is not kept, so that nobody can create a second server that the sites would trust. A new
    server certificate therefore means a new ca.crt for every site; see `prepare_renewal`. An existing server.key is
    kept.
    """
    authority_key = ec.generate_private_key(ec.SECP384R1())
    authority_name = _AUTHORITY
    now = datetime.now(UTC) - timedelta(minutes=5)

    def certificate(subject: x509.Name, key: ec.EllipticCurvePublicKey, days: int) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(authority_name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now)
            .not_valid_after(now + timedelta(days=days))
        )

    authority = (
        certificate(authority_name, authority_key.public_key(), AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA384())
    )
    server_key = private_key(folder / "server.key", serialization.PrivateFormat.PKCS8)
    server_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
    server = (
        certificate(server_name, server_key.public_key(), SERVER_DAYS)
        .add_extension(x509.SubjectAlternativeName([_alternative(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA384())
    )
    # The server's certificate last: if it exists, all three files do.
    for signed, name in ((authority, "ca.crt"), (server, "server.pem")):
        _write(folder / name, [signed])


def names_in(certificate: Path) -> list[str]:
    """The names and addresses a certificate is valid for."""
    try:
        alternatives = _read(certificate)[0].extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound) as problem:
        raise ConfigError(f"{certificate} is not a server certificate: {problem}") from problem
    return [str(name.value) for name in alternatives]


def expiry(file: Path) -> datetime:
    """When a file of certificates is no longer of use.

    In ca.crt, one authority is enough; a server's certificate may be followed by those that vouch for it, all of which
    must be valid.
    """
    last = max if file.name == "ca.crt" else min
    return last(one.not_valid_after_utc for one in _read(file))


def expiry_warnings(folder: Path, now: datetime | None = None) -> list[str]:
    """A sentence for each of the server's certificates that has expired or soon will."""
    now = now or datetime.now(UTC)
    warnings = []
    for name in ("server.pem", "ca.crt"):
        ends = expiry(folder / name)
        if ends - now < timedelta(days=WARNING_DAYS):
            verb = "expired" if ends < now else "expires"
            warnings.append(f"{folder / name} {verb} on {ends:%Y-%m-%d}; run playerfl flower renew {folder}")
    return warnings


def prepare_renewal(folder: Path) -> Path:
    """Creates the next certificates in `folder`/next. ca.crt then holds the old authority and the new one.

    The server keeps using its old certificate. Once every site has the new ca.crt, `activate_renewal` switches over.
    """
    old = _read(folder / "ca.crt")
    if any(one.subject != _AUTHORITY for one in old):
        raise ConfigError(
            f"{folder / 'ca.crt'} was not made by playerfl; have its authority sign a new server.pem, and put it there"
        )
    following = folder / NEXT
    make_directory(following, secret=True)
    write_certificates(following, names_in(folder / "server.pem"))
    new = _read(following / "ca.crt")
    valid = [one for one in old if one.not_valid_after_utc > datetime.now(UTC) and one not in new]
    _write(folder / "ca.crt", [*new, *valid])
    return folder / "ca.crt"


def activate_renewal(folder: Path, *, drop_old: bool = False) -> None:
    """Puts the certificates of `prepare_renewal` in place; `drop_old` also takes the old authority out of ca.crt.

    Can be repeated after a crash: the certificate, which is moved last, says whether it has been done.
    """
    following = folder / NEXT
    if not (following / "server.pem").exists():
        raise ConfigError(f"there is nothing to activate; run playerfl flower renew {folder} first")
    new = _read(following / "ca.crt")
    if (following / "server.key").exists():
        (following / "server.key").replace(folder / "server.key")
    if drop_old:
        _write(folder / "ca.crt", new)
    (following / "server.pem").replace(folder / "server.pem")


def _read(file: Path) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(file.read_bytes())
    except (OSError, ValueError) as problem:
        raise ConfigError(f"{file} is not a certificate: {problem}") from problem


def _write(file: Path, certificates: Sequence[x509.Certificate]) -> None:
    pem = b"".join(one.public_bytes(serialization.Encoding.PEM) for one in certificates)
    write_atomically(file, pem, RERUN_HINT)


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
