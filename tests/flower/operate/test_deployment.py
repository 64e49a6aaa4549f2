"""Real deployments: TLS, keys, three sites, kill -9, and the same bits at the end."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message
from safetensors.torch import load_file

from federations import QUICK
from flower.accidents import Accident
from flower.held_task import SITES, held
from flower.institutions import COMMAND, Institutions, children, end, experiment_of, in_process, settings
from flower.jobs import Job
from flower.loop_grid import unreachable
from playerfl.algorithms import FedPer
from playerfl.flower.deployment import Deployment
from playerfl.flower.operate.keys import write_key_pair
from playerfl.flower.operate.register import KeyRegister
from playerfl.flower.wire.envelopes import Privacy
from playerfl.runs.api import run_experiments
from playerfl.runs.experiment import Experiment
from playerfl.runs.settings_table import with_settings
from playerfl.tasks.load import load_task
from playerfl.weights import digest, num_bytes

pytestmark = [pytest.mark.system, pytest.mark.skipif(os.name != "posix", reason="needs process groups")]


@pytest.mark.long
def test_sites_and_server_are_killed_within_a_round(institutions: Institutions) -> None:
    """One job ends as if nothing had happened; the next one loses a site for good."""
    here = institutions
    here.up()
    proxied = here.proxy()
    # The agent learns from its node to which server that is connected.
    here.policies = {"north": {"servers": [f"127.0.0.1:{here.public_port}"]}}
    for name in SITES:
        here.join(name, by_command=name == "north")
    write_key_pair("stranger", here.folder / "stranger")
    stranger = here.start([*here.site_command("stranger")[:-2], "--retry", "0"], "stranger.log")

    # In the second round, so that they have a state to continue from: west loses its node, south its agent.
    here.hold("west", after=2)
    here.hold("south", after=2)
    app = here.init("patient", experiment_of(2), min_sites=3, deadline=300)
    stolen = ship_other_code(app)
    first = here.submit(app)
    here.wait_until_held("west", first)
    here.wait_until_held("south", first)
    here.kill_node("west")
    here.sites["south"].kill()
    [link] = children(here.server.pid)
    os.kill(link, signal.SIGKILL)
    assert here.server.wait(60) != 0
    end(first)
    here.release("west")
    here.release("south")
    here.sites["south"].wait()
    here.begin("south")
    assert stranger.wait(60) == 1
    assert "its key is not registered yet" in (here.folder / "stranger.log").read_text()

    here.up()
    result = here.finished(here.submit(app))
    assert result["completed"]
    assert here.fingerprints("patient")["models"] == in_process(experiment_of(2))
    assert_only_federated_layers_travelled(here, "patient", result["bytes_in"])
    assert not stolen.exists()

    here.hold("west", after=1)
    hasty = here.submit(here.init("hasty", experiment_of(1), deadline=30))
    here.wait_until_held("west", hasty)
    [node] = children(here.sites["west"].pid)
    here.sites["west"].kill()
    os.kill(node, signal.SIGKILL)
    here.finished(hasty)
    with (here.home / "jobs" / "hasty" / "participation.csv").open(newline="") as table:
        lost = [row["outcome"] for row in csv.DictReader(table) if row["site"] == "west"]
    assert lost[0] == "answered" and len(lost) == 3 and set(lost[1:]) <= {"late", "offline"}
    assert here.fingerprints("hasty")["common"] == without_west(here.folder / "expected")
    if proxied:
        log = (here.folder / "nginx" / "access.log").read_text()
        assert "/v1/fleet/" in log and "/v1/control" not in log


@pytest.mark.long
def test_secure_aggregation_gives_the_result_of_one_process(institutions: Institutions) -> None:
    """Bit for bit that of SecAgg+ without sockets, and up to SecAgg+'s rounding that without it.

    The rounding depends on the nodes' random numbers. AdamW would make whole steps of it: where a gradient is nearly
    zero, its sign decides.
    """
    here = institutions
    experiment = Experiment.resolve(with_settings(settings(2), {"training.optimizer": "sgd"}))
    here.up()
    for name in SITES:
        here.join(name)
    options: dict[str, Any] = {"privacy": Privacy(secure_range=8.0), "min_sites": 3, "deadline": 300}
    here.finished(here.submit(here.init("masked", experiment, **options)))

    alone = Job(here.folder / "alone", "fedper", held(), sites=SITES)
    alone.deployment = Deployment("masked", SITES, experiment.to_toml(), **options)
    # A site's rounding depends on the number of its node.
    alone.grid.numbers = {name: int(key.node_id) for name, key in KeyRegister(here.home).read().items()}
    alone.experiment = experiment
    alone.run()
    assert here.fingerprints("masked")["models"] == alone.fingerprints

    [unmasked] = run_experiments([experiment], [None])
    for name in SITES:
        weights = load_file(here.state(name) / "masked" / "model.safetensors")
        assert all(torch.allclose(weights[entry], unmasked.weights[name][entry], atol=2e-5) for entry in weights)


def ship_other_code(app: Path) -> Path:
    """H7: an app of the server's own, which ran at the sites and could read what the node's user can."""
    stolen = app.with_name("stolen")
    code = f"open({str(stolen)!r}, 'w').close()\nfrom playerfl.flower import client_app\napp = client_app.app\n"
    (app / "other.py").write_text(code)
    file = app / "pyproject.toml"
    file.write_text(file.read_text().replace("playerfl.flower.client_app:app", "other:app"))
    return stolen


def without_west(home: Path) -> str:
    """The documented result if a site is lost: rounds are averaged over the other sites."""
    table = settings(1)
    options = {**QUICK, "selection": "client_best", **{f"training.{k}": v for k, v in table["training"].items()}}
    job = Job(home, FedPer(2), load_task(table["task"]), rounds=1, sites=SITES, **options)

    def die(request: Message, _: Message) -> Message:
        job.grid.offline.add("west")
        return unreachable(request)

    job.tamper(Accident("west", ["0:fit"], die))
    job.run()
    return digest(job.common)


def assert_only_federated_layers_travelled(here: Institutions, job: str, bytes_in: int) -> None:
    """By Flower's own count of the resumed run: one upload per site, and a few kilobytes per message."""
    federated = num_bytes(load_file(here.home / "jobs" / job / "common.safetensors"))
    assert federated == 4 * (6 * 16 + 16)
    private = num_bytes(load_file(here.state("north") / job / "model.safetensors")) - federated
    # Hello, fit and finish of three sites, and some messages that are sent again.
    assert 3 * federated < bytes_in < 3 * federated + 12 * 8000 < private


def test_ctrl_c_in_the_demo_leaves_nothing_behind(tmp_path: Path) -> None:
    command = [*COMMAND, "demo", "--out", str(tmp_path / "demo")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        while "site started" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=120)[1]
    assert process.returncode == 130
    assert "everything has been shut down" in said and "Traceback" not in said
    here = str(tmp_path / "demo").encode()
    commands = [command_of(process) for process in Path("/proc").glob("[0-9]*")]
    assert not [command for command in commands if here in command]


def command_of(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""
