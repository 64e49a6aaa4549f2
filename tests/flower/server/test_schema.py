"""Sites whose columns or classes differ do not train together, and both ends say in words what differs."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from flower.attacks import ask, asked
from flower.jobs import Job
from playerfl.data.schema import ColumnSchema, Schema
from playerfl.flower.site.attempts import Attempts
from playerfl.flower.site.policy import Policy
from playerfl.flower.site.setup import setup_finder, site_setup
from playerfl.tasks.folder import folder_task

NAMES = ("site-0", "site-1", "site-2")
HEADER = "age,bp,smoker,outcome"


def table(header: str = HEADER, swap: bool = False, classes: tuple[str, str] = ("no", "yes")) -> str:
    rows = [(i % 50 + 20, i % 7 + 110, ("a", "b")[i % 2], classes[i % 3 == 0]) for i in range(90)]
    if swap:
        rows = [(bp, age, smoker, outcome) for age, bp, smoker, outcome in rows]  # type: ignore[misc]
    return "\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n"


def federation(tmp_path: Path, odd: str, where: str = "site-2", *, template: bool = False) -> Job:
    """Three sites with folders of their own, of which one is odd. `template`: whether the server has columns, too."""
    for name in NAMES:
        folder = tmp_path / "data" / name
        folder.mkdir(parents=True)
        (folder / f"{name}.csv").write_text(odd if name == where else table())
    job = Job(tmp_path, "fedavg", folder_task(tmp_path / "data" / "site-1"), rounds=1, selection="client_best")
    if not template:
        job.task = replace(job.task, adapt=lambda options: replace(folder_task_at(tmp_path, options), schema=None))
    for name in NAMES:
        own = folder_task(tmp_path / "data" / name)
        find = lambda experiment, site, own=own: site_setup(experiment, own, site)  # noqa: E731
        job.sites[name] = replace(job.sites[name], find_setup=find)
    return job


def folder_task_at(tmp_path: Path, options: object) -> object:
    return folder_task(tmp_path / "data" / "site-1").for_options(options)  # type: ignore[arg-type]


ODD = {
    "swapped": (table("bp,age,smoker,outcome", swap=True), "column 1 is 'bp' at site-2, but 'age' at"),
    "renamed": (table("age,systolic,smoker,outcome"), "site-2 has the column 'systolic', but"),
    "categories": (table().replace(",b,", ",c,"), "column 'smoker' has different categories"),
    "classes": (table(classes=("healthy", "ill")), "site-2 has the class 'healthy', but"),
}


@pytest.mark.parametrize("fault", ODD)
def test_a_different_schema_is_refused_and_named_at_both_ends(
    fault: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """H3: only the model's shape was compared, so all of these trained together."""
    text, words = ODD[fault]
    job = federation(tmp_path, text)
    with caplog.at_level(logging.WARNING, "playerfl.flower.site"):
        job.run()
    refused = job.participation("refused")
    assert {row["site"] for row in refused} == {"site-2"} and words in refused[0]["reason"]
    there = words.partition(", but")[0]
    assert there in caplog.text and "the server" in caplog.text
    assert job.fingerprints.keys() == {"site-0", "site-1"}


def test_equal_schemas_train_together_and_categories_leave_as_fingerprints_only(tmp_path: Path) -> None:
    job = federation(tmp_path, table())
    job.run()
    assert job.participation("refused") == []
    sent = b"".join(
        message.content["response"].deflate() for _, message in job.grid.replies if "response" in message.content
    )
    assert b"smoker" in sent and b'"a"' not in sent


def test_a_site_that_speaks_first_does_not_decide(tmp_path: Path) -> None:
    """Its columns became those of the job, and all the others were refused."""
    job = federation(tmp_path, table("bp,age,smoker,outcome", swap=True), "site-0")
    job.run()
    assert {row["site"] for row in job.participation("refused")} == {"site-0"}
    assert job.fingerprints.keys() == {"site-1", "site-2"}


@pytest.mark.slow
@pytest.mark.parametrize("template", [False, True])
def test_a_site_that_states_units_trains_with_those_that_do_not(template: bool, tmp_path: Path) -> None:
    job = federation(tmp_path, table(), template=template)
    policy = Policy.of({"approval": "automatic", "jobs": {"least_sites": 1}, "units": {"bp": "mmHg"}})
    job.sites["site-2"] = replace(job.sites["site-2"], policy=policy)
    job.run()
    assert job.participation("refused") == []


