"""A site keeps to what it agreed to, whatever the server asks: each attack worked before there were contracts."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from federations import task
from flower.attacks import SITE, ask, asked, audit, step, with_settings
from flower.jobs import Job
from playerfl.algorithms import ALGORITHMS, FedPer, PLayerFL
from playerfl.federation.messages import Download, Request, Upload
from playerfl.flower.server.transport import TooFewSitesError
from playerfl.flower.site.files.contract import Contract, decide
from playerfl.flower.site.pinning import Pinned
from playerfl.flower.site.policy import Policy, ProtectedLayers
from playerfl.flower.wire.envelopes import Envelope, Privacy, RefusedError

KEEN = {"approval": "automatic"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A job that is over, with two private layers."""
    job = Job(tmp_path_factory.mktemp("finished"), FedPer(2), rounds=2)
    job.run()
    return job


def left(job: Job, site: str = SITE) -> set[str]:
    return {name for entry in audit(job, "left", site) for name in entry["entries"]}


@pytest.mark.parametrize("of", ["finished", "running"])
def test_private_layers_do_not_leave_when_an_envelope_makes_them_shared(
    of: str, request: pytest.FixtureRequest
) -> None:
    """H1: fewer private layers with a rate at which training changes nothing returned them bit for bit."""
    job: Job = request.getfixturevalue(of)
    last = asked(job, "1:evaluate+fit")
    weights = last.request.download.weights  # type: ignore[union-attr]
    greedy = with_settings(
        with_settings(last, "personal_layers = 2", "personal_layers = 0"),
        "learning_rate = 0.01",
        "learning_rate = 1e-30",
    )
    for round_ in (1, 2, 3):
        response = ask(job, step(greedy, "fit", round_=round_, after="1:evaluate+fit", weights=weights))
        assert (response.code, response.reply) == ("pinned", None)
    assert left(job) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert any("experiment differs" in entry["detail"] for entry in audit(job, "refused"))


def test_a_finished_job_answers_no_more(finished: Job) -> None:
    last = asked(finished, "1:evaluate+fit")
    for verbs in (("fit",), ("evaluate",), ("finish",), ("evaluate", "fit")):
        response = ask(finished, step(last, *verbs, round_=1, after="2:evaluate+finish"))
        assert response.code in ("finished", "pinned") and response.reply is None
    again = ask(finished, asked(finished, "2:evaluate+finish"))
    assert again.fingerprint == finished.fingerprints[SITE]


def test_a_job_that_finished_early_answers_no_further_round(running: Job) -> None:
    """Its last rounds were never asked for, so nothing else would keep them from being answered."""
    last = asked(running, "2:evaluate+fit")
    weights = last.request.download.weights  # type: ignore[union-attr]
    ended = ask(running, step(last, "finish", round_=3, after="2:evaluate+fit", weights=weights))
    assert ended.fingerprint
    for after in ("3:finish", "2:evaluate+fit"):
        response = ask(running, step(last, "fit", round_=3, after=after, weights=weights))
        assert (response.code, response.reply) == ("finished", None)


@pytest.mark.parametrize("cut", [-1, 5, 99, 2**40, 1.0, "1", [1]], ids=str)
def test_the_first_cut_that_a_server_states_must_be_one(cut: Any, tmp_path: Path) -> None:
    job = Job(tmp_path, "player_fl", rounds=2)
    job.interrupt("site-2", "0:prepare")
    response = ask(job, step(asked(job, "0:prepare"), "fit", round_=0, after="0:prepare", cut=cut))
    assert (response.code, response.reply) == ("pinned", None)
    assert "the cut must be between 0 and 4" in audit(job, "refused")[-1]["detail"]


