"""Tweets about six airlines: real text with natural sites, as a substitute for Sent-140."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import nn

from playerfl.data.download.sources import folder_of
from playerfl.data.readers.csv_tables import read_rows
from playerfl.data.readers.file_limits import find_file
from playerfl.data.sites import Sites
from playerfl.tasks.bundled.texts import TextOptions, encode_sites
from playerfl.tasks.task import Task

AIRLINES = ("American", "Delta", "Southwest", "US Airways", "United", "Virgin America")
SENTIMENTS = {"negative": 0, "neutral": 1, "positive": 2}


class TweetsOptions(TextOptions):
    """A quarter of the paper's widths by default, since the paper does not use this dataset."""

    size: Literal["paper", "small", "tiny"] = "small"
    length: int = Field(64, ge=2, le=100_000)


def load_sites(options: TweetsOptions) -> Sites:
    file = find_file(folder_of("tweets"), "Tweets.csv")
    examples: dict[str, list[tuple[str, int]]] = {airline: [] for airline in AIRLINES}
    for row in read_rows(file, ("airline", "airline_sentiment", "text")):
        if row["airline"] not in examples:
            raise row.error("airline", f"allowed: {', '.join(AIRLINES)}")
        examples[row["airline"]].append((row["text"], row.one_of("airline_sentiment", SENTIMENTS)))
    return encode_sites(examples, options, ["airline tweets instead of Sent-140; not a dataset of the paper"])


def build_model(options: TweetsOptions) -> nn.Module:
    return options.transformer(classes=len(SENTIMENTS))


TASK = Task(
    name="tweets",
    about="14,640 tweets about 6 airlines, 3 sentiments, a transformer block; a substitute for Sent-140, not in the "
    "paper",
    load_sites=load_sites,
    build_model=build_model,
    options=TweetsOptions,
    defaults={"rounds": 20, "training": {"learning_rate": 5e-4, "batch_size": 64}},
)
