"""Archive: the reported runs of a study as a few small tables, to publish and to report from."""

from __future__ import annotations

import bz2
import csv
import gzip
import hashlib
import io
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from playerfl.data.readers.file_limits import Bounded, unpacked_limit
from playerfl.errors import RunDirectoryError
from playerfl.runs.confusions import Confusions
from playerfl.runs.files import DataFile, TimingFile
from playerfl.runs.result import Row, RunResult, no_model
from playerfl.runs.schema import checked
from playerfl.storage import tensor_tree
from playerfl.storage.atomic_files import RERUN_HINT, make_directory, write_atomically
from playerfl.storage.csv_table import csv_text, plain_cell
from playerfl.studies.directory import StudyDirectory, data_name
from playerfl.studies.run_file import OwnData, own_data

ARCHIVE = "archive.json"
_FORMAT = "playerfl archive 1"
_SCORES_TABLE, _TRAFFIC_TABLE, _TIMES_TABLE, _LAYERS = "scores.csv", "traffic.csv", "times.csv", "layers.jsonl"
_SPLITS = "splits.jsonl"
"""Only if there are runs with their own split: the sites of each seed."""
_CONFUSIONS = "confusions.safetensors"
_FILES = (_SCORES_TABLE, _TRAFFIC_TABLE, _TIMES_TABLE, _LAYERS, _SPLITS, _CONFUSIONS)
_PACKED = ".bz2"
# A quarter smaller than gzip, which older archives have.
_OPENERS: dict[str, Any] = {_PACKED: bz2.BZ2File, ".gz": gzip.GzipFile}
_RUN = ("line", "seed")
_SCORES = (*_RUN, "stage", "round", "site")
_TRAFFIC = (*_RUN, "round", "site", "verbs", "down", "up")
_TIMES = (*_RUN, "wall_seconds", "runs_side_by_side")
_NO_MODEL = partial(no_model, "an archive holds no models; run the study with keep_weights = true for those")
# Enough to tell any two float32 numbers apart.
_DIGITS = 9


def write_archive(directory: StudyDirectory, out: Path) -> int:
    """Writes what `report` needs from the finished runs that are reported; returns their number."""
    rates = directory.chosen_rates
    lines, runs = [], []
    for number, line in enumerate(directory.study.lines):
        rate = rates[line.task, line.algorithm]
        table = line.experiment if rate is None else line.at(rate, line.seeds[0])
        lines.append(
            {
                "task": line.task,
                "algorithm": line.algorithm,
                "data": data_name(line.experiment),
                "tuning_notes": directory.tuning_notes(line),
                "tuned": {f"{r:g}": loss for r, loss in directory.rate_losses(line).items()} if rate else {},
                "experiment": {key: v for key, v in table.model_dump(mode="json").items() if key != "seed"},
            }
        )
        runs += [(number, run) for run in directory.line_results(line, rate)]
    if not runs:
        raise RunDirectoryError(f"{directory.path} has no finished run to archive")
    columns = list(dict.fromkeys(f"{row[3]} {row[4]}" for _, run in runs for row in run.score_rows))
    about: dict[str, Any] = {
        "format": _FORMAT,
        "study": directory.study.name,
        "software": directory.software,
        "environment": runs[0][1].environment,
        "tuning_runs": sum(len(line.tuning) for line in directory.study.lines),
        "data": directory.data,
        "lines": lines,
    }
    layers = [{"line": n, "seed": run.experiment["seed"], "layers": run.layers} for n, run in runs]
    contents = {
        _SCORES_TABLE: csv_text(chain([(*_SCORES, *columns)], _wide_scores(runs, columns))).encode(),
        _TRAFFIC_TABLE: csv_text(chain([_TRAFFIC], _traffic(runs))).encode(),
        _TIMES_TABLE: csv_text(chain([_TIMES], _wall_times(runs))).encode(),
        _LAYERS: _json_lines(layers),
        _SPLITS: _json_lines(_own_splits(lines, runs)),
        _CONFUSIONS: _encoded_confusions(runs),
    }
    make_directory(out)
    for name, content in contents.items():
        if content:
            write_atomically(out / f"{name}{_PACKED}", bz2.compress(content), RERUN_HINT)
    about["files"] = {f"{name}{_PACKED}": _fingerprint(out / f"{name}{_PACKED}") for name in contents if contents[name]}
    # Last, because a directory with this file is an archive.
    write_atomically(out / ARCHIVE, (json.dumps(about, indent=1) + "\n").encode(), RERUN_HINT)
    for file in (out / f"{name}{ending}" for name in contents for ending in _OPENERS):
        if file.name not in about["files"]:
            file.unlink(missing_ok=True)
    return len(runs)