def test_the_cut_cannot_grow_or_change(tmp_path: Path) -> None:
    """H1: a larger cut in a later envelope made private layers travel."""
    job = Job(tmp_path, "player_fl", rounds=3)
    job.interrupt("site-2", "1:evaluate+fit")
    contract = Contract.read(job.home / SITE / "job")
    assert contract is not None and contract.cut is not None
    last = asked(job, "1:evaluate+fit")
    weights = last.request.download.weights  # type: ignore[union-attr]
    for cut in (contract.cut - 1, contract.cut + 1, 4, -1, 99, 2**40, 1.0, "4"):
        if cut == contract.cut:
            continue
        response = ask(job, step(last, "fit", round_=2, after="1:evaluate+fit", weights=weights, cut=cut))
        assert (response.code, response.reply) == ("pinned", None), cut
    job.run()
    job.assert_equals_in_process()


def test_a_cut_that_the_settings_decide_cannot_be_told_differently(tmp_path: Path) -> None:
    job = Job(tmp_path, PLayerFL(rule="fixed", fixed_cut=1), rounds=2)
    job.interrupt("site-2", "0:prepare")
    prepared = asked(job, "0:prepare")
    response = ask(job, step(prepared, "fit", round_=0, after="0:prepare", cut=3))
    assert (response.code, response.reply) == ("pinned", None)


@pytest.mark.parametrize(
    "changed",
    [
        {"privacy": Privacy()},
        {"privacy": Privacy(clip=1.0, noise=0.1)},
        {"privacy": Privacy(clip=9.0, noise=1.0)},
        {"model": "0" * 32},
        {"merge_sites": 1},
    ],
    ids=str,
)
def test_options_cannot_be_changed_or_switched_off(changed: dict[str, Any], tmp_path: Path) -> None:
    """H6: noise could be switched off in mid-job."""
    job = Job(tmp_path, "fedper", rounds=2)
    job.deployment = replace(job.deployment, privacy=Privacy(clip=1.0, noise=1.0))
    job.interrupt("site-2", "1:evaluate+fit")
    response = ask(job, replace(asked(job, "1:evaluate+fit"), **changed))
    assert response.code in ("pinned", "refused") and response.reply is None


def test_a_round_has_one_answer(running: Job) -> None:
    """H6: the same round with other weights, or under another combination of verbs, was answered again."""
    last = asked(running, "1:evaluate+fit")
    weights = dict(last.request.download.weights)  # type: ignore[union-attr]
    other = {name: tensor + 1 for name, tensor in weights.items()}
    first = ask(running, last)
    assert first.reply is not None
    assert audit(running, "left")[-1]["sha256"] == audit(running, "left")[2]["sha256"]
    for attack in (
        step(last, "evaluate", "fit", round_=1, weights=other),
        step(last, "fit", round_=1, weights=weights),
        step(last, "evaluate", round_=1, weights=weights),
        step(last, "fit", round_=0, after="", weights=weights),
        replace(last, after=""),
    ):
        response = ask(running, attack)
        assert (response.code, response.reply) == ("pinned", None)


def test_noise_is_the_same_for_the_same_question(tmp_path: Path) -> None:
    """H6: sixty answers with fresh noise gave the update without it, also from a state that was put back."""
    job = Job(tmp_path, "fedper", rounds=3)
    job.deployment = replace(job.deployment, privacy=Privacy(clip=1.0, noise=1.0))
    job.interrupt("site-2", "0:fit")
    first = ask(job, asked(job, "0:fit"))
    (job.home / SITE / "job" / "state.safetensors").unlink()
    again = ask(job, asked(job, "0:fit"))
    assert first.reply and again.reply
    for name, tensor in first.reply.upload.weights.items():
        assert torch.equal(tensor, again.reply.upload.weights[name]), name


@pytest.mark.parametrize(
    ("verbs", "round_"),
    [
        (("finish", "fit"), 2), (("fit", "fit"), 2), (("fit", "evaluate"), 2), ((), 2), (("prepare",), 2),
        (("fit",), 4), (("fit",), -1), (("fit",), 2**62), (("evaluate",), 5), (("evaluate",), 0),
        (("prepare", "fit"), 0),
    ],
    ids=str,
)  # fmt: skip
def test_steps_out_of_order_are_refused(running: Job, verbs: tuple[str, ...], round_: int) -> None:
    last = asked(running, "1:evaluate+fit")
    weights = last.request.download.weights  # type: ignore[union-attr]
    response = ask(running, step(last, *verbs, round_=round_, after="1:evaluate+fit", weights=weights))
    assert (response.code, response.reply) == ("pinned", None)


