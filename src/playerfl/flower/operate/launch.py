"""How Flower's programs are started at the server and at a site: folders, safe flags, safe environment."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from playerfl.errors import ConfigError
from playerfl.flower.operate.processes import LOOPBACK, FlowerError, process_identity
from playerfl.storage.atomic_files import RERUN_HINT, make_directory, write_atomically
from playerfl.storage.ownership import make_private

CONNECTION = "playerfl"
JOBS = "PLAYERFL_FLOWER_JOBS"
"""The directory of all jobs. Set when the SuperLink is started, so that no job can choose it."""
SERVER = "PLAYERFL_FLOWER_SERVER"
"""The process that started the SuperLink and ends with it, for jobs to notice that they are orphaned."""
_STYLE = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class ServerHome:
    """The server's directory: certificates, Flower's database and settings, and the jobs."""

    path: Path

    @property
    def jobs(self) -> Path:
        return self.path / "jobs"

    @property
    def submitted(self) -> Path:
        """The app folders of all jobs, from which an interrupted job is submitted again."""
        return self.path / "submitted"

    @property
    def authority(self) -> Path:
        return self.path / "ca.crt"

    @property
    def port(self) -> int:
        settings = self.path / "server.json"
        try:
            return int(json.loads(settings.read_text(encoding="utf-8"))["port"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as problem:
            raise ConfigError(
                f"{self.path} is not a server's directory; create one with playerfl flower up"
            ) from problem

    def prepare(self, names: Sequence[str], port: int) -> None:
        """Creates missing files; existing certificates are kept and checked."""
        # Imported here, because a site's agent needs none of the 12 MB that come with it.
        from playerfl.flower.operate.certificates import names_in, write_certificates

        make_private(self.path)
        for folder in (self.jobs, self.submitted, self.path / "flwr"):
            make_directory(folder)
        certificate = self.path / "server.pem"
        if not certificate.exists():
            write_certificates(self.path, [LOOPBACK, "localhost", *names])
        elif not self.authority.exists():
            raise ConfigError(
                f"{self.authority} is missing; put the certificate of the authority that signed {certificate} there"
            )
        missing = {LOOPBACK, *names} - set(names_in(certificate))
        if missing:
            raise ConfigError(
                f"{certificate} is not valid for {', '.join(sorted(missing))}; replace it, or delete ca.crt, "
                "server.pem and server.key to have new ones created (every site then needs the new ca.crt)"
            )
        connection = {
            "superlink": {
                "default": CONNECTION,
                CONNECTION: {
                    "address": f"{LOOPBACK}:{port}",
                    "root-certificates": str(self.authority.resolve()),
                },
            }
        }
        write_atomically(self.path / "flwr" / "config.toml", tomli_w.dumps(connection).encode(), RERUN_HINT)
        write_atomically(self.path / "server.json", (json.dumps({"port": port}) + "\n").encode(), RERUN_HINT)

    def environment(self) -> dict[str, str]:
        home = self.path.resolve()
        return {
            **safe_environment(home / "flwr"),
            JOBS: str(home / "jobs"),
            SERVER: process_identity(os.getpid()),
        }

    def superlink(self, port: int) -> list[str]:
        home = self.path.resolve()
        return [
            program("flower-superlink"),
            # The control interface has no authentication and shares this port: never expose it.
            *("--host", LOOPBACK, "--port", str(port)),
            *("--ssl-ca-certfile", str(home / "ca.crt")),
            *("--ssl-certfile", str(home / "server.pem")),
            *("--ssl-keyfile", str(home / "server.key")),
            *("--database", str(home / "state.db")),
            "--enable-supernode-auth",
            "--disable-runtime-dependency-installation",
        ]

    def flwr(self, *arguments: str) -> Any:
        """The JSON output of one of Flower's commands."""
        done = subprocess.run(
            [program("flwr"), *arguments, "--format", "json"],
            capture_output=True,
            text=True,
            env=self.environment(),
            check=False,
        )
        try:
            # Coloured where FORCE_COLOR is set, as in notebooks.
            plain = _STYLE.sub("", done.stdout)
            output = json.loads(plain[plain.index("{") :])
        except ValueError as problem:
            reason = " ".join((done.stderr or done.stdout).split())
            raise FlowerError(f"flwr {arguments[0]} failed: {reason[-300:] or 'without output'}") from problem
        if not output.get("success", True):
            reason = output.get("error-message") or output.get("error_message") or output
            raise FlowerError(f"flwr {arguments[0]} failed: {' '.join(str(reason).split())[-300:]}")
        return output


def safe_environment(flwr_home: Path) -> dict[str, str]:
    """No telemetry, no update checks, no installation of dependencies, and one thread."""
    return {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "FLWR_HOME": str(flwr_home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "OMP_NUM_THREADS": "1",
    }


def program(name: str) -> str:
    """The path of one of Flower's programs, preferably next to this Python."""
    local = Path(sys.executable).with_name(name)
    path = str(local) if local.exists() else shutil.which(name)
    if path is None:
        raise ConfigError(f"{name} is missing; pip install 'playerfl[flower]'")
    return path