@pytest.mark.slow
@pytest.mark.parametrize("template", [False, True])
def test_units_are_compared_if_sites_declare_them(template: bool, tmp_path: Path) -> None:
    job = federation(tmp_path, table(), template=template)
    for name, unit in zip(NAMES, ("mmHg", "mmHg", "kPa"), strict=True):
        policy = Policy.of({"approval": "automatic", "jobs": {"least_sites": 1}, "units": {"bp": unit}})
        job.sites[name] = replace(job.sites[name], policy=policy)
    job.run()
    assert "column 'bp' is in the unit 'kPa' at site-2" in job.participation("refused")[0]["reason"]


@pytest.mark.parametrize("agreed", [False, True])
def test_a_server_does_not_count_rows_by_their_values_with_one_job_after_another(agreed: bool, tmp_path: Path) -> None:
    """Without approval, the first answer to each new job was how many rows do not have the value that it names."""
    job = federation(tmp_path, table())
    job.interrupt("site-2", "hello")
    hello = replace(asked(job, "hello", "site-2"), schema="")
    data = {**job.experiment.data, "missing": "drop"}
    policy = Policy.of({"approval": "automatic", "jobs": {"data": data if agreed else None, "least_sites": 1}})
    find = job.sites["site-2"].find_setup
    job.sites["site-2"] = replace(job.sites["site-2"], policy=policy, find_setup=find, choices=Attempts())

    def rows(number: int, age: int) -> int | None:
        experiment = job.experiment.model_copy(update={"data": {**data, "missing_codes": [f"age={age}"]}})
        own = lambda asked, site: site_setup(asked, folder_task(tmp_path / "data" / "site-2"), site)  # noqa: E731
        object.__setattr__(job.sites["site-2"], "find_setup", own)
        response = ask(job, replace(hello, job=f"job-{number}", experiment=experiment.to_toml()), "site-2")
        return response.introduction and response.introduction.examples

    counted = [rows(age, age) for age in range(20, 50)]
    assert sum(count is not None for count in counted) == (0 if agreed else 20)
    # Another job with columns and rows that were asked for before tells nothing new.
    assert agreed or rows(100, 20) == counted[0]


def test_a_text_that_cannot_be_sent_on_does_not_end_the_job(tmp_path: Path) -> None:
    """A unit that one site states becomes the job's; half of a surrogate pair in it ended the job at the next hello."""
    job = federation(tmp_path, table("age,systolic,smoker,outcome"))

    def tamper(site: str, _: Message, response: Message) -> Message:
        said: Any = response.content["response"]
        if site == "site-0" and (introduction := json.loads(said["introduction"])):
            for column in introduction["schema"]["columns"]:
                column[3] = "\ud800"
            said["introduction"] = json.dumps(introduction)
        return response

    job.tamper(tamper)
    job.run(min_sites=1)
    refused = {row["site"]: row["reason"] for row in job.participation("refused")}
    assert refused.keys() == {"site-0", "site-2"} and "half of a surrogate pair" in refused["site-0"]
    assert job.fingerprints.keys() == {"site-1"}


@pytest.mark.slow
def test_a_policy_can_keep_the_names_of_columns(tmp_path: Path) -> None:
    job = federation(tmp_path, table())
    policy = Policy.of({"approval": "automatic", "jobs": {"least_sites": 1}, "sharing": {"column_names": False}})
    job.sites["site-1"] = replace(job.sites["site-1"], policy=policy)
    job.run()
    response = ask(job, asked(job, "hello"))
    assert response.introduction and response.introduction.schema is None


@pytest.mark.parametrize(
    "text", ["[]", "{}", "[" * 10_000, '{"columns": [["a"]], "target": "", "classes": []}', '{"columns": 3}']
)
def test_a_schema_that_is_none_is_refused(text: str, tmp_path: Path) -> None:
    job = federation(tmp_path, table())
    job.interrupt("site-2", "hello")
    assert ask(job, replace(asked(job, "hello"), schema=text)).code == "schema"


def test_the_finder_uses_the_sites_own_task(tmp_path: Path) -> None:
    job = federation(tmp_path, table())
    found = setup_finder(str(tmp_path / "data" / "site-1"))(job.experiment, "site-1")
    assert found.schema == Schema(
        (ColumnSchema("age", "number"), ColumnSchema("bp", "number"), found.schema.columns[2]),  # type: ignore[union-attr]
        "outcome",
        ("no", "yes"),
    )
