"""The stages of secure aggregation as a dishonest server would ask for them, one site at a time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message
from flwr.common import FitIns, bytes_to_ndarray, ndarray_to_bytes, ndarrays_to_parameters
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key
from flwr.compat.common import recorddict_compat as compat

from flower.attacks import SITE, ask, asked
from flower.jobs import Job
from playerfl.flower.server.transport import TooFewSitesError
from playerfl.flower.site.files.contract import Contract, decide
from playerfl.flower.wire.codec import decode_response
from playerfl.flower.wire.envelopes import Privacy
from playerfl.flower.wire.parcel import Parcel
from playerfl.flower.wire.records import from_records
from playerfl.flower.wire.secure import MODULUS, QUANTISATION

NODES = {"site-0": 1, "site-1": 2, "site-2": 3}


class RefusedStageError(Exception):
    """A site did not do what the server asked for."""


class Stages:
    """A server that sends each stage by hand, with parameters of its own."""

    def __init__(self, home: Path) -> None:
        self.job = Job(home, "fedavg", rounds=2)
        self.job.deployment = replace(self.job.deployment, privacy=Privacy(secure_range=8.0), min_sites=3)
        self.job.interrupt("site-2", "0:fit")
        replies = {site: ask(self.job, asked(self.job, "0:fit", site), site).reply for site in NODES}
        self.examples = {site: reply.upload.num_examples for site, reply in replies.items() if reply}
        self.inbox: dict[int, tuple[list[int], list[bytes]]] = {}

    def ask(self, site: str, configs: Any, content: Any = None) -> Any:
        parcel = Parcel("secure", configs={RECORD_KEY_CONFIGS: configs}) if content is None else content
        answer = self.job.agent(site).answer(replace(parcel, node=NODES[site]))
        if RECORD_KEY_CONFIGS not in answer.configs:
            raise RefusedStageError(decode_response(answer).code)
        return answer.configs[RECORD_KEY_CONFIGS]

    def exchange_keys(self, **changes: Any) -> None:
        setup = {
            Key.SAMPLE_NUMBER: 3,
            Key.SHARE_NUMBER: 3,
            Key.THRESHOLD: 2,
            Key.CLIPPING_RANGE: 8.0,
            Key.TARGET_RANGE: QUANTISATION,
            Key.MOD_RANGE: MODULUS,
            Key.MAX_WEIGHT: float(max(self.examples.values())),
        } | changes
        keys = {site: self.ask(site, {Key.STAGE: "setup", **setup}) for site in NODES}
        public = {str(NODES[s]): [k[Key.PUBLIC_KEY_1], k[Key.PUBLIC_KEY_2]] for s, k in keys.items()}
        self.inbox = {node: ([], []) for node in NODES.values()}
        for site in NODES:
            shares = self.ask(site, {Key.STAGE: "share_keys", **public})
            for to, text in zip(shares[Key.DESTINATION_LIST], shares[Key.CIPHERTEXT_LIST], strict=True):
                self.inbox[to][0].append(NODES[site])
                self.inbox[to][1].append(text)

    def collect(self, site: str, times: int = 1) -> list[Any]:
        sources, texts = self.inbox[NODES[site]]
        asking = FitIns(ndarrays_to_parameters([]), {"job": "job", "key": "0:fit"})
        records = compat.fitins_to_recorddict(asking, keep_input=True)
        records.config_records[RECORD_KEY_CONFIGS] = ConfigRecord(
            {
                Key.STAGE: "collect_masked_vectors",
                Key.SOURCE_LIST: sources[:1] * 2 if times > 1 else sources,
                Key.CIPHERTEXT_LIST: texts[:1] * 2 if times > 1 else texts,
            }
        )
        masked = self.ask(site, {}, from_records(records, "secure"))[Key.MASKED_PARAMETERS]
        return [bytes_to_ndarray(array) for array in masked]

    def unmask(self, site: str) -> Any:
        nodes = sorted(NODES.values())
        return self.ask(site, {Key.STAGE: "unmask", Key.ACTIVE_NODE_ID_LIST: nodes, Key.DEAD_NODE_ID_LIST: []})


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Stages:
    return Stages(tmp_path_factory.mktemp("stages"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (Key.MOD_RANGE, 2),
        (Key.MOD_RANGE, 2**31),
        (Key.TARGET_RANGE, 2),
        (Key.TARGET_RANGE, 2**23),
        (Key.SHARE_NUMBER, 4),
        (Key.THRESHOLD, 1),
        (Key.THRESHOLD, 3),
        (Key.SAMPLE_NUMBER, 4),
        (Key.SAMPLE_NUMBER, True),
        (Key.CLIPPING_RANGE, 1.5),
        (Key.CLIPPING_RANGE, float("nan")),
        (Key.MAX_WEIGHT, 1.0),
        (Key.MAX_WEIGHT, 1e30),
        (Key.MAX_WEIGHT, float("inf")),
    ],
)
def test_a_site_fixes_the_parameters_of_secure_aggregation(stages: Stages, name: str, value: Any) -> None:
    """With a modulus of 2, every mask is 0; with a huge weight, all sites but one are rounded away."""
    with pytest.raises(RefusedStageError, match="privacy"):
        stages.exchange_keys(**{name: value})
        stages.collect(SITE)


def test_masks_of_the_same_site_twice_are_refused(stages: Stages) -> None:
    stages.exchange_keys()
    with pytest.raises(RefusedStageError, match="privacy"):
        stages.collect(SITE, times=2)


def test_one_site_under_several_spellings_of_its_number_is_one_site(stages: Stages) -> None:
    stages.exchange_keys()
    own = [b"a", b"b"]
    setup_again = {Key.STAGE: "share_keys", "2": own, "02": own, "002": own}
    with pytest.raises(RefusedStageError, match="privacy"):
        stages.ask(SITE, setup_again)


def test_an_upload_masked_again_is_rounded_as_before(stages: Stages, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without masks, every repetition shows the same numbers; rounded afresh, their mean would be the upload."""
    from flwr.client.mod import secaggplus_mod

    def no_mask(_seed: bytes, _range: int, shapes: list[Any]) -> list[Any]:
        return [np.zeros(shape, np.int64) for shape in shapes]

    monkeypatch.setitem(secaggplus_mod.__globals__, "pseudo_rand_gen", no_mask)
    seen = []
    for _ in range(2):
        stages.exchange_keys()
        seen.append(stages.collect(SITE))
    assert all(np.array_equal(first, second) for first, second in zip(*seen, strict=True))


