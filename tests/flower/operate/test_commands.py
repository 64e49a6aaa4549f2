"""The commands that need no running server."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from flower.institutions import wait_until
from playerfl.cli.main import app
from playerfl.cli.site.run import keep_running
from playerfl.errors import ConfigError, PlayerflError
from playerfl.flower.operate import launch, processes
from playerfl.flower.operate.app_folder import read_app_folder
from playerfl.flower.operate.certificates import write_certificates
from playerfl.flower.operate.keys import write_key_pair
from playerfl.flower.operate.launch import ServerHome
from playerfl.flower.operate.processes import LOOPBACK, Running, descendants
from playerfl.flower.operate.site_node import SiteNode
from playerfl.storage.ownership import make_private

EXPERIMENT = 'task = "synthetic"\nrounds = 2\nalgorithm = "fedper"\n'


SITE = ("site", "--name", "north", "--state")


def do(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["flower", *arguments])


def key_and_authority(folder: Path) -> tuple[Path, Path]:
    """A site's key and a server's ca.crt."""
    key, _ = write_key_pair("north", folder)
    write_certificates(folder, ["localhost"])
    return key, folder / "ca.crt"


def made(tmp_path: Path, *options: str) -> Any:
    (tmp_path / "exp.toml").write_text(EXPERIMENT)
    return do("init", str(tmp_path / "job"), "--config", str(tmp_path / "exp.toml"), *options)


def test_keys_are_a_pair_that_flower_reads_and_only_the_owner_can(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

    assert do("keys", "north", "--out", str(tmp_path)).exit_code == 0
    private = load_ssh_private_key((tmp_path / "north.key").read_bytes(), None)
    public = load_ssh_public_key((tmp_path / "north.pub").read_bytes())
    assert private.public_key() == public
    assert (tmp_path / "north.key").stat().st_mode & 0o077 == 0
    again = do("keys", "north", "--out", str(tmp_path))
    assert isinstance(again.exception, ConfigError) and "already exists" in str(again.exception)


def test_a_private_key_without_its_public_key_is_completed(tmp_path: Path) -> None:
    _, public = write_key_pair("north", tmp_path)
    shown, secret = public.read_bytes(), (tmp_path / "north.key").read_bytes()
    public.unlink()
    write_key_pair("north", tmp_path)
    assert (public.read_bytes(), (tmp_path / "north.key").read_bytes()) == (shown, secret)
    public.unlink()
    (tmp_path / "north.key").write_text("half a k")
    with pytest.raises(ConfigError, match="already exists but cannot be read"):
        write_key_pair("north", tmp_path)


def test_missing_certificates_are_created_and_foreign_ones_are_not_replaced(tmp_path: Path) -> None:
    home = launch.ServerHome(tmp_path)
    home.prepare((), 8000)
    secret = (tmp_path / "server.key").read_bytes()
    (tmp_path / "server.pem").unlink()
    home.prepare((), 8000)
    assert (tmp_path / "server.key").read_bytes() == secret
    home.authority.unlink()
    with pytest.raises(ConfigError, match=r"ca\.crt is missing"):
        home.prepare((), 8000)


@pytest.mark.parametrize("name", ["", "../north", 'no"rth', "a,b", "x" * 64, "a\nb"])
def test_an_unsafe_site_name_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a valid site name"):
        write_key_pair(name, tmp_path)


def test_the_app_folder_names_the_package_and_holds_no_code_and_no_dependencies(tmp_path: Path) -> None:
    assert made(tmp_path, "--site", "north", "--site", "south", "--deadline", "60").exit_code == 0
    assert [file.name for file in (tmp_path / "job").iterdir()] == ["pyproject.toml"]
    content = tomllib.loads((tmp_path / "job" / "pyproject.toml").read_text())
    assert content["project"]["dependencies"] == []
    assert content["tool"]["flwr"]["app"]["components"] == {
        "serverapp": "playerfl.flower.server_app:app",
        "clientapp": "playerfl.flower.client_app:app",
    }
    deployment = read_app_folder(tmp_path / "job")
    assert (deployment.job, deployment.sites, deployment.deadline) == ("synthetic-fedper-seed0", ("north", "south"), 60)
    assert tomllib.loads(deployment.experiment)["rounds"] == 2


def test_a_job_that_merges_fewer_sites_than_policies_ask_for_is_announced(tmp_path: Path) -> None:
    """All sites refused it, and only their own audit logs said why."""
    sites = [option for name in ("north", "south", "west") for option in ("--site", name)]
    assert "participation" not in made(tmp_path, *sites).stderr
    (tmp_path / "exp.toml").write_text(f"{EXPERIMENT}participation = 0.3\n")
    done = do("init", str(tmp_path / "few"), "--config", str(tmp_path / "exp.toml"), *sites)
    assert done.exit_code == 0
    assert "participation = 0.3: rounds after the first merge 1 site; a site whose policy asks for more" in done.stderr


@pytest.mark.system
def test_flower_itself_accepts_the_app_folder(tmp_path: Path) -> None:
    made(tmp_path)
    environment = launch.safe_environment(tmp_path / "flwr")
    done = subprocess.run(
        [launch.program("flwr"), "build", "--app", str(tmp_path / "job")],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(tmp_path.glob("*.fab"))


def test_without_site_options_the_sites_of_the_task_take_part(tmp_path: Path) -> None:
    made(tmp_path)
    sites = read_app_folder(tmp_path / "job").sites
    assert sites and sites == tuple(f"site-{i}" for i in range(len(sites)))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--min-sites", "9", "--site", "a"), "min_sites must be between"),
        (("--min-sites", "0", "--site", "a"), "at least 1"),
        (("--site", "a", "--site", "a"), "must be listed once"),
        (("--site", "a/b"), "is not a valid site name"),
        (("--job", "../up"), "is not a valid job name"),
        (("--deadline", "0"), "above 0"),
        (("--norm-bound", "0.5"), "at least 1"),
        (("--noise", "1"), "set clip too"),
        (("--secure-range", "8", "--site", "a", "--site", "b"), "at least 3 sites"),
    ],
)
def test_bad_settings_are_one_sentence(options: tuple[str, ...], reason: str, tmp_path: Path) -> None:
    done = made(tmp_path, *options)
    assert isinstance(done.exception, ConfigError) and reason in str(done.exception)
    assert not (tmp_path / "job").exists()


def test_sites_that_join_after_training_are_refused(tmp_path: Path) -> None:
    """They were ignored without a word."""
    (tmp_path / "experiment.toml").write_text('task = "digits"\nunseen = ["site-1"]\n')
    done = do("init", str(tmp_path / "job"), "--config", str(tmp_path / "experiment.toml"))
    assert isinstance(done.exception, ConfigError) and "unseen = site-1" in str(done.exception)
    assert not (tmp_path / "job").exists()


def test_noise_is_reported_as_epsilon(tmp_path: Path) -> None:
    """Two rounds: ρ = 2·2/2² = 1, so ε = 1 + 2·√ln(10⁵) = 7.79."""
    assert "ε = 7.79" in made(tmp_path, "--clip", "1", "--noise", "2").stderr


def test_a_folder_with_other_files_is_refused_because_they_would_be_sent(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "patients.csv").touch()
    assert "would be sent with the app" in str(made(tmp_path).exception)


def test_the_superlink_is_on_loopback_with_every_safe_flag(tmp_path: Path) -> None:
    home = ServerHome(tmp_path)
    home.prepare(["fl.example.org"], 8123)
    command = home.superlink(8123)
    assert command[command.index("--host") + 1] == "127.0.0.1"
    assert {"--enable-supernode-auth", "--disable-runtime-dependency-installation", "--ssl-keyfile"} <= set(command)
    assert "--insecure" not in command
    environment = home.environment()
    assert environment["FLWR_TELEMETRY_ENABLED"] == "0" and environment["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert environment["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    assert home.port == 8123
    with pytest.raises(ConfigError, match=r"is not valid for other\.example\.org"):
        home.prepare(["other.example.org"], 8123)


def test_a_sites_settings_cannot_inject_others(tmp_path: Path) -> None:
    key, authority = key_and_authority(tmp_path)
    with pytest.raises(ConfigError, match="must not contain quotes"):
        SiteNode("north", key, "here:1", authority, tmp_path, Path('x" state="/')).check()
    with pytest.raises(ConfigError, match="NAME:PORT"):
        SiteNode("north", key, "here", authority, tmp_path, Path("agent.sock")).check()


def test_files_of_another_kind_are_no_key_and_no_authority(tmp_path: Path) -> None:
    """With the public key as --key, the node was restarted for ever, and its key said to be not registered."""
    key, authority = key_and_authority(tmp_path)
    for wrong in (key.with_suffix(".pub"), authority, tmp_path / "server.key"):
        with pytest.raises(ConfigError, match=f"{wrong.name} is not a site's private key"):
            SiteNode("north", wrong, "here:1", authority, tmp_path, Path("agent.sock")).check()
    for wrong in (key, tmp_path / "server.key"):
        with pytest.raises(ConfigError, match=f"{wrong.name} is not a certificate"):
            SiteNode("north", key, "here:1", wrong, tmp_path, Path("agent.sock")).check()


@pytest.mark.parametrize("command", ["up", "agent", "node", "site"])
def test_a_folder_with_other_files_is_not_closed_to_others(command: str, tmp_path: Path) -> None:
    """`up` in the folder with the data took it from all other users, and filled it with keys."""
    key, authority = key_and_authority(tmp_path / "keys")
    data = tmp_path / "data"
    data.mkdir(mode=0o755)
    (data / "north.csv").write_text("age,sick\n")
    node, agent = ["--key", str(key), "--ca", str(authority), "--server", "here:1"], ["--task", "digits"]
    options = {"agent": ["--agent-only", *agent], "node": ["--node-only", *node], "site": [*node, *agent]}
    done = do("up", str(data)) if command == "up" else do(*SITE, str(data), *options[command])
    assert isinstance(done.exception, ConfigError) and "holds other files" in str(done.exception)
    assert data.stat().st_mode & 0o777 == 0o755 and [file.name for file in data.iterdir()] == ["north.csv"]


@pytest.mark.parametrize("first", [None, "lost+found", ".node", ".agent", "site.toml", "north.key"])
def test_a_directory_that_an_administrator_prepared_is_made_private(first: str | None, tmp_path: Path) -> None:
    state = tmp_path / "state"
    if first:
        state.mkdir(mode=0o755)
        (state / first).mkdir()
    make_private(state)
    assert state.stat().st_mode & 0o777 == 0o700


def test_a_server_does_not_take_anothers_port_for_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It said that it was listening, because the other one was."""
    monkeypatch.setattr(processes.wait_until_free, "__defaults__", (0.3,))
    with socket.create_server((LOOPBACK, 0)) as other:
        port = other.getsockname()[1]
        done = do("up", str(tmp_path / "server"), "--port", str(port))
    assert isinstance(done.exception, ConfigError) and f"port {port} is taken" in str(done.exception)
    assert not (tmp_path / "server").exists()


