"""Rows that belong together: the visits of a patient, the pictures of a lesion."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import playerfl
from command_line import playerfl as playerfl_command
from own_data import as_gzip, csv, load, sentence_of, table, whole

PATIENTS, VISITS = 50, 3


def visits(seed: int, patients: int = PATIENTS) -> pd.DataFrame:
    """Measurements that vary little between a patient's visits, and an outcome that is random for each patient."""
    rng = np.random.default_rng(seed)
    measured = np.repeat(rng.normal(size=(patients, 6)), VISITS, axis=0) + rng.normal(0, 0.02, (patients * VISITS, 6))
    frame = pd.DataFrame(measured, columns=[f"lab{i}" for i in range(6)])
    frame.insert(0, "patient_id", [f"{seed}{patient:03}" for patient in np.repeat(np.arange(patients), VISITS)])
    return frame.assign(outcome=np.repeat(rng.permutation(np.arange(patients) % 2), VISITS))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return csv(tmp_path_factory.mktemp("visits"), **{site: visits(i) for i, site in enumerate(("north", "south"))})


def accuracy(folder: Path, **settings: Any) -> float:
    chosen = {f"data.{name}": value for name, value in settings.items()}
    result = playerfl.run(str(folder), "local", rounds=15, learning_rate=0.01, settings=chosen)
    return float(np.mean([scores["accuracy"] for scores in result.site_scores.values()]))


def parts_of(groups: Any) -> list[set[int]]:
    return [set(groups.train), set(groups.validation), set(groups.test)]


@pytest.mark.slow
def test_random_outcomes_are_predicted_only_if_patients_are_on_both_sides(folder: Path) -> None:
    assert accuracy(folder, drop_columns="patient_id") > 0.85
    assert accuracy(folder, group="patient_id") < 0.65


@pytest.mark.parametrize(
    "change", [lambda folder: None, as_gzip, lambda folder: to_parquet(folder), lambda f: to_npz(f)]
)
def test_no_patient_is_on_two_sides(tmp_path: Path, change: Callable[[Path], None]) -> None:
    csv(tmp_path, north=visits(1), south=visits(2))
    change(tmp_path)
    sites = load(tmp_path, group="patient_id")
    for site, groups in sites.groups.items():
        parts = parts_of(groups)
        assert [len(part) for part in parts] == [32, 8, 10]
        assert len(set().union(*parts)) == PATIENTS
        assert len(groups.test) == len(sites[site].test) == 10 * VISITS
        assert sites[site].train.inputs.shape[1] == 6
    assert (
        "groups: column 'patient_id', never divided between training, validation and test (north 50, south 50)"
        in sites.notes
    )


def to_parquet(folder: Path) -> None:
    pytest.importorskip("pyarrow", reason="parquet files need pyarrow")
    for file in list(folder.glob("*.csv")):
        pd.read_csv(file, dtype={"patient_id": str}).to_parquet(file.with_suffix(".parquet"))
        file.unlink()


def to_npz(folder: Path) -> None:
    for file in list(folder.glob("*.csv")):
        frame = pd.read_csv(file)
        np.savez(
            file.with_suffix(".npz"), x=frame.filter(like="lab"), y=frame["outcome"], patient_id=frame["patient_id"]
        )
        file.unlink()


def test_rows_without_a_group_stand_alone(tmp_path: Path) -> None:
    frame = visits(1)
    frame.loc[:4, "patient_id"] = None
    notes = load(csv(tmp_path, north=frame, south=visits(2)), group="patient_id").notes
    assert any(note.endswith("(north 49, south 50); 5 rows without one count as groups of their own") for note in notes)


def test_a_patient_known_to_two_sites_may_be_kept_in_one_part(tmp_path: Path) -> None:
    csv(tmp_path, north=visits(1), south=visits(1).iloc[30:])
    apart = load(tmp_path, group="patient_id").groups
    assert set(apart["north"].train) & set(apart["south"].test)
    together = load(tmp_path, group="patient_id", groups_span_sites=True)
    parts = [set(n) | set(s) for n, s in zip(*map(parts_of, together.groups.values()), strict=True)]
    assert sum(map(len, parts)) == len(set().union(*parts)) == PATIENTS
    assert len(whole(together["south"])) == PATIENTS * VISITS - 30


