"""MIMIC-III on made-up tables in its layout: which admissions and notes count, and how much memory loading takes."""

from __future__ import annotations

import csv
import gzip
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import playerfl
from playerfl.data.examples import TensorExamples
from playerfl.data.sites import Sites
from playerfl.errors import DataError
from playerfl.layers.layer_map import LayerMap
from playerfl.learning.losses import FocalLoss
from playerfl.runs.experiment import Experiment
from playerfl.tasks.bundled.mimic3 import (
    GROUPS,
    TASK,
    Admission,
    Mimic3Options,
    add_longest_notes,
    group_of,
    load_sites,
    read_admissions,
)

ADMISSIONS_HEADER = (
    "ROW_ID,SUBJECT_ID,HADM_ID,ADMITTIME,DISCHTIME,DEATHTIME,ADMISSION_TYPE,ADMISSION_LOCATION,DISCHARGE_LOCATION,"
    "INSURANCE,LANGUAGE,RELIGION,MARITAL_STATUS,ETHNICITY,EDREGTIME,EDOUTTIME,DIAGNOSIS,HOSPITAL_EXPIRE_FLAG,"
    "HAS_CHARTEVENTS_DATA"
)
NOTEEVENTS_HEADER = "ROW_ID,SUBJECT_ID,HADM_ID,CHARTDATE,CHARTTIME,STORETIME,CATEGORY,DESCRIPTION,CGID,ISERROR,TEXT"
ADMISSIONS, NOTEEVENTS = ADMISSIONS_HEADER.split(","), NOTEEVENTS_HEADER.split(",")
START = "2196-04-09 12:26:00"
ONE_EACH = {"infection": "SEPSIS", "cardiac": "CHEST PAIN", "brain": "STROKE", "gastrointestinal": "UPPER GI BLEED"}


def admission(number: int, diagnosis: str = "SEPSIS", **cells: object) -> dict[str, object]:
    row = dict.fromkeys(ADMISSIONS, "") | {"HADM_ID": str(number), "ADMITTIME": START, "ADMISSION_TYPE": "EMERGENCY"}
    return {**row, "DIAGNOSIS": diagnosis, "HOSPITAL_EXPIRE_FLAG": "0", "INSURANCE": "Medicare, Private", **cells}


def note(number: int | str, text: str = "Pt stable.", **cells: object) -> dict[str, object]:
    row = dict.fromkeys(NOTEEVENTS, "") | {"HADM_ID": str(number), "CHARTTIME": "2196-04-09 20:00:00"}
    return {**row, "CATEGORY": "Nursing", "DESCRIPTION": "Report", "TEXT": text, **cells}