def test_a_round_that_was_skipped_is_not_answered_later(running: Job) -> None:
    """Nothing was answered for it, so only the order of rounds speaks against it."""
    last = asked(running, "2:evaluate+fit")
    weights = last.request.download.weights  # type: ignore[union-attr]
    assert ask(running, step(last, "evaluate", round_=4, after="2:evaluate+fit", weights=weights)).reply
    response = ask(running, step(last, "fit", round_=3, after="2:evaluate+fit", weights=weights))
    assert (response.code, response.reply) == ("pinned", None)
    assert "comes after round 4" in audit(running, "refused")[-1]["detail"]


@pytest.mark.parametrize(
    ("info", "reason"),
    [
        ({"secret": [1.0]}, "unknown information"),
        ({"importance": [1.0, 1.0, 1.0, 1.0]}, "unknown information"),
        ({"intervals": [1, 1, 1, 1]}, "unknown information"),
        ({"learning_rate": 1e-30}, "unknown information"),
    ],
    ids=str,
)
def test_information_that_the_method_does_not_send_is_refused(running: Job, info: dict[str, Any], reason: str) -> None:
    last = asked(running, "2:evaluate+fit")
    weights = last.request.download.weights  # type: ignore[union-attr]
    response = ask(running, step(last, "fit", round_=3, after="2:evaluate+fit", weights=weights, **info))
    assert (response.code, response.reply) == ("pinned", None)
    assert reason in audit(running, "refused")[-1]["detail"]


@pytest.mark.parametrize("intervals", [[0, 1, 1, 1], [1], [1.0] * 4, "1111"], ids=str)
def test_intervals_that_are_none_are_refused(intervals: Any, tmp_path: Path) -> None:
    job = Job(tmp_path, "fedlama", rounds=3)
    job.interrupt("site-2", "1:evaluate+fit")
    last = asked(job, "1:evaluate+fit")
    weights = last.request.download.weights  # type: ignore[union-attr]
    response = ask(job, step(last, "fit", round_=2, after="1:evaluate+fit", weights=weights, intervals=intervals))
    assert (response.code, response.reply) == ("pinned", None)
    assert "one positive integer per layer" in audit(job, "refused")[-1]["detail"]


@pytest.mark.parametrize("best", [4, 2**40])
def test_a_best_round_that_has_not_been_is_refused(running: Job, best: int) -> None:
    fit = step(asked(running, "2:evaluate+fit"), "finish", round_=3, after="2:evaluate+fit")
    assert fit.request
    response = ask(running, replace(fit, request=replace(fit.request, best_round=best)))
    assert response.code == "pinned" and "cannot be the best" in audit(running, "refused")[-1]["detail"]


@pytest.mark.parametrize(
    ("weights", "info", "memory", "reason"),
    [
        ({"4.weight": torch.zeros(8, 8)}, {}, {}, "4.weight would leave this site"),
        ({"control.0.weight": torch.zeros(8, 6)}, {}, {}, "control.0.weight would leave"),
        ({}, {"rows": [1.0]}, {}, "'rows' would leave this site"),
        ({}, {}, {"cut": 3}, "the site's cut became 3, but 2 was agreed to"),
    ],
    ids=["private layer", "beside", "numbers", "cut"],
)
def test_the_last_check_before_an_upload_leaves_trusts_no_algorithm(
    weights: dict[str, torch.Tensor], info: dict[str, Any], memory: dict[str, Any], reason: str, finished: Job
) -> None:
    """Whatever the training before it did: here, an algorithm that uploads more than it announces."""
    setup = finished.sites[SITE].find_setup(finished.experiment, SITE).setup
    pinned = Pinned(FedPer(2), setup.learner.layers, setup.initial, ProtectedLayers())
    client: Any = SimpleNamespace(memory=memory)
    with pytest.raises(RefusedError, match=reason):
        pinned.check_upload(Upload(1, weights, info), client, Request(("fit",), Download(0)), 2)