def test_mistakes_with_groups_are_named(tmp_path: Path) -> None:
    folder = csv(tmp_path, north=visits(1), south=visits(2))
    assert "data.group: unknown column 'patient'; did you mean 'patient_id'?" in sentence_of(folder, group="patient")
    assert "data.group and the target are the same column, 'outcome'" in sentence_of(folder, group="outcome")
    assert "data.group_pattern is only for images" in sentence_of(folder, group_pattern="x")
    csv(tmp_path, south=visits(2, patients=2))
    assert sentence_of(folder, group="patient_id") == "south: a site needs at least 3 groups, one for each part, not 2"


def test_files_that_are_no_sites_may_be_skipped(tmp_path: Path) -> None:
    csv(tmp_path, north=table(seed=1), south=table(seed=2), template=table(seed=3))
    assert list(load(tmp_path, skip_sites="template")) == ["north", "south"]
    assert list(load(tmp_path, skip_sites=["template.csv", "south"])) == ["north"]
    assert "data.skip_sites: " in sentence_of(tmp_path, skip_sites="templates")
    (tmp_path / "~$north.csv").write_bytes(b"Excel is open")
    assert "template" in load(tmp_path)


@pytest.fixture
def lesions(tmp_path: Path) -> Path:
    """Three pictures of each of ten lesions per class."""
    rng = np.random.default_rng(0)
    rows = []
    for site in ("north", "south"):
        for kind in ("mole", "scar"):
            (tmp_path / site / kind).mkdir(parents=True)
            for lesion in range(10):
                for view in range(3):
                    name = f"{site}/{kind}/{kind}-{lesion:02}_{view}.png"
                    Image.fromarray(rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(tmp_path / name)
                    rows.append({"picture": name, "group": f"{kind}-{lesion:02}"})
    pd.DataFrame(rows).to_csv(tmp_path / "lesions.csv", index=False)
    return tmp_path


def test_pictures_of_one_lesion_stay_together(lesions: Path) -> None:
    by_table = load(lesions, image_size=8, group="lesions.csv")
    (lesions / "lesions.csv").rename(lesions.parent / "lesions.csv")
    by_name = load(lesions, image_size=8, group_pattern=r"(.+)_\d\.png")
    for sites in (by_table, by_name):
        for groups in sites.groups.values():
            parts = parts_of(groups)
            assert sum(map(len, parts)) == len(set().union(*parts)) == 20
    assert all(torch.equal(by_table[site].test.inputs, by_name[site].test.inputs) for site in by_name)
    assert sentence_of(lesions, group_pattern="(").startswith("data.group_pattern is not a regular expression")
    assert "does not match the file name 'mole-00_0.png'" in sentence_of(lesions, group_pattern="patient")
    assert "has no file lesions.csv; for images, name a CSV file" in sentence_of(lesions, group="lesions.csv")
    (lesions / "lesions.csv").write_text("picture,group\nnorth/mole/mole-00_0.png,a\n")
    assert sentence_of(lesions, group="lesions.csv").startswith(
        "lesions.csv has no row for the image north/mole/mole-00_1.png"
    )


@pytest.mark.parametrize("respelled", [lambda i: i.lstrip("0"), lambda i: f"{int(i)}.0", lambda i: f" {i} "])
def test_a_patient_whose_name_is_spelled_in_two_ways_is_one_group(
    tmp_path: Path, respelled: Callable[[str], str]
) -> None:
    rows = visits(1)
    names = [f"0{name}" for name in rows["patient_id"]]
    rows["patient_id"] = [respelled(name) if number % 2 else name for number, name in enumerate(names)]
    sites = load(csv(tmp_path, north=rows, south=visits(2)), group="patient_id")
    assert sum(map(len, parts_of(sites.groups["north"]))) == PATIENTS


def test_the_check_warns_about_rows_without_a_group(tmp_path: Path) -> None:
    rows = visits(1)
    rows.loc[::10, "patient_id"] = None
    csv(tmp_path, north=rows, south=visits(2))
    checked = playerfl_command("data", "check", ".", "--set", "data.group=patient_id", cwd=tmp_path)
    assert "rows without a group (north 15)" in " ".join(checked.stdout.split())
