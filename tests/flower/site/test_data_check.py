"""Each site's data are checked when it joins a job: its operator sees all of it, the server what the policy shares."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flower.attacks import ask, asked
from flower.jobs import Job
from flower.server.test_schema import NAMES, federation, table
from playerfl.cli.main import app
from playerfl.flower.site.data_check import read_check
from playerfl.flower.site.files.audit import AuditLog
from playerfl.flower.site.policy import Policy
from playerfl.flower.site.setup import site_setup
from playerfl.flower.wire.check_summary import CheckSummary
from playerfl.tasks.folder import folder_task


def rescaled(text: str) -> str:
    """Blood pressure in another unit, and a code for missing values."""
    header, *rows = text.splitlines()
    cells = [row.split(",") for row in rows]
    changed = [[age if i > 3 else "999", f"{float(bp) / 7.5:.1f}", *rest] for i, (age, bp, *rest) in enumerate(cells)]
    return "\n".join([header, *map(",".join, changed)]) + "\n"


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Job]:
    """The same job under each policy; site-2 has odd data."""
    done = {}
    for shared in ("none", "findings", "columns"):
        job = federation(tmp_path_factory.mktemp(shared), rescaled(table()))
        table_of = {"approval": "automatic", "jobs": {"least_sites": 1}, "sharing": {"data_check": shared}}
        for name in NAMES:
            job.sites[name] = replace(job.sites[name], policy=Policy.of(table_of))
        job.run()
        done[shared] = job
    return done


def notes(job: Job) -> str:
    return "\n".join(json.loads((job.folder / "data.json").read_text())["notes"])


def test_the_sites_operator_sees_the_whole_check(jobs: dict[str, Job]) -> None:
    state = jobs["none"].home / "site-2"
    said = CliRunner().invoke(app, ["flower", "jobs", "--state", str(state)]).output
    assert "data check: 90 rows" in said and "999" in said and "may be a code for a missing value" in said
    check = read_check(state / "job")
    assert check is not None and list(check["rows"]) == ["site-2"]


def test_nothing_of_the_check_leaves_by_default(jobs: dict[str, Job]) -> None:
    job = jobs["none"]
    response = ask(job, asked(job, "hello", "site-2"), "site-2")
    assert response.introduction is not None and response.introduction.check is None
    assert notes(job) == ""


def test_findings_are_counts_by_topic(jobs: dict[str, Job]) -> None:
    job = jobs["findings"]
    response = ask(job, asked(job, "hello", "site-2"), "site-2")
    assert response.introduction and response.introduction.check
    assert response.introduction.check.warnings["codes"] == 1 and not response.introduction.check.columns
    assert "site-2's data check has warnings about codes (1)" in notes(job) and "units" not in notes(job)
    left = [entry for entry in AuditLog(job.home / "site-2" / "audit.jsonl").entries() if entry["event"] == "left"]
    assert "data check" in left[0]["introduced"]


def test_columns_are_rounded_and_another_unit_is_noticed(jobs: dict[str, Job]) -> None:
    job = jobs["columns"]
    response = ask(job, asked(job, "hello", "site-2"), "site-2")
    assert response.introduction and response.introduction.check
    assert response.introduction.check.columns["bp"] == (0, 15.0, 15.0, 16.0)
    words = "'bp': the median is 15 at site-2, but 110 elsewhere, 7.33 times less"
    assert words in notes(job) and any(words in line for line in job.said)


def test_a_unit_of_a_column_that_is_not_there_is_a_warning(tmp_path: Path) -> None:
    """A mistyped name switched the comparison of that unit off, and nobody noticed."""
    job = federation(tmp_path, table())
    policy = Policy.of({"approval": "automatic", "units": {"bpp": "mmHg", "age": "years"}})
    job.sites["site-2"] = replace(job.sites["site-2"], policy=policy)
    job.run()
    check = read_check(tmp_path / "site-2" / "job")
    assert check is not None
    [words] = [finding["text"] for finding in check["findings"] if "policy" in finding["text"]]
    assert words == "the policy has a unit for 'bpp', which is not a column of this job; did you mean 'bp'?"


def test_a_template_in_the_folder_is_not_checked_as_a_site(tmp_path: Path) -> None:
    (tmp_path / "ours.csv").write_text(table())
    (tmp_path / "template.csv").write_text(table())
    task = folder_task(tmp_path)
    job = Job(tmp_path / "job", "fedavg", task, rounds=1)
    check = site_setup(job.experiment, task, "north").check()
    assert check.rows == {"ours": 90}
    assert not [finding for finding in check.findings if finding.topic in ("files", "copies", "rows")]


@pytest.mark.parametrize(
    "said",
    [
        [], {"warnings": {}}, {"warnings": {"\x1b[2J": 1}, "columns": {}}, {"warnings": {"codes": -1}, "columns": {}},
        {"warnings": {"codes": True}, "columns": {}}, {"warnings": {}, "columns": {"a": [0, 1, 2]}},
        {"warnings": {}, "columns": {"a": [0, 1, 2, float("inf")]}}, {"warnings": {}, "columns": {"a": [101, 1, 2, 3]}},
        {"warnings": {}, "columns": {"a" * 501: [0, 1, 2, 3]}}, {"warnings": {}, "columns": {"a": [0, 1, 2, 10**400]}},
    ],
    ids=lambda said: str(said)[:40],
)  # fmt: skip
def test_a_summary_that_is_none_is_refused(said: Any) -> None:
    with pytest.raises(ValueError, match="data check"):
        CheckSummary.from_json(said)
