"""Everything that reads what somebody else may have written: a valid example of it, and how it is read."""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import io
import json
import logging
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from playerfl.data.directory import use_data_directory

NORTH, SOUTH = "north", "south"
_EXPERIMENT = """\
task = "synthetic"
rounds = 2
seed = 3
selection = "client_best"
eval_point = "post_agg"
participation = 1.0
bn_stats = "follow"
device = "cpu"
trainer = "auto"

[data]
sites = 2
rows = 12
features = 3
classes = 2
accept_small_sites = true

[algorithm]
name = "player_fl"
threshold = 2.0

[training]
learning_rate = 0.01
batch_size = 8
optimizer = "adamw"
betas = [0.9, 0.999]
"""
_SETTINGS = """\
rounds=3
training.betas=[0.9, 0.99]
algorithm.name=fedavg
data.rows=20
"""
_STUDY = """\
name = "small"
tasks = ["synthetic", { name = "heart", rounds = 3, training = { batch_size = 16 } }]
algorithms = ["local", { name = "fedprox", mu = 0.5 }, "player_fl"]
learning_rates = [0.01, 0.001]
seeds = 2
tuning_seeds = [7, 8]
keep_weights = false
seeds_per_group = "auto"

[settings]
rounds = 2
"""
_THRESHOLDS = """\
modes = ["running", "post_epoch"]
inits = ["default"]
seeds = 2
tasks = ["heart", { name = "digits", cut = 3, rounds = 2, data = { sites = 3 } }]
"""


@dataclass(frozen=True)
class Reader:
    """One way in. `example` writes valid files into an empty folder; `read` reads that folder."""

    name: str
    example: Callable[[Path], None]
    read: Callable[[Path], object]
    mend: Callable[[Path], object] = lambda folder: None
    """Makes checksums right again after a file was broken, so that what lies behind them is reached."""
    mends: tuple[str, ...] = ()
    """The files that are changed by that."""
    weight: float = 1.0
    """Share of all inputs, against those of the others; slow readers get fewer."""
    writes: bool = False
    """Whether reading changes the folder."""
    skips: tuple[str, ...] = ()
    """Files that are not broken."""


class NotAnInput(BaseException):
    """Nothing that tells about a reader: a message that Flower refuses to make, a run that asks for hours of work."""


def written(files: dict[str, str | bytes], folder: Path) -> None:
    for name, content in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())


# Settings


def read_experiment(folder: Path) -> object:
    from playerfl.experiment import Experiment

    experiment = Experiment.from_toml(folder / "experiment.toml")
    experiment.build_algorithm()
    return experiment.to_toml()


def read_study_file(folder: Path) -> object:
    from playerfl.studies.plan import Study

    study = Study.from_toml(folder / "study.toml")
    return study.to_toml(), [line.tuning for line in study.lines]


def read_setting(folder: Path) -> object:
    from playerfl.experiment import Experiment, parse_setting, with_setting

    if not (folder / "settings.txt").exists():
        raise NotAnInput
    table: dict[str, Any] = {"task": "synthetic"}
    for line in (folder / "settings.txt").read_text(encoding="utf-8", errors="replace").splitlines():
        key, value = parse_setting(line)
        table = with_setting(table, key, value)
    return Experiment.resolve(table)


def read_thresholds_file(folder: Path) -> object:
    from playerfl.experiment import read_toml
    from playerfl.thresholds_cli import _asked

    return _asked(read_toml(folder / "thresholds.toml"))


def read_cases(folder: Path) -> object:
    from playerfl.analysis.thresholds import CaseTable
    from playerfl.thresholds_cli import _summary

    found = CaseTable(folder / "cases.csv").read()
    return [_summary(found, setting) for setting in dict.fromkeys(case.setting for case in found)]


def cases(folder: Path) -> None:
    from playerfl.analysis.thresholds import CaseTable, case_of

    importance = {NORTH: {"a": 1e-4, "b": 2e-4, "c": 3e-3}, SOUTH: {"a": 1e-4, "b": 1e-4, "c": 5e-3}}
    found = [case_of(t, "running", "default", seed, 2, importance) for t in ("heart", "digits") for seed in (0, 1)]
    CaseTable(folder / "cases.csv").add(found)


# Run directories, comparisons, studies, archives, checkpoints