def test_a_second_sum_with_other_weights_is_not_opened(stages: Stages) -> None:
    stages.exchange_keys()
    stages.collect(SITE)
    assert stages.unmask(SITE)
    stages.exchange_keys(**{Key.MAX_WEIGHT: 2.0 * max(stages.examples.values())})
    stages.collect(SITE)
    with pytest.raises(RefusedStageError, match="privacy"):
        stages.unmask(SITE)


def test_a_stopped_job_opens_no_sum(tmp_path: Path) -> None:
    stages = Stages(tmp_path)
    stages.exchange_keys()
    stages.collect(SITE)
    folder = tmp_path / SITE / "job"
    contract = Contract.read(folder)
    assert contract
    decide(folder, contract, "stopped")
    with pytest.raises(RefusedStageError, match="stopped"):
        stages.unmask(SITE)


def forged(key: str, value: Any) -> Any:
    """A site that answers one stage of secure aggregation with something else."""

    def tamper(site: str, _: Message, response: Message) -> Message:
        answer = response.has_content() and response.content.config_records.get(RECORD_KEY_CONFIGS)
        if site == "site-1" and answer and key in answer:
            answer[key] = value
        return response

    return tamper


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (Key.PUBLIC_KEY_1, b"no key"),
        (Key.PUBLIC_KEY_2, 7),
        (Key.DESTINATION_LIST, [1, 1]),
        (Key.DESTINATION_LIST, [2**62]),
        (Key.CIPHERTEXT_LIST, [b""]),
        (Key.MASKED_PARAMETERS, [b"junk"]),
        (Key.MASKED_PARAMETERS, [ndarray_to_bytes(np.zeros(3, np.int64))]),
        (Key.MASKED_PARAMETERS, 1.0),
    ],
    ids=str,
)
def test_what_a_site_sends_in_secure_aggregation_ends_the_round_with_a_sentence(
    key: str, value: Any, tmp_path: Path
) -> None:
    """Flower's workflow trusts the sites: a missing key or a strange array ended the server with a traceback."""
    job = Job(tmp_path, "fedavg", rounds=1)
    job.tamper(forged(key, value))
    with pytest.raises(TooFewSitesError, match="secure aggregation; run the same job again"):
        job.run(privacy=Privacy(secure_range=8.0), min_sites=3)
    assert any(line.startswith("site-1: its part in secure aggregation") for line in job.said)
    job.tamper(None)
    job.run(privacy=Privacy(secure_range=8.0), min_sites=3)
    assert job.fingerprints.keys() == set(NODES)


@pytest.mark.parametrize(("key", "value"), [(Key.SHARE_LIST, []), (Key.NODE_ID_LIST, [2**62, 2**61, 5])], ids=str)
def test_the_shares_of_the_other_sites_open_the_sum(key: str, value: Any, tmp_path: Path) -> None:
    whole = Job(tmp_path / "whole", "fedavg", rounds=1)
    job = Job(tmp_path / "forged", "fedavg", rounds=1)
    job.tamper(forged(key, value))
    for one in (whole, job):
        one.run(privacy=Privacy(secure_range=8.0), min_sites=3)
    assert any(line.startswith("site-1: its part in secure aggregation") for line in job.said)
    for name, tensor in whole.common.items():
        assert float((tensor - job.common[name]).abs().max()) < 1e-3