def first_envelope(job: Job) -> Envelope:
    job.interrupt("site-2", "hello")
    hello = asked(job, "hello")
    return replace(hello, schema="")


def test_a_crafted_first_layer_is_refused_in_round_0(tmp_path: Path) -> None:
    """H6: one envelope with a huge batch and a crafted first layer returned rows."""
    job = Job(tmp_path, "fedavg", rounds=2, **{"training.batch_size": 36, "training.optimizer": "sgd"})
    hello = first_envelope(job)
    initial = job.sites[SITE].find_setup(job.experiment, SITE).setup.initial
    trap = {**initial, "0.weight": initial["0.weight"] * 100}
    response = ask(job, step(hello, "fit", round_=0, weights=trap))
    assert (response.code, response.reply) == ("pinned", None)
    assert ask(job, step(hello, "fit", round_=0, weights=initial)).reply is not None


@pytest.mark.parametrize(
    ("weights", "reason"),
    [
        ({"0.weight": torch.zeros(6, 8)}, "is (6, 8) torch.float32, not (8, 6)"),
        ({"0.weight": torch.full((8, 6), math.nan)}, "has NaN or infinite values"),
        ({"0.weight": torch.zeros(8, 6, dtype=torch.float64)}, "is (8, 6) torch.float64, not (8, 6) torch.float32"),
        ({"0.weight": torch.zeros(0, 2**40)}, "is (0, 1099511627776)"),
        ({"../../etc/passwd": torch.zeros(1)}, "which is never sent"),
    ],
    ids=["shape", "nan", "type", "empty", "name"],
)
def test_crafted_weights_are_refused(running: Job, weights: dict[str, torch.Tensor], reason: str) -> None:
    """In a round that has no answer yet; an answered one would be refused whatever it holds."""
    last = asked(running, "2:evaluate+fit")
    sent = {**last.request.download.weights, **weights}  # type: ignore[union-attr]
    response = ask(running, step(last, "fit", round_=3, after="2:evaluate+fit", weights=sent))
    assert (response.code, response.reply) == ("pinned", None)
    assert reason in audit(running, "refused")[-1]["detail"]


@pytest.mark.parametrize(
    "name", ["../up", "a/b", ".agent", "audit.jsonl", "Site.log", "job\n", "", "a" * 65, "jоb", "."]
)
def test_a_job_cannot_be_named_like_a_path_or_a_file_of_the_site(name: str, tmp_path: Path) -> None:
    job = Job(tmp_path, "fedavg", rounds=1)
    hello = first_envelope(job)
    before = sorted(path.name for path in tmp_path.rglob("*"))
    assert ask(job, replace(hello, job=name)).code in ("refused", "failed")
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('name = "fedper"', 'name = "/tmp/evil.py:Evil"'),
        ('name = "fedper"', 'name = "os:system"'),
        ("personal_layers = 1", "personal_layers = 1.5"),
        ("personal_layers = 1", "personal_layers = 99"),
        ("personal_layers = 1", 'personal_layers = "1"'),
        ("personal_layers = 1", "personal_layers = -1"),
        ("personal_layers = 1", ""),
        ("rounds = 2", "rounds = 100000"),
        ("threads = 1", "threads = 100000"),
        ("local_epochs = 1", "local_epochs = 100000"),
    ],
)
def test_experiments_that_no_one_agreed_to_are_refused(old: str, new: str, tmp_path: Path) -> None:
    """Further: an envelope that named FILE.py as its algorithm had the site run that file."""
    job = Job(tmp_path, "fedper", rounds=2)
    hello = first_envelope(job)
    response = ask(job, with_settings(replace(hello, job="other"), old, new))
    assert response.code in ("refused", "data") and response.introduction is None
    assert not (job.home / SITE / "other").exists()


