"""Sites that join after the last round: they take no part in training, and are scored once they have tuned."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import playerfl
from command_line import playerfl as command
from federations import federate, quick_for, sites, task
from playerfl.algorithms import ALGORITHMS, FedAvg, FedPer, PartialAlgorithm
from playerfl.cli.tables.study import medians
from playerfl.errors import ConfigError
from playerfl.report.compute.report import build_report
from playerfl.report.view.sections import view
from playerfl.runs.run import Progress
from playerfl.studies.api import result_of, run_study
from playerfl.studies.collecting import collect
from playerfl.studies.plan import Study

UNSEEN = {"unseen": ["site-1"], "unseen_epochs": 2}


@pytest.mark.parametrize("name", quick_for(ALGORITHMS, "fedavg", "fedper", "player_fl", "scaffold", "fedselect"))
def test_an_unseen_site_gets_a_model_and_changes_nothing_for_the_others(name: str) -> None:
    joined = federate(name, **UNSEEN)
    assert joined.sites == ["site-0", "site-2"]
    assert set(joined.unseen_scores) == {"site-1"}
    assert {"loss", "f1", "accuracy"} == set(joined.unseen_scores["site-1"])
    without = federate(name, task(sites={n: s for n, s in sites().items() if n != "site-1"}))
    for site in without.sites:
        assert all(torch.equal(w, joined.weights[site][n]) for n, w in without.weights[site].items())
    model = joined.model("site-1")
    assert all(torch.isfinite(p).all() for p in model.parameters())


def test_a_site_with_private_layers_tunes_only_those() -> None:
    joined = federate(FedPer(personal_layers=1), **UNSEEN)
    shared, own = (joined.weights[site] for site in ("site-0", "site-1"))
    assert all(torch.equal(own[n], shared[n]) for n in own if not n.startswith("6."))
    assert not torch.equal(own["6.weight"], shared["6.weight"])
    assert issubclass(FedPer, PartialAlgorithm)


def test_without_tuning_it_has_the_common_model() -> None:
    joined = federate(FedAvg(), unseen=["site-1"], unseen_epochs=0)
    assert all(torch.equal(w, joined.weights["site-0"][n]) for n, w in joined.weights["site-1"].items())


def test_what_it_receives_is_counted() -> None:
    joined = federate(FedAvg(), **UNSEEN)
    (row,) = [row for row in joined.traffic_rows if row[1] == "site-1"]
    assert row[2] == "join"
    assert row[3] == sum(w.nbytes for w in joined.weights["site-1"].values())
    assert row[4] == 0


def test_a_run_killed_while_a_site_joins_resumes_to_the_same_scores(tmp_path: Path) -> None:
    own, settings = task(), {"training.batch_size": 8, **UNSEEN}
    exchanges = 0

    def kill(progress: Progress) -> None:
        nonlocal exchanges
        exchanges += progress.done
        if exchanges == limit:
            raise KeyboardInterrupt

    whole = playerfl.run(own, "fedavg", rounds=2, settings=settings)
    for limit in (1, 2):
        exchanges, out = 0, tmp_path / f"killed-{limit}"
        with pytest.raises(KeyboardInterrupt):
            playerfl.run(own, "fedavg", rounds=2, settings=settings, out=out, listener=kill)
        resumed = playerfl.resume(out, task=own)
        assert resumed.score_rows == whole.score_rows
        assert all(torch.equal(w, resumed.weights["site-1"][n]) for n, w in whole.weights["site-1"].items())
        assert playerfl.load_result(out, task=own).unseen_scores == whole.unseen_scores


@pytest.mark.parametrize(
    ("unseen", "text"),
    [(["nowhere"], "unknown site in unseen 'nowhere'"), (["site-0", "site-1", "site-2"], "all 3 sites are unseen")],
)
def test_mistakes_are_refused_before_anything_is_written(unseen: list[str], text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=text):
        playerfl.run(task(), "fedavg", settings={"unseen": unseen, "training.batch_size": 8}, out=tmp_path / "r")
    assert not (tmp_path / "r").exists()


@pytest.mark.slow
def test_a_study_leaves_out_one_site_after_the_other_and_the_report_shows_them(tmp_path: Path) -> None:
    study = Study.resolve(
        {
            "name": "loso",
            "tasks": ["synthetic"],
            "algorithms": ["fedavg", "fedper"],
            "seeds": 2,
            "leave_one_site_out": True,
            "settings": {"rounds": 2, "data": {"sites": 3, "rows": 60}},
        }
    )
    assert [line.experiment.unseen for line in study.lines[::2]] == [("site-0",), ("site-1",), ("site-2",)]
    directory = run_study(study, tmp_path / "study", backend="serial")
    for row in medians(result_of(directory)):
        (site,) = row["unseen"]
        assert site in row["task"]
        assert row["unseen"][site].keys() == row["median"].keys()
    report = build_report(collect(tmp_path / "study"))
    rows = [row for row in report.unseen if row.metric == "accuracy"]
    assert {(row.site, row.algorithm, row.runs) for row in rows} == {
        (f"site-{i}", name, 2) for i in range(3) for name in ("FedAvg", "FedPer")
    }
    # The tasks overlap, so there is no ranking over them, as if they were three independent ones.
    assert {ranking.over for of_table in report.rankings.values() for ranking in of_table} == set(report.grid.tasks)
    for task_name in report.grid.tasks:
        assert len(report.grid.sites(task_name)) == 2
    assert any(section.title == "Unseen sites" for section in view(report, "x").sections)


@pytest.mark.slow
def test_the_command_prints_how_unseen_sites_do_and_what_a_method_amounts_to(tmp_path: Path) -> None:
    options = ["--rounds", 1, "--quiet", "--set", 'unseen=["site-2"]', "--set", "data.rows=60", "--set", "data.sites=3"]
    output = command("run", "synthetic", "-a", "local", "-a", "fedbn", *options, cwd=tmp_path)
    assert output.returncode == 0
    table = output.stdout.split("Unseen sites, which joined after the last round")[1]
    assert [line.split()[1] for line in table.splitlines() if "site-2" in line] == ["local", "fedbn"]
    assert "note: FedBN amounts to FedAvg with this model and these settings" in output.stderr


def test_notes_about_a_method_are_kept_in_a_study(tmp_path: Path) -> None:
    table = {"name": "notes", "tasks": ["synthetic"], "algorithms": ["local", "fedbn"], "seeds": 1}
    small = {"settings": {"rounds": 1, "data": {"sites": 2, "rows": 60}}}
    result = result_of(run_study(Study.resolve(table | small), tmp_path / "study", backend="serial"))
    about = {algorithm: run.data["notes"] for (_, algorithm), (run,) in result.runs.items()}
    assert about["fedbn"] == [*about["local"], "FedBN amounts to FedAvg with this model and these settings"]