def settings() -> dict[str, Any]:
    import tomllib

    return tomllib.loads(_EXPERIMENT)


def finished_run(folder: Path, algorithm: str = "player_fl") -> None:
    from playerfl.experiment import Experiment
    from playerfl.running import run_experiments

    run_experiments([Experiment.resolve(settings() | {"algorithm": algorithm})], [folder / "run"])


class Stopped(Exception):  # noqa: N818 it is no error
    """Ends a run in its middle."""


def unfinished_run(folder: Path) -> None:
    from playerfl.experiment import Experiment
    from playerfl.running import run_experiments

    def stop(progress: Any) -> None:
        if progress.round == 1:
            raise Stopped

    try:
        run_experiments([Experiment.resolve(settings())], [folder / "run"], listener=stop)
    except Stopped:
        return


def compared_runs(folder: Path) -> None:
    from playerfl.experiment import Experiment
    from playerfl.running import run_experiments

    names = ("local", "fedavg", "player_fl")
    experiments = [Experiment.resolve(settings() | {"algorithm": name}) for name in names]
    run_experiments(experiments, [folder / name for name in names], home=folder)


def small_study(folder: Path) -> None:
    import playerfl

    own = {key: settings()[key] for key in ("data", "training", "rounds", "device")}
    own["training"].pop("learning_rate")
    playerfl.study(
        {
            "name": "small",
            "tasks": ["synthetic"],
            "algorithms": ["local", "fedavg"],
            "learning_rates": [0.01, 0.001],
            "seeds": 1,
            "tuning_seeds": 1,
            "settings": own,
        },
        out=folder,
        backend="serial",
        quiet=True,
    )


def archive(folder: Path) -> None:
    from tempfile import TemporaryDirectory

    from playerfl.studies.archive import write_archive
    from playerfl.studies.directory import StudyDirectory

    with TemporaryDirectory() as study:
        small_study(Path(study))
        write_archive(StudyDirectory.open(study), folder)


def mend_archive(folder: Path) -> None:
    """Gives the tables' fingerprints, as they are now, to the file that keeps them."""
    try:
        about = json.loads((folder / "archive.json").read_bytes())
        for name in about["files"]:
            about["files"][name] = hashlib.blake2b((folder / name).read_bytes(), digest_size=16).hexdigest()
        (folder / "archive.json").write_text(json.dumps(about))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return


def mend_fingerprints(folder: Path) -> None:
    """Gives half of the changed files a fingerprint that is right, so that what they say is looked at."""
    from safetensors.torch import load

    from playerfl.engine import checkpoint

    for file in folder.rglob("*.safetensors"):
        content = file.read_bytes()
        try:
            length = int.from_bytes(content[:8], "little")
            header = json.loads(content[8 : 8 + length])
            known, _, tree = header["__metadata__"]["checked tree"].partition(" ")
            right = checkpoint.fingerprint(tree, load(content))
        except Exception:  # whatever a library says to it: a file that cannot be read has no fingerprint
            continue
        if known != right and zlib.crc32(content) % 2:
            header["__metadata__"]["checked tree"] = f"{right} {tree}"
            packed = json.dumps(header).encode()
            packed += b" " * (-len(packed) % 8)
            file.write_bytes(len(packed).to_bytes(8, "little") + packed + content[8 + length :])


def report(folder: Path) -> object:
    """All that `playerfl report` does, but for the page's markup."""
    from playerfl.collecting import collect
    from playerfl.report.documents import Latex, Markdown, document
    from playerfl.report.payload import payload
    from playerfl.report.report import build_report
    from playerfl.report.tidy import tidy

    made = build_report(collect(folder))
    return (
        document(made, "title", Markdown()).encode("utf-8", "replace"),
        document(made, "title", Latex()),
        tidy(made),
        payload(made),
    )


def load_run(folder: Path) -> object:
    from playerfl.running import load_result

    result = load_result(folder / "run")
    return repr(result), result.cut, result.site_scores, [result.model(site) for site in result.clients]


def resume_run(folder: Path) -> object:
    from playerfl.experiment import Experiment
    from playerfl.running import resume

    with contextlib.suppress(Exception):  # what cannot be read is refused below
        asked = Experiment.from_toml(folder / "run" / "experiment.toml")
        if asked.training.local_epochs > 10 or asked.rounds > 10:
            raise NotAnInput
    return resume(folder / "run")


