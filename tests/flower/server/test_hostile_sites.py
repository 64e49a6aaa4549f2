"""One site cannot take over a job, nor end it, whatever it says."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Array, ConfigRecord, Message, RecordDict
from torch import nn

from federations import FEATURES, task
from flower.accidents import Accident
from flower.jobs import SITES, Job
from playerfl.errors import ConfigError
from playerfl.federation.messages import Reply, Score, Upload
from playerfl.flower.server.checks import _refused_values_of_scores
from playerfl.flower.server.influence import capped_examples, far_away
from playerfl.flower.server.job import Job as ServerJob
from playerfl.flower.server.model_layers import ModelLayers, same_layers
from playerfl.flower.wire.codec import RAW, CodecError, decode_response, encode_response, to_tensor
from playerfl.flower.wire.envelopes import Privacy, Response
from playerfl.layers.layer_map import LayerMap
from playerfl.learning.losses import cross_entropy
from playerfl.studies.collecting import collect
from playerfl.weights import Weights

Change = Callable[[RecordDict], None]
EVERY = 1000
NO_LAYERS = {
    "entries": {}, "num_parameters": {}, "frozen": [], "buffers": [], "tied": {}, "statistics": "follow"
}  # fmt: skip


def changed(home: Path, change: Change, key: str = "hello", algorithm: Any = "fedper", rounds: int = 1) -> Job:
    """A job in which site-0, the first to speak, changes all its responses to one key."""
    job = Job(home, algorithm, rounds=rounds)

    def tamper(_: Message, response: Message) -> Message:
        change(response.content)
        return response

    job.tamper(Accident("site-0", [key], tamper, times=EVERY))
    return job


def introduces(**values: Any) -> Change:
    def change(content: RecordDict) -> None:
        said = json.loads(content["response"]["introduction"])
        content["response"]["introduction"] = json.dumps({**said, **values})

    return change


def reversed_layers(content: RecordDict) -> None:
    said = json.loads(content["response"]["introduction"])
    layers = said["layers"]
    for table in ("entries", "num_parameters"):
        layers[table] = dict(reversed(layers[table].items()))
    content["response"]["introduction"] = json.dumps(said)


def test_a_reversed_order_of_layers_refuses_only_the_site_that_states_it(tmp_path: Path) -> None:
    job = changed(tmp_path, reversed_layers)
    job.run()
    assert {row["site"] for row in job.participation("refused")} == {"site-0"}
    assert "or their order" in job.participation("refused")[0]["reason"]
    assert job.fingerprints.keys() == {"site-1", "site-2"}
    assert {"0.weight", "0.bias"} <= job.common.keys()


@pytest.mark.parametrize(
    "values",
    [
        {"examples": 10**12},
        {"examples": 2**62},
        {"examples": math.inf},
        {"examples": "7"},
        {"examples": True},
        {"layers": NO_LAYERS},
        {"layers": 7},
    ],
    ids=str,
)  # fmt: skip
def test_a_wild_introduction_is_refused_and_the_job_continues(values: dict[str, Any], tmp_path: Path) -> None:
    job = changed(tmp_path, introduces(**values))
    job.run()
    assert {row["site"] for row in job.participation("refused")} == {"site-0"}
    assert job.fingerprints.keys() == {"site-1", "site-2"}


def test_a_site_that_claims_most_examples_counts_for_at_most_its_share(tmp_path: Path) -> None:
    """A billion examples: the mean is that of the capped weights, worked out here from the uploads themselves."""
    uploads: dict[str, dict[str, torch.Tensor]] = {}
    job = Job(tmp_path, "fedavg", rounds=1)
    claim = 10**9

    def tamper(site: str, _: Message, response: Message) -> Message:
        if site == "site-0" and json.loads(response.content["response"]["introduction"]):  # type: ignore[arg-type]
            introduces(examples=claim)(response.content)
        elif response.content["response"]["has-reply"] and len(response.content["weights"]):
            if site == "site-0":
                response.content["numbers"]["num-examples"] = claim
            uploads[site] = dict(decode_response(response.content).reply.upload.weights)  # type: ignore[union-attr]
        elif site == "site-0":
            response.content["numbers"]["num-examples"] = claim
        return response

    job.tamper(tamper)
    job.run()
    sizes = {site: len(job.in_process().clients[site].data.train) for site in SITES}
    others = sizes["site-1"] + sizes["site-2"]
    for name, common in job.common.items():
        mean = 0.75 * uploads["site-0"][name].double() + sum(
            0.25 * sizes[site] / others * uploads[site][name].double() for site in ("site-1", "site-2")
        )
        assert torch.allclose(common.double(), mean, atol=1e-5), name


def test_the_cap_leaves_ordinary_federations_alone_and_holds_for_any_claims() -> None:
    assert capped_examples({"a": 3, "b": 1}) == {"a": 3, "b": 1}
    assert capped_examples({"a": 7}) == {"a": 7}
    assert capped_examples({}) == {}
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        count = int(torch.randint(2, 9, (), generator=generator))
        claims = {str(i): int(10 ** (12 * torch.rand((), generator=generator))) for i in range(count)}
        share = float(0.05 + 0.95 * torch.rand((), generator=generator))
        capped = capped_examples(claims, share)
        total = sum(capped.values())
        assert all(1 <= capped[site] <= claims[site] for site in claims)
        assert max(capped.values()) <= max(share, 1 / count) * total + count


def test_reversed_updates_fifteen_times_as_large_are_refused(tmp_path: Path) -> None:
    job = Job(tmp_path, "fedavg", rounds=1)
    initial = job.in_process().setup.initial

    def reverse(_: Message, response: Message) -> Message:
        decoded = decode_response(response.content)
        assert decoded.reply
        weights = {name: initial[name] - 15 * (w - initial[name]) for name, w in decoded.reply.upload.weights.items()}
        upload = replace(decoded.reply.upload, weights=weights)
        poisoned = encode_response(replace(decoded, reply=replace(decoded.reply, upload=upload)))
        response.content["weights"] = poisoned["weights"]
        return response

    job.tamper(Accident("site-1", ["0:fit"], reverse))
    job.run()
    [refused] = job.participation("refused")
    assert refused["site"] == "site-1" and "times the round's median" in refused["reason"]


@pytest.mark.parametrize("sites", [SITES[:2], SITES])
def test_sites_that_train_nothing_do_not_have_the_others_refused(sites: tuple[str, ...], tmp_path: Path) -> None:
    """Sent back as they came, weights have moved by 0, and every honest site further than 6 times that."""
    job = Job(tmp_path, "fedavg", rounds=1, sites=sites, a_task=task(count=len(sites)))
    idle = encode_response(Response("", "", Reply(Upload(1, job.in_process().setup.initial))))

    def sends_back(site: str, _: Message, response: Message) -> Message:
        if site != sites[-1] and len(response.content["weights"]):
            response.content["weights"] = idle["weights"]
        return response

    job.tamper(sends_back)
    job.run()
    assert job.participation("refused") == []


def test_no_claim_of_examples_lets_fifteen_times_the_median_pass() -> None:
    common = {"w": torch.zeros(4)}
    uploads = {"a": {"w": torch.ones(4)}, "b": {"w": torch.full((4,), -15.0)}, "c": {"w": torch.ones(4)}}
    assert far_away(uploads, common, 6.0, {"a": 10, "b": 10**9, "c": 10}).keys() == {"b"}
    # A site with twice the examples makes twice the steps.
    uploads["b"] = {"w": torch.full((4,), 10.0)}
    assert far_away(uploads, common, 6.0, {"a": 10, "b": 20, "c": 10}) == {}
    assert far_away(uploads, common, 6.0, {"a": 10, "b": 10, "c": 10}).keys() == {"b"}


@pytest.mark.parametrize(
    "shape",
    [(0, 2**63 - 1, 4), (2**63 - 1, 0), (0, 2**40, 2**40), (1,) * 17, (2**62, 2**62, 0), (0, -1)],
    ids=str,
)
def test_an_impossible_shape_is_a_sentence(shape: tuple[Any, ...]) -> None:
    with pytest.raises(CodecError, match=r"shape|bytes"):
        to_tensor("w", Array("float32", shape, RAW, b""))


def set_weight(name: str, tensor: torch.Tensor) -> Change:
    from playerfl.flower.wire import codec

    def change(content: RecordDict) -> None:
        records = encode_response(Response("s", "k", Reply(Upload(1, {name: tensor}))))
        content["weights"][name] = records["weights"][name]
        assert codec

    return change


def scores(*named: tuple[str, float]) -> Change:
    def change(content: RecordDict) -> None:
        content["numbers"]["scores"] = [value for _, value in named]
        content["response"]["score-names"] = [name for name, _ in named]

    return change


def config(key: str, value: Any) -> Change:
    return lambda content: content["response"].__setitem__(key, value)


REPLIES: dict[str, tuple[Change, str]] = {
    "an endless shape": (
        lambda c: c["weights"].__setitem__("0.weight", Array("float32", (0, 2**63 - 1, 4), RAW, b"")),
        "shape",
    ),
    "1e35": (set_weight("0.weight", torch.full((8, 6), 1e35)), "beyond 1e+32"),
    "minus infinity as a loss": (scores(("round/1/validation/loss", -math.inf)), "a loss of -inf"),
    "a loss of -1e308": (scores(("round/1/validation/loss", -1e308)), "a loss of -1e+308, below 0"),
    "a loss of -0.1": (scores(("round/1/validation/loss", -0.1)), "a loss of -0.1, below 0"),
    "a training loss of -1e308": (scores(("round/1/train/loss", -1e308)), "a loss of -1e+308, below -1e+06"),
    "minus infinity as a score": (scores(("round/1/test/own", -math.inf)), "minus infinity"),
    "a share of 7": (scores(("round/1/test/f1", 7.0)), "not a share between 0 and 1"),
    "ten thousand scores": (
        scores(*((f"round/0/test/m{i}", 0.0) for i in range(10_000))), "at most 1000"),
    "a score named like a page": (scores(("round/0/test/\x1b[2J", 0.0)), "an invalid name"),
    "a score without a name": (scores(("round/0/test/", 0.0)), "an invalid name"),
    "a long fingerprint": (config("fingerprint", "f" * 10_000), "more than 200 characters"),
    "a long name": (config("site", "n" * 10_000), "more than 200 characters"),
    "a long introduction": (config("introduction", "[" + "1," * 3_000_000 + "1]"), "introduction has"),
    "a score of another round": (scores(("round/9/test/f1", 0.5)), "a round that was not asked for"),
    "a score twice": (scores(*[("round/0/test/f1", 0.5)] * 2), "the same score twice"),
    "another number of examples": (lambda c: c["numbers"].__setitem__("num-examples", 7), "it now claims 7 examples"),
    "no reply at all": (config("has-reply", False), "neither a reply nor a reason"),
    "a long info key": (lambda c: c.__setitem__("info", ConfigRecord({"k" * 100_000: 1.0})), "its info holds"),
}  # fmt: skip


@pytest.mark.parametrize("kind", REPLIES)
def test_a_wild_reply_is_refused_in_a_short_sentence(kind: str, tmp_path: Path) -> None:
    change, reason = REPLIES[kind]
    job = changed(tmp_path, change, "0:fit")
    job.run()
    [refused] = job.participation("refused")
    assert (refused["site"], refused["round"]) == ("site-0", "0") and reason in refused["reason"]
    assert len(refused["reason"]) < 400 and refused["reason"].isprintable()


@pytest.mark.parametrize(
    "place",
    [
        lambda stage, round_, rest: f"{stage}/{int(round_) + 1}/{rest}",
        lambda stage, round_, rest: f"finish/{round_}/{rest}",
        lambda stage, round_, rest: f"{stage}/{round_}/train/{rest.partition('/')[2]}2",
    ],
    ids=["a round later", "after the last round", "of training"],
)
def test_scores_that_nobody_asked_for_leave_the_results_readable(place: Callable[..., str], tmp_path: Path) -> None:
    """A score of one round more than the job has made its finished directory an invalid run."""
    job = Job(tmp_path, "fedper", rounds=2)

    def tamper(site: str, _: Message, response: Message) -> Message:
        said: Any = response.content["response"]
        if site == "site-0" and said["score-names"]:
            said["score-names"] = [place(*name.split("/", 2)) for name in said["score-names"]]
        return response

    job.tamper(tamper)
    job.run()
    assert {row["site"] for row in job.participation("refused")} == {"site-0"}
    [result] = collect(job.folder).results
    assert result.site_scores.keys() == {"site-1", "site-2"}


@pytest.mark.parametrize(
    "left_out", ["round/2/test/", "/loss", "round/1/validation/loss"], ids=["of a split", "losses", "a loss"]
)
def test_scores_that_are_missing_beside_others_leave_the_results_readable(left_out: str, tmp_path: Path) -> None:
    """Without its test scores in one round, a site made the finished directory of all of them an invalid run."""
    job = Job(tmp_path, "fedper", rounds=2)

    def tamper(site: str, _: Message, response: Message) -> Message:
        said, numbers = response.content["response"], response.content["numbers"]
        if site == "site-0" and said["score-names"]:
            names: Any = said["score-names"]
            kept = [place for place, name in enumerate(names) if left_out not in name]
            numbers["scores"] = [numbers["scores"][place] for place in kept]  # type: ignore[index]
            said["score-names"] = [names[place] for place in kept]
        return response

    job.tamper(tamper)
    job.run()
    assert {row["site"] for row in job.participation("refused")} == {"site-0"}
    [result] = collect(job.folder).results
    assert {"site-1", "site-2"} <= result.site_scores.keys()


def test_a_loss_that_no_model_has_does_not_choose_the_round_for_all(tmp_path: Path) -> None:
    job = changed(tmp_path, scores(("round/1/validation/loss", -1e308)), "1:evaluate+fit", "fedavg", rounds=3)
    job.run()
    assert [(row["site"], row["round"]) for row in job.participation("refused")] == [("site-0", "1")]


@pytest.mark.parametrize(
    ("loss", "accepted"),
    [(cross_entropy, {0.0, math.inf}), (lambda output, targets: -cross_entropy(output, targets), {0.0, -5.0})],
    ids=["bundled", "own"],
)
def test_a_loss_of_ones_own_may_be_negative(loss: Any, accepted: set[float], tmp_path: Path) -> None:
    job = Job(tmp_path, "fedavg", replace(task(), loss=loss), rounds=1)
    server_job = ServerJob.of(job.deployment, job.task)
    for value in (0.0, -5.0, -1e7, math.inf):
        reply = Reply(Upload(1), (Score("round", 1, "validation", "loss", value),))
        assert (_refused_values_of_scores(reply, server_job) is None) == (value in accepted | {math.inf}), value


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("1.running_var", torch.full((8,), -1.0)),
        ("1.num_batches_tracked", torch.tensor(-5)),
        ("1.num_batches_tracked", torch.tensor(2**62)),
    ],
)
def test_statistics_that_would_break_the_other_sites_are_refused(
    name: str, tensor: torch.Tensor, tmp_path: Path
) -> None:
    job = Job(tmp_path, "fedavg", task("batch norm"), rounds=1)

    def tamper(_: Message, response: Message) -> Message:
        set_weight(name, tensor)(response.content)
        return response

    job.tamper(Accident("site-0", ["0:fit"], tamper))
    job.run()
    [refused] = job.participation("refused")
    assert refused["site"] == "site-0" and name in refused["reason"]


@pytest.mark.parametrize(
    "values", [[1e200, 0.0, 0.0, 0.0], [True, True, True, True], [math.inf, 1.0, 1.0, 1.0]], ids=str
)
def test_layer_scores_that_would_overflow_the_cut_are_refused(values: list[Any], tmp_path: Path) -> None:
    def change(content: RecordDict) -> None:
        content["info"] = ConfigRecord({"importance": values})

    job = changed(tmp_path, change, "0:prepare", "player_fl")
    job.run()
    assert [row["site"] for row in job.participation("refused") if row["verbs"] == "prepare"] == ["site-0"]


class Backwards(nn.Module):
    """Registers its layers in another order than it uses them, so only a forward pass shows the order of flow."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.first = nn.Linear(8, 3), nn.Linear(FEATURES, 8)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.last(self.first(inputs).relu())
        return output


