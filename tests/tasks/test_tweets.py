"""Airline tweets: sites by airline, three sentiments, and the real file if it is available."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch

import playerfl
from playerfl.data.examples import TensorExamples
from playerfl.data.sites import Sites, describe
from playerfl.errors import ConfigError, DataError
from playerfl.layers.layer_map import LayerMap
from playerfl.runs.experiment import Experiment
from playerfl.tasks.bundled.tweets import AIRLINES, TASK, TweetsOptions, load_sites
from real_data import needs

HEADER = (
    "tweet_id,airline_sentiment,airline_sentiment_confidence,negativereason,negativereason_confidence,airline,"
    "airline_sentiment_gold,name,negativereason_gold,retweet_count,text,tweet_coord,tweet_created,tweet_location,"
    "user_timezone"
)
SENTIMENTS = ("negative", "neutral", "positive")


def row(airline: str, sentiment: str, text: str) -> list[str]:
    cells = dict.fromkeys(HEADER.split(","), "")
    cells |= {"tweet_id": "570306133677761000", "retweet_count": "0", "name": "cairdin"}
    cells |= {"airline": airline, "airline_sentiment": sentiment, "text": text}
    return list(cells.values())


def made_up(rows_each: int = 30) -> list[list[str]]:
    return [
        row(airline, SENTIMENTS[i % 3], f'@{airline} "late, again"\nnumber {i} {SENTIMENTS[i % 3]}')
        for i in range(rows_each)
        for airline in reversed(AIRLINES)
    ]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("playerfl.tasks.bundled.tweets.folder_of", lambda name: tmp_path)
    return tmp_path


def write(folder: Path, rows: list[list[str]], header: str = HEADER) -> None:
    with (folder / "Tweets.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header.split(","), *rows])


def class_counts(sites: Sites) -> dict[str, list[int]]:
    counts = {}
    for site, data in sites.items():
        parts = [part for part in data.__dict__.values() if isinstance(part, TensorExamples)]
        counts[site] = torch.cat([part.targets for part in parts]).bincount(minlength=3).tolist()
    return counts


def test_sites_are_airlines_and_labels_sentiments(folder: Path) -> None:
    write(folder, [*made_up(), row("Delta", "positive", "extra")])
    sites = load_sites(TweetsOptions(length=16))
    assert tuple(sites) == AIRLINES == tuple(sorted(AIRLINES))
    assert class_counts(sites) == {airline: [10, 10, 11 if airline == "Delta" else 10] for airline in AIRLINES}
    train = sites["Delta"].train
    assert isinstance(train, TensorExamples)
    assert isinstance(train.inputs, torch.Tensor)
    assert train.inputs.shape == (len(train), 16)
    assert sites.notes == (
        "airline tweets instead of Sent-140; not a dataset of the paper",
        "hashed word vocabulary of 10,000 ids instead of BERT word pieces",
    )


def test_loading_twice_gives_the_same(folder: Path) -> None:
    write(folder, made_up())
    first, second = (describe(load_sites(TweetsOptions(length=16)), classification=True) for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    ("rows", "header", "message"),
    [
        (
            made_up(),
            HEADER.replace("airline_sentiment,", "mood,"),
            r"Tweets\.csv lacks the column airline_sentiment; it",
        ),
        (
            [*made_up(3), row("Delta", "angry", "x")],
            HEADER,
            r"row 19 \(line 38\), column airline_sentiment: 'angry' is not allowed; allowed: negative, neutral, pos",
        ),
        (
            [row("../Ryanair", "neutral", "x")],
            HEADER,
            r"row 1 \(line 2\), column airline: '../Ryanair' is not allowed; ",
        ),
        (made_up(0), HEADER, "American has no text in this file, and every site needs some"),
        (
            [r for r in made_up() if "United" not in r],
            HEADER,
            "United has no text in this file, and every site needs some",
        ),
        ([["1", "2"]], HEADER, r"Tweets\.csv, row 1 \(line 2\) has 2 columns instead of 15"),
        (made_up(2), HEADER, "American: a site needs at least 3 examples, one for each part, not 2"),
    ],
    ids=["column missing", "sentiment", "airline", "no rows", "empty site", "cut off", "two tweets"],
)
def test_malformed_files(folder: Path, rows: list[list[str]], header: str, message: str) -> None:
    write(folder, rows, header)
    with pytest.raises(DataError, match=message) as problem:
        load_sites(TweetsOptions())
    assert "\n" not in str(problem.value)


def test_a_folder_without_the_file(folder: Path) -> None:
    with pytest.raises(DataError, match=r"has no Tweets\.csv, plain or with \.gz; put it there"):
        load_sites(TweetsOptions())


def test_defaults_and_description() -> None:
    experiment = Experiment.resolve({"algorithm": "player_fl"}, TASK)
    assert (experiment.rounds, experiment.training.learning_rate, experiment.training.batch_size) == (20, 5e-4, 64)
    assert (experiment.data["size"], experiment.data["length"], experiment.data["vocabulary"]) == ("small", 64, 10_000)
    assert TASK.paper is None
    assert "a substitute for Sent-140, not in the paper" in TASK.about


@pytest.mark.parametrize(("size", "width", "hidden"), [("paper", 768, 3072), ("small", 192, 768), ("tiny", 32, 128)])
def test_widths(size: str, width: int, hidden: int) -> None:
    model = TASK.build_model(TweetsOptions.model_validate({"size": size, "vocabulary": 100}))
    assert model.get_parameter("fc1.weight").shape == (hidden, width)
    assert model.get_parameter("tokens.weight").shape == (100, width)
    assert model.get_parameter("positions.weight").shape == (64, width)
    assert model.get_parameter("head.weight").shape == (3, width)


def test_kaiming_embeddings_have_unit_length() -> None:
    model = TASK.build_model(TweetsOptions(size="tiny", vocabulary=100, init="kaiming"))
    lengths = model.get_parameter("tokens.weight").detach().norm(dim=1)
    assert lengths[0] == 0
    torch.testing.assert_close(lengths[1:], torch.ones(99))


def test_a_round_of_player_fl(folder: Path) -> None:
    write(folder, made_up())
    small = {"data.size": "tiny", "data.length": 16, "data.vocabulary": 200, "training.batch_size": 8}
    result = playerfl.run(TASK, "player_fl", rounds=1, settings=small)
    assert result.sites == list(AIRLINES)
    assert result.cut is not None
    assert result.cut.layers == LayerMap.of(result.model("Delta")).names
    assert result.scores["value"].notna().all()
    assert result.data["notes"][1] == "hashed word vocabulary of 200 ids instead of BERT word pieces"


@pytest.mark.parametrize(("key", "value"), [("vocabulary", 2), ("length", 1), ("length", 10**9), ("airline", "Delta")])
def test_options_that_are_not_allowed(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=key):
        Experiment.resolve({"algorithm": "fedavg", "data": {key: value}}, TASK)


def test_a_custom_tokenizer(folder: Path) -> None:
    pytest.importorskip("tokenizers", reason="the extra 'text' is not installed")
    write(folder, made_up())
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text("[PAD]\n[UNK]\nlate\nagain\nnegative\nneutral\npositive\n", encoding="utf-8")
    options = TweetsOptions(size="tiny", length=16, tokenizer=str(vocabulary))
    sites = load_sites(options)
    assert sites.notes[1].startswith("7 word pieces of vocab.txt")
    assert TASK.build_model(options).get_parameter("tokens.weight").shape == (9, 32)


@pytest.mark.slow
@needs("tweets")
def test_the_real_tweets() -> None:
    sites = load_sites(TweetsOptions())
    assert {site: sum(counts) for site, counts in class_counts(sites).items()} == {
        "American": 2759,
        "Delta": 2222,
        "Southwest": 2420,
        "US Airways": 2913,
        "United": 3822,
        "Virgin America": 504,
    }
    assert [sum(counts) for counts in zip(*class_counts(sites).values(), strict=True)] == [9178, 3099, 2363]