def read_checkpoint(folder: Path) -> object:
    from playerfl.engine import checkpoint

    return checkpoint.read(folder / "checkpoint.safetensors")


def checkpoint_file(folder: Path) -> None:
    import torch

    from playerfl.engine import checkpoint

    tree = {"round": 1, "weights": {"a": torch.ones(2, 3), "n": torch.arange(4)}, "rows": [["x", 0.5], [None, True]]}
    (folder / "checkpoint.safetensors").write_bytes(checkpoint.encode(tree))


def read_profiles(folder: Path) -> object:
    from playerfl.probe_cli import PROFILES, _of_profiles

    return _of_profiles(folder / PROFILES, {}).to_json()


def profiles(folder: Path) -> None:
    from playerfl.probe_cli import PROFILES, _keep
    from playerfl.probing import probe_sites

    own = {"data.rows": 12, "data.sites": 2, "data.accept_small_sites": True}
    found = probe_sites("synthetic", settings=own)
    with contextlib.redirect_stderr(io.StringIO()):
        _keep(folder, found.recommend(), found, "synthetic")
    for file in folder.iterdir():
        if file.name != PROFILES:
            file.unlink()


# Datasets


def idx(content: np.ndarray[Any, Any]) -> bytes:
    sizes = b"".join(n.to_bytes(4, "big") for n in content.shape)
    return bytes([0, 0, 8, content.ndim]) + sizes + content.astype(np.uint8).tobytes()


def fashion(folder: Path) -> None:
    numbers = np.arange(40)
    pictures = (numbers[:, None, None] + np.zeros((40, 28, 28))) % 251
    home = folder / "fashion_mnist"
    written(
        {
            "train-images-idx3-ubyte.gz": gzip.compress(idx(pictures), mtime=0),
            "train-labels-idx1-ubyte": idx(numbers % 10),
        },
        home,
    )


def read_fashion(folder: Path) -> object:
    from playerfl.data.idx import read_labelled

    return read_labelled(folder / "fashion_mnist", "train-images-idx3-ubyte", "train-labels-idx1-ubyte")


def cifar(folder: Path) -> None:
    rows = np.random.default_rng(0).integers(0, 255, (10, 3073), dtype=np.uint8)
    rows[:, 0] = np.arange(10)
    written(
        {"data_batch_1.bin": rows.tobytes(), "data_batch_2.bin.gz": gzip.compress(rows.tobytes(), mtime=0)},
        folder / "cifar10",
    )


def read_task(name: str, folder: Path, **options: Any) -> object:
    from playerfl.tasks import TASKS

    task = TASKS[name]
    with use_data_directory(folder):
        return task.load_sites(task.options(**options))


def read_cifar_files(folder: Path) -> object:
    from playerfl.data.cifar import read_cifar10

    return read_cifar10(sorted((folder / "cifar10").iterdir()))


def heart(folder: Path) -> None:
    from playerfl.tasks.heart import HOSPITALS

    rows = [f"{40 + i}.0,1.0,{1 + i % 4}.0,145.0,233.0,0.0,2.0,150.0,0.0,2.3,3.0,?,6.0,{i % 5}" for i in range(15)]
    written({f"heart/{name}": "\n".join([*rows, rows[0].replace("145.0", "?")]) for name in HOSPITALS.values()}, folder)


def tweets(folder: Path) -> None:
    from playerfl.tasks.tweets import AIRLINES, SENTIMENTS

    rows = ["tweet_id,airline_sentiment,airline,text"]
    for number in range(5):
        rows += [
            f'{number},{list(SENTIMENTS)[number % 3]},{airline},"@{airline} flight {number}, ""late"" é"'
            for airline in AIRLINES
        ]
    written({"airline_tweets/Tweets.csv": "\n".join(rows)}, folder)


def sent140(folder: Path) -> None:
    rows = [f'"{4 * (i % 2)}","{i}","Mon Apr 06","NO_QUERY","user{i % 3}","text {i} of it"' for i in range(18)]
    written(
        {"sent140/training.1600000.processed.noemoticon.csv.gz": gzip.compress("\n".join(rows).encode(), mtime=0)},
        folder,
    )


