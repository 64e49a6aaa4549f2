"""A server that is curious within the protocol: what it may choose says no more about a site than was agreed to."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from flower.attacks import SITE, ask, asked, audit, step, with_settings
from flower.jobs import Job
from playerfl.algorithms import FedLAMA
from playerfl.errors import ConfigError
from playerfl.federation.messages import Upload
from playerfl.flower.server.transport import TooFewSitesError
from playerfl.flower.site.files.contract import Contract, decide
from playerfl.flower.site.policy import Policy
from playerfl.flower.site.privacy import private_upload
from playerfl.flower.site.setup import setup_finder
from playerfl.flower.wire.codec import decode_response
from playerfl.flower.wire.envelopes import Envelope, Privacy
from playerfl.flower.wire.parcel import Parcel
from playerfl.storage.atomic_files import temp_path

PERSON = {"jobs": {"least_sites": 1}}


def hello_of(job: Job) -> Envelope:
    job.interrupt("site-2", "hello")
    return replace(asked(job, "hello"), schema="")


@pytest.mark.parametrize("how", ["crafted", "initial", "flag"])
def test_an_envelope_cannot_replace_the_private_layers(how: str, running: Job) -> None:
    """A head that the server knows would turn the shared layers' update into one of a model that it knows whole."""
    last = asked(running, "2:evaluate+fit")
    weights = dict(last.request.download.weights)  # type: ignore[union-attr]
    initial = running.sites[SITE].find_setup(running.experiment, SITE).setup.initial
    private = {name: tensor for name, tensor in initial.items() if name not in weights}
    assert private
    if how == "crafted":
        weights |= {name: torch.ones_like(tensor) for name, tensor in private.items()}
    elif how == "initial":
        weights |= private
    attack = step(last, "evaluate", "fit", round_=3, after="2:evaluate+fit", weights=weights)
    response = ask(running, replace(attack, initial=how == "flag"))
    assert (response.code, response.reply) == ("pinned", None)
    running.run()
    running.assert_equals_in_process()


@pytest.mark.parametrize("verbs", [("evaluate",), ("evaluate", "fit")], ids="+".join)
def test_no_layer_is_the_servers_choice_before_the_cut_is_known(verbs: Any, tmp_path: Path) -> None:
    """A site that has not trained yet scored a whole model of the server's choice, and kept it as its own."""
    told = Job(tmp_path / "told", "player_fl", rounds=2)
    told.run()
    job = Job(tmp_path / "job", "player_fl", rounds=2)
    initial = job.sites[SITE].find_setup(job.experiment, SITE).setup.initial
    crafted = {name: torch.ones_like(tensor) for name, tensor in initial.items()}
    attack = step(asked(told, "0:prepare"), *verbs, round_=1, weights=crafted)
    assert ask(job, attack).code == "pinned"
    assert not (job.home / SITE / "job" / "state.safetensors").exists()


@pytest.mark.parametrize("name", ["site.toml", "SITE.TOML", "agent.sock", "site.log", "audit.jsonl"])
def test_a_job_cannot_take_the_place_of_a_file_of_the_site(name: str, tmp_path: Path) -> None:
    """A folder called site.toml would keep the agent from starting again."""
    job = Job(tmp_path, "fedavg", rounds=1)
    hello = hello_of(job)
    assert ask(job, replace(hello, job=name)).code == "refused"
    assert not (job.home / SITE / name).is_dir()


def test_a_job_cannot_take_the_place_of_any_other_file(tmp_path: Path) -> None:
    job = Job(tmp_path, "fedavg", rounds=1)
    hello = hello_of(job)
    (job.home / SITE / "north.key").write_text("a file that the administrator put there")
    (job.home / SITE / "backup").mkdir()
    (job.home / SITE / "backup" / "notes.txt").write_text("not a job either")
    for name in ("north.key", "backup"):
        assert ask(job, replace(hello, job=name)).code == "refused"
    # A kill while the job began leaves a folder without a contract.
    (job.home / SITE / "begun").mkdir()
    temp_path(job.home / SITE / "begun" / "data_check.json").write_text("{")
    assert ask(job, replace(hello, job="begun")).introduction is not None


def test_scores_over_a_few_rows_are_not_shared(tmp_path: Path) -> None:
    """With a validation part of one row, its loss and accuracy would be those of one patient."""
    shares = {"data.shares": [0.96, 0.02, 0.02]}
    job = Job(tmp_path, "fedavg", rounds=1, policy=Policy.of({"approval": "automatic", **PERSON}), **shares)
    with pytest.raises(Exception, match="refuses the job"):
        job.run()
    assert any("validation rows" in entry["detail"] for entry in audit(job, "refused"))
    quiet = Policy.of({"approval": "automatic", **PERSON, "sharing": {"scores": False}})
    Job(tmp_path / "quiet", "fedavg", rounds=1, policy=quiet, **shares).run()