def write(path: Path, columns: list[str], rows: Iterable[dict[str, object]]) -> Path:
    opened: Any = gzip.open if path.suffix == ".gz" else open
    with opened(path, "wt", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, columns, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
    return path


def write_both(
    folder: Path, admissions: list[dict[str, object]], notes: list[dict[str, object]], end: str = ""
) -> None:
    write(folder / f"ADMISSIONS.csv{end}", ADMISSIONS, admissions)
    write(folder / f"NOTEEVENTS.csv{end}", NOTEEVENTS, notes)


def made_up(each: int = 20) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """Admissions of each group with a note; every fifth patient died."""
    admissions, notes = [], []
    for g, diagnosis in enumerate(ONE_EACH.values()):
        for i in range(each):
            number = 100_000 + 1000 * g + i
            died = i % 5 == 0
            admissions.append(admission(number, diagnosis, HOSPITAL_EXPIRE_FLAG=str(int(died))))
            notes.append(note(number, f'Pt "{i}", {"critical" if died else "stable"},\nmonitored\n\noverall: ok'))
    return admissions, notes


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("playerfl.tasks.bundled.mimic3.folder_of", lambda name: tmp_path)
    return tmp_path


def longest(tmp_path: Path, *notes: dict[str, object]) -> str:
    """The note that admission 1 keeps."""
    admissions = read_admissions(write(tmp_path / "ADMISSIONS.csv", ADMISSIONS, [admission(1)]))
    add_longest_notes(write(tmp_path / "NOTEEVENTS.csv", NOTEEVENTS, notes), admissions)
    return admissions["1"].note


def load(**options: Any) -> Sites:
    return load_sites(Mimic3Options(length=16, **options))


@pytest.mark.parametrize(
    ("diagnosis", "group"),
    [
        *((f" {diagnosis.lower()} ", group) for group, diagnosis in ONE_EACH.items()),
        ("SUBDURAL HEMATOMA", "brain"),
        ("STROKE;TELEMETRY", "brain"),
        ("MYOCARDIAL INFARCTION\\CATH", "cardiac"),
        ("UPPER GASTROINTESTINAL BLEED", "gastrointestinal"),
        ("URINARY TRACT INFECTION", "infection"),
        ("CEREBRAL INFARCTION", "brain"),
        ("GI HEMORRHAGE", "gastrointestinal"),
        ("POST PARTUM HEMORRHAGE", None),
        ("RASH", None),
        ("", None),
    ],
)
def test_words_of_the_diagnosis_decide_the_group(diagnosis: str, group: str | None) -> None:
    assert group_of(diagnosis) == group


def test_only_emergencies_count(tmp_path: Path) -> None:
    kinds = ["EMERGENCY", "ELECTIVE", "URGENT", "NEWBORN", ""]
    rows = [admission(i, ADMISSION_TYPE=kind) for i, kind in enumerate(kinds)]
    assert list(read_admissions(write(tmp_path / "ADMISSIONS.csv", ADMISSIONS, rows))) == ["0"]


@pytest.mark.parametrize(
    ("time", "counts"),
    [
        ("2196-04-09 12:25:59", False),
        ("2196-04-09 12:26:00", True),
        ("2196-04-10 12:26:00", True),
        ("2196-04-10 12:26:01", False),
        ("2196-04-11 00:00:00", False),
        ("", False),
    ],
)
def test_notes_of_the_first_24_hours(tmp_path: Path, time: str, counts: bool) -> None:
    assert bool(longest(tmp_path, note(1, CHARTTIME=time))) is counts


@pytest.mark.parametrize(
    ("category", "counts"),
    [
        ("Nursing", True),
        ("Nursing/other", True),
        ("Physician ", True),
        ("Discharge summary", False),
        ("Radiology", False),
        ("", False),
    ],
)
def test_notes_by_nurses_and_physicians(tmp_path: Path, category: str, counts: bool) -> None:
    assert bool(longest(tmp_path, note(1, CATEGORY=category))) is counts


def test_the_longest_note_counts_and_the_first_of_equals(tmp_path: Path) -> None:
    middle, long_one, equal = "medium note", 'a long, "quoted"\nnote', 'A LONG, "QUOTED"\nNOTE'
    others = [
        note(1, "much longer than the others, but late, very late", CHARTTIME="2196-05-01 00:00:00"),
        note(2, "much longer than the others, but somebody else's"),
        note("", "much longer than the others, but nobody was admitted"),
    ]
    assert longest(tmp_path, note(1, middle), *others, note(1, long_one), note(1, equal), note(1, "short")) == long_one


@pytest.mark.parametrize("end", ["", ".gz"])
def test_sites_labels_and_notes(folder: Path, end: str) -> None:
    admissions, notes = made_up()
    write_both(folder, [*admissions, admission(7), admission(8, "RASH")], notes, end)
    sites = load()
    assert list(sites) == sorted(GROUPS) == ["brain", "cardiac", "gastrointestinal", "infection"]
    for site in sites.values():
        parts = [part for part in site.__dict__.values() if isinstance(part, TensorExamples)]
        assert torch.cat([part.targets for part in parts]).bincount().tolist() == [16, 4]
    assert sites.notes == (
        "80 of 81 emergency admissions have a nurse's or physician's note from the first 24 hours; "
        "the longest one is used",
        "diagnoses are grouped by words, since the paper does not print its lists",
        "all admissions of each of the 80 patients are in the same part, at all sites",
        "hashed word vocabulary of 10,000 ids instead of BERT word pieces",
    )


def test_all_admissions_of_a_patient_are_in_the_same_part_at_all_sites(folder: Path) -> None:
    """A patient in training at one site and in test at another would be known to the common model."""
    admissions, notes = made_up()
    patients = [{**row, "SUBJECT_ID": str(number // 5)} for number, row in enumerate(admissions)]
    write_both(folder, patients, notes)
    groups = load().groups
    parts = [
        set(np.concatenate([getattr(g, part) for g in groups.values()])) for part in ("train", "validation", "test")
    ]
    assert sum(map(len, parts)) == len(set().union(*parts)) == len(patients) / 5
    assert min(map(len, parts)) > 1


def changed(rows: list[dict[str, object]], **cells: object) -> list[dict[str, object]]:
    return [*rows[:-1], {**rows[-1], **cells}]


@pytest.mark.parametrize(
    ("admissions", "notes", "message"),
    [
        (
            {"HADM_ID": "x"},
            {},
            r"ADMISSIONS\.csv, row 80 \(line 81\), column HADM_ID: 'x' is not allowed; it must be an integer",
        ),
        ({"HADM_ID": ""}, {}, r"column HADM_ID: '' is not allowed; every admission needs a unique number"),
        ({"HADM_ID": "100000"}, {}, r"column HADM_ID: '100000' is not allowed; every admission needs a unique number"),
        ({"ADMITTIME": "April"}, {}, r"ADMITTIME: 'April' is not allowed; write times as 2101-10-20 19:08:00"),
        ({"ADMITTIME": "2101-10-20 19:08:00+02:00"}, {}, "write times as 2101-10-20 19:08:00"),
        ({"HOSPITAL_EXPIRE_FLAG": "no"}, {}, r"HOSPITAL_EXPIRE_FLAG: 'no' is not allowed; allowed: 0, 1"),
        (
            {},
            {"HADM_ID": "n/a"},
            r"NOTEEVENTS\.csv, row 80 \(line \d+\), column HADM_ID: 'n/a' is not allowed; it must be an integer",
        ),
        ({}, {"CHARTTIME": "noon"}, r"NOTEEVENTS\.csv, row 80 \(line \d+\), column CHARTTIME: 'noon' is not allowed; "),
        ({}, {"TEXT": "x" * 200_000}, r"NOTEEVENTS\.csv, line \d+: field larger than field limit"),
    ],
)
def test_malformed_fields(folder: Path, admissions: dict[str, str], notes: dict[str, str], message: str) -> None:
    good_admissions, good_notes = made_up()
    write_both(folder, changed(good_admissions, **admissions), changed(good_notes, **notes))
    with pytest.raises(DataError, match=message) as problem:
        load()
    assert "\n" not in str(problem.value)


def test_missing_columns_files_and_sites(folder: Path) -> None:
    with pytest.raises(DataError, match=r"has no NOTEEVENTS\.csv, plain or with \.gz; put it there"):
        load()
    admissions, notes = made_up()
    write_both(folder, [row for row in admissions if row["DIAGNOSIS"] != "STROKE"], notes)
    with pytest.raises(DataError, match="brain has no text in this file, and every site needs some"):
        load()
    write(folder / "NOTEEVENTS.csv", NOTEEVENTS[:-1], [])
    with pytest.raises(DataError, match=r"NOTEEVENTS\.csv lacks the column TEXT; it has ROW_ID, SUBJECT_ID, "):
        load()
    (folder / "NOTEEVENTS.csv").unlink()
    (folder / "NOTEEVENTS.csv.gz").write_bytes(b"\x80\x04pickle")
    with pytest.raises(DataError, match=r"NOTEEVENTS\.csv\.gz cannot be read: Not a gzipped file"):
        load()


def test_the_demos_lower_case_columns_are_read(tmp_path: Path) -> None:
    path = tmp_path / "ADMISSIONS.csv"
    write(path, ADMISSIONS, [admission(1)])
    head, rest = path.read_text().split("\n", 1)
    path.write_text(f"{head.lower()}\n{rest}")
    read = read_admissions(path)["1"]
    assert isinstance(read, Admission)
    assert (read.group, read.died, str(read.start)) == ("infection", 0, START)


def test_defaults_are_the_papers() -> None:
    experiment = Experiment.resolve({"algorithm": "player_fl"}, TASK)
    assert (experiment.rounds, experiment.training.learning_rate, experiment.training.batch_size) == (50, 3e-4, 128)
    assert TASK.loss == FocalLoss(gamma=1, alpha=(0.15, 0.85))
    sizes = LayerMap.of(TASK.build_model(Mimic3Options(vocabulary=1000))).num_parameters
    assert list(sizes.values()) == [1000 * 768 + 393_216, 2_360_064, 4_722_432, 1_538]


def test_a_round_of_player_fl(folder: Path) -> None:
    write_both(folder, *made_up(30))
    small = {"data.size": "tiny", "data.length": 16, "data.vocabulary": 200, "training.batch_size": 8}
    result = playerfl.run(TASK, "player_fl", rounds=1, settings=small)
    assert result.sites == sorted(GROUPS)
    assert result.cut is not None
    assert result.scores["value"].notna().all()


MEASURE = """
import sys
from pathlib import Path
from playerfl.tasks.bundled import mimic3

def peak():
    # Not ru_maxrss, which starts from the memory of the parent process.
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

mimic3.folder_of = lambda name: Path(sys.argv[1])
before = peak()
sites = mimic3.load_sites(mimic3.Mimic3Options())
after = peak()
print(before // 1024, after // 1024, sum(len(site.train) for site in sites.values()))
"""


@pytest.mark.system
@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for the memory of a process")
def test_memory_does_not_grow_with_the_notes(tmp_path: Path) -> None:
    """150 MB of notes on 400 admissions (4 MB of longest notes), and on thousands of others."""
    admissions, _ = made_up(100)
    numbers = [row["HADM_ID"] for row in admissions]
    text = 'Neuro: pt alert, "oriented" x3.\nCV: HR 80s, no ectopy.\nResp: lungs clear,\n' * 130

    def notes() -> Iterable[dict[str, object]]:
        for i in range(16_000):
            number = numbers[i // 2 % 400] if i % 2 else 200_000 + i
            yield note(str(number), text[: 9_000 + i // 20])

    write(tmp_path / "ADMISSIONS.csv", ADMISSIONS, admissions)
    path = write(tmp_path / "NOTEEVENTS.csv", NOTEEVENTS, notes())
    assert path.stat().st_size > 140 * 2**20
    said = subprocess.run(
        [sys.executable, "-c", MEASURE, str(tmp_path)], capture_output=True, text=True, check=True
    ).stdout.split()
    before, after, examples = map(int, said)
    assert examples == 256
    assert after < 1000
    assert after - before < 50, f"{before} MB before, {after} MB after"