def _own_splits(lines: Sequence[Mapping[str, Any]], runs: Iterable[tuple[int, RunResult]]) -> list[dict[str, Any]]:
    """The sites of each seed once: all algorithms share them."""
    known: dict[tuple[str, int], OwnData] = {}
    for number, run in runs:
        if split := own_data(run):
            known.setdefault((lines[number]["data"], run.experiment["seed"]), split)
    return [{"data": name, "seed": seed, **split} for (name, seed), split in known.items()]


def _wide_scores(runs: Iterable[tuple[int, RunResult]], columns: Sequence[str]) -> Iterator[Row]:
    for number, run in runs:
        places: dict[tuple[Any, ...], dict[str, float]] = {}
        for stage, round_, site, split, metric, value in run.score_rows:
            places.setdefault((stage, round_, site), {})[f"{split} {metric}"] = float(value)
        for place, scores in places.items():
            numbers = (f"{scores[name]:.{_DIGITS}g}" if name in scores else "" for name in columns)
            yield (number, run.experiment["seed"], *place, *numbers)


def _traffic(runs: Iterable[tuple[int, RunResult]]) -> Iterator[Row]:
    return ((n, run.experiment["seed"], *row) for n, run in runs for row in run.traffic_rows)


def _wall_times(runs: Iterable[tuple[int, RunResult]]) -> Iterator[Row]:
    for n, run in runs:
        yield n, run.experiment["seed"], f"{run.timing['wall_seconds']:.3f}", run.timing["runs_side_by_side"]


def _encoded_confusions(runs: Iterable[tuple[int, RunResult]]) -> bytes:
    """The matrices of the runs that have any; empty if none has."""
    matrices = [
        {"line": n, "seed": run.experiment["seed"], **run.confusions.tree()} for n, run in runs if run.confusions
    ]
    return tensor_tree.encode(matrices) if matrices else b""


def _json_lines(entries: Iterable[Mapping[str, Any]]) -> bytes:
    return "".join(f"{json.dumps(entry)}\n" for entry in entries).encode()


@dataclass(frozen=True)
class Archive:
    """The content of an archive."""

    results: list[RunResult]
    """In the order of the study file."""
    tuning_runs: int
    """The number of further runs, which chose the learning rates."""
    notes: tuple[str, ...] = ()
    """Notes on choices that were close."""