def no_example() -> Any:
    raise FileNotFoundError


def test_the_servers_own_model_decides_the_order_of_layers() -> None:
    model = Backwards()
    flow, registered = LayerMap.of(model, torch.zeros(2, FEATURES)), LayerMap.of(model)
    assert flow.names == ("first", "last") and registered.names == ("last", "first")
    own = ModelLayers(model, lambda: torch.zeros(2, FEATURES))
    for stated in ({"a": registered, "b": flow}, {"a": registered, "b": registered, "c": flow}):
        agreed = own.agreed(stated)
        assert agreed is not None and same_layers(agreed, flow)
    blind = ModelLayers(model, no_example)
    for stated, names in (
        ({"a": registered, "b": flow, "c": flow}, flow.names),
        ({"a": flow, "b": registered}, registered.names),
        ({"a": flow}, flow.names),
    ):
        agreed = blind.agreed(stated)
        assert agreed is not None and agreed.names == names
    invented = replace(flow, num_parameters={"first": 1, "last": 10**15})
    agreed = blind.agreed({"a": invented, "b": invented, "c": flow})
    assert agreed is not None and same_layers(agreed, flow)
    assert blind.agreed({"a": invented}) is None


def test_a_job_whose_model_registers_its_layers_backwards_still_equals_one_process(tmp_path: Path) -> None:
    from federations import sites
    from playerfl.tasks.task import own_task

    job = Job(tmp_path, "fedper", own_task(Backwards, sites()), rounds=2)
    job.run()
    job.assert_equals_in_process()