def test_only_the_nodes_user_can_read_the_relays_secret(tmp_path: Path) -> None:
    node = SiteNode("north", tmp_path / "key", "here:1", tmp_path / "ca", tmp_path, Path("agent.sock"))
    secrets = []
    for _ in range(2):
        file = Path(node.command()[3])
        assert file.stat().st_mode & 0o777 == 0o600
        secrets.append(file.read_bytes())
    assert len(set(secrets)) == 2 and min(map(len, secrets)) == 32


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--task", "digits"), "a node needs --key, --ca and --server"),
        (("--agent-only", "--node-only"), "exclude each other"),
        (("--agent-only",), "this site has no data; name them with --task"),
        (("--agent-only", "--task", "digitz"), "digitz"),
        (
            ("--agent-only", "--task", "digits", "--node-user", "nobody-of-this-name"),
            "there is no user called nobody-of-this-name;",
        ),
        (("--agent-only", "--task", "digits", "--policy", "{policy}"), "did you mean 'approval'"),
        (("--agent-only", "--task", "digits", "--policy", "no.toml"), "cannot read no.toml"),
    ],
)
def test_a_site_that_cannot_start_says_why(options: tuple[str, ...], reason: str, tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text('aproval = "automatic"')
    filled = [option.replace("{policy}", str(tmp_path / "site.toml")) for option in options]
    done = do("site", "--name", "north", "--state", str(tmp_path / "state"), *filled)
    assert isinstance(done.exception, PlayerflError) and reason in str(done.exception)


def test_a_site_connects_only_to_servers_that_its_policy_accepts(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text('servers = ["fl.example.org:443"]')
    key, authority = key_and_authority(tmp_path)
    node = ["--key", str(key), "--ca", str(authority), "--server", "evil.example:443"]
    done = do(*SITE, str(tmp_path), *node, "--task", "digits")
    assert "does not accept this server" in str(done.exception)


def test_a_node_whose_port_is_taken_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """With two sites on one machine, the second node was said to have a key that is not registered."""
    monkeypatch.setattr(SiteNode, "command", lambda _: ["false"])
    with socket.socket() as other:
        other.bind((LOOPBACK, 0))
        other.listen()
        port = other.getsockname()[1]
        node = SiteNode("north", tmp_path, "localhost:443", tmp_path, tmp_path, tmp_path, port)
        with pytest.raises(typer.Exit):
            keep_running(node, retry=0)
    assert f"port {port} is taken" in (said := capfd.readouterr().err) and "not registered" not in said


def test_a_home_without_a_server_is_reported(tmp_path: Path) -> None:
    assert "is not a server's directory" in str(do("status", str(tmp_path)).exception)
    assert "is not an app folder" in str(do("run", str(tmp_path), str(tmp_path)).exception)
    assert made(tmp_path).exit_code == 0
    # Flower made a configuration of its own there.
    (tmp_path / "empty").mkdir()
    assert "is not a server's directory" in str(do("run", str(tmp_path / "empty"), str(tmp_path / "job")).exception)
    assert not any((tmp_path / "empty").iterdir())


def test_files_are_filled_in(tmp_path: Path) -> None:
    done = do("files", str(tmp_path / "conf"), "--home", str(tmp_path), "--name", "fl.example.org")
    assert done.exit_code == 0
    for file in (tmp_path / "conf").iterdir():
        assert not re.search("@[A-Z]+@", file.read_text()), file.name
    assert "NO AUTHENTICATION" in (tmp_path / "conf" / "nginx.conf").read_text()


@pytest.mark.system
def test_a_program_is_stopped_with_everything_it_started(tmp_path: Path) -> None:
    sleep = "import time; time.sleep(600)"
    started = (
        f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {sleep!r}], start_new_session=True); {sleep}"
    )
    with Running([sys.executable, "-c", started], os.environ, tmp_path / "log") as running:
        wait_until(lambda: descendants(running.pid), 20, "the grandchild has started")
        [grandchild] = descendants(running.pid)
    assert running.process.returncode is not None
    command = Path(f"/proc/{grandchild}/cmdline")
    wait_until(lambda: not command.exists() or not command.read_bytes(), 20, "the grandchild is gone")


