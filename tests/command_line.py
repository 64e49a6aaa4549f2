"""Commands run in this process, and the one sentence of a refusal."""

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
        pytest.raises(SystemExit) as left,
    ):
        cli.main()
    code = left.value.code
    assert isinstance(code, int)
    return subprocess.CompletedProcess(argv, code, out.getvalue(), err.getvalue())


def refused(said: subprocess.CompletedProcess[str]) -> str:
    """The one sentence of a refusal."""
    assert said.returncode == 2, said.stderr
    assert said.stdout == ""
    assert "Traceback" not in said.stderr
    (line,) = said.stderr.strip().splitlines()
    return line
