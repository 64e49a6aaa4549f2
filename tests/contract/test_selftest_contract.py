"""`playerfl selftest FILE.py:NAME`: sound algorithms pass; broken ones are caught, and told what broke."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import playerfl
from federations import quick_for
from playerfl.algorithms import ALGORITHMS
from playerfl.selftest.contract import CHECKS, Finding, check_contract

FILE = Path(__file__).with_name("broken.py")
BROKEN = {
    "RemembersInTheClass": (
        "A run that is killed after any exchange resumes to the same bits",
        "keep what must last in client.memory",
    ),
    "DrawsFromTheGlobalGenerator": ("The same seed gives the same bits", "client.stream(purpose)"),
    "WritesIntoTheDownload": ("What was sent and received is not modified", "site-0 wrote into the tensors"),
    "UploadsMoreThanItAnnounces": ("Uploads are what server_expects announces", "has info ['loss']"),
    "TakesTheFirstUpload": ("The order of sites does not matter to the merge", "in reverse order, server_merge"),
    "CountsWhatItSends": ("Sending and predicting change nothing", "server_send changed the server"),
    "RemembersByNumber": ("Memory holds only what a checkpoint can hold", "['by_round'] has the key 0, which is int"),
    "ClaimsACommonModel": (
        "If it says that all sites predict with one model, they do",
        "site-1's is not that of site-0",
    ),
    "NeedsEverySite": (
        "Sites may sit out rounds, or miss the first ones",
        "uploads holds only the sites that answered",
    ),
    "Crashes": ("It trains every kind of model: finite weights and scores", "training in round 2 of Crashes"),
}


def broken(findings: list[Finding]) -> dict[str, str]:
    return {finding.check: finding.problem for finding in findings if finding.problem}


@pytest.mark.parametrize("name", quick_for(ALGORITHMS, "fedavg", "fedselect"))
def test_every_algorithm_of_the_package_keeps_the_contract(name: str) -> None:
    findings = check_contract(name)
    assert broken(findings) == {}
    assert len(findings) == len(CHECKS)


def test_a_sound_stranger_passes() -> None:
    assert broken(check_contract(f"{FILE}:Sound")) == {}


@pytest.mark.parametrize("name", quick_for(BROKEN, "DrawsFromTheGlobalGenerator", "TakesTheFirstUpload", "Crashes"))
def test_a_broken_algorithm_is_caught_and_told_what_broke(name: str) -> None:
    found = broken(check_contract(f"{FILE}:{name}"))
    check, said = BROKEN[name]
    assert check in found, found
    assert said in found[check]


@pytest.mark.slow
def test_the_command_names_what_broke(tmp_path: Path) -> None:
    said = playerfl("selftest", f"{FILE}:UploadsMoreThanItAnnounces", cwd=tmp_path)
    assert said.returncode == 1
    assert "BROKEN  Uploads are what server_expects announces" in said.stdout
    assert f"{len(CHECKS) - 1} of {len(CHECKS)} checks hold." in said.stdout
    said = playerfl("selftest", f"{FILE}:Crashes", "--json", cwd=tmp_path)
    assert said.returncode == 1
    assert [row["holds"] for row in json.loads(said.stdout)["checks"]] == [True, False]
    assert "no second round" in said.stderr
    said = playerfl("selftest", "nothing.py:Here", cwd=tmp_path)
    assert said.returncode == 2
    assert "nothing.py" in said.stderr
