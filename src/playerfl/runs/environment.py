"""What produced a result: versions, device and code; nothing that identifies a person or a machine."""

from __future__ import annotations

import platform
import subprocess
from functools import cache
from pathlib import Path

from playerfl.runs.files import EnvironmentFile
from playerfl.version import __version__

_SOURCE = Path(__file__).resolve().parents[3]


def environment(device: str, threads: int) -> EnvironmentFile:
    """The versions that decide the bits of a result."""
    import numpy
    import torch

    return {
        "playerfl": __version__,
        "git_commit": git_commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "system": platform.system(),
        "machine": platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "device": device,
        "threads": threads,
    }


@cache
def git_commit(source: Path = _SOURCE) -> str | None:
    """The commit of a source tree, with "-dirty" if files were changed since; None outside one."""
    if not (source / ".git").exists():
        return None
    # Not `git describe --dirty`: it rewrites the index, and leaves a lock behind if it is killed or the disk is full.
    command = ["git", "--no-optional-locks", "-C", str(source), "status", "--porcelain=v2", "--branch", "-uno"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    commit, *others = output.stdout.removeprefix("# branch.oid ").splitlines()
    return f"{commit}-dirty" if any(not line.startswith("#") for line in others) else commit