def test_a_file_that_an_envelope_names_as_its_algorithm_is_not_run(tmp_path: Path) -> None:
    job = Job(tmp_path, "fedper", rounds=2)
    hello = replace(first_envelope(job), job="other")
    evil = tmp_path / "evil.py"
    evil.write_text(
        "from pathlib import Path\nfrom playerfl.algorithms import FedPer as Evil\n"
        "Path(__file__).with_suffix('.ran').touch()\n"
    )
    assert ask(job, with_settings(hello, 'name = "fedper"', f'name = "{evil}:Evil"')).code == "refused"
    assert not evil.with_suffix(".ran").exists()
    assert "does not accept the algorithm" in audit(job, "refused")[-1]["detail"]


@pytest.mark.parametrize(
    ("algorithm", "option"),
    [
        (name, option.name)
        for name, kind in ALGORITHMS.items()
        for option in fields(kind)
        if option.name.endswith(("epochs", "steps"))
    ],
)
def test_no_option_of_an_algorithm_goes_beyond_the_epochs_of_the_policy(
    algorithm: str, option: str, tmp_path: Path
) -> None:
    job = Job(tmp_path, algorithm, rounds=2)
    default = job.experiment.algorithm[option]
    policy = Policy.of({"jobs": {"least_sites": 1, "most_local_epochs": 60}})
    for value, accepted in ((default, True), (60, True), (61, False), (10**9, False)):
        experiment = job.experiment.model_copy(update={"algorithm": {**job.experiment.algorithm, option: value}})
        refusal = policy.refusal("job", experiment, Privacy(), 3)
        assert (refusal is None) == accepted, refusal
        assert accepted or refusal == f"algorithm.{option} = {value}, but the policy accepts at most 60"


def test_the_task_is_the_sites_own(tmp_path: Path) -> None:
    """Further: an envelope could name any folder or file as the task."""
    from playerfl.flower.site.setup import setup_finder

    job = Job(tmp_path, "fedavg", task(), rounds=1)
    evil = tmp_path / "evil.py"
    evil.write_text("from pathlib import Path\nPath(__file__).with_suffix('.ran').touch()\n")
    site = replace(job.sites[SITE], find_setup=setup_finder("digits"))
    job.sites[SITE] = site
    hello = replace(first_envelope(job), job="other")
    text = hello.experiment.replace(f'task = "{job.experiment.task}"', f'task = "{evil}:task"')
    assert ask(job, replace(hello, experiment=text)).code in ("data", "model")
    assert not evil.with_suffix(".ran").exists()


def test_nothing_leaves_before_a_person_approves_and_the_server_waits(tmp_path: Path) -> None:
    """H7: a job trained and uploaded as soon as it arrived."""
    job = Job(tmp_path, "fedper", rounds=1, policy=Policy.of({"jobs": {"least_sites": 1}}))
    job.wait_in_vain()
    assert any("waiting for a person at the site to approve the job" in line for line in job.said)
    for site in job.sites.values():
        assert site.statuses() == {"job": "waiting"}
        assert audit(job, "left", site.name) == []
        folder = site.home / "job"
        decide(folder, Contract.read(folder), "approved")  # type: ignore[arg-type]
    job.run()
    job.assert_equals_in_process()


def test_a_job_that_is_approved_while_the_server_waits_goes_on(tmp_path: Path) -> None:
    job = Job(tmp_path, "fedper", rounds=1, policy=Policy.of({"jobs": {"least_sites": 1}}))
    job.deployment = replace(job.deployment, deadline=60.0)

    def approve(seconds: float) -> None:
        job.clock.now += seconds
        for site in job.sites.values():
            if (contract := Contract.read(site.home / "job")) and job.clock.now > 20:
                decide(site.home / "job", contract, "approved")

    job.clock.sleep = approve  # type: ignore[method-assign]
    job.run()
    job.assert_equals_in_process()
    assert sum("waiting for a person" in line for line in job.said) == 3