def mimic(folder: Path) -> None:
    from playerfl.tasks.mimic3 import GROUP_WORDS

    admissions = ["ROW_ID,HADM_ID,ADMITTIME,ADMISSION_TYPE,DIAGNOSIS,HOSPITAL_EXPIRE_FLAG"]
    notes = ["HADM_ID,CHARTTIME,CATEGORY,TEXT"]
    words = [own[0] for own in GROUP_WORDS.values()]
    for i in range(12 * len(words)):
        admissions.append(f"{i},{100 + i},2101-10-20 19:08:00,EMERGENCY,{words[i % len(words)]},{i // 4 % 2}")
        notes.append(f'{100 + i},2101-10-20 20:00:00,Physician ,"first line\nsecond line {i}"')
    written({"mimic3/ADMISSIONS.csv": "\n".join(admissions), "mimic3/NOTEEVENTS.csv": "\n".join(notes)}, folder)


def picture(form: str, number: int = 0, size: int = 9) -> bytes:
    from PIL import Image

    pixels = np.random.default_rng(number).integers(0, 255, (size, size + 2, 3), dtype=np.uint8)
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, form)
    return content.getvalue()


def pictures(folder: Path) -> None:
    written({"a.png": picture("PNG"), "b.jpg": picture("JPEG")}, folder)


def read_pictures(folder: Path) -> object:
    from playerfl.data.pictures import read_picture, read_picture_file

    return [read_picture(read_picture_file(file), file.name, 16) for file in sorted(folder.iterdir())]


def isic(folder: Path) -> None:
    kinds = ("bcc", "bkl", "mel", "nv")
    rows = [f"pic{i},lesion{i},{kinds[i % 4]},centre{i % 2}" for i in range(16)]
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as zipped:
        for i in range(16):
            zipped.writestr(f"part/pic{i}.jpg", picture("JPEG", i))
    written(
        {
            "ham10000/fed_ham10000_labels.csv": "\n".join(["image_id,lesion_id,dx,dataset", *rows]),
            "ham10000/ham10000_64x64_jpg.zip": packed.getvalue(),
        },
        folder,
    )


def picture_folders(folder: Path) -> None:
    written(
        {
            f"{site}/{kind}/{i}.{'png' if i % 2 else 'jpg'}": picture("PNG" if i % 2 else "JPEG", i)
            for site in (NORTH, SOUTH)
            for kind in ("cat", "dog")
            for i in range(4)
        },
        folder,
    )


def read_folder(folder: Path, **options: Any) -> object:
    from playerfl.tasks.folder import FolderOptions, folder_task

    chosen = FolderOptions(**options)
    task = folder_task(folder).for_options(chosen)
    return task.load_sites(chosen), task.build_model(chosen)


def site_csv(folder: Path) -> None:
    for site, ending in ((NORTH, ".csv"), (SOUTH, ".csv.gz")):
        random = Random(site)
        rows = ["age,dose,ward,smoker,outcome"]
        rows += [
            f"{random.gauss(60, 9):.2f},{random.randrange(5)},{random.choice(('heart', 'lung'))},"
            f"{random.choice(('True', 'False'))},{random.choice(('ill', 'well'))}"
            for _ in range(15)
        ]
        text = "\n".join(rows).encode()
        (folder / f"{site}{ending}").write_bytes(gzip.compress(text, mtime=0) if ending.endswith("gz") else text)


def site_parquet(folder: Path) -> None:
    import pandas as pd

    for number, site in enumerate((NORTH, SOUTH)):
        rng = np.random.default_rng(number)
        frame = pd.DataFrame({"age": rng.normal(size=15), "ward": rng.choice(["x", "z"], 15), "y": np.arange(15) % 2})
        frame.to_parquet(folder / f"{site}.parquet")


def site_npz(folder: Path) -> None:
    for number, site in enumerate((NORTH, SOUTH)):
        rng = np.random.default_rng(number)
        np.savez(folder / f"{site}.npz", x=rng.normal(size=(15, 3)), y=np.arange(15) % 2)


def hub(folder: Path) -> None:
    import pandas as pd

    rows = [{"image": {"bytes": picture("PNG", i, 28), "path": f"{i}.png"}, "label": i % 10} for i in range(30)]
    (folder / "fashion_mnist").mkdir()
    pd.DataFrame(rows).to_parquet(folder / "fashion_mnist" / "train.parquet")


def read_hub(folder: Path) -> object:
    from playerfl.data.hub_tables import hub_pictures

    return hub_pictures(folder / "fashion_mnist" / "train.parquet", "image", "label", 10, 28, 100)


