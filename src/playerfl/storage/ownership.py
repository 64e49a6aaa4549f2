"""Whose files a command writes: those in a service's directory belong to the service, also if root runs the command."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from playerfl.errors import ConfigError
from playerfl.storage.atomic_files import make_directory

_OF_A_SERVICE = ("server.json", "server.pem", ".agent", ".node", "site.toml", "ca.crt", "*.key")
"""What a service's directory holds, or an administrator puts there first."""


@contextmanager
def as_owner_of(folder: Path) -> Iterator[None]:
    """Lets root act, for a block, as the user that a directory belongs to. Nothing changes for other users.

    The service could not read root's files, and a link that the service's user made could lead root to any file.
    """
    owner = _other_owner(folder)
    if owner is None:
        yield
        return
    group, groups = os.getegid(), os.getgroups()
    # Some containers do not let even root leave its groups.
    with suppress(PermissionError):
        os.setgroups([])
    os.setegid(owner.st_gid)
    os.seteuid(owner.st_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(group)
        with suppress(PermissionError):
            os.setgroups(groups)


def check_owner(folder: Path) -> None:
    """Refuses to run a service as root in the directory of another user."""
    if (owner := _other_owner(folder)) is not None:
        raise ConfigError(
            f"{folder} belongs to {_name(owner.st_uid)}, who could not read what root writes there; run this as "
            f"{_name(owner.st_uid)} (sudo -u), or change the owner: chown -R root {folder}"
        )


def make_private(folder: Path) -> None:
    """Makes the directory of a service, which only its owner may read.

    Refuses one in which others can read files that are no service's: /srv, or the folder with the data, would be closed
    to everybody else.
    """
    with suppress(OSError):
        strangers = any(path.name != "lost+found" for path in folder.iterdir())
        known = any(next(folder.glob(pattern), None) for pattern in _OF_A_SERVICE)
        if strangers and not known and folder.stat().st_mode & 0o077:
            raise ConfigError(
                f"{folder} holds other files, and this would close it to other users; choose a directory that is empty "
                "or does not exist yet"
            )
    make_directory(folder, secret=True)


def _other_owner(folder: Path) -> os.stat_result | None:
    """The directory's owner, if this process is root's and the directory is not."""
    if os.name != "posix" or os.geteuid() != 0:
        return None
    with suppress(OSError):
        found = folder.stat()
        return found if found.st_uid != 0 else None
    return None


def _name(user: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"
