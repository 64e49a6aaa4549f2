"""Real deployments: TLS, keys, three sites, kill -9, and the same bits at the end."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from flwr.app import Message
from safetensors.torch import load_file

from federations import QUICK
from flower.institutions import COMMAND, Institutions, children, end, in_process, settings
from flower.jobs import Job
from flower.loop_grid import unreachable
from flower.test_faults import key_of
from playerfl.flower.launch import ServerHome
from playerfl.tasks.load import load_task
from playerfl.weights import digest, num_bytes

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name != "posix", reason="needs process groups")]


@pytest.fixture
def institutions(tmp_path: Path) -> Iterator[Institutions]:
    with ExitStack() as stack:
        yield Institutions(tmp_path, stack)


def test_sites_are_killed_in_mid_round_and_one_of_them_never_comes_back(institutions: Institutions) -> None:
    """Two jobs: one goes on without the site it lost, one waits for its site and ends as if nothing had happened."""
    here = institutions
    here.up()
    proxied = here.proxy()
    for name in ("north", "south", "west", "east"):
        here.join(name)
    here.do("keys", "stranger", "--out", str(here.folder / "stranger"))
    stranger = here.start([*here.site_command("stranger")[:-2], "--retry", "0"], "stranger.log")

    here.hold("west")
    here.hold("east")
    hasty = here.submit(here.init("hasty", "with_west", "--deadline", "90"))
    here.wait_for_mid_round("west")
    [node] = children(here.sites["west"].pid)
    here.sites["west"].kill()
    os.kill(node, signal.SIGKILL)

    patient = here.submit(here.init("patient", "with_east", "--min-sites", "3", "--deadline", "600"))
    here.wait_for_mid_round("east")
    [node] = children(here.sites["east"].pid)
    os.kill(node, signal.SIGKILL)
    here.release("east")

    assert stranger.wait(60) == 1
    assert "its key is not registered yet" in (here.folder / "stranger.log").read_text()

    said, complaints = patient.communicate(timeout=300)
    assert patient.returncode == 0, complaints
    found = json.loads(said)
    assert found["completed"]
    assert here.models("patient") == in_process("with_east")
    assert_only_federated_layers_travelled(here, "patient", found["bytes_in"])

    _, complaints = hasty.communicate(timeout=300)
    assert hasty.returncode == 0, complaints
    with (here.home / "jobs" / "hasty" / "participation.csv").open(newline="") as table:
        lost = [(row["round"], row["outcome"]) for row in csv.DictReader(table) if row["site"] == "west"]
    assert lost == [("0", "answered"), ("0", "answered"), ("1", "offline"), ("2", "offline")]
    assert here.common("hasty") == without_west_from_round_one(here.folder / "expected")
    if proxied:
        log = (here.folder / "nginx" / "access.log").read_text()
        assert "/v1/fleet/" in log and "/v1/control" not in log


def without_west_from_round_one(home: Path) -> str:
    """The documented degraded result: rounds without the site are averaged over the others."""
    table = settings("with_west")
    task = load_task(table["task"])
    options = {**QUICK, "selection": "client_best", **{f"training.{k}": v for k, v in table["training"].items()}}
    job = Job(home, "fedper", task, rounds=2, sites=("north", "south", "west"), **options)

    def lost(site: str, request: Message, reply: Message) -> Message | None:
        if site == "west" and key_of(request) == "1:evaluate+fit":
            job.grid.offline.add("west")
            return unreachable(request)
        return reply

    job.tamper(lost)
    job.run()
    return digest(load_file(job.folder / "common.safetensors"))


def assert_only_federated_layers_travelled(here: Institutions, job: str, bytes_in: int) -> None:
    """By Flower's own count: two uploads of the first two layers by three sites, and a few kilobytes a message."""
    federated = num_bytes(load_file(here.home / "jobs" / job / "common.safetensors"))
    assert federated == 4 * (6 * 16 + 16 + 16 * 16 + 16)
    messages = 3 * 4 + 2
    assert 2 * 3 * federated < bytes_in < 2 * 3 * federated + messages * 8000


def test_ctrl_c_in_the_demo_leaves_nothing_behind(tmp_path: Path) -> None:
    command = [*COMMAND, "demo", "--out", str(tmp_path / "demo")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        while "SuperNode started" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=120)[1]
    assert process.returncode == 130
    assert "everything is shut down" in said and "Traceback" not in said
    here = str(tmp_path / "demo").encode()
    assert not [pid for pid in Path("/proc").glob("[0-9]*") if here in command_of(pid)]


def command_of(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


def test_the_superlink_is_killed_in_mid_round_and_the_job_goes_on(institutions: Institutions) -> None:
    here = institutions
    here.up()
    for name in ("north", "south", "west"):
        here.join(name)
    here.hold("west")
    app = here.init("job", "with_west")
    first = here.submit(app)
    here.wait_for_mid_round("west")
    [link] = children(here.server.pid)
    os.kill(link, signal.SIGKILL)
    assert here.server.wait(60) != 0
    end(first)
    here.release("west")

    here.up()
    again = here.submit(app)
    _, complaints = again.communicate(timeout=400)
    assert again.returncode == 0, complaints
    assert here.models("job") == in_process("with_west")
    runs = ServerHome(here.home).flwr("list", "playerfl")["runs"]
    assert len(runs) == 2