def folder_of(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    rows = [f"{40 + i},{i % 7},{i % 2}" for i in range(120)]
    (folder / "north.csv").write_text("\n".join(["age,stage,outcome", *rows]) + "\n")
    return folder


def test_questions_about_the_data_before_approval_have_one_answer_and_are_few(tmp_path: Path) -> None:
    """Refusals that differ by reason told which columns and how many rows there are, before anybody approved a job."""
    job = Job(tmp_path, "fedavg", rounds=1, policy=Policy.of(PERSON))
    job.wait_in_vain()
    job.sites[SITE] = replace(job.sites[SITE], find_setup=setup_finder(str(folder_of(tmp_path))))
    hello = replace(asked(job, "hello"), schema="", job="other")

    def asking(data: str) -> Envelope:
        return with_settings(hello, "[data]", f"[data]\n{data}")

    questions = ['target = "hiv"', 'target = "age"', 'missing = "drop"\nmissing_codes = ["stage=1", "stage=2"]']
    codes = [ask(job, asking(question)).code for question in questions]
    assert codes == ["data"] * 3
    # Every one of them is in the audit log, although they have the same job, key and code.
    assert len({entry["detail"] for entry in audit(job, "refused") if entry["job"] == "other"}) >= 2
    more = [ask(job, asking(f'target = "column {n}"')).code for n in range(40)]
    assert more[-1] == "refused" and more.count("data") <= 20


def test_a_regular_expression_from_an_envelope_is_not_run(tmp_path: Path) -> None:
    """One that backtracks would keep the agent busy for years."""
    job = Job(tmp_path, "fedavg", rounds=1)
    hello = replace(hello_of(job), job="other")
    response = ask(job, with_settings(hello, "[data]", '[data]\ngroup_pattern = "(a+)+$"'))
    assert response.code == "refused"
    assert "regular expression" in audit(job, "refused")[-1]["detail"]


def test_a_method_that_uploads_every_other_round_is_charged_and_limited(tmp_path: Path) -> None:
    """FedLAMA uploads nothing in round 0, so no later upload was counted, and no limit of layers held."""
    noisy = Privacy(clip=1.0, noise=10.0)
    job = Job(
        tmp_path,
        FedLAMA(tau=2),
        rounds=4,
        policy=Policy.of({"approval": "automatic", **PERSON, "budget": {"epsilon": 1.0, "uncounted": ["scores"]}}),
    )
    job.deployment = replace(job.deployment, privacy=noisy)
    with pytest.raises(TooFewSitesError, match="budget is spent"):
        job.run()
    limited = Job(tmp_path / "limited", FedLAMA(tau=2), rounds=4, policy=Policy.of(PERSON))
    limited.wait_in_vain()
    for site in limited.sites.values():
        decide(site.home / "job", Contract.read(site.home / "job"), "approved", most_layers=1)  # type: ignore[arg-type]
    with pytest.raises(TooFewSitesError, match="refuses the job"):
        limited.run()


def test_noise_is_refused_where_something_else_leaves_without_it(tmp_path: Path) -> None:
    """FedSelect says which weights became a site's own, in every round: ε would not be true."""
    job = Job(tmp_path, "fedselect", rounds=1)
    with pytest.raises(ConfigError, match="fedselect"):
        job.run(privacy=Privacy(clip=1.0, noise=1.0))
    hello = replace(hello_of(job), job="other", privacy=Privacy(clip=1.0, noise=1.0))
    assert ask(job, hello).code == "data"


@pytest.mark.parametrize("name", ["player_fl", "scaffold", "fedlp", "pfedla", "feddbe", "fedbn"])
def test_clipping_and_noise_work_with_methods_that_send_more_or_less_than_the_model(name: str, tmp_path: Path) -> None:
    Job(tmp_path, name, rounds=2).run(privacy=Privacy(clip=0.001, noise=0.1))


def test_what_travels_beside_the_model_is_clipped_too() -> None:
    """SCAFFOLD's control variates were not counted, so that the update was longer than ε assumes."""
    upload = Upload(1, {"w": torch.ones(1), "control.w": torch.full((1,), 1e6)})
    rng = torch.Generator().manual_seed(0)
    clipped = private_upload(upload, {"w": torch.zeros(1)}, Privacy(clip=1.0), rng).weights
    assert sum(float(tensor.square().sum()) for tensor in clipped.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("text", ["a" + ".a" * 100_000 + " = 1", "# " + "x" * 2**18], ids=["dots", "long"])
def test_an_experiment_that_takes_hours_to_read_is_refused_at_once(text: str, tmp_path: Path) -> None:
    """The reader of TOML took a minute for a key of 65,000 parts, and the agent does one thing at a time."""
    job = Job(tmp_path, "fedavg", rounds=1)
    hello = hello_of(job)
    began = time.process_time()
    assert ask(job, replace(hello, job="other", experiment=f"{hello.experiment}\n{text}")).code == "data"
    assert time.process_time() - began < 1


def test_a_stage_of_secure_aggregation_that_is_refused_is_in_the_audit_log(tmp_path: Path) -> None:
    from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key

    job = Job(tmp_path, "fedavg", rounds=1)
    job.deployment = replace(job.deployment, privacy=Privacy(secure_range=8.0), min_sites=3)
    job.interrupt("site-2", "hello")
    setup = {Key.STAGE: "setup", Key.SAMPLE_NUMBER: 2, Key.THRESHOLD: 2}
    parcel = Parcel("secure", configs={RECORD_KEY_CONFIGS: setup})
    assert decode_response(job.agent(SITE).answer(parcel)).code == "privacy"
    assert "over 2 sites is refused" in audit(job, "refused")[-1]["detail"]
