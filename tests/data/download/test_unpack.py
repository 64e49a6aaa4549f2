"""Malicious archives are refused as a whole."""

from __future__ import annotations

import struct
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from archives import make_tar, make_zip
from playerfl.data.download.unpack import unpack
from playerfl.errors import DataError

Make = Callable[[Path, dict[str, bytes]], Path]
GOOD = {"top/a.bin": b"a" * 1000, "top/b.bin": b"b" * 10, "top/readme.html": b"read me"}


def tar_entry(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.fixture
def out(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*"))


@pytest.mark.parametrize("make", [make_zip, make_tar])
def test_only_the_wanted_members_are_written_and_without_their_folders(make: Make, tmp_path: Path, out: Path) -> None:
    unpack(make(tmp_path / "archive", GOOD), out, ["top/a.bin", "top/b.bin"])
    assert names(out) == ["a.bin", "b.bin"]
    assert (out / "a.bin").read_bytes() == GOOD["top/a.bin"]


@pytest.mark.parametrize("name", ["/etc/evil", "../evil", "top/../../evil", "..\\evil", "C:\\evil", "C:evil"])
@pytest.mark.parametrize("make", [make_zip, make_tar])
def test_names_that_lead_elsewhere_are_refused(make: Make, name: str, tmp_path: Path, out: Path) -> None:
    archive = make(tmp_path / "archive", {**GOOD, name: b"evil"})
    for wanted in (["top/a.bin"], [name]):
        with pytest.raises(
            DataError, match=r"has a member called .*evil', which would be written elsewhere; nothing was unpacked"
        ):
            unpack(archive, out, wanted)
    assert names(tmp_path) == ["archive", "out"]


def test_links_and_devices_are_refused(tmp_path: Path, out: Path) -> None:
    archives = [make_zip(tmp_path / "z", GOOD, "link"), make_zip(tmp_path / "folder", {**GOOD, "link/": b""})]
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE):
        archives.append(make_tar(tmp_path / f"t{kind.decode()}", GOOD, tar_entry("link", kind, "/etc/hostname")))
    for archive in archives:
        with pytest.raises(DataError, match=r"link.*(not an ordinary file|has no link)"):
            unpack(archive, out, ["top/a.bin", "link/" if archive.name == "folder" else "link"])
        assert names(out) == []


@pytest.mark.parametrize("make", [make_zip, make_tar])
def test_a_large_archive_is_refused_even_if_the_wanted_members_are_small(make: Make, tmp_path: Path, out: Path) -> None:
    archive = make(tmp_path / "archive", {**GOOD, "bomb": b"\0" * 1_000_000})
    with pytest.raises(DataError, match="unpack to more than 10,000 bytes"):
        unpack(archive, out, ["top/a.bin"], largest=10_000)
    assert names(out) == []


@pytest.mark.parametrize("make", [make_zip, make_tar])
def test_a_missing_member_is_named(make: Make, tmp_path: Path, out: Path) -> None:
    with pytest.raises(DataError, match=r"archive has no top/c\.bin"):
        unpack(make(tmp_path / "archive", GOOD), out, ["top/a.bin", "top/c.bin"])
    assert names(out) == []


def test_a_zip_that_lies_about_a_size_writes_no_more_than_it_says(tmp_path: Path, out: Path) -> None:
    archive = make_zip(tmp_path / "archive", {"a.bin": b"\0" * 1_000_000})
    content = archive.read_bytes()
    archive.write_bytes(content.replace(struct.pack("<I", 1_000_000), struct.pack("<I", 1000)))
    with pytest.raises(DataError, match="cannot be unpacked"):
        unpack(archive, out, ["a.bin"], largest=10_000)
    assert names(out) == []


@pytest.mark.parametrize("make", [make_zip, make_tar])
def test_a_damaged_archive_is_refused(make: Make, tmp_path: Path, out: Path) -> None:
    archive = make(tmp_path / "archive", {"a.bin": bytes(range(256)) * 100})
    whole = archive.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", whole[:60] + bytes(8) + whole[68:]):
        archive.write_bytes(damaged)
        with pytest.raises(DataError, match=r"cannot be unpacked: .+; delete it and fetch it again"):
            unpack(archive, out, ["a.bin"])
        assert names(out) == []


def test_a_tar_with_invalid_sizes_is_refused(tmp_path: Path, out: Path) -> None:
    """Python 3.11's tarfile raises a bare ValueError for such a pax header."""
    info = tarfile.TarInfo("a.txt")
    info.pax_headers = {"size": "x"}
    with tarfile.open(tmp_path / "a.tgz", "w:gz", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(info)
    with pytest.raises(DataError, match=r"cannot be unpacked|has no"):
        unpack(tmp_path / "a.tgz", out, ["wanted"])
