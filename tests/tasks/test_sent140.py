"""Sentiment140: users ranked by tweets, polarity as class, in the original's layout: no header, quoted, latin-1."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import torch

import playerfl
from playerfl.data.download.sources import folder_of
from playerfl.data.examples import TensorExamples
from playerfl.data.sites import Sites
from playerfl.errors import ConfigError, DataError
from playerfl.layers.layer_map import LayerMap
from playerfl.learning.losses import cross_entropy
from playerfl.runs.experiment import Experiment
from playerfl.tasks.bundled.sent140 import TASK, Sent140Options, busiest_users, load_sites, read_tweets
from real_data import needs

TRAINING, TEST = "training.1600000.processed.noemoticon.csv", "testdata.manual.2009.06.14.csv"


def tweet(user: str, polarity: str = "0", text: str = "so sad") -> list[str]:
    return [polarity, "1467810369", "Mon Apr 06 22:19:45 PDT 2009", "NO_QUERY", user, text]


def tweets_of(**counts: int) -> list[list[str]]:
    """Tweets of each user, every other one positive."""
    return [
        tweet(user, "04"[i % 2], f'"hi", said café {i}, {"glad" if i % 2 else "sad"}')
        for user, count in counts.items()
        for i in range(count)
    ]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("playerfl.tasks.bundled.sent140.folder_of", lambda name: tmp_path)
    return tmp_path


def write(folder: Path, rows: list[list[str]], name: str = TRAINING) -> Path:
    with (folder / name).open("w", encoding="latin-1", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows(rows)
    return folder / name


def labels(sites: Sites, user: str) -> list[int]:
    parts = [part for part in sites[user].__dict__.values() if isinstance(part, TensorExamples)]
    return sorted(torch.cat([part.targets for part in parts]).tolist())


def load(**options: Any) -> Sites:
    return load_sites(Sent140Options(length=12, **options))


def test_the_busiest_users_are_ranked_and_ties_go_by_name(folder: Path) -> None:
    file = write(folder, tweets_of(rare=3, zoe=6, busy=9, Ann=6, bob=6, once=1))
    assert list(busiest_users(file, 1, 3).items()) == [("busy", 9), ("Ann", 6), ("bob", 6)]
    assert list(busiest_users(file, 4, 5).items()) == [("zoe", 6), ("rare", 3)]
    assert list(busiest_users(file, 2, 2)) == ["Ann"]


def test_sites_are_the_users_of_the_chosen_ranks_by_name(folder: Path) -> None:
    write(folder, tweets_of(rare=3, zoe=6, busy=9, Ann=7))
    sites = load(first_rank=2, last_rank=4)
    assert list(sites) == ["Ann", "rare", "zoe"]
    assert {user: len(labels(sites, user)) for user in sites} == {"Ann": 7, "rare": 3, "zoe": 6}
    assert sites.notes == (
        "users ranked 2 to 4 by number of tweets",
        "hashed word vocabulary of 10,000 ids instead of BERT word pieces",
    )


def test_0_is_negative_4_is_positive_and_2_is_left_out(folder: Path) -> None:
    rows = [tweet("ann", polarity) for polarity in "00444"] + [tweet("bob", p) for p in "2222220000"]
    file = write(folder, rows)
    assert busiest_users(file, 1, 2) == {"ann": 5, "bob": 4}
    sites = load(last_rank=2)
    assert labels(sites, "ann") == [0, 0, 1, 1, 1]
    assert labels(sites, "bob") == [0, 0, 0, 0]
    assert "users with tweets of one class only: bob" in sites.notes


def test_texts_are_latin_1_with_quotes_and_commas(folder: Path) -> None:
    file = write(folder, tweets_of(ann=1))
    assert [tweet.text for tweet in read_tweets(file)] == ['"hi", said café 0, sad']


def test_the_training_file_comes_first(folder: Path) -> None:
    write(folder, tweets_of(tester=5), TEST)
    assert list(load(last_rank=1)) == ["tester"]
    write(folder, tweets_of(trainer=5))
    assert list(load(last_rank=1)) == ["trainer"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([tweet("ann", "positive")], r"row 1 \(line 1\), column polarity: 'positive' is not allowed; allowed: 0, 4"),
        ([tweet("ann"), tweet("ann")[:5]], r"csv, row 2 \(line 2\) has 5 columns instead of 6"),
        ([["a", "b"]], r"csv, row 1 \(line 1\) has 2 columns instead of 6"),
        ([], r"csv has tweets by 0 users; data\.last_rank = 2 is too large"),
        (tweets_of(ann=5), r"csv has tweets by 1 users; data\.last_rank = 2 is too large"),
        (tweets_of(ann=5, bob=2), r"the user of rank 2 has only 2 tweets in .*, but a site needs 3; choose other"),
    ],
    ids=["text for a number", "column missing", "another table", "empty", "too few users", "too few tweets"],
)
def test_malformed_files(folder: Path, rows: list[list[str]], message: str) -> None:
    write(folder, rows)
    with pytest.raises(DataError, match=message) as problem:
        load(last_rank=2)
    assert "\n" not in str(problem.value)


def test_a_folder_without_the_files(folder: Path) -> None:
    with pytest.raises(DataError, match=r"has no training\.1600000\.processed\.noemoticon\.csv or testdata\."):
        load()


def test_ranks_that_are_not_in_order_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"last_rank = 3 .* is not allowed: .* at least first_rank, 36"):
        Experiment.resolve({"data": {"first_rank": 36, "last_rank": 3}}, TASK)


def test_defaults_are_the_papers() -> None:
    experiment = Experiment.resolve({"algorithm": "player_fl"}, TASK)
    assert (experiment.rounds, experiment.training.learning_rate, experiment.training.batch_size) == (75, 8e-5, 128)
    assert Experiment.resolve({"algorithm": "fedavg"}, TASK).training.learning_rate == 1e-3
    options = Sent140Options()
    assert (options.first_rank, options.last_rank, options.vocabulary, options.length) == (1, 15, 10_000, 119)
    assert TASK.loss is cross_entropy
    sizes = LayerMap.of(TASK.build_model(options)).num_parameters
    assert list(sizes.values()) == [10_000 * 768 + 91_392, 2_360_064, 4_722_432, 1_538]


def test_a_round_of_player_fl_with_a_user_of_one_class(folder: Path) -> None:
    write(folder, tweets_of(ann=20, bob=30) + [tweet("lost_dog")] * 40)
    small = {"data.size": "tiny", "data.length": 12, "data.vocabulary": 200, "data.last_rank": 3}
    result = playerfl.run(TASK, "player_fl", rounds=1, settings={**small, "training.batch_size": 8})
    assert result.sites == ["ann", "bob", "lost_dog"]
    assert result.cut is not None
    assert result.scores["value"].notna().all()
    assert "users with tweets of one class only: lost_dog" in result.data["notes"]


@needs("sent140")
def test_the_real_file() -> None:
    folder = folder_of("sent140")
    if (folder / TRAINING).is_file():
        busiest = busiest_users(folder / TRAINING, 1, 10)
        assert busiest["lost_dog"] == 549
        assert list(busiest.values()) == [549, 345, 310, 281, 279, 276, 248, 246, 238, 236]
    else:
        labels_read = [tweet.label for tweet in read_tweets(folder / TEST)]
        assert (labels_read.count(0), labels_read.count(1)) == (177, 182)
