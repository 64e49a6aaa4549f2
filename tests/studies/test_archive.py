"""An archive gives the same results as its study, without the study."""

from __future__ import annotations

from pathlib import Path

import pytest

from playerfl.errors import PlayerflError
from playerfl.report.compute.comparison import compare
from playerfl.studies.archive import read_archive, write_archive
from playerfl.studies.collecting import collect
from playerfl.studies.directory import StudyDirectory
from studies.small_studies import SMALL, run


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> StudyDirectory:
    """A study that the tests only read."""
    place = tmp_path_factory.mktemp("study") / "o"
    run(place, algorithms=["local", "fedbabu", "player_fl"])
    return StudyDirectory.open(place)


@pytest.mark.slow
def test_an_archive_gives_the_same_comparison(directory: StudyDirectory, tmp_path: Path) -> None:
    assert write_archive(directory, tmp_path / "a") == 9
    archive = read_archive(tmp_path / "a")
    kept, found = directory.results(), archive.results
    assert archive.tuning_runs == 3 * 2 * 2
    assert [run.experiment for run in found] == [run.experiment for run in kept]
    assert [run.layers for run in found] == [run.layers for run in kept]
    assert [run.data for run in found] == [run.data for run in kept]
    assert [list(run.traffic_rows) for run in found] == [list(run.traffic_rows) for run in kept]
    for ours, theirs in zip(found, kept, strict=True):
        assert sorted(map(str, (row[:5] for row in ours.score_rows))) == sorted(
            map(str, (row[:5] for row in theirs.score_rows))
        )
        assert ours.confusions == theirs.confusions
        assert ours.f1("true") == theirs.f1("true")
        assert ours.site_scores == {
            site: pytest.approx(scores, rel=1e-8) for site, scores in theirs.site_scores.items()
        }
    assert len(collect(tmp_path / "a").results) == 9
    assert [row.algorithm for row in compare(found[::3])] == ["local", "fedbabu", "player_fl"]


@pytest.mark.slow
def test_the_same_runs_give_the_same_bytes(directory: StudyDirectory, tmp_path: Path) -> None:
    for place in ("a", "b"):
        write_archive(directory, tmp_path / place)
    names = sorted(file.name for file in (tmp_path / "a").iterdir())
    tables = ["layers.jsonl.bz2", "scores.csv.bz2", "splits.jsonl.bz2", "times.csv.bz2", "traffic.csv.bz2"]
    assert names == ["archive.json", "confusions.safetensors.bz2", *tables]
    assert all((tmp_path / "a" / n).read_bytes() == (tmp_path / "b" / n).read_bytes() for n in names)


def test_a_damaged_archive_is_refused_in_one_sentence(directory: StudyDirectory, tmp_path: Path) -> None:
    write_archive(directory, tmp_path / "a")
    packed = (tmp_path / "a" / "scores.csv.bz2").read_bytes()
    for damage in (packed[:100], b"", b"task,seed\n"):
        (tmp_path / "a" / "scores.csv.bz2").write_bytes(damage)
        with pytest.raises(PlayerflError, match="cannot be read"):
            read_archive(tmp_path / "a")


@pytest.mark.slow
def test_damaged_and_swollen_tables_are_refused(directory: StudyDirectory, tmp_path: Path) -> None:
    import bz2

    from run_files import repair_archive

    write_archive(directory, tmp_path / "a")
    file = tmp_path / "a" / "times.csv.bz2"
    whole = file.read_bytes()
    for content in (
        whole[:20] + b"\xff" * 20 + whole[40:],
        bz2.compress(b"x" * 2**29),
        bz2.compress(b"line,seed\n0"),
    ):
        file.write_bytes(content)
        repair_archive(tmp_path / "a")
        with pytest.raises(PlayerflError):
            read_archive(tmp_path / "a")


@pytest.mark.slow
def test_an_archive_has_no_file_for_matrices_it_lacks_nor_any_of_an_earlier_one(tmp_path: Path) -> None:
    run(tmp_path / "o", algorithms=["local"], settings={**SMALL["settings"], "confusions": "never"})
    earlier = [tmp_path / "a" / name for name in ("confusions.safetensors.bz2", "scores.csv.gz")]
    (tmp_path / "a").mkdir()
    for file in earlier:
        file.touch()
    write_archive(StudyDirectory.open(tmp_path / "o"), tmp_path / "a")
    assert not any(file.exists() for file in earlier)
    assert not any(result.confusions for result in read_archive(tmp_path / "a").results)


@pytest.mark.slow
def test_a_table_that_is_gone_is_named(directory: StudyDirectory, tmp_path: Path) -> None:
    write_archive(directory, tmp_path / "a")
    (tmp_path / "a" / "times.csv.bz2").unlink()
    with pytest.raises(PlayerflError, match=r"lacks its times\.csv\.bz2; get the archive again"):
        read_archive(tmp_path / "a")
