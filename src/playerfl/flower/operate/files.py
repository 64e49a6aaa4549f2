"""Ready-made configuration: the proxy in front of the server, services that restart by themselves, containers."""

from __future__ import annotations

import shutil
import sys
from importlib.resources import files
from pathlib import Path

from playerfl.storage.atomic_files import RERUN_HINT, make_directory, write_atomically
from playerfl.version import __version__

NAMES = (
    "nginx.conf",
    "playerfl-server.service",
    "playerfl-agent.service",
    "playerfl-node.service",
    "Dockerfile",
    "compose.yaml",
)


def filled(name: str, values: dict[str, str]) -> str:
    """The text of a file with its placeholders filled in."""
    text = files("playerfl.flower").joinpath("deploy", name).read_text(encoding="utf-8")
    for key, value in values.items():
        text = text.replace(f"@{key}@", value)
    return text


def write_files(folder: Path, home: Path, name: str, port: int, listen: int, site: str) -> list[Path]:
    """Writes all files, with this server's paths, name and ports."""
    local = Path(sys.executable).with_name("playerfl")
    command = str(local) if local.exists() else shutil.which("playerfl") or "playerfl"
    values = {
        "HOME": str(home.resolve()),
        "NAME": name,
        "PORT": str(port),
        "LISTEN": str(listen),
        "SITE": site,
        "PLAYERFL": command,
        "VERSION": __version__,
    }
    make_directory(folder)
    for file in NAMES:
        write_atomically(folder / file, filled(file, values).encode(), RERUN_HINT)
    return [folder / file for file in NAMES]
