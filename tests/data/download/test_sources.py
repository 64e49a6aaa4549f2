"""Where datasets are looked for, and how they are fetched."""

from __future__ import annotations

import errno
import fcntl
import gzip
import hashlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from urllib.parse import urlsplit

import pytest

from archives import make_tar, make_zip
from playerfl.data.download.directory import use_data_directory
from playerfl.data.download.fetch import fetch
from playerfl.data.download.sources import SOURCES, RemoteFile, folder_of
from playerfl.errors import DataError
from web import Web, serving


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty data directory, on a machine without Debian's packages."""
    monkeypatch.setitem(SOURCES, "fashion_mnist", replace(SOURCES["fashion_mnist"], other_places=()))
    with use_data_directory(tmp_path / "data"):
        yield tmp_path / "data"


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serving() as web:
        yield web


def place(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x")
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def offer(monkeypatch: pytest.MonkeyPatch, name: str, *files: RemoteFile) -> None:
    monkeypatch.setitem(SOURCES, name, replace(SOURCES[name], files=files))


def test_the_table_is_complete_and_pinned() -> None:
    assert set(SOURCES) == {
        "fashion_mnist", "emnist", "cifar10", "isic2019", "heart", "sent140", "mimic3", "tweets",
    }  # fmt: skip
    for source in SOURCES.values():
        assert all((source.about, source.licence, source.by_hand)), source.name
        assert "{folder}" in source.by_hand
        assert urlsplit(source.page).scheme in ("http", "https")
        for file in source.files:
            assert urlsplit(file.url).scheme in ("http", "https")
            assert re.fullmatch("[0-9a-f]{64}", file.sha256)
            assert file.size > 0
    pins = [file.sha256 for source in SOURCES.values() for file in source.files]
    assert len(pins) == len(set(pins)) == 11


EMNIST_TEST = ("emnist-byclass-test-images-idx3-ubyte.gz", "emnist-byclass-test-labels-idx1-ubyte.gz")


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("fashion_mnist", ("fashion-mnist/train-images-idx3-ubyte", "fashion-mnist/train-labels-idx1-ubyte.gz")),
        ("emnist", tuple(f"emnist/{file}" for file in EMNIST_TEST)),
        ("emnist", tuple(f"emnist/{file.replace('test', 'train').removesuffix('.gz')}" for file in EMNIST_TEST)),
        ("cifar10", ("cifar10/data_batch_1.bin",)),
        ("cifar10", ("cifar10/cifar-10-batches-bin/data_batch_1.bin",)),
        ("cifar10", ("cifar10/data_batch_sub10000.bin.gz",)),
        ("cifar10", ("cifar10/train.parquet",)),
        ("isic2019", ("ham10000/fed_ham10000_labels.csv", "ham10000/ham10000_64x64_jpg.zip")),
        ("isic2019", ("ham10000/train_test_split.csv", "ham10000/ISIC_2019_Training_Input_preprocessed/a.jpg")),
        ("heart", tuple(f"heart/processed.{name}.data" for name in ("cleveland", "hungarian", "switzerland", "va"))),
        ("sent140", ("sent140/testdata.manual.2009.06.14.csv",)),
        ("mimic3", ("mimic3/ADMISSIONS.csv", "mimic3/NOTEEVENTS.csv.gz")),
        ("tweets", ("airline_tweets/Tweets.csv",)),
    ],
)
def test_a_dataset_is_there_once_all_its_files_are(name: str, files: tuple[str, ...], directory: Path) -> None:
    for number in range(len(files)):
        place(directory, *files[:number])
        with pytest.raises(DataError, match=f"dataset '{name}' is not in"):
            folder_of(name)
    place(directory, *files)
    assert folder_of(name) == directory / files[0].split("/")[0]


def test_partial_files_do_not_count(directory: Path) -> None:
    place(directory, "cifar10/data_batch_1.bin.part", "airline_tweets/Tweets.csv.part", "cifar10/data_batch_2.bin/x")
    for name in ("cifar10", "tweets"):
        with pytest.raises(DataError):
            folder_of(name)


