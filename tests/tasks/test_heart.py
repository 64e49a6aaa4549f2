from __future__ import annotations

from pathlib import Path

import pytest
import torch

from playerfl.data.examples import TensorExamples
from playerfl.errors import DataError
from playerfl.tasks.bundled import heart

ROW = "63.0,1.0,1.0,145.0,233.0,1.0,2.0,150.0,0.0,2.3,3.0,0.0,6.0,{grade}"


def hospital(folder: Path, name: str, lines: list[str]) -> Path:
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return path


def test_rows_that_lack_a_measurement_are_dropped_but_not_for_the_three_columns_left_out(tmp_path: Path) -> None:
    lines = [ROW.format(grade=0), ROW.format(grade=3).replace("3.0,0.0,6.0", "?,?,?"), "?" + ROW.format(grade=1)[4:]]
    rows, grades = heart.read_hospital(hospital(tmp_path, "a", lines))
    assert rows.shape == (2, 10)
    assert grades.tolist() == [0, 3]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("1,2,3", "has 3 columns in row 2 instead of 14"),
        (ROW.format(grade=0).replace("145.0", "high"), "has text instead of a number in row 2"),
        (ROW.format(grade=7), "has the disease grade 7 in row 2"),
        (ROW.format(grade=1.5), "has the disease grade 1.5 in row 2"),
        (ROW.format(grade="inf"), "has a number that is not finite in row 2"),
    ],
)
def test_malformed_rows_are_named(tmp_path: Path, line: str, sentence: str) -> None:
    with pytest.raises(DataError) as caught:
        heart.read_hospital(hospital(tmp_path, "a.data", [ROW.format(grade=0), line]))
    assert str(caught.value).startswith("a.data ")
    assert sentence in str(caught.value)


def test_an_empty_hospital_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.data has no complete row"):
        heart.read_hospital(hospital(tmp_path, "a.data", []))


def made_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = torch.Generator().manual_seed(0)
    for offset, name in enumerate(heart.HOSPITALS.values()):
        table = torch.randn(40, 10, generator=rng) * 5 + offset
        lines = [",".join(f"{v:.3f}" for v in row) + f",0,0,0,{i % 5}" for i, row in enumerate(table.tolist())]
        hospital(folder, name, lines)
    monkeypatch.setattr(heart, "folder_of", lambda _: folder)


@pytest.mark.parametrize("scaling", ["client", "pooled_train"])
def test_seven_columns_are_standardised_on_training_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scaling: str
) -> None:
    made_up(tmp_path, monkeypatch)
    sites = heart.load_sites(heart.HeartOptions(scaling=scaling))  # type: ignore[arg-type]
    train = {name: site.train for name, site in sites.items()}
    assert all(isinstance(part, TensorExamples) for part in train.values())
    rows = {name: part.inputs for name, part in train.items()}  # type: ignore[attr-defined]
    reference = rows["va"] if scaling == "client" else torch.cat(list(rows.values()))
    torch.testing.assert_close(reference[:, 0].mean(), torch.tensor(0.0), atol=1e-5, rtol=0)
    torch.testing.assert_close(reference[:, 9].std(correction=0), torch.tensor(1.0), atol=1e-5, rtol=0)
    assert reference[:, 1].std() > 2