def read_archive(path: Path) -> Archive:
    """The runs of an archive."""
    try:
        about = json.loads((path / ARCHIVE).read_text(encoding="utf-8"))
        if about["format"] != _FORMAT:
            raise ValueError(f"{about['format']!r} is not {_FORMAT!r}")
        names = [f"{name}{ending}" for name in _FILES for ending in _OPENERS]
        files = {Path(name).stem: path / name for name in names if name in about["files"]}
        if changed := [file.name for file in files.values() if _fingerprint(file) != about["files"][file.name]]:
            raise ValueError(f"{min(changed)} has been changed since it was written")
        scores = _by_run(files[_SCORES_TABLE], _tall_scores)
        traffic = _by_run(files[_TRAFFIC_TABLE], _traffic_rows)
        times = _by_run(files[_TIMES_TABLE], _times)
        layers = {(e["line"], e["seed"]): e["layers"] for e in map(json.loads, _unpacked(files[_LAYERS]))}
        splits = _read_splits(files[_SPLITS]) if _SPLITS in files else {}
        confusions = _confusions(files[_CONFUSIONS]) if _CONFUSIONS in files else {}

        def data_of(line: int, seed: int) -> DataFile:
            name = about["lines"][line]["data"]
            shared: DataFile = about["data"][name]
            per_run = about["lines"][line]["experiment"]["data"].get("split") == "per_run"
            return {**shared, **splits[name, seed]} if per_run else shared

        results = [
            RunResult(
                experiment={**about["lines"][line]["experiment"], "seed": seed},
                environment=about["environment"],
                score_rows=rows,
                traffic_rows=traffic[line, seed],
                layers=layers[line, seed],
                data=data_of(line, seed),
                weights={},
                build_model=_NO_MODEL,
                timing=times[line, seed][0],
                path=path,
                confusions=confusions.get((line, seed), Confusions.none()),
            )
            for (line, seed), rows in scores.items()
        ]
        for result in results:
            checked(result)
        notes = [
            " ".join(f"{line['algorithm']} on {line['task']}: {note}".split())
            for line in about["lines"]
            for note in line.get("tuning_notes", [])
        ]
        return Archive(results, int(about["tuning_runs"]), tuple(notes))
    except FileNotFoundError as missing:
        name = Path(missing.filename).name
        raise RunDirectoryError(f"the archive {path} lacks its {name}; get the archive again") from missing
    except (
        OSError,
        EOFError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        RecursionError,
        zlib.error,
        csv.Error,
    ) as problem:
        raise RunDirectoryError(f"the archive {path} cannot be read: {problem}") from problem


def _fingerprint(path: Path) -> str:
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()


def _read_splits(path: Path) -> dict[tuple[str, int], OwnData]:
    entries = map(json.loads, _unpacked(path))
    return {(e["data"], e["seed"]): {"partition_hash": e["partition_hash"], "sites": e["sites"]} for e in entries}


def _by_run(path: Path, read: Callable[[dict[str, str]], Iterable[Any]]) -> dict[tuple[int, int], list[Any]]:
    by_run: dict[tuple[int, int], list[Any]] = {}
    for row in csv.DictReader(_unpacked(path)):
        by_run.setdefault((int(row.pop("line")), int(row.pop("seed"))), []).extend(read(row))
    return by_run


def _tall_scores(row: dict[str, str]) -> Iterator[Row]:
    place = (row.pop("stage"), int(row.pop("round")), plain_cell(row.pop("site")))
    for name, value in row.items():
        if value:
            split, _, metric = name.partition(" ")
            yield (*place, split, metric, float(value))


def _traffic_rows(row: Mapping[str, str]) -> Iterator[Row]:
    yield int(row["round"]), plain_cell(row["site"]), row["verbs"], int(row["down"]), int(row["up"])


def _times(row: Mapping[str, str]) -> Iterator[TimingFile]:
    yield {"wall_seconds": float(row["wall_seconds"]), "runs_side_by_side": int(row["runs_side_by_side"])}


def _confusions(path: Path) -> dict[tuple[int, int], Confusions]:
    with _bounded(path) as file:
        trees = tensor_tree.decode(file.read())
    return {(tree["line"], tree["seed"]): Confusions.from_tree(tree) for tree in trees}


def _unpacked(path: Path) -> Iterator[str]:
    with io.TextIOWrapper(_bounded(path), encoding="utf-8", newline="") as text:
        yield from text


def _bounded(path: Path) -> io.BufferedReader:
    return io.BufferedReader(Bounded(_OPENERS[path.suffix](path), path.name, unpacked_limit(path.stat().st_size)))