@pytest.mark.parametrize(
    ("before", "after"),
    [("min-sites = 0", 'min-sites = "x"'), ("deadline = 60.0", "deadline = [1]"), ("rounds = 2", "rounds = two")],
)
def test_an_app_folder_that_was_changed_by_hand_is_one_sentence(before: str, after: str, tmp_path: Path) -> None:
    from playerfl.flower.server.job import checked_experiment

    made(tmp_path, "--site", "north", "--site", "south", "--deadline", "60")
    file = tmp_path / "job" / "pyproject.toml"
    assert before in file.read_text()
    file.write_text(file.read_text().replace(before, after))
    with pytest.raises(ConfigError, match=r"invalid value|not a TOML file"):
        checked_experiment(read_app_folder(tmp_path / "job"))


def test_flowers_answer_is_read_where_colours_are_forced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook sets FORCE_COLOR, and Flower's commands then colour their JSON."""
    fake = tmp_path / "flwr"
    fake.write_text("#!/bin/sh\nprintf '\\033[1m{\\033[0m \\033[1;34m\"run-id\"\\033[0m: \\033[1;36m7\\033[0m }'\n")
    fake.chmod(0o755)
    monkeypatch.setattr(launch, "program", lambda _: str(fake))
    assert ServerHome(tmp_path).flwr("list") == {"run-id": 7}
