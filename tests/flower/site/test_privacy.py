"""Clipping, noise and secure aggregation: what they do to an upload, and what they refuse."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from federations import quick_for, task
from flower.accidents import Accident
from flower.attacks import ask, asked, step
from flower.jobs import SITES, Job
from flower.loop_grid import unreachable
from playerfl.algorithms import ALGORITHMS
from playerfl.engine.scheduler import drive
from playerfl.errors import ConfigError
from playerfl.federation.messages import Upload
from playerfl.flower.server.transport import TooFewSitesError
from playerfl.flower.site.files.contract import Contract
from playerfl.flower.site.files.names import OWN
from playerfl.flower.site.privacy import epsilon, outside, private_upload
from playerfl.flower.wire.codec import decode_envelope, decode_response
from playerfl.flower.wire.envelopes import SENTENCES, Privacy, RefusedError
from playerfl.flower.wire.secure import StageMemory, _check_stage, check_secure
from playerfl.weights import squared_distance


def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def private_job(tmp_path: Path, algorithm: Any, privacy: Privacy, **settings: Any) -> Job:
    job = Job(tmp_path, algorithm, **settings)
    job.deployment = replace(job.deployment, privacy=privacy, min_sites=3)
    return job


def test_an_update_is_scaled_to_the_bound_over_all_entries_together() -> None:
    sent = {"a": torch.ones(2), "b": torch.zeros(1)}
    upload = Upload(5, {"a": torch.tensor([4.0, 1.0]), "b": torch.tensor([4.0])})
    clipped = private_upload(upload, sent, Privacy(clip=1.0), rng()).weights
    torch.testing.assert_close(clipped, {"a": torch.tensor([1.6, 1.0]), "b": torch.tensor([0.8])})


def test_a_small_update_keeps_its_bits() -> None:
    upload = Upload(5, {"a": torch.tensor([1.1])})
    sent = private_upload(upload, {"a": torch.ones(1)}, Privacy(clip=1.0), rng())
    assert torch.equal(sent.weights["a"], upload.weights["a"])


def test_noise_has_the_stated_spread() -> None:
    zeros = {"a": torch.zeros(200_000)}
    noise = private_upload(Upload(1, zeros), zeros, Privacy(clip=0.5, noise=2.0), rng()).weights["a"]
    assert float(noise.std()) == pytest.approx(1.0, rel=0.01)
    assert float(noise.mean()) == pytest.approx(0.0, abs=0.01)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_an_update_that_is_not_finite_looks_like_none(value: float) -> None:
    """Otherwise a server could make a model overflow for some rows only, and see through any noise whether it did."""
    sent = {"a": torch.ones(3), "b": torch.zeros(2)}
    privacy = Privacy(clip=1.0, noise=2.0)
    diverged = private_upload(
        Upload(5, {"a": torch.tensor([1.0, value, 2.0]), "b": torch.ones(2)}), sent, privacy, rng()
    )
    unchanged = private_upload(Upload(5, sent), sent, privacy, rng())
    assert all(torch.equal(diverged.weights[name], unchanged.weights[name]) for name in sent)


def test_rounding_does_not_take_an_update_beyond_the_bound() -> None:
    """Between large weights, float32 has few numbers: rounded before the noise, this update would be twice as long."""
    start = torch.full((4,), 2.0**24 + 2)
    sent, upload = {"a": start}, Upload(5, {"a": start + 1000})
    noise = private_upload(
        Upload(5, {"a": start.double()}), {"a": start.double()}, Privacy(clip=2.0, noise=50.0), rng()
    )
    noisy = private_upload(upload, sent, Privacy(clip=2.0, noise=50.0), rng())
    assert torch.equal(noisy.weights["a"], (noise.weights["a"] + 1.0).float())


def test_a_model_that_the_server_makes_overflow_says_nothing_through_noise(tmp_path: Path) -> None:
    job = private_job(tmp_path, "fedavg", Privacy(clip=1.0, noise=20.0), **{"training.optimizer_state": "reset"})
    job.interrupt("site-2", "0:fit")
    first = asked(job, "0:fit")
    reply = ask(job, first).reply
    assert reply
    shapes = reply.upload.weights
    too_large = {name: torch.full_like(tensor, 3e38) for name, tensor in shapes.items()}
    assert ask(job, step(first, "fit", round_=1, after="0:fit", weights=too_large)).code == "pinned"
    overflowing = {name: torch.full_like(tensor, 9e31) for name, tensor in shapes.items()}
    answer = ask(job, step(first, "fit", round_=1, after="0:fit", weights=overflowing)).reply
    assert answer
    assert all(bool(torch.isfinite(tensor).all()) for tensor in answer.upload.weights.values())


def test_importances_stay_positive_under_noise() -> None:
    info = {"importance": [1e-9, 1.0, 1e9] * 1000, "cut": 3}
    noisy = private_upload(Upload(1, {}, info), {}, Privacy(sensitivity_noise=0.5), rng()).info
    logs = [math.log(after / before) for after, before in zip(noisy["importance"], info["importance"], strict=True)]  # type: ignore[arg-type, operator]
    assert noisy["cut"] == 3
    assert torch.tensor(logs).std().item() == pytest.approx(0.5, rel=0.1)


def test_epsilon_by_hand() -> None:
    """ρ = 2·8/16 = 1, so ε = 1 + 2·√ln(10⁵)."""
    assert epsilon(noise=4.0, rounds=8) == pytest.approx(1 + 2 * math.sqrt(math.log(1e5)))
    assert epsilon(noise=0.0, rounds=8) == math.inf
    assert epsilon(4.0, 9) > epsilon(4.0, 8) > epsilon(5.0, 8)


@pytest.mark.slow
def test_every_upload_of_a_clipped_job_is_within_the_bound(tmp_path: Path) -> None:
    job = private_job(tmp_path, "fedper", Privacy(clip=0.05))
    job.run()
    initial = job.in_process().setup.initial
    asked = {(n, m.metadata.message_id): decode_envelope(m.content) for n, m in job.grid.requests}
    bounded = 0
    for name, message in job.grid.replies:
        envelope = asked[(name, message.metadata.reply_to_message_id)]
        reply = decode_response(message.content).reply
        if reply and reply.upload.weights and envelope.request:
            sent = {**initial, **envelope.request.download.weights}
            assert math.sqrt(squared_distance(reply.upload.weights, sent)) <= 0.05 * (1 + 1e-5)
            bounded += 1
    assert bounded == 9


def test_a_noisy_upload_asked_for_twice_is_the_same_upload(tmp_path: Path) -> None:
    """Fresh noise on the same update would let the server average it away."""
    job = private_job(tmp_path, "fedper", Privacy(clip=1.0, noise=1.0), rounds=1)
    seen = []

    def lose(request: Any, reply: Any) -> Any:
        seen.append(decode_response(reply.content))
        return unreachable(request)

    job.tamper(Accident("site-1", ["0:fit"], lose))
    job.run()
    again = next(
        decode_response(m.content)
        for n, m in job.grid.replies
        if n == "site-1" and m.has_content() and m.metadata.group_id == "0" and m.metadata.message_type == "train.round"
    )
    assert all(torch.equal(seen[0].reply.upload.weights[k], w) for k, w in again.reply.upload.weights.items())


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"noise": 1.0}, "set clip too"),
        ({"clip": -1.0}, "clip must be 0"),
        ({"secure_range": math.nan}, "secure_range must be 0"),
        ({"clip": 1.0, "noise": 1e-200}, "between 1e-09 and 1e"),
        ({"clip": 1e300}, "between 1e-09 and 1e"),
    ],
)
def test_options_without_effect_are_refused(options: dict[str, float], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        Privacy(**options)


@pytest.mark.parametrize("privacy", [Privacy(clip=1.0), Privacy(secure_range=8.0)], ids=["clip", "secure"])
def test_travelling_statistics_are_refused_before_anything_is_written(privacy: Privacy, tmp_path: Path) -> None:
    job = private_job(tmp_path, "fedavg", privacy, a_task=task("batch norm"), rounds=1)
    with pytest.raises(ConfigError, match='bn_stats = "local"'):
        job.run()
    assert not job.folder.exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", quick_for(["player_fl", "pfedme"], "player_fl"))
def test_secure_aggregation_gives_the_mean_and_shows_no_upload(name: str, tmp_path: Path) -> None:
    job = private_job(tmp_path, name, Privacy(secure_range=8.0), rounds=2)
    job.run()
    run = job.in_process()
    drive(run.rounds())
    common = {**run.setup.initial, **job.common}
    for entry, tensor in run.server.weights.items():
        torch.testing.assert_close(common[entry], tensor, atol=1e-3, rtol=0)
    for _, message in job.grid.replies:
        assert not any(len(record) for record in message.content.array_records.values())
    stages = [m for _, m in job.grid.requests if m.metadata.message_type == "train"]
    assert len(stages) == 2 * 4 * len(SITES)


def test_values_outside_the_range_are_refused_rather_than_cut_off(tmp_path: Path) -> None:
    job = private_job(tmp_path, "fedavg", Privacy(secure_range=0.01), rounds=1)
    with pytest.raises(TooFewSitesError, match="refuses to send what was asked for"):
        job.run()
    assert {row["outcome"] for row in job.participation() if row["verbs"] == "fit"} == {"refused"}
    assert outside({"a": torch.tensor([float("nan")])}, 1.0) == "a"


@pytest.mark.parametrize("name", ALGORITHMS)
def test_methods_that_need_single_uploads_refuse_secure_aggregation(name: str) -> None:
    algorithm = ALGORITHMS[name]()
    if name in ("local", "fedlp", "fedlama", "pfedla", "scaffold", "fedcac", "fedselect"):
        with pytest.raises(ConfigError, match=f"does not work with {type(algorithm).__name__}"):
            check_secure(algorithm, 3)
    else:
        check_secure(algorithm, 3)
        with pytest.raises(ConfigError, match="at least 3 sites"):
            check_secure(algorithm, 2)


def test_a_site_masks_only_the_upload_it_was_asked_for(tmp_path: Path) -> None:
    job = Job(tmp_path, "fedavg", rounds=1)
    job.run()
    with pytest.raises(RefusedError, match="no upload"):
        job.sites["site-0"].held("job", "1:evaluate+finish", 8.0)


@pytest.mark.parametrize(
    ("stage", "configs"),
    [
        ("setup", {"sample_num": 2, "threshold": 2}),
        ("setup", {"sample_num": 4, "threshold": 2}),
        ("share_keys", {"1": [b"", b""], "2": [b"", b""]}),
        ("unmask", {"active_nids": [1, 2], "dead_nids": [3]}),
        ("unmask", {"active_nids": [1, 2, 3], "dead_nids": [3]}),
        ("unmask", {"active_nids": [1, 2], "dead_nids": []}),
    ],
)
def test_a_site_does_not_help_to_open_a_single_upload(stage: str, configs: dict[str, Any]) -> None:
    """Flower's code reveals both kinds of shares of a site if it is called active and dead."""
    with pytest.raises(ConfigError, match=r"refused|not opened"):
        _check_stage(stage, configs, StageMemory(participants=(1, 2, 3)), 3)
    _check_stage("unmask", {"active_nids": [3, 1, 2], "dead_nids": []}, StageMemory(participants=(1, 2, 3)), 3)


