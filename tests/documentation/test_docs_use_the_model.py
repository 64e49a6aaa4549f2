"""docs/use-the-model.md is true: from three messy files to a prediction, exactly as printed."""

from __future__ import annotations

import csv
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import documented
from command_line import playerfl, refused
from documented import ROOT

PAGE = (ROOT / "docs" / "use-the-model.md").read_text(encoding="utf-8")


def blocks(kind: str) -> list[str]:
    return documented.blocks(PAGE, kind)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all commands of the page but the last have been run, in their order."""
    place = tmp_path_factory.mktemp("reader")
    shutil.copytree(ROOT / "examples", place / "examples")
    check, run, export, predict, _ = (shlex.split(line)[1:] for block in blocks("sh") for line in block.splitlines())
    checked = playerfl(*check, cwd=place)
    # There is something to settle before training.
    assert (checked.returncode, checked.stderr.count("Traceback")) == (1, 0)
    (printed,) = (block for block in documented.blocks(PAGE) if block.startswith("stop missing"))
    shown = " ".join(f"{checked.stdout} {checked.stderr}".split())
    assert [line for line in printed.splitlines() if " ".join(line.split()) not in shown] == []
    for command in ([*run, "-q"], export, predict):
        output = playerfl(*command, cwd=place)
        assert output.returncode == 0, output.stderr
        if command is export:
            assert "differs from the trained one by at most 0\n" in output.stderr
    return place


@pytest.mark.slow
def test_the_files_shown_are_those_that_come_with_the_project(place: Path) -> None:
    first, new, _ = blocks("csv")
    assert (place / "examples" / "clinics" / "north.csv").read_text().startswith(first)
    assert (place / "examples" / "new-patients.csv").read_text() == new


@pytest.mark.slow
def test_the_predictions_are_those_of_the_page(place: Path) -> None:
    *_, printed = blocks("csv")
    expected = list(csv.reader(printed.splitlines()))
    found = list(csv.reader((place / "predictions.csv").read_text().splitlines()))
    assert [row[:3] for row in found] == [row[:3] for row in expected]
    assert found[0] == expected[0]
    for row, of_page in zip(found[1:], expected[1:], strict=True):
        # Other processors may round differently in training.
        assert [float(cell) for cell in row[3:5]] == pytest.approx([float(cell) for cell in of_page[3:5]], abs=0.05)
        assert row[5:] == of_page[5:]


@pytest.mark.slow
def test_the_folder_has_the_files_of_the_table(place: Path) -> None:
    listed = [line.split("`")[1] for line in PAGE.partition("## The folder")[2].splitlines() if line.startswith("| `")]
    pytest.importorskip("onnxruntime", reason="model.onnx needs playerfl[onnx]")
    assert sorted(listed) == sorted(file.name for file in (place / "models" / "north").iterdir())


@pytest.mark.slow
def test_the_sentences_are_those_a_user_gets(place: Path) -> None:
    (block,) = (block for block in documented.blocks(PAGE) if block.startswith("new.csv, column"))
    whole = (place / "examples" / "new-patients.csv").read_text()
    broken = [
        whole.replace("lung", "roof"),
        whole.replace(",71,", ",old,"),
        "\n".join(line.rpartition(",")[0] for line in whole.splitlines()),
        "\n".join(f"{line},{'180' if i else 'height'}" for i, line in enumerate(whole.splitlines())),
    ]
    for content, sentence in zip(broken, block.splitlines(), strict=True):
        (place / "new.csv").write_text(content)
        assert refused(playerfl("predict", "models/north", "new.csv", cwd=place)) == f"playerfl: {sentence}"


@pytest.mark.slow
def test_the_warning_is_the_one_a_user_gets(place: Path) -> None:
    (block,) = (block for block in documented.blocks(PAGE) if block.startswith("warning: 1 of 2"))
    (place / "new.csv").write_text((place / "examples" / "new-patients.csv").read_text().replace(",71,", ",710,"))
    output = playerfl("predict", "models/north", "new.csv", cwd=place)
    assert output.returncode == 0 and output.stderr == block
    assert refused(playerfl("predict", "models/north", "new.csv", "--strict", cwd=place)).startswith("playerfl: 1 of 2")


@pytest.mark.system
def test_torch_alone_gives_the_same(place: Path) -> None:
    (script,) = blocks("python")
    shown = script.strip().replace("model.predict(", "print(model.predict(") + ")"
    done = subprocess.run(
        [sys.executable, "-c", shown],
        cwd=place / "models" / "north",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    first = next(csv.DictReader((place / "predictions.csv").read_text().splitlines()))
    assert f"'readmitted': {first['probability of readmitted']}" in done.stdout
