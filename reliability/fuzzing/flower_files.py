"""Flower: envelopes, responses, a site's state, the app folder."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from reader import NotAnInput
from settings_files import settings


def as_records(content: Any) -> Any:
    """Flower's records from a tree; raises for what Flower itself refuses to build."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

    records = RecordDict()
    for name, (kind, table) in content.items():
        if kind == "arrays":
            arrays = {
                key: Array(
                    dtype=a["dtype"], shape=tuple(a["shape"]), stype=a["stype"], data=base64.b64decode(a["data"])
                )
                for key, a in table.items()
            }
            records[name] = ArrayRecord(arrays)
        else:
            records[name] = {"config": ConfigRecord, "metrics": MetricRecord}[kind](table)
    return records


def as_tree(records: Any) -> Any:
    from flwr.app import ArrayRecord, ConfigRecord

    def content_of(record: Any) -> Any:
        if isinstance(record, ArrayRecord):
            return "arrays", {
                key: {
                    "dtype": array.dtype,
                    "shape": list(array.shape),
                    "stype": array.stype,
                    "data": base64.b64encode(array.data).decode(),
                }
                for key, array in record.items()
            }
        return "config" if isinstance(record, ConfigRecord) else "metrics", dict(record)

    return {name: content_of(record) for name, record in records.items()}


def arrived(file: Path) -> Any:
    try:
        return as_records(json.loads(file.read_bytes()))
    except Exception as problem:
        raise NotAnInput from problem


@cache
def federation() -> Any:
    """An experiment and its sites' setups, prepared once."""
    from playerfl.flower.site.setup import site_setup
    from playerfl.runs.experiment import Experiment
    from playerfl.tasks.load import load_task

    experiment = Experiment.resolve(settings())
    task = load_task("synthetic")
    return experiment, {site: site_setup(experiment, task, site) for site in ("site-0", "site-1")}


@contextmanager
def silent_sites() -> Iterator[None]:
    """Without the sites' log, which would report every broken file."""
    log = logging.getLogger("playerfl.flower.site")
    level = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        log.setLevel(level)


def site_of(folder: Path) -> Any:
    from playerfl.flower.site.policy import Policy
    from playerfl.flower.site.site import Site

    _, setups = federation()
    return Site("site-0", folder / "state", lambda _, name: setups[name], Policy.trusting())


def envelopes(folder: Path) -> Any:
    """The first envelope and one that asks for a fit, as the server writes them."""
    from playerfl.federation.messages import Download, Request
    from playerfl.flower.wire.envelopes import Envelope
    from playerfl.version import __version__
    from playerfl.weights import digest

    experiment, setups = federation()
    initial = setups["site-0"].setup.initial
    head = ("job", "site-0", experiment.to_toml(), __version__, digest(initial))
    return Envelope(*head), Envelope(*head, request=Request(("prepare",), Download(0, initial, {"cut": 2})))


def envelope_records(folder: Path) -> None:
    from playerfl.flower.wire.codec import encode_envelope

    for number, envelope in enumerate(envelopes(folder)):
        (folder / f"envelope{number}.records").write_text(json.dumps(as_tree(encode_envelope(envelope))))


@silent_sites()
def read_envelopes(folder: Path) -> object:
    """What a site does with messages: it always responds, with a code if it cannot read or do what was asked."""
    from playerfl.flower.wire.codec import decode_envelope, encode_response

    received = [decode_envelope(arrived(file)) for file in sorted(folder.glob("*.records"))]
    return [encode_response(site_of(folder).respond(envelope)) for envelope in received]


@silent_sites()
def response_records(folder: Path) -> None:
    from playerfl.flower.wire.codec import encode_response

    for number, envelope in enumerate(envelopes(folder)):
        response = site_of(folder).respond(envelope)
        (folder / f"response{number}.records").write_text(json.dumps(as_tree(encode_response(response))))


@cache
def server_job() -> Any:
    """The job at the server, built once: its model and its own layers."""
    from playerfl.flower.deployment import Deployment
    from playerfl.flower.server.job import Job
    from playerfl.tasks.load import load_task

    experiment, _ = federation()
    return Job.of(Deployment("job", ("site-0",), experiment.to_toml()), load_task("synthetic"))


def read_responses(folder: Path) -> object:
    """What the server does with a site's messages, from the first check to the merge; it must never do more."""
    from playerfl.flower.server.checks import JobChecks
    from playerfl.flower.server.state import JobState
    from playerfl.flower.wire.codec import CodecError, decode_response

    _, setups = federation()
    job, state = server_job(), JobState()
    checks = JobChecks(job, state)
    _, asked = envelopes(folder)
    setup = setups["site-0"].setup
    state.examples["site-0"] = len(setup.sites["site-0"].train)
    state.layers = setup.learner.layers
    server = state.start(job)
    for file in sorted(folder.glob("*.records")):
        response = decode_response(arrived(file))
        if response.introduction and (reason := checks.admit("site-0", response.introduction)):
            raise CodecError(reason)
        if different := checks.settle():
            raise CodecError(different["site-0"])
        if response.reply:
            replies = {"site-0": response.reply}
            if reasons := checks.refused({"site-0": asked.request}, replies):
                raise CodecError(reasons["site-0"])
            accepted = checks.weighted(replies)["site-0"]
            job.algorithm.server_prepare(server, {"site-0": accepted.upload})
    return server.memory


@silent_sites()
def site_state(folder: Path) -> None:
    for envelope in envelopes(folder):
        site_of(folder).respond(envelope)
    envelope_records(folder)


def app_folder(folder: Path) -> None:
    from playerfl.flower.deployment import Deployment
    from playerfl.flower.operate.app_folder import write_app_folder

    experiment, _ = federation()
    write_app_folder(folder, Deployment("job", ("north", "south"), experiment.to_toml()))


def read_app(folder: Path) -> object:
    from playerfl.flower.operate.app_folder import read_app_folder
    from playerfl.flower.server.job import checked_experiment
    from playerfl.flower.server.job_status import read_status

    return checked_experiment(read_app_folder(folder)), read_status(folder)
