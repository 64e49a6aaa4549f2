"""Sentiment140: the tweets of its busiest users, one site each, positive or negative."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pydantic import Field, ValidationInfo, field_validator
from torch import nn

from playerfl.data.download.sources import folder_of
from playerfl.data.readers.csv_tables import read_rows
from playerfl.data.readers.file_limits import find_file
from playerfl.data.readers.hub_tables import hub_rows, hub_table
from playerfl.data.readers.remembered import remembered
from playerfl.data.sites import Sites
from playerfl.errors import DataError
from playerfl.tasks.bundled.texts import TextOptions, encode_sites
from playerfl.tasks.task import Task

_TRAINING, _TEST = "training.1600000.processed.noemoticon.csv", "testdata.manual.2009.06.14.csv"
_COLUMNS = ("polarity", "id", "date", "query", "user", "text")
_NEUTRAL = "2"
SENTIMENTS = {"0": 0, "4": 1}


class Sent140Options(TextOptions):
    """Which users: the paper says the 15 with the most tweets; the authors' code used ranks 36 to 50."""

    first_rank: int = Field(1, ge=1)
    """The first user taken, counted from the one with the most tweets."""
    last_rank: int = Field(15, ge=1)
    """The last user taken."""
    accept_small_sites: bool = True
    """Some of the busiest users only write tweets of one class, and all have few tweets."""

    @field_validator("last_rank")
    @classmethod
    def _after_the_first(cls, last: int, info: ValidationInfo) -> int:
        first = info.data.get("first_rank", 1)
        if last < first:
            raise ValueError(f"must be at least first_rank, {first}")
        return last


class Tweet(NamedTuple):
    """A tweet and its label: negative (0) or positive (1)."""

    user: str
    text: str
    label: int


def read_tweets(file: Path) -> Iterator[Tweet]:
    """The tweets of the original table, or of the hub's copy of it, without the neutral ones."""
    if file.suffix == ".parquet":
        for tweet in hub_rows(file, ("sentiment", "user", "text")):
            if str(tweet["sentiment"]) in SENTIMENTS:
                yield Tweet(tweet["user"], tweet["text"], SENTIMENTS[str(tweet["sentiment"])])
        return
    for row in read_rows(file, _COLUMNS, header=False, encoding="latin-1"):
        if row["polarity"] != _NEUTRAL:
            yield Tweet(row["user"], row["text"], row.one_of("polarity", SENTIMENTS))


def busiest_users(file: Path, first_rank: int, last_rank: int) -> dict[str, int]:
    """The users of these ranks and their numbers of tweets; ties are ranked by name."""
    counts = Counter(tweet.user for tweet in read_tweets(file))
    if last_rank > len(counts):
        raise DataError(f"{file.name} has tweets by {len(counts):,} users; data.last_rank = {last_rank} is too large")
    ranked = sorted(counts.items(), key=lambda counted: (-counted[1], counted[0]))
    return dict(ranked[first_rank - 1 : last_rank])


@remembered(1)
def tweets_by_user(file: Path, first_rank: int, last_rank: int) -> dict[str, list[tuple[str, int]]]:
    """Text and label of every tweet of the users of these ranks."""
    # The file is read twice, because the tweets of all 660,000 users would take too much memory.
    users = busiest_users(file, first_rank, last_rank)
    fewest = min(users.values())
    if fewest < 3:
        raise DataError(
            f"the user of rank {last_rank} has only {fewest} tweets in {file.name}, but a site needs 3; "
            f"choose other ranks, or use {_TRAINING}"
        )
    examples: dict[str, list[tuple[str, int]]] = {user: [] for user in users}
    for tweet in read_tweets(file):
        if tweet.user in examples:
            examples[tweet.user].append((tweet.text, tweet.label))
    return examples


def load_sites(options: Sent140Options) -> Sites:
    folder = folder_of("sent140")
    table = hub_table(folder)
    file = table if table and not any(folder.glob("*.csv*")) else find_file(folder, _TRAINING, _TEST)
    examples = tweets_by_user(file, options.first_rank, options.last_rank)
    ranks = f"users ranked {options.first_rank} to {options.last_rank} by number of tweets"
    return encode_sites(examples, options, [ranks, *_of_one_class(examples)])


def _of_one_class(examples: dict[str, list[tuple[str, int]]]) -> list[str]:
    users = sorted(user for user, tweets in examples.items() if len({label for _, label in tweets}) == 1)
    return [f"users with tweets of one class only: {', '.join(users)}"] if users else []


def build_model(options: Sent140Options) -> nn.Module:
    return options.transformer(classes=len(SENTIMENTS))


TASK = Task(
    name="sent140",
    about="tweets by the 15 most active users of Sentiment140, 2 sentiments, a transformer block",
    load_sites=load_sites,
    build_model=build_model,
    options=Sent140Options,
    defaults={"training": {"batch_size": 128}},
    paper="Sent140",
)
