"""What produced a result: versions, device and code; nothing that identifies a person or a machine."""

from __future__ import annotations

import platform
import subprocess
from functools import cache
from pathlib import Path

from playerfl.runs.files import EnvironmentFile
from playerfl.version import __version__


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
def git_commit() -> str | None:
    source = Path(__file__).resolve().parents[3]
    if not (source / ".git").exists():
        return None
    try:
        output = subprocess.run(
            ["git", "-C", str(source), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return output.stdout.strip()
