"""Fed-ISIC 2019 on made-up pictures in each of its layouts."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from data.readers.test_pictures import png
from playerfl.data.download.sources import SOURCES
from playerfl.data.examples import SiteData
from playerfl.data.sites import Sites
from playerfl.errors import DataError
from playerfl.tasks.bundled import isic2019

HOSPITALS = ("rosendahl", "vidir_modern")
KINDS = ("nv", "mel", "bkl", "bcc")


def ham_rows() -> list[tuple[str, str, str, str]]:
    """Forty pictures of twenty lesions at each hospital, and one of a kind that is not used."""
    rows = [
        (f"{hospital}-{i}", f"{hospital}-lesion-{i // 2}", KINDS[i // 2 % 4], hospital)
        for hospital in HOSPITALS
        for i in range(40)
    ]
    return [*rows, ("odd", "odd-lesion", "vasc", "rosendahl")]


def write_ham_labels(folder: Path, name: str = "fed_ham10000_labels.csv") -> None:
    lines = ["image_id,lesion_id,dx,dataset", *(",".join(row) for row in ham_rows())]
    (folder / name).write_text("\n".join(lines) + "\n")


def as_zip(folder: Path) -> None:
    write_ham_labels(folder)
    with zipfile.ZipFile(folder / "ham10000_64x64_jpg.zip", "w") as archive:
        for picture, *_ in ham_rows():
            archive.writestr(f"{picture}.jpg", png(8, 8))


def as_folders(folder: Path) -> None:
    write_ham_labels(folder, "HAM10000_metadata.csv")
    (folder / "part_1").mkdir()
    for picture, *_ in ham_rows():
        (folder / "part_1" / f"{picture}.jpg").write_bytes(png(8, 8))


def as_flamby(folder: Path) -> None:
    pictures = folder / "ISIC_2019_Training_Input_preprocessed"
    pictures.mkdir()
    lines = ["image,target,center"]
    for i in range(100):
        (pictures / f"ISIC_{i}.jpg").write_bytes(png(8, 8))
        lines.append(f"ISIC_{i},{(0, 1, 2, 4, 3)[i % 5]},{i % 2}")
    (folder / "train_test_split.csv").write_text("\n".join(lines) + "\n")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PLAYERFL_DATA", str(tmp_path))
    home = SOURCES["isic2019"].home
    home.mkdir()
    return home


def load() -> Sites:
    return isic2019.load_sites(isic2019.IsicOptions(side=16))


def sizes(site: SiteData) -> list[int]:
    return [len(part) for part in site.__dict__.values()]


@pytest.mark.parametrize("layout", [as_zip, as_folders])
def test_ham10000_as_an_archive_and_as_folders_gives_the_same_sites(folder: Path, layout: object) -> None:
    assert callable(layout)
    layout(folder)
    sites = load()
    assert sorted(sites) == sorted(HOSPITALS)
    assert [sum(sizes(site)) for site in sites.values()] == [40, 40]
    # Two pictures per lesion: an odd number in a part would mean that a lesion was split.
    assert all(size % 2 == 0 for site in sites.values() for size in sizes(site))


def test_flambys_layout_says_that_it_does_not_know_lesions(folder: Path) -> None:
    as_flamby(folder)
    sites = load()
    assert sorted(sites) == ["centre-0", "centre-1"]
    assert sum(sum(sizes(site)) for site in sites.values()) == 80
    assert any("may be in different parts" in note for note in sites.notes)


def test_missing_pictures_and_broken_tables_are_named(folder: Path) -> None:
    as_folders(folder)
    (folder / "part_1" / "rosendahl-3.jpg").unlink()
    with pytest.raises(DataError, match="lacks 1 of 80 images, among them rosendahl-3"):
        load()
    (folder / "HAM10000_metadata.csv").write_text("image_id,dx\na,nv\n")
    with pytest.raises(DataError, match=r"HAM10000_metadata\.csv.*lesion_id"):
        load()