@pytest.mark.parametrize(("choice", "code"), [("refused", "refused"), ("stopped", "stopped")])
def test_a_person_can_refuse_and_stop(choice: Any, code: str, running: Job) -> None:
    folder = running.home / SITE / "job"
    decide(folder, Contract.read(folder), choice)  # type: ignore[arg-type]
    assert ask(running, asked(running, "1:evaluate+fit")).code == code
    assert ask(running, asked(running, "hello")).code == code


def test_what_is_being_computed_when_a_job_is_stopped_does_not_leave(
    running: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = running.home / SITE / "job"
    last = asked(running, "1:evaluate+fit")
    weights = last.request.download.weights  # type: ignore[union-attr]
    import playerfl.flower.site.site as module

    train = module.drive

    def stopped_meanwhile(work: Any) -> Any:
        decide(folder, Contract.read(folder), "stopped")  # type: ignore[arg-type]
        return train(work)

    monkeypatch.setattr(module, "drive", stopped_meanwhile)
    response = ask(running, step(last, "fit", round_=3, after="1:evaluate+fit", weights=weights))
    assert (response.code, response.reply) == ("stopped", None)


def test_an_approval_is_for_the_terms_that_were_seen(tmp_path: Path) -> None:
    job = Job(tmp_path, "fedper", rounds=1, policy=Policy.of({"jobs": {"least_sites": 1}}))
    job.wait_in_vain()
    folder = job.home / SITE / "job"
    contract = Contract.read(folder)
    assert contract is not None
    decide(folder, replace(contract, terms=replace(contract.terms, merge_sites=9)), "approved")
    assert ask(job, asked(job, "hello")).code == "waiting"


def test_approval_can_limit_the_layers(tmp_path: Path) -> None:
    job = Job(tmp_path, "player_fl", rounds=1, policy=Policy.of({"jobs": {"least_sites": 1}}))
    job.wait_in_vain()
    for site in job.sites.values():
        decide(site.home / "job", Contract.read(site.home / "job"), "approved", most_layers=0)  # type: ignore[arg-type]
    with pytest.raises(TooFewSitesError, match="refuses the job"):
        job.run()
    assert left(job) == set()


POLICIES: dict[str, dict[str, Any]] = {
    "rows": {"jobs": {"least_rows": 1000}},
    "sites": {"jobs": {"least_sites": 3}},
    "name": {"jobs": {"names": ["heart-*"]}},
    "algorithm": {"jobs": {"algorithms": ["fedavg"]}},
    "rounds": {"jobs": {"most_rounds": 1}},
    "data": {"jobs": {"data": {"target": "outcome"}}},
    "layer": {"layers": {"never_send": ["0"]}},
    "tensor": {"layers": {"never_send": ["2.bias"]}},
    "misspelt layer": {"layers": {"never_send": ["fc3"]}},
    "private": {"layers": {"least_private": 2}},
    "clip": {"privacy": {"most_clip": 1.0}},
    "noise": {"privacy": {"least_noise": 1.0}},
    "secure": {"privacy": {"secure": True}},
    "budget": {"budget": {"epsilon": 1.0, "uncounted": ["scores"]}},
}


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_refuses_before_anything_is_computed(name: str, tmp_path: Path) -> None:
    job = Job(tmp_path, "fedper", rounds=2, policy=Policy.of({**KEEN, **POLICIES[name]}))
    with pytest.raises(TooFewSitesError, match="policy or a person there refuses the job"):
        job.run()
    assert left(job) == set() and len(audit(job, "refused")) == 1
    assert not (job.home / SITE / "job").exists()


def test_a_tensor_that_a_protected_layer_uses_does_not_leave_with_another_one() -> None:
    from torch import nn

    from playerfl.layers.layer_map import LayerMap

    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3))
    model[2].weight = model[0].weight
    layers = LayerMap.of(model)
    initial = {name: tensor.detach() for name, tensor in model.named_parameters()}
    pinned = Pinned(FedPer(1), layers, initial, ProtectedLayers(never_send=["2"]))
    assert pinned.never_sent() >= {"0.weight", "2.bias"}
    with pytest.raises(RefusedError, match=r"shares 0\.weight, which the policy never sends"):
        pinned.check_shared(2, None)