def test_an_algorithm_never_sees_layers_that_a_site_invented(tmp_path: Path) -> None:
    job = Job(tmp_path, "fedper", rounds=1)
    layers = ServerJob.of(job.deployment, job.task).layers
    assert layers.as_registered is not None and layers.as_used is not None
    assert same_layers(layers.as_registered, layers.as_used)


class BrokenGrid:
    """Flower's grid, which fails to put one site's responses together, as it does with forged objects."""

    def __init__(self, grid: Any, broken: str, problem: Exception, times: int = EVERY) -> None:
        self.grid, self.broken, self.problem, self.times = grid, broken, problem, times

    def get_nodes(self) -> Any:
        return self.grid.get_nodes()

    def push_messages(self, messages: Any) -> Any:
        return self.grid.push_messages(messages)

    def pull_messages(self, numbers: Any) -> Any:
        pulled = self.grid.pull_messages(numbers)
        number = self.grid.numbers[self.broken]
        if self.times and any(message.metadata.src_node_id == number for message in pulled):
            self.times -= 1
            raise self.problem
        return pulled


@pytest.mark.parametrize("problem", [ValueError("object"), KeyError("x"), RuntimeError("y"), RecursionError()])
def test_a_response_that_flower_cannot_assemble_ends_nothing(problem: Exception, tmp_path: Path) -> None:
    job = Job(tmp_path, "fedavg", rounds=1)
    numbers = job.grid.numbers

    def stamp(site: str, _: Message, response: Message) -> Message:
        response.metadata.__dict__["_src_node_id"] = numbers[site]
        return response

    job.tamper(stamp)
    job.grid = BrokenGrid(job.grid, "site-1", problem)  # type: ignore[assignment]
    job.run(deadline=60.0)
    assert job.fingerprints.keys() == {"site-0", "site-2"}
    assert {row["site"] for row in job.participation("refused")} == {"site-1"}