def tokenizers(folder: Path) -> None:
    words = ["[UNK]", "[PAD]", "flight", "late", "##ly", "the", "a", "b", "##b"]
    from playerfl.data.text import _bert_tokenizer

    written(
        {"vocab.txt": "\n".join(words), "tokenizer.json": _bert_tokenizer("\n".join(words)).to_str()},
        folder,
    )


def read_tokenizers(folder: Path) -> object:
    from playerfl.data.text import WordPieces

    return [WordPieces(folder / name).encode(["the late flight", ""], 6) for name in ("vocab.txt", "tokenizer.json")]


def packed(folder: Path) -> None:
    zipped, tarred = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as into:
        for name in ("in/a.txt", "in/b.txt", "c.txt"):
            into.writestr(name, name * 20)
    with tarfile.open(fileobj=tarred, mode="w:gz") as into_tar:
        for name in ("in/a.txt", "in/b.txt", "c.txt"):
            info = tarfile.TarInfo(name)
            info.size = 20
            into_tar.addfile(info, io.BytesIO(b"x" * 20))
    written({"a.zip": zipped.getvalue(), "b.tgz": tarred.getvalue()}, folder)


def unpack_all(folder: Path) -> None:
    from playerfl.data.unpack import unpack

    out = folder / "out"
    out.mkdir(exist_ok=True)
    for name in ("a.zip", "b.tgz"):
        unpack(folder / name, out, ["in/a.txt", "in/b.txt"], largest=10**6)


# Flower


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
    from playerfl.experiment import Experiment, find_task
    from playerfl.flower.site import ground_of_site

    experiment = Experiment.resolve(settings())
    task = find_task("synthetic")
    return experiment, {site: ground_of_site(experiment, task, site) for site in ("site-0", "site-1")}


def site_of(folder: Path) -> Any:
    from playerfl.flower.site import Site

    logging.getLogger("playerfl.flower.site").setLevel(logging.CRITICAL + 1)
    _, grounds = federation()
    return Site("site-0", folder / "state", lambda _, name: grounds[name])


def letters(folder: Path) -> Any:
    """The first letter and one that asks for a fit, as the coordinator writes them."""
    from playerfl.federation.messages import Download, Request
    from playerfl.flower.letters import Letter
    from playerfl.version import __version__
    from playerfl.weights import digest

    experiment, grounds = federation()
    initial = grounds["site-0"].initial
    head = ("job", "site-0", experiment.to_toml(), __version__, digest(initial))
    return Letter(*head), Letter(*head, request=Request(("prepare",), Download(0, initial, {"n": [1.0, 2.5]})))


def letter_records(folder: Path) -> None:
    from playerfl.flower.codec import encode_letter

    for number, letter in enumerate(letters(folder)):
        (folder / f"letter{number}.records").write_text(json.dumps(as_tree(encode_letter(letter))))


def read_letters(folder: Path) -> object:
    """What a site makes of a message: an answer, always; a code, where it cannot be read or done."""
    from playerfl.flower.codec import decode_letter, encode_answer

    found = [decode_letter(arrived(file)) for file in sorted(folder.glob("*.records"))]
    return [encode_answer(site_of(folder).answer(letter)) for letter in found]


def answer_records(folder: Path) -> None:
    from playerfl.flower.codec import encode_answer

    for number, letter in enumerate(letters(folder)):
        answer = site_of(folder).answer(letter)
        (folder / f"answer{number}.records").write_text(json.dumps(as_tree(encode_answer(answer))))


def read_answers(folder: Path) -> object:
    """What a coordinator makes of a site's messages."""
    from playerfl.federation.messages import Awaited
    from playerfl.flower.checks import far_away, refused_reply
    from playerfl.flower.codec import CodecError, decode_answer
    from playerfl.flower.coordinator import Coordinator
    from playerfl.flower.deployment import Deployment

    experiment, grounds = federation()
    ground = grounds["site-0"]
    coordinator = Coordinator.__new__(Coordinator)
    coordinator.__dict__.update(
        initial=ground.initial, layers=None, algorithm=experiment.build_algorithm(), examples={}, _say=str,
        deployment=Deployment("job", ("site-0",), experiment.to_toml()),
    )  # fmt: skip
    _, asked = letters(folder)
    layers = ground.learner.layers
    reasons: list[object] = []
    for file in sorted(folder.glob("*.records")):
        answer = decode_answer(arrived(file))
        reasons.append(coordinator.met("site-0", answer.about) if answer.key == "hello" else None)
        if answer.reply:
            awaited = Awaited((), {"importance": len(layers.names)})
            reasons.append(refused_reply(answer.reply, asked.request, awaited, layers, ground.initial, 7))
            if answer.reply.upload.weights.keys() <= ground.initial.keys():
                reasons.append(far_away({"a": {}, "b": {}}, ground.initial, 20))
    if any(reason for reason in reasons):
        raise CodecError(next(str(reason) for reason in reasons if reason))
    return reasons


