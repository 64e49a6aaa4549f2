"""Every algorithm over Flower's records: real apps, real messages, and sites that read their state from disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flwr.app import ArrayRecord
from safetensors.torch import load_file

import playerfl
from federations import quick_for, task
from flower.jobs import SITES, Job
from flower.loop_grid import over_the_wire
from playerfl.algorithms import ALGORITHMS, PartialAlgorithm, PLayerFL
from playerfl.engine.scheduler import drive
from playerfl.errors import ConfigError, PlayerflError
from playerfl.flower.site.policy import Policy
from playerfl.studies.collecting import collect
from playerfl.weights import num_bytes

PARTIAL = [name for name, kind in ALGORITHMS.items() if issubclass(kind, PartialAlgorithm)]
# Quick tests use only those with a special exchange, memory or finish.
every_algorithm = pytest.mark.parametrize(
    "name", quick_for(ALGORITHMS, "fedavg", "ditto", "fedbabu", "fedlama", "pfedla", "player_fl")
)


@pytest.mark.slow
@every_algorithm
def test_a_job_over_flower_equals_the_run_in_one_process(name: str, tmp_path: Path) -> None:
    job = Job(tmp_path, name, task("batch norm"), rounds=2)
    job.run()
    job.assert_equals_in_process()


@pytest.mark.slow
@pytest.mark.parametrize("name", quick_for(["pfedme", "fedlama", "player_fl_ditto"], "player_fl_ditto"))
def test_a_site_alone_computes_the_same_as_stacked_with_others(name: str, tmp_path: Path) -> None:
    job = Job(tmp_path, name)
    assert job.in_process().setup.learner.trainer == "stacked"
    job.run()
    job.assert_equals_in_process()


@pytest.mark.slow
@pytest.mark.parametrize("selection", quick_for(["by_owner", "client_best", "round_best"], "by_owner"))
def test_every_selection_equals_the_run_in_one_process(selection: str, tmp_path: Path) -> None:
    job = Job(tmp_path, "local_adaptation", selection=selection)
    job.run(min_sites=3)
    job.assert_equals_in_process()


def test_round_best_needs_all_sites(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="add --min-sites 3"):
        Job(tmp_path, "fedavg", selection="round_best").run()


PROTOCOLS: dict[str, Any] = {"eval_point": "post_local", "participation": 0.5, "bn_stats": "local"}


@pytest.mark.slow
@pytest.mark.parametrize("setting", quick_for(PROTOCOLS, "participation"))
def test_every_protocol_equals_the_run_in_one_process(setting: str, tmp_path: Path) -> None:
    job = Job(tmp_path, "player_fl", task("batch norm"), rounds=3, **{setting: PROTOCOLS[setting]})
    job.run()
    job.assert_equals_in_process()


@pytest.mark.slow
def test_a_job_directory_reads_like_a_run_directory_without_models(tmp_path: Path) -> None:
    job = Job(tmp_path, "player_fl")
    job.run()
    read = playerfl.load_result(job.folder)
    result = drive(job.in_process().rounds())
    assert read.site_scores == result.site_scores
    assert read.cut == result.cut
    assert read.sites == result.sites
    assert [collected.path for collected in collect(job.home / "jobs").results] == [job.folder]
    with pytest.raises(ConfigError, match="never left its site"):
        read.model("site-0")


@pytest.mark.slow
def test_sites_without_registered_names_introduce_themselves(tmp_path: Path) -> None:
    job = Job(tmp_path, "fedavg", rounds=1)
    job.grid.named = False
    job.run()
    job.assert_equals_in_process()


@pytest.mark.slow
@pytest.mark.parametrize("name", quick_for(PARTIAL, "player_fl"))
def test_no_message_holds_a_private_layer(name: str, tmp_path: Path) -> None:
    """Neither by name nor by value, in either direction: every party even builds the initial model itself."""
    job = Job(tmp_path, name, rounds=2)
    job.run()
    run = job.in_process()
    drive(run.rounds())
    assert isinstance(run.algorithm, PartialAlgorithm)
    private = {entry for layer in run.algorithm.personal(run.server) for entry in run.server.layers.entries[layer]}
    values = [
        tensor.numpy().tobytes()
        for site in SITES
        for entry, tensor in load_file(job.home / site / "job" / "model.safetensors").items()
        if entry in private
    ]
    for _, message in (*job.grid.requests, *job.grid.replies):
        for record in message.content.array_records.values():
            assert not private & record.keys()
        sent = b"".join(array.data for r in message.content.array_records.values() for array in r.values())
        assert not any(value in sent for value in values)


@pytest.mark.slow
def test_hardly_more_than_the_shared_layers_is_sent(tmp_path: Path) -> None:
    job = Job(tmp_path, PLayerFL(rule="fixed", fixed_cut=2), rounds=2)
    job.run()
    server = job.in_process().server
    federated = num_bytes(server.layers.select(server.weights, server.layers.names[:2]))
    replies = [message for _, message in job.grid.replies]
    weights = [sum(len(a.data) for a in message.content["weights"].values()) for message in replies]
    # Hello and prepare without weights, two fits, the last evaluation.
    assert weights == [0] * 6 + [federated] * 6 + [0] * 3
    assert job.grid.bytes["up"] < sum(weights) + len(replies) * 4000


def test_the_sensitivity_step_sends_one_number_per_layer(tmp_path: Path) -> None:
    job = Job(tmp_path, "player_fl", rounds=1)
    job.run()
    prepared = [m for _, m in job.grid.replies if m.metadata.message_type == "query.prepare"]
    assert len(prepared) == 3
    for message in prepared:
        assert message.content["weights"] == ArrayRecord()
        assert message.content["numbers"].keys() == {"num-examples"}
        [(name, values)] = message.content["info"].items()
        assert (name, len(values)) == ("importance", 4)


@pytest.mark.slow
def test_a_message_is_valid_until_the_deadline_and_grouped_by_round(tmp_path: Path) -> None:
    job = Job(tmp_path, "fedavg", rounds=2)
    job.run()
    assert {message.metadata.ttl for _, message in job.grid.requests} == {6.0}
    assert [message.metadata.group_id for _, message in job.grid.requests] == ["0"] * 6 + ["1"] * 3 + ["2"] * 3


def test_the_loop_back_grid_takes_messages_apart(tmp_path: Path) -> None:
    """Otherwise the tests above would prove nothing about the wire."""
    job = Job(tmp_path, "fedavg", rounds=1)
    job.run()
    _, message = job.grid.replies[-1]
    again, size = over_the_wire(message)
    assert again is not message and size > 0
    assert again.content == message.content


@pytest.mark.parametrize("name", ["fedsa_lora", "ffa_lora"])
def test_adapters_that_are_not_shared_never_leave(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A policy that protects the head accepts a method that keeps it, and refuses one that shares it."""
    policy = Policy.of({"approval": "automatic", "jobs": {"least_sites": 1}, "layers": {"never_send": ["6"]}})
    job = Job(tmp_path, name, task("low-rank adapters"), rounds=2, policy=policy)
    if name == "ffa_lora":
        with pytest.raises(PlayerflError, match="policy or a person there refuses the job"):
            job.run()
        assert "the job shares 6.bias, which the policy never sends" in caplog.text
        return
    job.run()
    job.assert_equals_in_process()
    sent = {
        entry
        for _, message in (*job.grid.requests, *job.grid.replies)
        for record in message.content.array_records.values()
        for entry in record
    }
    assert sent == {f"{layer}.lora_A.weight" for layer in (0, 2, 4)}
