"""MIMIC-III: in-hospital mortality from a first-day note; emergency admissions in four groups of diagnoses."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
from pydantic import Field
from torch import nn

from playerfl.data.download.sources import folder_of
from playerfl.data.readers.csv_tables import CsvRow, read_rows
from playerfl.data.readers.file_limits import find_file
from playerfl.data.readers.remembered import remembered
from playerfl.data.sites import Sites
from playerfl.tasks.bundled.focal import FocalOptions, with_focal_loss
from playerfl.tasks.bundled.texts import TextOptions, encode_sites
from playerfl.tasks.task import Task

# Words in an admission's DIAGNOSIS that put it into a group; the first group that matches counts.
GROUP_WORDS = {
    "gastrointestinal": ("GI BLEED", "GI HEMORRHAGE", "GASTROINTESTINAL", "ABDOMINAL PAIN"),
    "infection": ("PNEUMONIA", "SEPSIS", "SEPTIC", "URINARY", "RESPIRATORY FAILURE"),
    "cardiac": ("CORONARY", "MYOCARDIAL INFARCT", "ANGINA", "CHEST PAIN"),
    "brain": ("INTRACRANIAL", "SUBARACHNOID", "CEREBRAL", "SUBDURAL", "STROKE", "CARDIAC ARREST"),
}
GROUPS = tuple(sorted(GROUP_WORDS))
CATEGORIES = frozenset({"Nursing", "Nursing/other", "Physician"})
_FIRST_DAY = timedelta(hours=24)
_DIED = {"0": 0, "1": 1}


class Mimic3Options(FocalOptions, TextOptions):
    """As for tweets, but with longer texts."""

    length: int = Field(512, ge=2, le=100_000)


@dataclass
class Admission:
    """An admission with its longest note so far; the other notes are not kept in memory."""

    group: str
    died: int
    start: datetime
    patient: str
    note: str = ""


def group_of(diagnosis: str) -> str | None:
    """The group an admission's diagnosis belongs to.

    >>> group_of("pneumonia;telemetry"), group_of("HIP FRACTURE")
    ('infection', None)
    """
    text = diagnosis.upper()
    return next((group for group, words in GROUP_WORDS.items() if any(word in text for word in words)), None)


def read_admissions(file: Path) -> dict[str, Admission]:
    """Emergency admissions with a diagnosis in one of the groups, by HADM_ID."""
    admissions: dict[str, Admission] = {}
    columns = ("SUBJECT_ID", "HADM_ID", "ADMITTIME", "ADMISSION_TYPE", "DIAGNOSIS", "HOSPITAL_EXPIRE_FLAG")
    for row in read_rows(file, columns):
        group = group_of(row["DIAGNOSIS"])
        if group is None or row["ADMISSION_TYPE"].strip().upper() != "EMERGENCY":
            continue
        number = _number(row)
        if not number or number in admissions:
            raise row.error("HADM_ID", "every admission needs a unique number")
        died = row.one_of("HOSPITAL_EXPIRE_FLAG", _DIED)
        admissions[number] = Admission(group, died, _time(row, "ADMITTIME"), row["SUBJECT_ID"] or f"of {number}")
    return admissions


def add_longest_notes(file: Path, admissions: dict[str, Admission]) -> None:
    """Adds to every admission its longest note by a nurse or physician from the first 24 hours."""
    for row in read_rows(file, ("HADM_ID", "CHARTTIME", "CATEGORY", "TEXT")):
        admission = admissions.get(_number(row))
        # "Physician " ends with a space in the table.
        if admission is None or row["CATEGORY"].strip() not in CATEGORIES or not row["CHARTTIME"]:
            continue
        within = timedelta() <= _time(row, "CHARTTIME") - admission.start <= _FIRST_DAY
        if within and len(row["TEXT"]) > len(admission.note):
            admission.note = row["TEXT"]


def _number(row: CsvRow) -> str:
    """A row's admission; empty for a patient who was not admitted."""
    number = row["HADM_ID"]
    if number and not number.isdecimal():
        raise row.error("HADM_ID", "it must be an integer")
    return number


def _time(row: CsvRow, column: str) -> datetime:
    try:
        return datetime.strptime(row[column], "%Y-%m-%d %H:%M:%S")
    except ValueError:
        raise row.error(column, "write times as 2101-10-20 19:08:00") from None


@remembered(1)
def read_noted_admissions(admissions_file: Path, notes_file: Path) -> dict[str, Admission]:
    """Admissions with their longest notes, by HADM_ID."""
    admissions = read_admissions(admissions_file)
    add_longest_notes(notes_file, admissions)
    return admissions


def load_sites(options: Mimic3Options) -> Sites:
    folder = folder_of("mimic3")
    notes_file = find_file(folder, "NOTEEVENTS.csv")
    admissions = read_noted_admissions(find_file(folder, "ADMISSIONS.csv"), notes_file)
    examples: dict[str, list[tuple[str, int]]] = {group: [] for group in GROUPS}
    patients: dict[str, list[int]] = {group: [] for group in GROUPS}
    known: dict[str, int] = {}
    for admission in admissions.values():
        if admission.note:
            examples[admission.group].append((admission.note, admission.died))
            patients[admission.group].append(known.setdefault(admission.patient, len(known)))
    noted = sum(map(len, examples.values()))
    return encode_sites(
        examples,
        options,
        [
            f"{noted:,} of {len(admissions):,} emergency admissions have a nurse's or physician's note from the first "
            "24 hours; the longest one is used",
            "diagnoses are grouped by words, since the paper does not print its lists",
            f"all admissions of each of the {len(known):,} patients are in the same part, at all sites",
        ],
        {group: np.array(numbers, dtype=np.int64) for group, numbers in patients.items()},
    )


def build_model(options: Mimic3Options) -> nn.Module:
    return options.transformer(classes=2)


TASK = with_focal_loss(
    Task(
        name="mimic3",
        about="in-hospital deaths predicted from notes of the first 24 hours (MIMIC-III), 4 groups of diagnoses, a "
        "transformer block",
        load_sites=load_sites,
        build_model=build_model,
        options=Mimic3Options,
        defaults={"training": {"batch_size": 128}},
        paper="MIMIC",
    )
)
