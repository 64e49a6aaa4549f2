"""Downloads from a local server: a wrong or partial file never appears under its final name."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from playerfl.data.download import file as module
from playerfl.data.download.file import UnreachableError, download
from playerfl.errors import DataError, StorageError
from web import Web, serving

CONTENT = bytes(range(256)) * 2000


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serving() as web:
        yield web


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_download_is_complete_and_reports_progress(web: Web, tmp_path: Path) -> None:
    url, sha256 = web.put("a.bin", CONTENT)
    steps: list[tuple[int, int | None]] = []
    download(url, tmp_path / "new" / "a.bin", sha256, len(CONTENT), lambda *step: steps.append(step))
    assert (tmp_path / "new" / "a.bin").read_bytes() == CONTENT
    assert names(tmp_path / "new") == ["a.bin"]
    assert [done for done, _ in steps] == sorted({done for done, _ in steps})
    assert steps[-1] == (len(CONTENT), len(CONTENT))
    assert web.asked == [("/a.bin", None)]


@pytest.mark.parametrize("says_length", [True, False])
def test_the_size_need_not_be_known(web: Web, tmp_path: Path, says_length: bool) -> None:
    web.says_length = says_length
    url, sha256 = web.put("a.bin", CONTENT)
    download(url, tmp_path / "a.bin", sha256)
    assert (tmp_path / "a.bin").read_bytes() == CONTENT


def test_a_wrong_hash_leaves_nothing(web: Web, tmp_path: Path) -> None:
    url, received = web.put("a.bin", CONTENT)
    with pytest.raises(DataError) as raised:
        download(url, tmp_path / "a.bin", "0" * 64, len(CONTENT))
    for text in ("a.bin", "0" * 64, received):
        assert text in str(raised.value)
    assert names(tmp_path) == []


@pytest.mark.parametrize("says_length", [True, False])
def test_a_cut_off_connection_is_continued_where_it_broke(web: Web, tmp_path: Path, says_length: bool) -> None:
    url, sha256 = web.put("a.bin", CONTENT)
    web.cut_after, web.says_length = 300_000, says_length
    with pytest.raises(DataError, match=r"was lost after 300,000 bytes .* run the same command again to continue"):
        download(url, tmp_path / "a.bin", sha256, len(CONTENT))
    assert names(tmp_path) == ["a.bin.part"]
    web.cut_after = None
    steps: list[int] = []
    download(url, tmp_path / "a.bin", sha256, len(CONTENT), lambda done, _: steps.append(done))
    assert (tmp_path / "a.bin").read_bytes() == CONTENT
    assert names(tmp_path) == ["a.bin"]
    assert web.asked[-1] == ("/a.bin", "bytes=300000-")
    assert steps[0] > 300_000


def test_a_server_that_ignores_ranges_is_read_from_the_start(web: Web, tmp_path: Path) -> None:
    url, sha256 = web.put("a.bin", CONTENT)
    (tmp_path / "a.bin.part").write_bytes(b"x" * 1000)
    web.knows_ranges = False
    download(url, tmp_path / "a.bin", sha256, len(CONTENT))
    assert (tmp_path / "a.bin").read_bytes() == CONTENT


def test_a_wrong_content_range_is_refused(web: Web, tmp_path: Path) -> None:
    url, sha256 = web.put("a.bin", CONTENT)
    (tmp_path / "a.bin.part").write_bytes(CONTENT[:1000])
    web.range_header = f"bytes 0-{len(CONTENT) - 1}/{len(CONTENT)}"
    with pytest.raises(DataError, match="sent a different part"):
        download(url, tmp_path / "a.bin", sha256, len(CONTENT))
    assert names(tmp_path) == []


def test_a_corrupt_partial_file_is_discarded(web: Web, tmp_path: Path) -> None:
    url, sha256 = web.put("a.bin", CONTENT)
    (tmp_path / "a.bin.part").write_bytes(b"x" * 1000)
    with pytest.raises(DataError, match="SHA-256"):
        download(url, tmp_path / "a.bin", sha256, len(CONTENT))
    download(url, tmp_path / "a.bin", sha256, len(CONTENT))
    assert names(tmp_path) == ["a.bin"]


@pytest.mark.parametrize("size", [len(CONTENT), None])
def test_a_complete_partial_file_is_only_checked(web: Web, tmp_path: Path, size: int | None) -> None:
    url, sha256 = web.put("a.bin", CONTENT)
    (tmp_path / "a.bin.part").write_bytes(CONTENT)
    download(url, tmp_path / "a.bin", sha256, size)
    assert names(tmp_path) == ["a.bin"]
    assert len(web.asked) == (size is None)


def test_a_partial_file_that_is_too_long_is_discarded(web: Web, tmp_path: Path) -> None:
    url, sha256 = web.put("a.bin", CONTENT)
    (tmp_path / "a.bin.part").write_bytes(CONTENT + b"x")
    download(url, tmp_path / "a.bin", sha256, len(CONTENT))
    assert (tmp_path / "a.bin").read_bytes() == CONTENT
    assert web.asked == [("/a.bin", None)]


@pytest.mark.parametrize("says_length", [True, False])
def test_reading_stops_after_too_many_bytes(web: Web, tmp_path: Path, says_length: bool) -> None:
    web.says_length = says_length
    url, sha256 = web.put("a.bin", CONTENT)
    with pytest.raises(DataError, match="sends more than the 1,000 bytes"):
        download(url, tmp_path / "a.bin", sha256, 1000)
    assert names(tmp_path) == []


def test_a_login_page_instead_of_the_file_is_deleted(web: Web, tmp_path: Path) -> None:
    url, _ = web.put("a.bin", b"<html>please log in</html>")
    with pytest.raises(DataError, match="SHA-256"):
        download(url, tmp_path / "a.bin", "0" * 64, len(CONTENT))
    assert names(tmp_path) == []


def test_an_unreachable_server_is_reported_and_leaves_nothing(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/a.bin"
        with pytest.raises(UnreachableError, match=r"cannot reach 127\.0\.0\.1 .*is there an internet connection"):
            download(url, tmp_path / "new" / "a.bin", "0" * 64)
    assert names(tmp_path) == []


def test_a_silent_server_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TIMEOUT_SECONDS", 0.2)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(UnreachableError, match="timed out"):
        download(f"http://127.0.0.1:{silent.getsockname()[1]}/a.bin", tmp_path / "a.bin", "0" * 64)
    assert names(tmp_path) == []


def test_a_missing_file_is_reported(web: Web, tmp_path: Path) -> None:
    with pytest.raises(UnreachableError, match="answers 404 Not Found"):
        download(f"{web.address}/absent", tmp_path / "a.bin", "0" * 64)


@pytest.mark.parametrize("url", ["file:///etc/hostname", "ftp://127.0.0.1/a", "data:,a", "a.bin"])
def test_only_http_and_https(url: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="only http and https"):
        download(url, tmp_path / "a.bin", "0" * 64)


def test_redirections_are_followed_to_the_web_only(web: Web, tmp_path: Path) -> None:
    for elsewhere in ("file:///etc/hostname", "ftp://127.0.0.1/a"):
        web.redirect_to = elsewhere
        with pytest.raises(UnreachableError):
            download(f"{web.address}/a", tmp_path / "a.bin", "0" * 64)
    assert names(tmp_path) == []
    with serving() as other:
        web.redirect_to, sha256 = other.put("b.bin", CONTENT)
        download(f"{web.address}/a", tmp_path / "a.bin", sha256)
    assert (tmp_path / "a.bin").read_bytes() == CONTENT


def test_a_full_disk_gives_one_sentence_and_the_download_can_be_continued(
    web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    url, sha256 = web.put("a.bin", CONTENT)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", refuse)
        with pytest.raises(
            StorageError, match=r"cannot write .*a\.bin: No space left on device; free some space and run"
        ):
            download(url, tmp_path / "a.bin", sha256, len(CONTENT))
    assert names(tmp_path) == ["a.bin.part"]
    download(url, tmp_path / "a.bin", sha256, len(CONTENT))
    assert names(tmp_path) == ["a.bin"]
