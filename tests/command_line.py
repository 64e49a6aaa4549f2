"""Runs commands in this process, or Python in a new one, and checks that bad input is refused in one sentence."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from playerfl.cli import main as cli


def playerfl(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Runs a command in this process, since a new one takes seconds to import torch."""
    out, err = io.StringIO(), io.StringIO()
    argv = ["playerfl", *map(str, arguments)]
    with (
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        patch.object(sys, "argv", argv),
        pytest.raises(SystemExit) as ended,
    ):
        cli.main()
    code = ended.value.code
    assert isinstance(code, int)
    return subprocess.CompletedProcess(argv, code, out.getvalue(), err.getvalue())


def printed_by(code: str) -> str:
    """What Python code prints in a new process, such as which modules an import has loaded."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def refused(output: subprocess.CompletedProcess[str]) -> str:
    """The sentence with which a command refused its input."""
    assert output.returncode == 2, output.stderr
    assert output.stdout == ""
    assert "Traceback" not in output.stderr
    (line,) = output.stderr.strip().splitlines()
    return line
