"""Flower: letters, answers, the state of a site, the app folder."""

from __future__ import annotations

import base64
import json
import logging
from functools import cache
from pathlib import Path
from typing import Any

from reader import NotAnInput
from settings_files import settings


def as_records(content: Any) -> Any:
    """Flower's records from a tree; what Flower itself does not let be made raises."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

    made = RecordDict()
    for name, (kind, table) in content.items():
        if kind == "arrays":
            arrays = {
                key: Array(
                    dtype=a["dtype"], shape=tuple(a["shape"]), stype=a["stype"], data=base64.b64decode(a["data"])
                )
                for key, a in table.items()
            }
            made[name] = ArrayRecord(arrays)
        else:
            made[name] = {"config": ConfigRecord, "metrics": MetricRecord}[kind](table)
    return made


def as_tree(records: Any) -> Any:
    from flwr.app import ArrayRecord, ConfigRecord

    def told(record: Any) -> Any:
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

    return {name: told(record) for name, record in records.items()}


def arrived(file: Path) -> Any:
    try:
        return as_records(json.loads(file.read_bytes()))
    except Exception as problem:
        raise NotAnInput from problem


@cache
def federation() -> Any:
    """An experiment, its sites' data and its task, made once."""
    from playerfl.flower.site.site import site_setup
    from playerfl.runs.experiment import Experiment, find_task

    experiment = Experiment.resolve(settings())
    task = find_task("synthetic")
    return experiment, {site: site_setup(experiment, task, site) for site in ("site-0", "site-1")}


def site_of(folder: Path) -> Any:
    from playerfl.flower.site.site import Site

    logging.getLogger("playerfl.flower.site").setLevel(logging.CRITICAL + 1)
    _, setups = federation()
    return Site("site-0", folder / "state", lambda _, name: setups[name])


def letters(folder: Path) -> Any:
    """The first letter and one that asks for a fit, as the coordinator writes them."""
    from playerfl.federation.messages import Download, Request
    from playerfl.flower.wire.envelopes import Letter
    from playerfl.version import __version__
    from playerfl.weights import digest

    experiment, setups = federation()
    initial = setups["site-0"].initial
    head = ("job", "site-0", experiment.to_toml(), __version__, digest(initial))
    return Letter(*head), Letter(*head, request=Request(("prepare",), Download(0, initial, {"n": [1.0, 2.5]})))


def letter_records(folder: Path) -> None:
    from playerfl.flower.wire.codec import encode_letter

    for number, letter in enumerate(letters(folder)):
        (folder / f"letter{number}.records").write_text(json.dumps(as_tree(encode_letter(letter))))


def read_letters(folder: Path) -> object:
    """What a site makes of a message: an answer, always; a code, where it cannot be read or done."""
    from playerfl.flower.wire.codec import decode_letter, encode_answer

    found = [decode_letter(arrived(file)) for file in sorted(folder.glob("*.records"))]
    return [encode_answer(site_of(folder).answer(letter)) for letter in found]


def answer_records(folder: Path) -> None:
    from playerfl.flower.wire.codec import encode_answer

    for number, letter in enumerate(letters(folder)):
        answer = site_of(folder).answer(letter)
        (folder / f"answer{number}.records").write_text(json.dumps(as_tree(encode_answer(answer))))


def read_answers(folder: Path) -> object:
    """What a coordinator makes of a site's messages."""
    from playerfl.federation.messages import ExpectedUpload
    from playerfl.flower.coordinator.checks import far_away, refused_reply
    from playerfl.flower.coordinator.coordinator import Coordinator
    from playerfl.flower.deployment import Deployment
    from playerfl.flower.wire.codec import CodecError, decode_answer

    experiment, setups = federation()
    setup = setups["site-0"]
    coordinator = Coordinator.__new__(Coordinator)
    coordinator.__dict__.update(
        initial=setup.initial, layers=None, algorithm=experiment.build_algorithm(), examples={}, _say=str,
        deployment=Deployment("job", ("site-0",), experiment.to_toml()),
    )  # fmt: skip
    _, asked = letters(folder)
    layers = setup.learner.layers
    reasons: list[object] = []
    for file in sorted(folder.glob("*.records")):
        answer = decode_answer(arrived(file))
        reasons.append(coordinator.met("site-0", answer.about) if answer.key == "hello" else None)
        if answer.reply:
            awaited = ExpectedUpload((), {"importance": len(layers.names)})
            reasons.append(refused_reply(answer.reply, asked.request, awaited, layers, setup.initial, 7))
            if answer.reply.upload.weights.keys() <= setup.initial.keys():
                reasons.append(far_away({"a": {}, "b": {}}, setup.initial, 20))
    if any(reason for reason in reasons):
        raise CodecError(next(str(reason) for reason in reasons if reason))
    return reasons


def site_state(folder: Path) -> None:
    for letter in letters(folder):
        site_of(folder).answer(letter)
    letter_records(folder)


def app_folder(folder: Path) -> None:
    from playerfl.flower.deployment import Deployment
    from playerfl.flower.operate.app_folder import write_app_folder

    experiment, _ = federation()
    write_app_folder(folder, Deployment("job", ("north", "south"), experiment.to_toml()))


def read_app(folder: Path) -> object:
    from playerfl.flower.coordinator.coordinator import experiment_of, read_status
    from playerfl.flower.operate.app_folder import read_app_folder

    return experiment_of(read_app_folder(folder)), read_status(folder)
