"""A real server: it names its sites, says who is missing, resumes a job by itself, stops one, and revokes keys."""

from __future__ import annotations

import csv
import json
import os
import signal
from typing import Any

import pytest

from flower.held_task import SITES
from flower.institutions import Institutions, children, end, experiment_of, in_process, wait_until
from playerfl.flower.server.job_status import read_status

pytestmark = [
    pytest.mark.system,
    pytest.mark.long,
    pytest.mark.skipif(os.name != "posix", reason="needs process groups"),
]


def status(here: Institutions) -> Any:
    return json.loads(here.do("status", str(here.home), "--json").stdout)


def state(here: Institutions, job: str) -> str | None:
    found = read_status(here.home / "jobs" / job)
    return found and found.state


def test_a_server_looks_after_its_sites_and_jobs(institutions: Institutions) -> None:
    here = institutions
    here.up()
    for name in SITES:
        here.join(name)
    wait_until(lambda: all(site["status"] == "online" for site in status(here)["sites"]), 400, "all are online")

    # H4: the SuperLink is killed in mid-round; its next start resumes the job without being asked to.
    here.hold("west", after=2)
    first = here.submit(here.init("steady", experiment_of(2), min_sites=3, deadline=600))
    here.wait_until_held("west", first)
    shown = status(here)
    assert [(site["name"], site["status"]) for site in shown["sites"]] == [(name, "online") for name in sorted(SITES)]
    assert all(site["fingerprint"].startswith("SHA256:") for site in shown["sites"])
    [job] = shown["jobs"]
    assert job["state"] == "running" and "west" in job["missing"] and job["missing"]["west"]["asked"] >= 1
    [link] = children(here.server.pid)
    os.kill(link, signal.SIGKILL)
    assert here.server.wait(60) != 0
    end(first)
    wait_until(lambda: state(here, "steady") == "interrupted", 60, "the job is seen to be interrupted")
    here.release("west")
    here.up()
    wait_until(lambda: state(here, "steady") == "finished", 600, "the job resumes and finishes by itself")
    assert here.fingerprints("steady")["models"] == in_process(experiment_of(2))

    # A job is stopped in mid-round.
    here.hold("west", after=1)
    second = here.submit(here.init("stopped", experiment_of(2), deadline=600))
    here.wait_until_held("west", second)
    said = here.do("stop", "stopped", "--home", str(here.home)).stdout
    assert said.startswith("stopped") and state(here, "stopped") == "stopped"
    assert second.wait(120) == 1
    here.release("west")

    # H2: a revoked key takes no part, by name; the others go on.
    assert here.do("unregister", str(here.home), "", check=False).returncode == 2
    here.do("unregister", str(here.home), "north")
    assert [site["name"] for site in status(here)["sites"]] == ["south", "west"]
    here.finished(here.submit(here.init("without", experiment_of(1), min_sites=2, deadline=60)))
    with (here.home / "jobs" / "without" / "participation.csv").open(newline="") as table:
        outcomes = {(row["site"], row["outcome"]) for row in csv.DictReader(table)}
    assert outcomes == {("north", "offline"), ("south", "answered"), ("west", "answered")}