def site_state(folder: Path) -> None:
    for letter in letters(folder):
        site_of(folder).answer(letter)
    letter_records(folder)


def app_folder(folder: Path) -> None:
    from playerfl.flower.app_folder import write_app_folder
    from playerfl.flower.deployment import Deployment

    experiment, _ = federation()
    write_app_folder(folder, Deployment("job", (NORTH, SOUTH), experiment.to_toml()))


def read_app(folder: Path) -> object:
    from playerfl.flower.app_folder import read_app_folder
    from playerfl.flower.coordinator import experiment_of, read_status

    return experiment_of(read_app_folder(folder)), read_status(folder)


READERS = (
    Reader("experiment file", partial(written, {"experiment.toml": _EXPERIMENT}), read_experiment, weight=3),
    Reader("settings on the command line", partial(written, {"settings.txt": _SETTINGS}), read_setting),
    Reader("study file", partial(written, {"study.toml": _STUDY}), read_study_file, weight=2),
    Reader("thresholds file", partial(written, {"thresholds.toml": _THRESHOLDS}), read_thresholds_file, weight=2),
    Reader("thresholds' cases", cases, read_cases, weight=1),
    Reader("run directory, reported", finished_run, report, weight=0.5),
    Reader("run directory, loaded", finished_run, load_run, weight=2),
    Reader("run directory, resumed", unfinished_run, resume_run, writes=True, weight=0.5),
    Reader("comparison, reported", compared_runs, report, weight=0.5),
    Reader("study directory, reported", small_study, report, mend_fingerprints, weight=0.5),
    Reader("archive, reported", archive, report, mend_archive, ("archive.json",), weight=0.5),
    Reader("checkpoint file", checkpoint_file, read_checkpoint, mend_fingerprints, weight=4),
    Reader("idx and idx.gz", fashion, read_fashion, weight=2),
    Reader("CIFAR's binary files", cifar, read_cifar_files, weight=2),
    Reader("heart's tables", heart, partial(read_task, "heart"), weight=2),
    Reader("tweets (CSV of texts)", tweets, partial(read_task, "tweets", length=8), weight=2),
    Reader("Sentiment140 (CSV in gzip)", sent140, partial(read_task, "sent140", length=8, last_rank=2), weight=2),
    Reader("MIMIC-III (two CSV tables)", mimic, partial(read_task, "mimic3", length=8), weight=2),
    Reader("pictures (PNG, JPEG)", pictures, read_pictures, weight=3),
    Reader("ISIC (table and zip of pictures)", isic, partial(read_task, "isic2019", side=16), weight=1),
    Reader("folder of CSV sites", site_csv, read_folder, weight=3),
    Reader("folder of parquet sites", site_parquet, read_folder, weight=2),
    Reader("folder of npz sites", site_npz, read_folder, weight=3),
    Reader("folders of pictures", picture_folders, partial(read_folder, image_size=8), weight=1),
    Reader("hub table (parquet of pictures)", hub, read_hub),
    Reader("tokenizer files", tokenizers, read_tokenizers, weight=2),
    Reader("downloaded archives (zip, tar.gz)", packed, unpack_all, writes=True, weight=2),
    Reader("Flower: letters at a site", letter_records, read_letters, writes=True, weight=1),
    Reader("Flower: answers at the coordinator", answer_records, read_answers, weight=2, skips=("state",)),
    Reader("Flower: a site's state", site_state, read_letters, mend_fingerprints, writes=True, skips=("records",)),
    Reader("Flower: app folder", app_folder, read_app, weight=1),
    Reader("probe's recommendation", profiles, read_profiles, weight=1),
)  # fmt: skip
