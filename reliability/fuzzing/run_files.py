"""Run directories, comparisons, studies, archives, checkpoints and saved probes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import zlib
from pathlib import Path
from typing import Any

from reader import NotAnInput
from settings_files import settings, study_settings


def finished_run(folder: Path, algorithm: str = "player_fl") -> None:
    from playerfl.runs.api import run_experiments
    from playerfl.runs.experiment import Experiment

    run_experiments([Experiment.resolve(settings() | {"algorithm": algorithm})], [folder / "run"])


class Stopped(Exception):  # noqa: N818 it is not an error
    """Stops a run halfway."""


def unfinished_run(folder: Path) -> None:
    from playerfl.runs.api import run_experiments
    from playerfl.runs.experiment import Experiment

    def stop(progress: Any) -> None:
        if progress.round == 1:
            raise Stopped

    try:
        run_experiments([Experiment.resolve(settings())], [folder / "run"], listener=stop)
    except Stopped:
        return


def compared_runs(folder: Path) -> None:
    from playerfl.runs.api import run_experiments
    from playerfl.runs.experiment import Experiment

    names = ("local", "fedavg", "player_fl")
    experiments = [Experiment.resolve(settings() | {"algorithm": name}) for name in names]
    run_experiments(experiments, [folder / name for name in names], home=folder)


def small_study(folder: Path) -> None:
    import playerfl

    playerfl.study(study_settings(), out=folder, backend="serial", quiet=True)


def multiverse(folder: Path) -> None:
    """Two methods under the two values of one choice; each is first once."""
    places = {"median_rank": 1.5, "best_rank": 1, "worst_rank": 2, "decided_by": "measure", "decided_share": 1.0}
    content = {
        "format": "playerfl multiverse 1",
        "name": "heart",
        "task": "heart",
        "runs": 20,
        "tuning_runs": 5,
        "methods": ["fedavg", "player_fl"],
        "factors": [{"name": "measure", "kind": "computed", "values": ["f1", "loss"]}],
        "protocols": [
            {"choices": [0], "scores": [0.5, 0.6], "mean_ranks": [1.75, 1.25], "ranks": [2, 1]},
            {"choices": [1], "scores": [0.5, None], "mean_ranks": [1.0, 2.0], "ranks": [1, 2]},
        ],
        "summary": [
            {"method": "fedavg", "first": 0.5, "top_three": 1.0, "ahead_of": {}, **places},
            {"method": "player_fl", "first": 0.5, "top_three": 1.0, "ahead_of": {"fedavg": 0.5}, **places},
        ],
        "measures": {"f1": "higher", "loss": "lower"},
    }
    (folder / "multiverse.json").write_text(json.dumps(content), encoding="utf-8")


def archive(folder: Path) -> None:
    from tempfile import TemporaryDirectory

    from playerfl.studies.archive import write_archive
    from playerfl.studies.directory import StudyDirectory

    with TemporaryDirectory() as study:
        small_study(Path(study))
        write_archive(StudyDirectory.open(study), folder)


def repair_archive(folder: Path) -> None:
    """Updates the fingerprints of the tables in archive.json."""
    try:
        about = json.loads((folder / "archive.json").read_bytes())
        for name in about["files"]:
            about["files"][name] = hashlib.blake2b((folder / name).read_bytes(), digest_size=16).hexdigest()
        (folder / "archive.json").write_text(json.dumps(about))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return


def repair_fingerprints(folder: Path) -> None:
    """Corrects the fingerprint of half of the changed files, so that their content is read."""
    from safetensors.torch import load

    from playerfl.storage import tensor_tree

    for file in folder.rglob("*.safetensors"):
        content = file.read_bytes()
        try:
            length = int.from_bytes(content[:8], "little")
            header = json.loads(content[8 : 8 + length])
            known, _, tree = header["__metadata__"]["checked tree"].partition(" ")
            right = tensor_tree.fingerprint(tree, {kind: [numbers] for kind, numbers in load(content).items()})
        except Exception:  # a file that cannot be read has no fingerprint, whatever a library raises
            continue
        if known != right and zlib.crc32(content) % 2:
            header["__metadata__"]["checked tree"] = f"{right} {tree}"
            packed = json.dumps(header).encode()
            packed += b" " * (-len(packed) % 8)
            file.write_bytes(len(packed).to_bytes(8, "little") + packed + content[8 + length :])


def report(folder: Path) -> object:
    """Everything that `playerfl report` does, except for the page's markup."""
    from playerfl.report.compute.report import build_report
    from playerfl.report.view.facts import records
    from playerfl.report.write.documents import as_latex, as_markdown
    from playerfl.report.write.payload import payload
    from playerfl.studies.collecting import collect

    built = build_report(collect(folder))
    return (
        as_markdown(built, "title").encode("utf-8", "replace"),
        as_latex(built, "title"),
        records(built),
        payload(built),
    )


def load_run(folder: Path) -> object:
    from playerfl.runs.api import load_result

    result = load_result(folder / "run")
    return repr(result), result.cut, result.site_scores, [result.model(site) for site in result.sites]


def resume_run(folder: Path) -> object:
    from playerfl.runs.api import resume
    from playerfl.runs.experiment import Experiment

    with contextlib.suppress(Exception):  # what cannot be read is refused below
        asked = Experiment.from_toml(folder / "run" / "experiment.toml")
        if asked.training.local_epochs > 10 or asked.rounds > 10:
            raise NotAnInput
    return resume(folder / "run")


def read_checkpoint(folder: Path) -> object:
    from playerfl.storage import tensor_tree

    return tensor_tree.read(folder / "checkpoint.safetensors")


def checkpoint_file(folder: Path) -> None:
    import torch

    from playerfl.storage import tensor_tree

    tree = {"round": 1, "weights": {"a": torch.ones(2, 3), "n": torch.arange(4)}, "rows": [["x", 0.5], [None, True]]}
    (folder / "checkpoint.safetensors").write_bytes(tensor_tree.encode(tree))


def read_profiles(folder: Path) -> object:
    from playerfl.probe.stored import PROFILES, from_profiles

    return from_profiles(folder / PROFILES, {}).recommendation.to_json()


def profiles(folder: Path) -> None:
    from playerfl.probe.measure import probe_sites
    from playerfl.probe.stored import PROFILES, scores_of, write_probe

    small = {"data.rows": 12, "data.sites": 2, "data.accept_small_sites": True}
    measurement = probe_sites("synthetic", settings=small)
    write_probe(folder, measurement.recommend(), scores_of(measurement, "synthetic", {}))
    for file in folder.iterdir():
        if file.name != PROFILES:
            file.unlink()
