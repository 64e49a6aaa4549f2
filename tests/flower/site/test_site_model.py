"""A job that replaces the task's model: every site builds its own copy, and a message never chooses code."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from federations import CLASSES, FEATURES, task
from flower.attacks import ask, asked
from flower.jobs import SITES, Job
from playerfl.data.sites import Sites
from playerfl.errors import ConfigError, DataError, PlayerflError
from playerfl.flower.operate.demo import demo_experiment
from playerfl.flower.site.describe import described
from playerfl.flower.site.files.contract import Contract
from playerfl.flower.site.open_site import open_site
from playerfl.flower.site.policy import Policy
from playerfl.tasks.named_models import with_model

MODEL = f"""
from torch import nn


def make_model(inputs={FEATURES}, outputs={CLASSES}):
    return nn.Sequential(nn.Linear(inputs, WIDTH), nn.ReLU(), nn.Linear(WIDTH, outputs))
"""


def written(folder: Path, width: int = 5) -> str:
    """The name of the model in a file of this folder."""
    folder.mkdir()
    (folder / "mymodel.py").write_text(MODEL.replace("WIDTH", str(width)))
    return f"{folder / 'mymodel.py'}:make_model"


def job_with(tmp_path: Path, own: str | None) -> Job:
    table: dict[str, Any] = {"approval": "automatic", "jobs": {"least_sites": 1}}
    policy = Policy.of(table if own is None else {**table, "model": own})
    return Job(tmp_path, "fedper", rounds=2, policy=policy, model=written(tmp_path / "server"))


def test_every_site_uses_its_own_copy_with_the_same_result(tmp_path: Path) -> None:
    own = written(tmp_path / "institution")
    job = job_with(tmp_path, own)
    job.run()
    job.assert_equals_in_process()
    assert job.fingerprints
    for site in SITES:
        kept = (job.home / site / "job" / "experiment.toml").read_text()
        assert own in kept and str(job.experiment.model) not in kept
    contract = Contract.read(job.home / SITES[0] / "job")
    assert contract is not None
    assert "it is this site's own (--model) instead of the task's" in described(contract, job.policy)[0]


def test_the_code_that_a_message_names_is_not_run(tmp_path: Path) -> None:
    job = job_with(tmp_path, written(tmp_path / "institution"))
    job.interrupt("site-2", "hello")
    evil = tmp_path / "evil.py"
    evil.write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n" + MODEL.replace("WIDTH", "5"))
    hello = asked(job, "hello")
    text = hello.experiment.replace(str(job.experiment.model), f"{evil}:make_model")
    response = ask(job, replace(hello, job="other", experiment=text))
    assert text != hello.experiment and response.introduction is not None
    assert not (tmp_path / "ran").exists()


def test_a_site_without_a_model_of_its_own_refuses_and_its_log_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = job_with(tmp_path, None)
    with pytest.raises(PlayerflError):
        job.run()
    assert ask(job, asked(job, "hello")).code == "refused"
    assert "read that code, and give this site's copy of it with --model" in caplog.text


def test_a_copy_that_builds_other_weights_is_refused(tmp_path: Path) -> None:
    job = job_with(tmp_path, written(tmp_path / "institution", width=6))
    with pytest.raises(PlayerflError):
        job.run()
    assert ask(job, asked(job, "hello")).code == "model"


def test_jobs_with_the_tasks_model_do_not_use_the_sites(tmp_path: Path) -> None:
    policy = Policy.of({"approval": "automatic", "jobs": {"least_sites": 1}, "model": written(tmp_path / "own")})
    job = Job(tmp_path, "fedper", rounds=1, policy=policy)
    job.run()
    job.assert_equals_in_process()


def test_mistakes_are_noticed_when_the_site_starts(tmp_path: Path) -> None:
    own = written(tmp_path / "own")
    with pytest.raises(ConfigError, match=r"--model is other.py:m, but the policy says .*; change one of them"):
        open_site("north", tmp_path / "state", Policy.of({"model": own}), "digits", model="other.py:m")
    with pytest.raises(ConfigError, match=r"there is no file other.py"):
        open_site("north", tmp_path / "state", Policy(), "digits", model="other.py:m")
    assert open_site("north", tmp_path / "state", Policy(), "digits", model=own).policy.model == own


def test_a_server_without_data_builds_the_model_with_its_defaults(tmp_path: Path) -> None:
    def no_data(_: Any) -> Sites:
        raise DataError("the data are at the sites")

    with_data, without = task(), replace(task(), load_sites=no_data)
    own = written(tmp_path / "own")
    shapes = [
        {
            name: entry.shape
            for name, entry in with_model(a_task, own).build_model(a_task.options()).state_dict().items()
        }
        for a_task in (with_data, without)
    ]
    assert shapes[0] == shapes[1]
    needed = tmp_path / "needed.py"
    needed.write_text("from torch import nn\n\n\ndef make_model(inputs):\n    return nn.Linear(inputs, 2)\n")
    with pytest.raises(DataError, match="the data are at the sites"):
        with_model(without, f"{needed}:make_model").build_model(without.options())


def test_the_demo_takes_an_experiment_of_ones_own(tmp_path: Path) -> None:
    own = written(tmp_path / "own")
    file = tmp_path / "experiment.toml"
    file.write_text(f'task = "digits"\nmodel = "{own}"\nrounds = 7\n\n[algorithm]\nname = "fedavg"\n')
    chosen = demo_experiment(None, None, config=file)
    assert (chosen.model, chosen.rounds, chosen.device, chosen.algorithm["name"]) == (own, 7, "cpu", "fedavg")
    assert demo_experiment(None, 1, config=file).rounds == 1
    assert demo_experiment(None, None).algorithm["name"] == "player_fl"
