"""A site from its administrator's settings: policy, task, directory, log."""

from __future__ import annotations

import logging
import pwd
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from playerfl.errors import ConfigError
from playerfl.flower.site.files.names import LOG
from playerfl.flower.site.policy import Policy
from playerfl.flower.site.printable import printable
from playerfl.flower.site.setup import setup_finder
from playerfl.flower.site.site import Site
from playerfl.flower.wire.envelopes import check_site
from playerfl.storage.atomic_files import make_directory
from playerfl.tasks.load import load_task
from playerfl.tasks.named_models import with_model

MOST_LOG_BYTES = 20 * 2**20
"""Then the log continues in a new file, beside the one before: a server must not fill the disk with its messages."""


class OneLine(logging.Formatter):
    """Shows what a message from the server holds as text, so that no part of it looks like a line of the log's own.

    >>> OneLine("%(message)s").format(logging.makeLogRecord({"msg": "%s: refused", "args": ("x\\n2026 INFO done",)}))
    'x\\\\n2026 INFO done: refused'
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802
        # An exception may quote the message. Its lines are indented, unlike those of the log.
        return "\n".join("  " + printable(line) for line in super().formatException(ei).split("\n"))


def open_site(
    name: str,
    home: Path,
    policy: Policy,
    task: str | None,
    data_dir: Path | None = None,
    device: str | None = None,
    model: str | None = None,
) -> Site:
    """The site with its own task and model, which are loaded now, so that mistakes are noticed before the first job."""
    chosen = _chosen("task", task, policy.task)
    if chosen is None:
        raise ConfigError(
            "this site has no data; name them with --task, or with task = in its policy: a folder, FILE.py:NAME or "
            "the name of a bundled task"
        )
    policy = policy.model_copy(update={"model": _chosen("model", model, policy.model)})
    with_model(load_task(chosen), policy.model)
    make_directory(home, secret=True)
    _write_log(home / LOG)
    return Site(check_site(name), home, setup_finder(chosen, data_dir, device), policy)


def _chosen(what: str, given: str | None, in_policy: str | None) -> str | None:
    if given and in_policy and given != in_policy:
        raise ConfigError(f"--{what} is {given}, but the policy says {in_policy}; change one of them")
    return given or in_policy


def user_ids(names: list[str]) -> list[int]:
    """The ids of users by name."""
    try:
        return [pwd.getpwnam(name).pw_uid for name in names]
    except KeyError as problem:
        raise ConfigError(f"there is no user called {' or '.join(names)}; check --node-user") from problem


def group_of(names: list[str]) -> int | None:
    """The group through which the node's user reaches the socket; None if the node runs as the agent's own user."""
    return pwd.getpwnam(names[0]).pw_gid if names else None


def _write_log(file: Path) -> None:
    log = logging.getLogger("playerfl.flower.site")
    if log.handlers:
        return
    handler = RotatingFileHandler(file, maxBytes=MOST_LOG_BYTES, backupCount=1, encoding="utf-8")
    handler.setFormatter(OneLine("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