def test_weights_are_not_touched_below_the_cap() -> None:
    weights: Weights = {"w": torch.ones(1)}
    assert capped_examples({"a": 57, "b": 40, "c": 33}, 0.75) == {"a": 57, "b": 40, "c": 33}
    assert far_away({"a": weights, "b": weights}, weights, 6.0, {"a": 1, "b": 1}) == {}


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"merge.rule": "median"}, {"merge.clip_norm": 1.5}], ids=str)
def test_a_robust_merge_gives_the_same_bits_over_flower(settings: dict[str, Any], tmp_path: Path) -> None:
    job = Job(tmp_path, "fedper", rounds=2, **settings)
    job.run()
    job.assert_equals_in_process()


@pytest.mark.parametrize("settings", [{"merge.rule": "trimmed_mean"}, {"merge.clip_norm": 1.5}], ids=str)
def test_a_robust_merge_and_secure_aggregation_exclude_each_other(settings: dict[str, Any], tmp_path: Path) -> None:
    job = Job(tmp_path, "fedavg", rounds=1, **settings)
    with pytest.raises(ConfigError, match=r"secure aggregation shows the server only the mean"):
        job.run(privacy=Privacy(secure_range=8.0), min_sites=3)


def test_a_site_that_only_ever_introduces_itself_is_given_up(tmp_path: Path) -> None:
    """Each of its responses had it asked again at once, until the deadline."""
    job = Job(tmp_path, "fedper", rounds=1)
    job.deployment = replace(job.deployment, deadline=600.0)
    hello: list[RecordDict] = []

    def repeated(name: str, request: Message, response: Message) -> Message:
        if name != "site-0":
            return response
        hello.append(response.content)
        return Message(hello[0], reply_to=request)

    job.tamper(repeated)
    job.run()
    assert job.fingerprints.keys() == {"site-1", "site-2"}
    assert "again and again" in job.participation("refused")[0]["reason"]
    assert len(hello) < 20 and job.clock.now < 60
