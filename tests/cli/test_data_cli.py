"""`playerfl data` as a new user meets it."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from command_line import playerfl, refused
from own_data import table
from playerfl.data.download.sources import SOURCES, RemoteFile
from web import Web, serving


@pytest.fixture(autouse=True)
def plain_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No data anywhere, and no proxy for this machine."""
    monkeypatch.setenv("PLAYERFL_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setitem(SOURCES, "fashion_mnist", replace(SOURCES["fashion_mnist"], other_places=()))


CONTENT = b"1,2,3\n" * 1000


def offer(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    file = RemoteFile("processed.va.data", url, hashlib.sha256(CONTENT).hexdigest(), len(CONTENT))
    monkeypatch.setitem(SOURCES, "heart", replace(SOURCES["heart"], files=(file,), layouts=((file.path,),)))


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    """A server that holds the heart data."""
    with serving() as web:
        offer(monkeypatch, web.put("va", CONTENT)[0])
        yield web


def test_the_list_says_what_is_here_and_how_to_get_the_rest(tmp_path: Path) -> None:
    (tmp_path / "data" / "airline_tweets").mkdir(parents=True)
    (tmp_path / "data" / "airline_tweets" / "Tweets.csv").write_bytes(b"x" * 1234)
    output = playerfl("data", "list", cwd=tmp_path)
    assert output.returncode == 0
    assert output.stderr == ""
    for name, source in SOURCES.items():
        assert name in output.stdout
        assert source.licence.split()[0] in output.stdout
    for text in ("yes", "1.2 kB", "170.1 MB", "playerfl data fetch cifar10", "https://archive.ics.uci.edu/dataset/45"):
        assert text in output.stdout


def test_the_list_as_json(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "airline_tweets").mkdir(parents=True)
    (elsewhere / "airline_tweets" / "Tweets.csv").write_bytes(b"x" * 1234)
    listed = json.loads(playerfl("data", "list", "--json", "--data-dir", elsewhere, cwd=tmp_path).stdout)
    assert listed["directory"] == str(elsewhere)
    datasets = {dataset["name"]: dataset for dataset in listed["datasets"]}
    assert datasets.keys() == SOURCES.keys()
    tweets, heart = datasets["tweets"], datasets["heart"]
    assert (tweets["present"], tweets["bytes"], tweets["folder"]) == (True, 1234, str(elsewhere / "airline_tweets"))
    assert (heart["present"], heart["bytes"], heart["download_bytes"]) == (False, None, 39570)
    assert heart["licence"] == "CC BY 4.0"
    assert heart["commands"] == ["playerfl data fetch heart"]
    assert str(elsewhere / "heart") in heart["by_hand"]


@pytest.mark.usefixtures("web")
def test_fetch_prints_the_folder_and_shows_progress_on_stderr(tmp_path: Path) -> None:
    output = playerfl("data", "fetch", "heart", cwd=tmp_path)
    assert output.returncode == 0, output.stderr
    assert output.stdout == f"{tmp_path / 'data' / 'heart'}\n"
    assert "processed.va.data: 6,000 of 6,000 bytes" in output.stderr
    assert "licence of heart: CC BY 4.0" in output.stderr
    assert (tmp_path / "data" / "heart" / "processed.va.data").read_bytes() == CONTENT


@pytest.mark.usefixtures("web")
def test_fetch_draws_a_bar_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(io, "StringIO", Terminal)
    monkeypatch.setenv("TERM", "xterm")
    output = playerfl("data", "fetch", "heart", "--data-dir", "here", cwd=tmp_path)
    assert output.returncode == 0, output.stderr
    assert "━" in output.stderr
    assert "6.0/6.0 kB" in output.stderr
    assert output.stdout.strip() == str(Path("here") / "heart")


def test_a_wrong_file_and_a_broken_connection_are_one_sentence(tmp_path: Path, web: Web) -> None:
    fetch = partial(playerfl, "data", "fetch", "heart", "--quiet", cwd=tmp_path)
    web.put("va", CONTENT[:-1] + b"x")
    assert "instead of" in refused(fetch())
    assert not (tmp_path / "data" / "heart").exists()
    web.put("va", CONTENT)
    web.cut_after = 1000
    assert "was lost after 1,000 bytes" in refused(fetch())
    web.cut_after = None
    assert fetch().returncode == 0
    assert web.asked[-1] == ("/va", "bytes=1000-")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("fetch", "heart"), "cannot reach 127.0.0.1"),
        (("fetch", "hart"), "unknown dataset 'hart'; did you mean 'heart'?"),
        (("fetch", "mimic3"), "dataset 'mimic3' cannot be downloaded directly; by hand:"),
        (("fetch", "emnist", "--hub"), "dataset 'emnist' has no copy on the hub; playerfl data fetch emnist"),
        (("fetch",), "Missing argument"),
        (("fetch", "heart", "--data-dir", "file"), "cannot write file/heart"),
        (("find",), "No such command"),
    ],
)
def test_bad_input_gets_one_sentence_and_exit_code_2(
    arguments: tuple[str, ...], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(monkeypatch, "http://127.0.0.1:1/va")
    (tmp_path / "file").write_text("x")
    text = refused(playerfl("data", *arguments, cwd=tmp_path))
    assert sentence in text
    assert "by hand:" in text or "cannot reach" not in text


@pytest.mark.slow
def test_plot_draws_a_partition(tmp_path: Path) -> None:
    output = playerfl("data", "plot", "digits", "--set", "data.alpha=0.1", "--out", "d.svg", cwd=tmp_path)
    assert output.returncode == 0, output.stderr
    drawn = (tmp_path / "d.svg").read_text()
    assert output.stdout == "d.svg\n"
    assert "site-4" in drawn or "<svg" in drawn
    assert "unknown figure format" in refused(playerfl("data", "plot", "digits", "--out", "d.doc", cwd=tmp_path))
    assert "unknown task" in refused(playerfl("data", "plot", "digit", cwd=tmp_path))


def test_what_the_check_warned_about_is_in_the_report(tmp_path: Path) -> None:
    for name, seed in (("north", 1), ("south", 2)):
        rows = table(seed=seed)
        if name == "south":
            rows["outcome"] = rows["outcome"].astype(str).str.upper()
        (tmp_path / "clinics").mkdir(exist_ok=True)
        rows.to_csv(tmp_path / "clinics" / f"{name}.csv", index=False)
    run = playerfl("run", "clinics", "-a", "fedavg", "--rounds", "1", "--out", "out", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    (warnings,) = [json.loads(file.read_text())["warnings"] for file in (tmp_path / "out").rglob("data.json")]
    assert any("look like the same value" in warning for warning in warnings)
    assert playerfl("report", "out", cwd=tmp_path).returncode == 0
    page = (tmp_path / "out" / "report" / "report.html").read_text()
    assert "What the data check of" in page and "look like the same value" in page
