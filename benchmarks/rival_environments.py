"""The frameworks that playerfl is compared with: what to install, which clones are needed, and their environments."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
ENVIRONMENTS = PROJECT / ".venv-rivals"


class BrokenError(Exception):
    """An environment that cannot be built, or a failed run; the table shows the message."""


@dataclass(frozen=True)
class Rival:
    steps: tuple[tuple[str, ...], ...]
    """What pip installs, call by call, after torch."""
    distribution: str = ""
    version: str = ""
    """Of the distribution; a rival without one is a clone."""
    repository: str = ""
    """Where the sources of a rival that is not on the package registry are."""
    proof: str = ""
    """A file that every clone has."""
    slow: bool = False
    """Starts processes for every run, so that a run takes a minute and more. It is measured with fewer rounds and seeds
    and only once: its distance from the others is so large that neither matters."""

    @property
    def fingerprint(self) -> str:
        recipe = [sys.version, self.steps, (PROJECT / "constraints.txt").read_text(encoding="utf-8")]
        return hashlib.sha256(json.dumps(recipe).encode()).hexdigest()


RIVALS = {
    "flwr": Rival((("flwr[simulation]==1.41.0", "psutil"),), "flwr", "1.41.0", slow=True),
    "pfl": Rival((("pfl==0.6.0",),), "pfl", "0.6.0"),
    # Its requirements include torchvision, which would install another torch; the others are listed by hand.
    "fedlab": Rival(
        (("numpy", "pandas", "scikit-learn", "pillow", "pynvml", "tqdm", "setuptools"), ("--no-deps", "fedlab==1.3.0")),
        "fedlab",
        "1.3.0",
    ),
    "nvflare": Rival((("nvflare==2.9.0",),), "nvflare", "2.9.0", slow=True),
    "pfllib": Rival(
        (("numpy", "scikit-learn", "h5py", "matplotlib"),),
        repository="https://github.com/TsingZ0/PFLlib",
        proof="system/flcore/servers/serveravg.py",
    ),
    # Without torchvision, for the same reason.
    "flbench": Rival(
        (("numpy", "pandas", "scikit-learn", "pillow", "pynvml", "rich", "hydra-core", "ray"),),
        repository="https://github.com/KarhouTam/FL-bench",
        proof="src/server/fedavg.py",
    ),
}


def how_to_get(name: str) -> str:
    """What to do about a clone that was not given."""
    variable = name.upper()
    return (
        f"not measured, because no clone was given:  git clone --depth 1 {RIVALS[name].repository} DIR,  "
        f"then  --{name} DIR  or  {variable}=DIR make bench-rivals"
    )


def date_of(clone: Path) -> str:
    """The commit of a clone and its date; "clone" if git does not know it."""
    command = ["git", "-C", str(clone), "log", "-1", "--format=%h, %cs"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "clone"
    return done.stdout.strip()


def python_of(name: str, rival: Rival) -> Path:
    """The Python of a rival's environment, which is built if it is missing, out of date or broken."""
    home = ENVIRONMENTS / name
    python = home / "bin" / "python"
    stamp = home / ".complete"
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == rival.fingerprint and _works(python, rival):
        return python
    shutil.rmtree(home, ignore_errors=True)
    say(f"{name}: building {home.relative_to(PROJECT)} (a few minutes)")
    log = ENVIRONMENTS / f"{name}.log"
    log.parent.mkdir(exist_ok=True)
    log.unlink(missing_ok=True)
    _logged([sys.executable, "-m", "venv", str(home)], log)
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "-c", str(PROJECT / "constraints.txt")]
    # torch first, so that later packages do not install another build.
    for packages in (("torch",), *rival.steps):
        _logged([*pip, *packages], log)
    if not _works(python, rival):
        raise BrokenError(f"was installed but cannot be imported; see {log.relative_to(PROJECT)}")
    stamp.write_text(rival.fingerprint, encoding="utf-8")
    return python


def _works(python: Path, rival: Rival) -> bool:
    version = f"m.version({rival.distribution!r})" if rival.distribution else "''"
    try:
        code = f"import torch, importlib.metadata as m; print({version})"
        done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=False)
    except OSError:
        return False
    return done.returncode == 0 and done.stdout.strip() == rival.version


def _logged(command: Sequence[str], log: Path) -> None:
    with log.open("a", encoding="utf-8") as out:
        done = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        errors = [line for line in log.read_text(encoding="utf-8").splitlines() if line.startswith("ERROR")]
        raise BrokenError(
            f"cannot be installed: {errors[-1] if errors else 'pip failed'} (see {log.relative_to(PROJECT)})"
        )


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