def test_the_budget_covers_all_jobs_and_ends_them(tmp_path: Path) -> None:
    """H6: a second job with the same data would let the server average the noise of the first one away."""
    from playerfl.flower.site.privacy import epsilon

    limit = epsilon(20.0, 3) * 1.001
    budget = {"epsilon": limit, "uncounted": ["scores"]}
    job = Job(tmp_path, "fedper", rounds=2, policy=Policy.of({**KEEN, "budget": budget}))
    job.deployment = replace(job.deployment, privacy=Privacy(clip=1.0, noise=20.0))
    job.run()
    assert audit(job, "left")[-1]["epsilon"] == pytest.approx(epsilon(20.0, 2))
    with pytest.raises(TooFewSitesError, match="privacy budget is spent"):
        job.run(job="second")
    spent = json.loads((job.home / SITE / ".agent" / "budget.json").read_text())
    assert len(spent) == 3
    assert audit(job, "refused")[-1]["code"] == "budget"


def test_asking_again_costs_nothing(tmp_path: Path) -> None:
    job = Job(tmp_path, "fedper", rounds=1)
    job.deployment = replace(job.deployment, privacy=Privacy(clip=1.0, noise=20.0))
    job.run()
    for _ in range(3):
        ask(job, asked(job, "1:evaluate+finish"))
    assert len(json.loads((job.home / SITE / ".agent" / "budget.json").read_text())) == 1


def test_scores_stay_at_the_site_if_the_policy_says_so(tmp_path: Path) -> None:
    job = Job(tmp_path, "fedper", rounds=1, policy=Policy.of({**KEEN, "sharing": {"scores": False}}))
    job.run()
    assert all(entry["scores"] == 0 for entry in audit(job, "left"))
    assert job.fingerprints.keys() == set(job.sites)


def test_a_damaged_contract_or_ledger_lets_nothing_leave(running: Job) -> None:
    (running.home / SITE / "job" / "contract.json").write_text("{}")
    assert ask(running, asked(running, "1:evaluate+fit")).code == "storage"


@pytest.mark.parametrize("damage", ["{", "[]", '{"job": -1.0}', '{"job": "0"}'])
def test_a_damaged_ledger_lets_nothing_leave(damage: str, tmp_path: Path) -> None:
    job = Job(tmp_path, "fedper", rounds=2)
    job.deployment = replace(job.deployment, privacy=Privacy(clip=1.0, noise=20.0))
    job.interrupt("site-2", "0:fit")
    (job.home / SITE / ".agent" / "budget.json").write_text(damage)
    first = asked(job, "0:fit")
    weights = ask(job, first).reply
    assert weights is None
    response = ask(job, step(first, "fit", round_=1, after="0:fit"))
    assert (response.code, response.reply) == ("storage", None)


def test_the_audit_log_has_everything_that_left(running: Job) -> None:
    lines = audit(running, "left")
    assert [entry["key"] for entry in lines] == ["hello", "0:fit", "1:evaluate+fit", "2:evaluate+fit"]
    assert lines[1]["entries"] == {
        "0.weight": ["float32", [8, 6]], "0.bias": ["float32", [8]],
        "2.weight": ["float32", [8, 8]], "2.bias": ["float32", [8]],
    }  # fmt: skip
    again = ask(running, asked(running, "2:evaluate+fit"))
    assert again.reply
    assert audit(running, "left")[-1]["sha256"] == lines[-1]["sha256"]


def test_nothing_leaves_if_the_audit_log_cannot_be_written(running: Job) -> None:
    file = running.home / SITE / "audit.jsonl"
    file.unlink()
    file.mkdir()
    response = ask(running, asked(running, "2:evaluate+fit"))
    assert (response.code, response.reply) == ("storage", None)
