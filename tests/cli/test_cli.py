"""The command line as a new user meets it."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import playerfl, refused
from playerfl.selftest import contract

RUN = ("run", "synthetic", "--rounds", "2")


def test_the_version_is_printed(tmp_path: Path) -> None:
    assert playerfl("--version", cwd=tmp_path).stdout.startswith("playerfl ")


@pytest.mark.parametrize("command", ["", "run", "list", "layers", "probe", "analyze", "data", "data list", "flower"])
def test_help_has_examples(command: str, tmp_path: Path) -> None:
    output = playerfl(*command.split(), "--help", cwd=tmp_path)
    assert output.returncode == 0
    assert "Examples" in output.stdout


def test_one_method_without_a_cut_leaves_no_figure(tmp_path: Path) -> None:
    output = playerfl(*RUN, "-a", "fedavg", "--out", "here", cwd=tmp_path)
    assert output.returncode == 0, output.stderr
    assert "figure" not in output.stderr
    assert not (tmp_path / "here" / "comparison.png").exists()


@pytest.mark.slow
def test_a_comparison_prints_tables_and_leaves_runs_and_a_figure(tmp_path: Path) -> None:
    output = playerfl(*RUN, "-a", "local", "-a", "fedavg", "-a", "player_fl", "--out", "here", cwd=tmp_path)
    assert output.returncode == 0, output.stderr
    for text in ("Which layers to share", "Cut after", "Comparison", "vs local", "vs fedavg", "better off"):
        assert text in output.stdout
    assert "player_fl: round 1/2" in output.stderr
    assert (tmp_path / "here" / "comparison.png").stat().st_size > 10_000
    assert {path.name for path in (tmp_path / "here" / "player_fl").iterdir()} == {
        "experiment.toml", "environment.json", "scores.csv", "traffic.csv", "layers.json", "data.json", "timing.json",
        "finished.json", "weights", "outcomes.safetensors",
        "confusions.csv",
    }  # fmt: skip


def test_stdout_holds_only_json(tmp_path: Path) -> None:
    output = playerfl(*RUN, "-a", "player_fl", "--json", cwd=tmp_path)
    (run,) = json.loads(output.stdout)["runs"]
    assert run["cut"]["federated"]
    assert run["average"].keys() == {"f1", "accuracy", "loss"}
    assert Path(tmp_path, run["directory"], "finished.json").exists()


@pytest.mark.slow
def test_options_win_over_the_file_and_set_wins_over_options(tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text('task = "synthetic"\nrounds = 9\nseed = 4\n[training]\nbatch_size = 16\n')
    output = playerfl("run", "--config", "e.toml", "--rounds", 3, "--set", "rounds=1", "--out", "o", "-q", cwd=tmp_path)
    assert output.returncode == 0, output.stderr
    written = (tmp_path / "o" / "experiment.toml").read_text()
    assert "rounds = 1\n" in written
    assert "seed = 4\n" in written
    assert "batch_size = 16\n" in written


@pytest.mark.slow
def test_selftest_prints_a_table_and_fails_if_an_identity_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from playerfl.algorithms import FedAvg, Local
    from playerfl.selftest import identities as selftest

    equal = selftest.Identity(selftest.Side("FedAvg", FedAvg()), selftest.Side("FedAvg", FedAvg()))
    wrong = selftest.Identity(selftest.Side("Local", Local()), selftest.Side("FedAvg", FedAvg()))
    monkeypatch.setattr(selftest, "identities", lambda: iter([equal]))
    output = playerfl("selftest", cwd=tmp_path)
    assert output.returncode == 0
    assert "1 of 1 identities hold" in output.stdout
    monkeypatch.setattr(selftest, "identities", lambda: iter([equal, wrong]))
    output = playerfl("selftest", cwd=tmp_path)
    assert output.returncode == 1
    assert "differs by" in output.stdout
    identities = json.loads(playerfl("selftest", "--json", cwd=tmp_path).stdout)["identities"]
    assert [row["holds"] for row in identities] == [True, False]


def test_lists_show_algorithms_and_tasks(tmp_path: Path) -> None:
    assert "personal_layers" in playerfl("list", "algorithms", cwd=tmp_path).stdout
    tasks = json.loads(playerfl("list", "tasks", "--json", cwd=tmp_path).stdout)
    assert {task["name"] for task in tasks} >= {"digits", "synthetic"}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("run", "digit"), "unknown task 'digit'; did you mean 'digits'?"),
        (("run",), "no task given"),
        (("run", "digits", "-a", "fedawg"), "unknown algorithm 'fedawg'; did you mean 'fedavg'?"),
        (("run", "digits", "--rounds", "0"), "rounds = 0 is not allowed"),
        (("run", "digits", "--rounds", "many"), "Invalid value for '--rounds'"),
        (("run", "digits", "--alpha", "-1"), "alpha = -1.0"),
        (("run", "digits", "--alpha", "0.001", "--sites", "12"), "Dirichlet(0.001) draws gave each of the 12 sites"),
        (("run", "digits", "--sites", "100"), "100 sites of at least 50 examples need 5000, but there are 1797"),
        (("run", "synthetic", "--alpha", "1"), "unknown key 'alpha'"),
        (("run", "digits", "--set", "rounds"), "write it as key=value"),
        (("run", "digits", "--set", "training.batch=3"), "unknown key 'batch'; did you mean 'batch_size'?"),
        (("run", "digits", "--config", "absent.toml"), "cannot read absent.toml"),
        (("run", "digits", "--device", "cuda"), "device 'cuda' is not available here"),
        (("run", "digits", "-a", "local", "-a", "local"), "each algorithm may be given only once"),
        (("run", "--resume", "absent"), "there is no run in absent"),
        (("run", "digits", "--resume", "absent"), "give no other settings with it"),
        (("run", "synthetic", "--engine", "ray"), "unknown engine 'ray'; allowed: flower-simulation, in-process"),
        (("list", "algoritms"), "unknown list 'algoritms'; did you mean 'algorithms'?"),
        (("run", "digits", "--nonsense"), "No such option"),
        (("walk",), "No such command"),
    ],
)
def test_bad_input_gets_one_sentence_and_exit_code_2(arguments: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    assert sentence in refused(playerfl(*arguments, cwd=tmp_path))
    assert not list(tmp_path.rglob("*"))


@pytest.mark.parametrize("arguments", [("rnu",), ("flower", "st")])
def test_a_mistyped_command_gets_one_suggestion(arguments: tuple[str, ...], tmp_path: Path) -> None:
    assert refused(playerfl(*arguments, cwd=tmp_path)).count("Did you mean") == 1


def test_ctrl_c_is_acknowledged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(contract, "check_contract", interrupted)
    output = playerfl("selftest", "fedavg", "-q", cwd=tmp_path)
    assert (output.returncode, output.stdout, output.stderr) == (130, "", "interrupted\n")


@pytest.mark.system
@pytest.mark.parametrize("command", ["list settings --json", "--version", "layers digits"])
def test_a_full_disk_under_stdout_is_one_sentence(command: str) -> None:
    with Path("/dev/full").open("w") as full:
        output = subprocess.run(
            [sys.executable, "-m", "playerfl", *command.split()],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert output.returncode == 2
    assert output.stderr == (
        "playerfl: cannot write stdout: No space left on device; free some space and run the same command again\n"
    )


def test_directories_that_are_not_runs_are_refused(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_text("x")
    assert "holds files that are not a run's (cat.jpg)" in refused(playerfl(*RUN, "--out", "photos", cwd=tmp_path))
    assert "it has no experiment.toml" in refused(playerfl("run", "--resume", "photos", cwd=tmp_path))
    (tmp_path / "file").write_text("x")
    assert "file is a file" in refused(playerfl(*RUN, "--out", "file", cwd=tmp_path))
    assert "file is a file" in refused(playerfl("run", "--resume", "file", cwd=tmp_path))
    (tmp_path / "photos" / "experiment.toml").write_text("rounds = 1")
    (tmp_path / "photos" / "environment.json").write_text("{}")
    assert "was not written by this version" in refused(playerfl("run", "--resume", "photos", cwd=tmp_path))


@pytest.mark.slow
def test_a_finished_run_is_neither_overwritten_nor_repeated(tmp_path: Path) -> None:
    assert playerfl(*RUN, "--out", "o", "-q", cwd=tmp_path).returncode == 0
    before = (tmp_path / "o" / "scores.csv").stat().st_mtime_ns
    assert "o already holds a run; continue it with --resume o" in refused(playerfl(*RUN, "--out", "o", cwd=tmp_path))
    output = playerfl("run", "--resume", "o", cwd=tmp_path)
    assert output.returncode == 0
    assert "Comparison" in output.stdout
    assert (tmp_path / "o" / "scores.csv").stat().st_mtime_ns == before
    assert playerfl(*RUN, "--out", "o", "--overwrite", "-q", cwd=tmp_path).returncode == 0


@pytest.mark.parametrize("file", ["checkpoint.safetensors", "scores.csv", "environment.json", "experiment.toml"])
def test_the_damaged_file_of_a_run_is_named(file: str, tmp_path: Path) -> None:
    unfinished(tmp_path / "o")
    (tmp_path / "o" / file).write_bytes(b"\xff\x00garbage")
    assert file in refused(playerfl("run", "--resume", "o", cwd=tmp_path))


def unfinished(out: Path) -> None:
    """A run that stopped after its first round."""
    from playerfl.runs.api import run
    from playerfl.runs.run import Progress

    def stop(progress: Progress) -> None:
        if progress.round == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run("synthetic", "fedavg", rounds=3, out=out, listener=stop)


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    from playerfl.runs.api import reopen_directory

    unfinished(tmp_path / "o")
    _, held = reopen_directory(tmp_path / "o")
    assert "is in use by another process" in refused(playerfl("run", "--resume", "o", cwd=tmp_path))
    held.unlock()
    assert playerfl("run", "--resume", "o", "-q", cwd=tmp_path).returncode == 0


@pytest.mark.system
def test_a_full_disk_is_one_sentence_and_the_run_can_be_resumed(tmp_path: Path) -> None:
    """A limit on file size makes the kernel refuse the write, as a full disk does."""
    limited = (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000));"
        "import sys; sys.argv = ['playerfl', 'run', 'synthetic', '--rounds', '3', '--out', 'o', '-q'];"
        "from playerfl.cli.main import main; main()"
    )
    output = subprocess.run([sys.executable, "-c", limited], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    sentence = refused(output)
    assert "cannot write o/" in sentence
    assert "File too large; allow larger files and continue with --resume" in sentence
    assert playerfl("run", "--resume", "o", "-q", cwd=tmp_path).returncode == 0
    assert playerfl("run", "synthetic", "--rounds", "3", "--out", "p", "-q", cwd=tmp_path).returncode == 0
    assert (tmp_path / "o" / "scores.csv").read_bytes() == (tmp_path / "p" / "scores.csv").read_bytes()


def test_a_directory_without_write_permission_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    sentence = refused(playerfl(*RUN, "--out", "o", cwd=tmp_path))
    assert "cannot write o: Permission denied; choose a directory you may write to" in sentence
