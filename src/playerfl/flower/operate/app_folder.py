"""The app folder that `flwr run` submits: one file that names the installed package and holds settings, no code."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import tomli_w

from playerfl.errors import ConfigError
from playerfl.flower.deployment import Deployment
from playerfl.storage.atomic_files import RERUN_HINT, make_directory, temp_path, write_atomically
from playerfl.version import __version__


def write_app_folder(folder: Path, deployment: Deployment) -> Path:
    """Writes pyproject.toml into a folder that holds nothing else; replaces it only if playerfl wrote it."""
    file = folder / "pyproject.toml"
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file; choose an empty folder")
    if folder.exists() and not set(folder.iterdir()) <= {file, temp_path(file)}:
        raise ConfigError(f"{folder} holds other files, which would be sent with the app; choose an empty folder")
    if file.exists():
        read_app_folder(folder)
    content: dict[str, Any] = {
        "project": {
            "name": "playerfl-job",
            "version": __version__,
            "description": f"playerfl job {deployment.job}",
            "license": "Apache-2.0",
            # Empty on purpose: dependencies listed here would be installed on the server from a package index.
            "dependencies": [],
        },
        "tool": {
            "flwr": {
                "app": {
                    "publisher": "playerfl",
                    "components": {
                        "serverapp": "playerfl.flower.server_app:app",
                        "clientapp": "playerfl.flower.client_app:app",
                    },
                    "config": deployment.to_run_config(),
                }
            }
        },
    }
    make_directory(folder)
    write_atomically(file, tomli_w.dumps(content, multiline_strings=True).encode(), RERUN_HINT)
    return file


def read_app_folder(folder: Path) -> Deployment:
    """The deployment an app folder describes."""
    file = folder / "pyproject.toml"
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
        return Deployment.from_run_config(content["tool"]["flwr"]["app"]["config"])
    except OSError as problem:
        raise ConfigError(f"{folder} is not an app folder; create one with playerfl flower init {folder}") from problem
    except (ValueError, KeyError, TypeError, RecursionError) as problem:
        raise ConfigError(f"{file} was not written by playerfl flower init ({type(problem).__name__})") from problem
