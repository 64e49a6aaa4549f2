"""docs/adapters.md is true: its commands on a small stand-in for the tweets, its Python, and its bytes."""

from __future__ import annotations

import runpy
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import documented
import playerfl as package
from command_line import playerfl
from documented import ROOT
from playerfl.data.download.directory import data_directory

pytestmark = [pytest.mark.system, pytest.mark.filterwarnings("ignore::FutureWarning")]
pytest.importorskip("peft", reason="peft is not installed; pip install 'playerfl[adapters]'")

from adapters import peft_models  # noqa: E402
from tasks.test_tweets import made_up, write  # noqa: E402

PAGE = (ROOT / "docs" / "adapters.md").read_text(encoding="utf-8")
EXAMPLE = ROOT / "examples" / "lora_tweets.py"
LAYERS, RUN, PRETRAINED, *_ = (
    shlex.split(line, comments=True)[1:]
    for block in documented.blocks(PAGE, "")
    for line in block.replace("\\\n", " ").splitlines()
    if line.startswith("playerfl ")
)
FROM_CONFIG, FROM_HUB = documented.blocks(PAGE, "python")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("reader")
    shutil.copytree(ROOT / "examples", place / "examples")
    write(place, made_up())
    return place


@pytest.fixture(autouse=True)
def few_tweets(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("playerfl.tasks.bundled.tweets.folder_of", lambda name: place)


def test_the_commands_print_what_is_sent_beside_full_fine_tuning(place: Path) -> None:
    layers = playerfl(*LAYERS, cwd=place)
    assert layers.returncode == 0, layers.stderr
    assert "full fine-tuning would send" in layers.stdout
    small = ["--set", "training.batch_size=8", "--set", "data.accept_small_sites=true", "-q"]
    output = playerfl(*RUN, *small, cwd=place)
    assert output.returncode == 0, output.stderr
    shown = " ".join(output.stdout.split())
    assert "From a site per round: fedavg 9.0 kB, fedsa_lora 4.1 kB, ffa_lora 4.9 kB, player_fl 8.2 kB." in shown
    assert "Full fine-tuning would send 2.9 MB" in shown
    for method in ("fedavg", "fedsa_lora", "ffa_lora", "player_fl"):
        result = package.load_result(place / "runs" / "adapters" / method)
        in_a_round = {int(row[4]) for row in result.traffic_rows if "fit" in str(row[2])}
        assert len(in_a_round) == 1
        row = next(
            line
            for line in PAGE.splitlines()
            if line.startswith(f"| `{method}`")
            and "," in line
            and "000" not in line
            and line.split("|")[2].strip()[0].isdigit()
        )
        assert f" {in_a_round.pop():,} |" in row
        assert f"| full fine-tuning | {result.full_fine_tuning_bytes:,} |" in PAGE
    export = playerfl("export", "runs/adapters/fedsa_lora", "--site", "Delta", "--out", "model", cwd=place)
    assert "differs from the trained one by at most 0\n" in export.stderr, export.stderr


def test_the_model_shown_is_that_of_the_example() -> None:
    example = runpy.run_path(str(EXAMPLE))
    names: dict[str, Any] = {"bert": example["bert"]}
    exec(FROM_CONFIG, names)
    torch.manual_seed(0)
    left = names["make_model"]()
    torch.manual_seed(0)
    right = example["make_model"]()
    assert left.state_dict().keys() == right.state_dict().keys()
    assert all(torch.equal(w, right.state_dict()[name]) for name, w in left.state_dict().items())


def test_a_pretrained_model_with_its_tokenizer(place: Path) -> None:
    """The way of a user with a hub, from the download on: `bert` is such a folder, but made up."""
    from data.readers.test_text import tokenizer_file

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "late", "again", "number", *"0123456789", "negative", "positive"]
    peft_models.bert(len(words), 64).save_pretrained(place / "bert")
    tokenizer_file(place / "bert", {word: i for i, word in enumerate(words)})
    (place / "mymodel.py").write_text(FROM_HUB, encoding="utf-8")
    small = ["--rounds", "1", "--set", "training.batch_size=8", "--set", "data.accept_small_sites=true", "-q"]
    output = playerfl(*PRETRAINED, *small, cwd=place)
    assert output.returncode == 0, output.stderr
    shown = " ".join(output.stdout.split())
    assert "From a site per round: fedavg" in shown and "Full fine-tuning would send" in shown


@pytest.mark.skipif(
    not (data_directory() / "airline_tweets" / "Tweets.csv").exists(), reason="$PLAYERFL_DATA has no tweets"
)
def test_the_real_tweets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    result = package.run(
        "tweets",
        "fedsa_lora",
        rounds=1,
        out=tmp_path / "run",
        settings={"model": f"{EXAMPLE}:make_model", "data.length": 16, "training.learning_rate": 0.002},
    )
    assert len(result.sites) == 6
    losses = result.scores.query("split == 'train' and metric == 'loss'")["value"]
    assert losses.max() < 1.2
    assert result.bytes_up_per_round == 4096