def test_a_second_sum_over_other_sites_is_not_opened(tmp_path: Path) -> None:
    """The difference of the two sums would be one site's upload."""
    job = private_job(tmp_path, "fedavg", Privacy(secure_range=8.0), rounds=1)
    job.run()
    site = job.sites["site-0"]
    nodes = tuple(sorted(job.grid.numbers.values()))
    contract = Contract.read(tmp_path / "site-0" / "job")
    assert contract
    largest = contract.weighed["0:fit"]
    site.unmask("job", "0:fit", nodes, largest)
    with pytest.raises(RefusedError, match="was opened before, over other sites"):
        site.unmask("job", "0:fit", nodes[:2], largest)


@pytest.mark.parametrize("left", [b"", b"short"])
def test_no_noise_is_made_from_a_key_that_is_damaged(left: bytes, tmp_path: Path) -> None:
    """A full disk or a bad backup leaves an empty file: noise derived from it is one that the server can subtract."""
    job = private_job(tmp_path, "fedavg", Privacy(clip=1.0, noise=1.0), rounds=1)
    key = job.sites["site-0"].home / OWN / "noise.key"
    key.parent.mkdir(parents=True)
    key.write_bytes(left)
    job.run(min_sites=2)
    refused = {(row["site"], row["reason"]) for row in job.participation("refused") if "fit" in row["verbs"]}
    assert refused == {("site-0", SENTENCES["storage"])}
    assert key.read_bytes() == left
