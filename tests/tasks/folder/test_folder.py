"""Folders of tables: what is read, what is inferred, and that their runs can be repeated and resumed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import playerfl
from command_line import playerfl as command
from command_line import refused
from own_data import ROWS, as_gzip, as_it_is, as_parquet, csv, load, replaced, sentence_of, set_cell, table, whole
from playerfl.errors import PlayerflError


def as_semicolons(folder: Path) -> None:
    for file in folder.glob("*.csv"):
        file.write_text("\ufeff" + file.read_text().replace(",", ";").replace("\n", "\r\n") + ";;;;\r\n\r\n")


def as_shuffled_columns(folder: Path) -> None:
    frame = pd.read_csv(folder / "south.csv")
    frame[frame.columns[::-1]].to_csv(folder / "south.csv", index=False)


def as_old_line_ends(folder: Path) -> None:
    for file in folder.glob("*.csv"):
        file.write_bytes(file.read_bytes().replace(b"\n", b"\r"))


KINDS = [as_it_is, as_gzip, as_semicolons, as_parquet, as_shuffled_columns, as_old_line_ends]


@pytest.mark.parametrize("change", KINDS)
def test_every_kind_of_table_gives_the_same_sites(folder: Path, change: Callable[[Path], None]) -> None:
    before = load(folder, target="outcome")
    change(folder)
    after = load(folder, target="outcome")
    assert list(after) == ["north", "south"]
    for site in before:
        assert torch.equal(whole(before[site]), whole(after[site]))
        assert torch.equal(whole(before[site], "targets"), whole(after[site], "targets"))
    assert before.notes == after.notes


def test_numbers_are_standardised_on_training_rows_and_categories_are_one_hot(folder: Path) -> None:
    sites = load(folder)
    train = sites["north"].train.inputs
    assert train.dtype == torch.float32
    assert train.shape[1] == 5
    torch.testing.assert_close(train[:, :2].mean(0), torch.zeros(2), atol=1e-6, rtol=0)
    torch.testing.assert_close(train[:, :2].std(0, correction=0), torch.ones(2))
    assert not torch.allclose(whole(sites["north"])[:, :2].mean(0), torch.zeros(2), atol=1e-3)
    assert set(train[:, 2:].flatten().tolist()) == {0.0, 1.0}
    assert torch.equal(train[:, 2] + train[:, 3], torch.ones(len(train)))
    assert sites.notes == (
        "target: column 'outcome' (inferred from its name; set data.target to change it)",
        "kind: 2 classes (0 = ill, 1 = well)",
        "inputs: 5 (2 numeric, standardised with each site's own training rows; 1 true/false as 1 and 0; "
        "2 categories, one input each)",
    )


def test_the_split_seed_decides_the_split_of_a_folder(folder: Path) -> None:
    sizes = [len(part) for part in load(folder)["north"].__dict__.values()]
    assert sum(sizes) == ROWS
    assert not torch.equal(load(folder)["north"].test.inputs, load(folder, split_seed=1)["north"].test.inputs)


def test_a_constant_column_becomes_zero(folder: Path) -> None:
    csv(folder, north=table(seed=1).assign(dose=0.1))
    assert torch.equal(whole(load(folder)["north"])[:, 1], torch.zeros(ROWS))
    assert len(set(whole(load(folder)["south"])[:, 1].tolist())) > 1


def test_a_category_at_one_site_is_an_input_at_every_site(folder: Path) -> None:
    replaced(folder, "lung", "eye")
    sites = load(folder)
    assert sites["north"].train.inputs.shape[1] == sites["south"].train.inputs.shape[1] == 6
    assert whole(sites["north"])[:, 2].sum() == 0
    assert whole(sites["south"])[:, 2].sum() == 1


def test_codes_may_be_read_as_categories(folder: Path) -> None:
    assert load(folder, category_columns="dose")["north"].train.inputs.shape[1] == 8
    csv(folder, north=table(seed=1).assign(dose="007"), south=table(seed=2).assign(dose="7"))
    assert load(folder, category_columns=["dose"])["north"].train.inputs.shape[1] == 6


def test_booleans_written_in_several_ways(folder: Path) -> None:
    for site, words in (("north", ("TRUE", "false")), ("south", ("1", "0"))):
        frame = pd.read_csv(folder / f"{site}.csv", dtype=object)
        frame["smoker"] = frame["smoker"].map({"True": words[0], "False": words[1]})
        frame.to_csv(folder / f"{site}.csv", index=False)
    assert load(folder)["north"].train.inputs.shape[1] == 5
    csv(folder, south=table(seed=2).assign(smoker="never"))
    assert load(folder)["north"].train.inputs.shape[1] == 4 + 3


def test_columns_may_be_left_out_even_if_only_one_site_has_them(folder: Path) -> None:
    csv(folder, north=table(seed=1).assign(patient=range(ROWS), admitted="2024-01-03"))
    assert load(folder, drop_columns=("patient", "admitted"))["north"].train.inputs.shape[1] == 5


def test_columns_that_look_like_identifiers_are_noted(folder: Path) -> None:
    csv(folder, **{site: table(seed=i).assign(patient=range(ROWS)) for i, site in enumerate(("north", "south"))})
    notes = load(folder, target="outcome").notes
    assert any("column 'patient' has a different integer in every row" in note for note in notes)


@pytest.mark.parametrize(
    ("names", "options", "chosen", "why"),
    [
        (["a", "y", "Label"], {}, "Label", "inferred from its name"),
        (["a", "y", "b"], {}, "y", "inferred from its name"),
        (["a", "b", "c"], {}, "c", "inferred as the last column"),
        (["a", "target", "c"], {"target": "a"}, "a", "as given"),
    ],
)
def test_the_target_is_inferred_or_given(
    tmp_path: Path, names: list[str], options: dict[str, Any], chosen: str, why: str
) -> None:
    values = np.random.default_rng(0).integers(0, 3, (ROWS, 3))
    csv(tmp_path, a=pd.DataFrame(values, columns=names), b=pd.DataFrame(values, columns=names))
    assert load(tmp_path, **options).notes[0].startswith(f"target: column {chosen!r} ({why}")


def with_target(folder: Path, make: Callable[[np.random.Generator], Any]) -> Path:
    rng = np.random.default_rng(0)
    return csv(folder, **{site: table(seed=i).assign(outcome=make(rng)) for i, site in enumerate(("north", "south"))})


@pytest.mark.parametrize(
    ("make", "options", "note"),
    [
        (lambda rng: rng.integers(0, 3, ROWS), {}, "3 classes (0 = 0, 1 = 1, 2 = 2)"),
        (lambda rng: rng.choice([0.5, 10, 9.5], ROWS), {}, "3 classes (0 = 0.5, 1 = 9.5, 2 = 10)"),
        (lambda rng: rng.random(ROWS) < 0.5, {}, "2 classes (0 = False, 1 = True)"),
        (lambda rng: rng.choice(["b", "a"], ROWS), {}, "2 classes (0 = a, 1 = b)"),
        (lambda rng: np.arange(ROWS) % 30, {}, "a number"),
        (lambda rng: np.arange(ROWS) % 30, {"kind": "classes"}, "30 classes (0 = 0, 1 = 1,"),
        (lambda rng: rng.normal(size=ROWS), {}, "a number"),
        (lambda rng: rng.integers(0, 3, ROWS), {"kind": "number"}, "a number"),
    ],
)
def test_classes_or_a_number(folder: Path, make: Any, options: dict[str, Any], note: str) -> None:
    sites = load(with_target(folder, make), **options)
    assert sites.notes[1].startswith(f"kind: {note}")
    targets = whole(sites["north"], "targets")
    assert targets.dtype == (torch.float32 if note == "a number" else torch.int64)


def test_classes_are_those_of_all_sites(folder: Path) -> None:
    csv(folder, north=table(seed=1).assign(outcome=np.where(np.arange(ROWS) % 2, "ill", "dead")))
    sites = load(folder)
    assert sites.notes[1] == "kind: 3 classes (0 = dead, 1 = ill, 2 = well)"
    assert set(whole(sites["south"], "targets").tolist()) == {1, 2}


@pytest.mark.slow
def test_a_regression_trains_and_is_scored_in_the_units_of_its_column(folder: Path) -> None:
    with_target(folder, lambda rng: np.zeros(ROWS))
    for site, seed in (("north", 1), ("south", 2)):
        frame = table(seed=seed)
        csv(folder, **{site: frame.assign(outcome=1000 + 30 * frame["age"])})
    result = playerfl.run(str(folder), "fedavg", rounds=20, learning_rate=0.01)
    assert list(result.site_scores["north"]) == ["loss", "mae", "rmse", "r2"]
    assert 20 < result.site_scores["north"]["mae"] < 300
    assert result.site_scores["north"]["loss"] < 0.5
    assert result.model("north")(torch.zeros(2, 5)).shape == (2, 1)


def with_gaps(folder: Path) -> Path:
    set_cell(folder, "age", None, row=5)
    set_cell(folder, "ward", " ", row=6)
    return set_cell(folder, "outcome", None, row=7)


def test_missing_values_are_refused_by_default(folder: Path) -> None:
    assert sentence_of(with_gaps(folder)) == (
        "south.csv, column 'age', row 5: the value is missing, as in 1 of 60 rows; fill it in, or set "
        'data.missing="drop" (rows) or "mean"'
    )
    set_cell(folder, "age", 3, row=5)
    assert sentence_of(folder).startswith("south.csv, column 'ward', row 6: the value is missing")
    set_cell(folder, "ward", "lung", row=6)
    assert sentence_of(folder).startswith("south.csv, column 'outcome', row 7: the value is missing")


def test_rows_with_missing_values_may_be_dropped(folder: Path) -> None:
    complete = load(folder)
    sites = load(with_gaps(folder), missing="drop")
    assert len(whole(sites["south"])) == ROWS - 3
    assert torch.equal(whole(sites["north"]), whole(complete["north"]))
    assert "south: 3 of 60 rows left out, with missing values" in sites.notes


def test_missing_values_may_become_the_mean_of_the_training_rows(folder: Path) -> None:
    frame = table(seed=2)
    frame.loc[: ROWS // 2, "age"] = np.nan
    frame.loc[: ROWS // 2, "ward"] = None
    csv(folder, south=frame)
    set_cell(folder, "outcome", None, row=7)
    sites = load(folder, missing="mean")
    inputs = whole(sites["south"])
    assert len(inputs) == ROWS - 1
    assert (inputs[:, 0] == 0).sum() == ROWS // 2
    train = sites["south"].train.inputs
    known = (train[:, 2] == 0) | (train[:, 2] == 1)
    torch.testing.assert_close(train[~known, 2], train[known, 2].mean().expand(int((~known).sum())))
    assert "south: 1 of 60 rows left out, without a target" in sites.notes
    assert "south: 60 missing values replaced by the means of its training rows" in sites.notes


def test_a_column_one_site_never_measured_may_be_filled(folder: Path) -> None:
    csv(folder, south=table(seed=2).assign(age=np.nan))
    assert torch.equal(whole(load(folder, missing="mean")["south"])[:, 0], torch.zeros(ROWS))
    assert sentence_of(folder, missing="drop").startswith("south.csv has no row without missing values")


def test_one_site_alone_runs_and_says_so(folder: Path) -> None:
    (folder / "south.csv").unlink()
    result = playerfl.run(str(folder), "fedavg", rounds=1)
    assert result.sites == ["north"]
    assert "there is only one site, so nothing is federated" in result.data["notes"]


def test_small_sites_are_refused_with_the_remedy(folder: Path) -> None:
    csv(folder, south=table(30))
    with pytest.raises(PlayerflError, match=r"south has 19 training examples, fewer than training\.batch_size 32"):
        playerfl.run(str(folder), "local", rounds=1)


def stop_after_one(progress: Any) -> None:
    if progress.round == 1:
        raise KeyboardInterrupt


@pytest.mark.slow
def test_a_folder_run_is_resumed_from_what_was_typed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = folder.parent
    monkeypatch.chdir(place)
    settings = {"data.drop_columns": ["dose"], "data.target": "outcome"}
    with pytest.raises(KeyboardInterrupt):
        playerfl.run("./hospitals", "player_fl", rounds=3, settings=settings, out="o", listener=stop_after_one)
    assert 'task = "./hospitals"\n' in (place / "o" / "experiment.toml").read_text()
    assert command("run", "--resume", "o", "-q", cwd=place).returncode == 0
    run = ("run", "./hospitals", "-a", "player_fl", "--rounds", 3, "--set", "data.drop_columns=dose")
    assert command(*run, "--set", "data.target=outcome", "--out", "p", "-q", cwd=place).returncode == 0
    for name in ("experiment.toml", "scores.csv", "traffic.csv", "layers.json", "data.json", "finished.json"):
        assert (place / "o" / name).read_bytes() == (place / "p" / name).read_bytes(), name
    model = playerfl.load_result("o").model("north")
    assert model(torch.zeros(1, 4)).shape == (1, 2)


def test_a_resume_without_the_folder_says_what_is_missing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    with pytest.raises(KeyboardInterrupt):
        playerfl.run("hospitals", "fedavg", rounds=3, out="o", listener=stop_after_one)
    folder.rename(folder.with_name("elsewhere"))
    assert "unknown task 'hospitals'" in refused(command("run", "--resume", "o", cwd=folder.parent))