def test_the_error_for_a_missing_dataset_says_how_to_get_it(directory: Path) -> None:
    with pytest.raises(DataError) as raised:
        folder_of("heart")
    assert str(raised.value).startswith(
        f"dataset 'heart' is not in {directory / 'heart'}; playerfl data fetch heart, or by hand: download"
    )
    assert f"into {directory / 'heart'}" in str(raised.value)
    with pytest.raises(DataError, match="playerfl data fetch isic2019 --hub, or by hand"):
        folder_of("isic2019")
    with pytest.raises(DataError, match=r"is not in .*mimic3; by hand: become a credentialed user"):
        folder_of("mimic3")
    with pytest.raises(DataError, match="unknown dataset 'hart'; did you mean 'heart'"):
        folder_of("hart")


def test_debians_fashion_mnist_comes_after_the_users(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    debian = tmp_path / "usr"
    monkeypatch.setitem(SOURCES, "fashion_mnist", replace(SOURCES["fashion_mnist"], other_places=(debian,)))
    with pytest.raises(DataError, match=f"is not in {directory / 'fashion-mnist'} nor in {debian};"):
        folder_of("fashion_mnist")
    files = ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz")
    place(debian, *files)
    assert folder_of("fashion_mnist") == debian
    assert fetch("fashion_mnist") == debian
    # Copies from the hub count, but do not hide files in their original form.
    own = place(directory / "fashion-mnist", "train.parquet")
    assert folder_of("fashion_mnist") == debian
    place(own, *files)
    assert folder_of("fashion_mnist") == own


def test_plain_files_are_fetched_once(web: Web, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [RemoteFile(f"{name}.data", *web.put(f"{name}.data", name.encode()), len(name)) for name in ("one", "two")]
    offer(monkeypatch, "heart", *files)
    steps: list[tuple[str, int, int | None]] = []
    for _ in range(2):
        assert fetch("heart", lambda *step: steps.append(step)) == directory / "heart"
    assert steps == [("one.data", 3, 3), ("two.data", 3, 3)]
    assert names(directory / "heart") == ["one.data", "two.data"]


@pytest.mark.parametrize(("make", "ending"), [(make_zip, "zip"), (make_tar, "tar.gz")])
def test_archives_are_unpacked_and_deleted(
    make: Callable[[Path, dict[str, bytes]], Path],
    ending: str,
    web: Web,
    directory: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    content = make(tmp_path / "a", {"in/data_batch_1.bin": b"one", "in/readme": b""}).read_bytes()
    file = RemoteFile(f"a.{ending}", *web.put("a", content), len(content), members=("in/data_batch_1.bin",))
    offer(monkeypatch, "cifar10", file)
    assert fetch("cifar10") == folder_of("cifar10") == directory / "cifar10"
    assert names(directory / "cifar10") == ["data_batch_1.bin"]
    fetch("cifar10")
    assert len(web.asked) == 1


def test_an_archive_placed_by_hand_is_checked_and_unpacked(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = make_zip(tmp_path / "a", {"Tweets.csv": b"one"}).read_bytes()
    file = RemoteFile(
        "a.zip", "http://127.0.0.1:1/a.zip", hashlib.sha256(content).hexdigest(), len(content), ("Tweets.csv",)
    )
    offer(monkeypatch, "tweets", file)
    archive = place(directory / "airline_tweets", "a.zip") / "a.zip"
    with pytest.raises(DataError, match=r"a\.zip has the SHA-256 .* move it away to fetch the official file"):
        fetch("tweets")
    assert archive.read_bytes() == b"x"
    archive.write_bytes(content)
    assert names(fetch("tweets")) == ["Tweets.csv"]


def test_without_internet_the_manual_instructions_are_shown(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    offer(monkeypatch, "heart", RemoteFile("a", "http://127.0.0.1:1/a", "0" * 64, 1))
    with pytest.raises(DataError, match=r"cannot reach 127\.0\.0\.1 .*; by hand: download .* into .*heart$"):
        fetch("heart")
    assert names(directory) == []


def test_a_broken_off_fetch_is_continued(web: Web, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = gzip.compress(os.urandom(200_000))
    offer(monkeypatch, "heart", RemoteFile("a", *web.put("a", content), len(content)))
    web.cut_after = 100_000
    with pytest.raises(DataError, match="run the same command again"):
        fetch("heart")
    web.cut_after = None
    assert names(fetch("heart")) == ["a"]
    assert web.asked == [("/a", None), ("/a", "bytes=100000-")]


def test_datasets_that_cannot_be_downloaded_name_the_other_ways(directory: Path) -> None:
    with pytest.raises(DataError, match="'mimic3' cannot be downloaded directly; by hand: become"):
        fetch("mimic3")
    with pytest.raises(
        DataError, match=r"'isic2019' cannot be downloaded directly; playerfl data fetch isic2019 --hub, or by hand"
    ):
        fetch("isic2019")
    with pytest.raises(DataError, match="'heart' has no copy on the hub; playerfl data fetch heart, or by hand"):
        fetch("heart", hub=True)
    assert not directory.exists()


def test_two_processes_do_not_fill_one_folder(directory: Path) -> None:
    (directory / "heart").mkdir(parents=True)
    held = os.open(directory / "heart", os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    try:
        with pytest.raises(DataError, match="is in use by another process"):
            fetch("heart")
    finally:
        os.close(held)


def test_a_full_disk_says_to_free_space(web: Web, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    offer(monkeypatch, "heart", RemoteFile("a", *web.put("a", b"content"), len(b"content")))
    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(DataError, match=r"free some space and run the same command again, perhaps .* --data-dir$"):
        fetch("heart")


def test_an_impossible_data_directory_gives_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with use_data_directory(tmp_path / "file"), pytest.raises(DataError, match=r"cannot write .* another --data-dir"):
        fetch("heart")


class FakeRows:
    """The part of a `datasets` dataset that is used."""

    def __init__(self, content: bytes | Exception) -> None:
        self.content = content

    def to_parquet(self, path: str) -> None:
        Path(path).write_bytes(b"half")
        if isinstance(self.content, Exception):
            raise self.content
        Path(path).write_bytes(self.content)


def fake_datasets(monkeypatch: pytest.MonkeyPatch, available: dict[str, FakeRows] | Exception) -> list[object]:
    calls: list[object] = []

    def load_dataset(*arguments: object, **options: object) -> dict[str, FakeRows]:
        calls.append((arguments, options))
        if isinstance(available, Exception):
            raise available
        return available

    module = ModuleType("datasets")
    module.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    return calls


def test_hub_copies_are_read_as_parquet_and_nothing_else(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = fake_datasets(monkeypatch, {"train": FakeRows(b"many"), "test": FakeRows(b"few")})
    assert fetch("cifar10", hub=True) == folder_of("cifar10") == directory / "cifar10"
    assert {path.name: path.read_bytes() for path in (directory / "cifar10").iterdir()} == {
        "train.parquet": b"many",
        "test.parquet": b"few",
    }
    branch = "hf://datasets/uoft-cs/cifar10@refs/convert/parquet"
    files = {split: f"{branch}/*/{split}/*.parquet" for split in ("train", "test")}
    assert calls == [(("parquet",), {"data_files": files})]


@pytest.mark.parametrize(
    "available",
    [ConnectionError("offline\nmore"), {"train": FakeRows(OSError(28, "No space left")), "test": FakeRows(b"")}],
)
def test_a_hub_copy_that_fails_leaves_nothing(
    available: dict[str, FakeRows] | Exception, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_datasets(monkeypatch, available)
    with pytest.raises(
        DataError, match=r"cannot copy uoft-cs/cifar10 from the Hugging Face Hub \(.*\); by hand: "
    ) as raised:
        fetch("cifar10", hub=True)
    assert "\n" not in str(raised.value)
    assert names(directory) == []


def test_the_hub_needs_its_extra(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"needs the library datasets; pip install 'playerfl\[hub\]'"):
        fetch("cifar10", hub=True)
    # Python also imports a folder called datasets in the working directory, which is not the library.
    monkeypatch.setitem(sys.modules, "datasets", ModuleType("datasets"))
    with pytest.raises(DataError, match="needs the library datasets"):
        fetch("cifar10", hub=True)
