"""A real deployment on loopback, started by the commands an operator uses. Its processes are ended by ID."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import tomli_w

from flower.held_task import SITES, responses
from playerfl.flower.deployment import Deployment
from playerfl.flower.operate.app_folder import write_app_folder
from playerfl.flower.operate.enrolment import enrol
from playerfl.flower.operate.files import filled
from playerfl.flower.operate.keys import write_key_pair
from playerfl.flower.operate.launch import ServerHome
from playerfl.flower.operate.processes import free_port
from playerfl.runs.api import run_experiments
from playerfl.runs.experiment import Experiment
from playerfl.weights import digest

COMMAND = [sys.executable, "-m", "playerfl.cli.main", "flower"]


def wait_until(what: Callable[[], Any], seconds: float, why: str) -> None:
    ends = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < ends, f"not within {seconds:g} s: {why}"
        time.sleep(0.1)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class Institutions:
    """A server and its sites, each in its own folder."""

    def __init__(self, folder: Path, stack: ExitStack, names: Sequence[str] = SITES) -> None:
        self.folder = folder
        self.stack = stack
        self.names = tuple(names)
        self.policies: dict[str, dict[str, Any]] = {}
        """What a site agrees to, besides jobs that nobody has approved; by default its task is that of `settings`."""
        self.home = folder / "server"
        self.port = self.public_port = free_port()
        self.server: subprocess.Popen[bytes]
        self.sites: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, arguments: list[str], log: str, **environment: str) -> subprocess.Popen[bytes]:
        output = self.stack.enter_context((self.folder / log).open("ab"))
        process = subprocess.Popen(
            [*COMMAND, *arguments], stdout=output, stderr=output, env={**os.environ, **environment}
        )
        self.stack.callback(end, process)
        return process

    def do(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False)
        assert not check or done.returncode == 0, done.stderr
        return done

    def up(self) -> None:
        self.server = self.start(["up", str(self.home), "--port", str(self.port)], "server.log")
        log = self.folder / "server.log"
        count = log.read_text().count("the server is listening")
        wait_until(lambda: log.read_text().count("the server is listening") > count, 200, "server up")

    def proxy(self) -> bool:
        """Puts nginx with the shipped configuration in front of the server; False if nginx is not installed."""
        program = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
        if program is None:
            return False
        self.public_port = free_port()
        start_nginx(program, self.folder / "nginx", self.home, self.port, self.public_port, self.stack)
        return True

    def join(self, name: str, *, by_command: bool = False) -> None:
        _, public = write_key_pair(name, self.folder / name)
        if by_command:
            self.do("register", str(self.home), str(public))
        else:
            # The same, without two more processes.
            enrol(ServerHome(self.home), public, name)
        self.begin(name)

    def begin(self, name: str) -> None:
        """Starts a site that is registered."""
        # A test may put a file there before the site has made it.
        self.state(name).mkdir(mode=0o700, parents=True, exist_ok=True)
        environment = {
            "PLAYERFL_TEST_SITE": str(self.state(name)),
            "PYTHONPATH": os.pathsep.join(
                [str(Path(__file__).with_name("fast_heartbeat")), os.environ.get("PYTHONPATH", "")]
            ),
        }
        self.sites[name] = self.start(self.site_command(name), f"{name}.log", **environment)

    def kill_node(self, name: str) -> None:
        [node] = children(self.sites[name].pid)
        os.kill(node, signal.SIGKILL)

    def site_command(self, name: str) -> list[str]:
        return [
            "site",
            *("--name", name, "--key", str(self.folder / name / f"{name}.key"), "--ca", str(self.home / "ca.crt")),
            *("--server", f"127.0.0.1:{self.public_port}", "--state", str(self.state(name))),
            *("--policy", str(self.policy(name))),
            *("--port", str(free_port()), "--retry", "5"),
        ]

    def policy(self, name: str) -> Path:
        file = self.folder / name / "site.toml"
        default = {"approval": "automatic", "task": settings(1)["task"]}
        file.write_text(tomli_w.dumps(default | self.policies.get(name, {})))
        return file

    def state(self, name: str) -> Path:
        return self.folder / name / "state"

    def init(self, job: str, experiment: Experiment, **options: Any) -> Path:
        app = self.folder / f"app-{job}"
        write_app_folder(app, Deployment(job, self.names, experiment.to_toml(), **options))
        return app

    def submit(self, app: Path) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*COMMAND, "run", str(self.home), str(app), "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.stack.callback(end, process)
        return process

    def finished(self, submitted: subprocess.Popen[str]) -> dict[str, Any]:
        output, errors = submitted.communicate(timeout=600)
        assert submitted.returncode == 0, errors
        return json.loads(output)  # type: ignore[no-any-return]

    def hold(self, name: str, after: int) -> None:
        """Makes a site stop in the middle of a response, after this many more."""
        self.state(name).mkdir(parents=True, exist_ok=True)
        (self.state(name) / "hold").write_text(str(responses(self.state(name)) + after))

    def release(self, name: str) -> None:
        (self.state(name) / "hold").unlink()
        (self.state(name) / "held").unlink(missing_ok=True)

    def wait_until_held(self, name: str, submitted: subprocess.Popen[str]) -> None:
        """Waits as long as the job runs; if it ends instead, shows what everyone said."""
        held = self.state(name) / "held"
        wait_until(lambda: held.exists() or submitted.poll() is not None, 600, f"{name} holds a message")
        assert held.exists(), "\n".join([*submitted.communicate(), *self.last_words()])

    def last_words(self) -> list[str]:
        return [f"{log.name}: {log.read_text()[-3000:]}" for log in sorted(self.folder.glob("*.log"))]

    def fingerprints(self, job: str) -> dict[str, Any]:
        return json.loads((self.home / "jobs" / job / "sites.json").read_text())  # type: ignore[no-any-return]


def start_nginx(program: str, folder: Path, home: Path, port: int, listen: int, stack: ExitStack) -> None:
    folder.mkdir()
    values = {"HOME": str(home), "NAME": "localhost", "PORT": str(port), "LISTEN": f"127.0.0.1:{listen}"}
    (folder / "site.conf").write_text(filled("nginx.conf", values))
    temporary = "".join(
        f"{kind}_temp_path {folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"daemon off;\nmaster_process off;\npid {folder}/pid;\nerror_log {folder}/error.log;\nevents {{}}\n"
        f"http {{\naccess_log {folder}/access.log;\n{temporary}include {folder}/site.conf;\n}}\n"
    )
    process = subprocess.Popen([program, "-p", str(folder), "-c", str(folder / "nginx.conf")])
    stack.callback(end, process)
    log = folder / "access.log"
    wait_until(log.exists, 10, "nginx up")


def end(process: subprocess.Popen[Any]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=40)
    if process.poll() is None:
        process.kill()
    process.communicate()


def experiment_of(rounds: int) -> Experiment:
    return Experiment.resolve(settings(rounds))


def settings(rounds: int) -> dict[str, Any]:
    return {
        "task": f"{Path(__file__).with_name('held_task.py')}:held",
        "rounds": rounds,
        # As `playerfl flower init` chooses it: a round need not have all sites.
        "selection": "client_best",
        "device": "cpu",
        "algorithm": {"name": "fedper", "personal_layers": 2},
        "training": {"batch_size": 8, "learning_rate": 0.01},
    }


def in_process(experiment: Experiment) -> dict[str, str]:
    [result] = run_experiments([experiment], [None])
    return {site: digest(weights) for site, weights in result.weights.items()}
