"""`playerfl selftest FILE.py:NAME`: sound algorithms pass; broken ones are caught, and told what broke."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import playerfl
from federations import quick_for
from playerfl.algorithms import ALGORITHMS
from playerfl.selftest.checks.repeating import draws_from_its_own_streams, repeats_in_a_new_process
from playerfl.selftest.checks.training import learns, runs
from playerfl.selftest.contract import CHECKS, Checked, check_contract
from playerfl.selftest.fresh_process import FreshProcess
from playerfl.selftest.subject import Outcome, Subject

IN_THIS_PROCESS = [check for check in CHECKS if check is not repeats_in_a_new_process]
CHECK = {(check.__doc__ or "").splitlines()[0].rstrip("."): check for check in CHECKS}
FILE = Path(__file__).with_name("broken.py")
STRANGERS = Path(__file__).with_name("strangers.py")
RUNS = "It trains every kind of model: finite weights and scores"
DECLARED = "Every hyper-parameter that it reads is declared"
TENSORS = "What was sent and received is not modified"
STREAMS = "Random numbers come from its own streams, and the clock is not read"
REPEATS = "The same seed gives the same bits"
RESUMES = "A run that is killed after any exchange resumes to the same bits"
WIRE = "Messages and memory that are serialised, and sites in reverse order, give the same bits"
NAMES = "Sites under other names, in another order, get the same models"
NEW_PROCESS = "A new process, in which sets come in another order, gives the same bits"
BROKEN = {
    "RemembersInTheClass": (WIRE, "(RemembersInTheClass.models changed while it ran); keep what must last in"),
    "ForgetsItsOptimisersWhenScored": (
        "Sending and predicting change nothing",
        "client_model changed client.optimizers of",
    ),
    "CountsInAGlobal": (REPEATS, "(the global ROUNDS_SO_FAR changed while it ran)"),
    "RemembersTheFirstRun": (RESUMES, "(the global FIRST changed while it ran)"),
    "TellsSitesThroughAGlobal": (WIRE, "(the global AGREED changed while it ran)"),
    "ChangesItself": (REPEATS, "it changed self.mu while it ran"),
    "DrawsFromTheGlobalGenerator": (STREAMS, "global generator of Python's random; draw random numbers only from"),
    "DrawsFromNumpy": (STREAMS, "global generator of numpy.random;"),
    "DrawsFromTorch": (STREAMS, "global generator of torch;"),
    "ReadsTheClock": (REPEATS, "(it reads time.time() on line"),
    "WritesIntoTheDownload": (TENSORS, "site-0 wrote into the tensors it was sent (fit after round 0)"),
    "ZeroesWhatItUploaded": (TENSORS, "site-0 wrote into the weights it had trained (fit after round 0)"),
    "SumsIntoAnUpload": (TENSORS, "the server wrote into"),
    "DecaysTheCommonModelInPlace": (
        TENSORS,
        "the server wrote into the tensors that sites were sent in or before round 1",
    ),
    "UploadsMoreThanItAnnounces": ("Uploads are what server_expects announces", "has info ['loss']"),
    "UploadsAnUnknownTensor": (RUNS, "server.weights has 'momentum', which the model does not have"),
    "UploadsDoubles": (
        "Uploads are what server_expects announces",
        "has '0.weight' as (8, 6) torch.float64, not (8, 6) torch.float32",
    ),
    "LoadsOtherShapes": (RUNS, "loads '0.weight' in the shape (1,), but the model has (8, 6)"),
    "TakesTheFirstUpload": ("The order of sites does not matter to the merge", "in reverse order, server_merge"),
    "FavoursASite": (NAMES, "under another name, site-"),
    "FavoursTheFirst": (NAMES, "under another name, site-"),
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
    "ForgetsLateSites": (
        "A site that joins after the last round gets a model, and changes nothing for the others",
        "when site-1 joins after the last round: KeyError: 'site-1'",
    ),
    "TrainsOnTestData": ("Test data have no effect on the models", "with other test data, 0.weight of site-0's model"),
    "ForgetsToDeclare": (DECLARED, "it reads self.inner_epochs, which is not declared"),
    "ForgetsTheType": (DECLARED, "write inner_epochs: int = 2, or ClassVar"),
    "ForgetsTheDecorator": ("It is a frozen dataclass with defaults", "so inner_epochs is not a hyper-parameter"),
    "ReadsWhatIsNotThere": (DECLARED, "it reads self.strenght, which is not declared"),
    "Crashes": (RUNS, "training in round 2 of Crashes"),
}
DOUBTFUL = {
    "NeverTrains": "after 3 rounds every site still has the initial model; call await client.train()",
    "NeverMerges": "sites upload, but after 3 rounds they are still sent the initial model; look at server_merge",
    "TimesItself": "it reads the clock (time.monotonic() on line",
}


def broken(findings: list[Checked]) -> dict[str, str]:
    return {finding.check: finding.problem for finding in findings if finding.problem}


@pytest.mark.parametrize("name", quick_for(ALGORITHMS, "fedavg"))
def test_every_algorithm_of_the_package_keeps_the_contract(name: str) -> None:
    findings = check_contract(name, checks=IN_THIS_PROCESS)
    assert broken(findings) == {}
    assert [finding.warning for finding in findings] == [None] * len(IN_THIS_PROCESS)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(f"{FILE}:Sound", marks=pytest.mark.slow),
        pytest.param(f"{STRANGERS}:FedNova", marks=pytest.mark.slow),
        pytest.param(f"{STRANGERS}:Clusters", marks=pytest.mark.slow),
    ],
)
def test_a_sound_stranger_passes(name: str) -> None:
    findings = check_contract(name, checks=IN_THIS_PROCESS)
    assert broken(findings) == {}
    assert [finding.warning for finding in findings] == [None] * len(IN_THIS_PROCESS)


@pytest.mark.parametrize("name", quick_for(BROKEN, "DrawsFromTheGlobalGenerator", "TakesTheFirstUpload", "Crashes"))
def test_a_broken_algorithm_is_caught_and_told_what_broke(name: str) -> None:
    check, text = BROKEN[name]
    found = broken(check_contract(f"{FILE}:{name}", checks=[CHECK[check]]))
    assert text in found.get(check, "")


@pytest.mark.parametrize("name", quick_for(DOUBTFUL, "NeverTrains"))
def test_what_is_probably_not_meant_is_a_warning(name: str) -> None:
    findings = check_contract(f"{FILE}:{name}", checks=[learns, draws_from_its_own_streams])
    assert broken(findings) == {}
    assert any(DOUBTFUL[name] in finding.warning for finding in findings if finding.warning)


def test_an_algorithm_that_never_ends_is_stopped() -> None:
    findings = check_contract(f"{FILE}:NeverEnds", checks=[runs], seconds=0.5)
    (text,) = broken(findings).values()
    assert text.startswith("did not finish within 0.5 s; it was on line")
    assert text.endswith("in NeverEnds.client_fit")


@pytest.mark.system
def test_a_new_process_shows_what_depends_on_the_order_of_a_set() -> None:
    found = broken(check_contract(f"{FILE}:MergesInTheOrderOfASet", checks=[repeats_in_a_new_process]))
    assert "the order of a set of strings differs from process to process" in found[NEW_PROCESS]


@pytest.mark.system
def test_every_algorithm_of_the_package_gives_the_same_bits_in_a_new_process() -> None:
    process = FreshProcess(list(ALGORITHMS))
    there = process.outcomes(300)
    process.close()
    for name in ALGORITHMS:
        assert Outcome.of(Subject(name).run("dropout")).differs_from(there[name]) is None, name


@pytest.mark.slow
def test_the_command_names_what_broke(tmp_path: Path) -> None:
    output = playerfl("selftest", f"{FILE}:UploadsMoreThanItAnnounces", cwd=tmp_path)
    assert output.returncode == 1
    assert "BROKEN  Uploads are what server_expects announces" in output.stdout
    assert f"{len(CHECKS) - 1} of {len(CHECKS)} checks hold." in output.stdout
    output = playerfl("selftest", f"{FILE}:Crashes", "--json", cwd=tmp_path)
    assert output.returncode == 1
    assert [row["holds"] for row in json.loads(output.stdout)["checks"]] == [True, True, False]
    assert "no second round" in output.stderr
    output = playerfl("selftest", "nothing.py:Here", cwd=tmp_path)
    assert output.returncode == 2
    assert "nothing.py" in output.stderr
