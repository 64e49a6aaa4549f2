"""The operator's side: names beside keys, certificates, interrupted jobs, metrics, and the doctor."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key
from typer.testing import CliRunner

from command_line import printed_by
from flower.jobs import Job
from playerfl.cli.main import app
from playerfl.errors import ConfigError, RunDirectoryError
from playerfl.flower.deployment import Deployment
from playerfl.flower.operate import enrolment, preflight
from playerfl.flower.operate.app_folder import read_app_folder, write_app_folder
from playerfl.flower.operate.certificates import (
    activate_renewal,
    expiry,
    expiry_warnings,
    prepare_renewal,
    write_certificates,
)
from playerfl.flower.operate.enrolment import enrol, exclude, site_statuses
from playerfl.flower.operate.job_monitor import RUN, submit
from playerfl.flower.operate.keys import fingerprint_of, write_key_pair
from playerfl.flower.operate.launch import ServerHome
from playerfl.flower.operate.metrics import metrics_text, serving_metrics
from playerfl.flower.operate.processes import FlowerError
from playerfl.flower.operate.register import KeyRegister, names_by_key
from playerfl.flower.operate.supervision import FIRST_SECONDS, MOST_ATTEMPTS, Supervisor
from playerfl.flower.server.job_status import STATUS, JobStatus, read_status
from playerfl.runs.experiment import Experiment


class FakeFlower:
    """Flower's commands for nodes, as 1.41 answers them: its list has no names."""

    def __init__(self) -> None:
        self.nodes: dict[str, str] = {}
        self.keys: dict[str, bytes] = {}

    def __call__(self, _: ServerHome, *arguments: str) -> Any:
        what, *rest = arguments[1:]
        if what == "register":
            key = Path(rest[0]).read_bytes()
            if key in self.keys.values():
                raise FlowerError("Public key already in use")
            number = str(1000 + len(self.nodes))
            self.nodes[number], self.keys[number] = "registered", key
            return {"node-id": number}
        if what == "unregister":
            if self.nodes.get(rest[0]) in (None, "unregistered"):
                raise FlowerError("Node ID not found")
            self.nodes[rest[0]] = "unregistered"
            return {}
        return {"nodes": [{"node-id": number, "status": status} for number, status in self.nodes.items()]}


@pytest.fixture
def home(tmp_path: Path) -> ServerHome:
    home = ServerHome(tmp_path / "server")
    home.prepare((), 8123)
    return home


@pytest.fixture
def flower(monkeypatch: pytest.MonkeyPatch) -> FakeFlower:
    fake = FakeFlower()
    monkeypatch.setattr(ServerHome, "flwr", lambda home, *arguments: fake(home, *arguments))
    return fake


def key_of(name: str, folder: Path) -> Path:
    return write_key_pair(name, folder)[1]


def test_sites_are_known_by_name_and_can_be_revoked(home: ServerHome, flower: FakeFlower, tmp_path: Path) -> None:
    north, south = key_of("north", tmp_path), key_of("south", tmp_path)
    enrol(home, north, "north")
    enrol(home, south, "south")
    flower.nodes["1000"] = "online"
    assert [(site.name, site.status) for site in site_statuses(home)] == [("north", "online"), ("south", "registered")]
    exclude(home, "north")
    assert flower.nodes == {"1000": "unregistered", "1001": "registered"}
    assert [site.name for site in site_statuses(home)] == ["south"]
    with pytest.raises(ConfigError, match="unknown site 'north'"):
        exclude(home, "north")


@pytest.mark.parametrize("name", ["", "nort", " ", "north\n"])
def test_an_unknown_name_revokes_nobody(name: str, home: ServerHome, flower: FakeFlower, tmp_path: Path) -> None:
    enrol(home, key_of("north", tmp_path), "north")
    with pytest.raises(ConfigError, match=r"unknown site .* allowed: north"):
        exclude(home, name)
    assert flower.nodes == {"1000": "registered"}


@pytest.mark.parametrize("name", ["North", "n\u043erth", "\uff4eorth", "NORTH"], ids=ascii)
def test_a_name_that_looks_like_anothers_is_refused(
    name: str, home: ServerHome, flower: FakeFlower, tmp_path: Path
) -> None:
    enrol(home, key_of("north", tmp_path), "north")
    (tmp_path / "other").mkdir()
    with pytest.raises(ConfigError, match="looks like north"):
        enrol(home, key_of("north", tmp_path / "other"), name)
    enrol(home, key_of("north-2", tmp_path), "north-2")
    assert sorted(KeyRegister(home.path).read()) == ["north", "north-2"]


def test_a_name_has_one_key_and_a_key_one_name(home: ServerHome, flower: FakeFlower, tmp_path: Path) -> None:
    first, second = key_of("north", tmp_path / "a"), key_of("north", tmp_path / "b")
    enrol(home, first, "north")
    with pytest.raises(ConfigError, match=r"north is already registered, with the key SHA256:.*add --replace"):
        enrol(home, second, "north")
    with pytest.raises(ConfigError, match="already registered, for north; every site needs a key of its own"):
        enrol(home, first, "south")
    with pytest.raises(ConfigError, match=r"has the fingerprint SHA256:.* not SHA256:other"):
        enrol(home, second, "south", expected="SHA256:other")
    assert len(flower.nodes) == 1


def test_a_key_is_replaced_without_a_moment_in_which_the_site_has_none(
    home: ServerHome, flower: FakeFlower, tmp_path: Path
) -> None:
    first, second = key_of("north", tmp_path / "a"), key_of("north", tmp_path / "b")
    enrol(home, first, "north")
    name_of = names_by_key(home.path)
    old, new = node_of(first), node_of(second)
    assert (name_of(old), name_of(new)) == ("north", None)
    enrol(home, second, "north", replace=True)
    assert (name_of(old), name_of(new)) == (None, "north")
    assert flower.nodes == {"1000": "unregistered", "1001": "registered"}
    with pytest.raises(ConfigError, match="leave out --replace"):
        enrol(home, key_of("west", tmp_path), "west", replace=True)


def node_of(public: Path, name: str = "north") -> SimpleNamespace:
    pem = load_ssh_public_key(public.read_bytes()).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return SimpleNamespace(node_id=1, name=name, public_key=pem)


def test_names_come_from_keys_not_from_nodes(home: ServerHome, flower: FakeFlower, tmp_path: Path) -> None:
    enrol(home, key_of("north", tmp_path), "north")
    stranger = key_of("stranger", tmp_path)
    name_of = names_by_key(home.path)
    assert name_of(node_of(tmp_path / "north.pub", "anything")) == "north"
    assert name_of(node_of(stranger, "north")) is None
    assert name_of(node_of(stranger, "")) is None
    assert name_of(node_of(stranger, "stranger")) == "stranger"


def test_a_crash_between_flower_and_the_register_is_repaired(
    home: ServerHome, flower: FakeFlower, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enrol(home, key_of("north", tmp_path), "north")
    with monkeypatch.context() as patched, pytest.raises(OSError, match="gone"):
        patched.setattr(KeyRegister, "remove", lambda *_: (_ for _ in ()).throw(OSError("gone")))
        exclude(home, "north")
    assert [(site.name, site.status) for site in site_statuses(home)] == [("north", "unregistered")]
    exclude(home, "north")
    assert KeyRegister(home.path).read() == {}


def test_a_broken_register_is_one_sentence(home: ServerHome) -> None:
    for text in ("{", "[]", '{"sites": [{"name": 1}]}', '{"sites": 7}'):
        (home.path / "sites.json").write_text(text)
        with pytest.raises(RunDirectoryError, match="restore it from a backup"):
            KeyRegister(home.path).read()


def test_fingerprints_are_those_of_ssh_keygen(tmp_path: Path) -> None:
    public = tmp_path / "known.pub"
    public.write_text(
        "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBEmKSENjQEezOmxkZMy7opKgwFB9nkt5"
        "YRrYMjNuG5N87uRgg6CLrbo5wAdT/y6v0mKV0U2w0WZ2YB/++Tpockg= github\n"
    )
    # The fingerprint that GitHub publishes for this key.
    assert fingerprint_of(public.read_bytes()) == "SHA256:p2QAMXNIC1TJYWeIOttrVc98/R1BUFWu3/LiyKgUfQM"
    assert fingerprint_of(node_of(public).public_key) == fingerprint_of(public.read_bytes())
    for wrong in (b"", b"ssh-rsa x", b"-----BEGIN", b"\xff"):
        with pytest.raises(ValueError, match="not a public key"):
            fingerprint_of(wrong)
    with pytest.raises(ConfigError, match="is not a public key"):
        enrolment._fingerprint(write_key_pair("north", tmp_path)[0])


def connects(certificate: Path, authority: Path) -> bool:
    """Whether a client that trusts `authority` accepts a server with this certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "server.pem", certificate / "server.key")
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        try:
            with listener, context.wrap_socket(listener.accept()[0], server_side=True) as wrapped:
                wrapped.recv(1)
        except OSError:
            pass

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    client = ssl.create_default_context(cafile=str(authority))
    try:
        raw = socket.create_connection(listener.getsockname(), timeout=10)
        with raw, client.wrap_socket(raw, server_hostname="127.0.0.1"):
            return True
    except ssl.SSLError:
        return False
    finally:
        thread.join(10)


def test_certificates_are_renewed_while_sites_trust_both(home: ServerHome, tmp_path: Path) -> None:
    folder = home.path
    before = tmp_path / "before"
    before.mkdir()
    for name in ("server.pem", "server.key", "ca.crt"):
        (before / name).write_bytes((folder / name).read_bytes())
    bundle = prepare_renewal(folder)
    # The server goes on as before; a site may have the old ca.crt or the new one.
    assert (folder / "server.pem").read_bytes() == (before / "server.pem").read_bytes()
    assert connects(folder, before / "ca.crt") and connects(folder, bundle)
    activate_renewal(folder)
    assert connects(folder, bundle) and connects(before, bundle)
    assert not connects(folder, before / "ca.crt")
    home.prepare((), 8123)
    with pytest.raises(ConfigError, match="nothing to activate"):
        activate_renewal(folder)
    prepare_renewal(folder)
    activate_renewal(folder, drop_old=True)
    assert connects(folder, folder / "ca.crt") and not connects(before, folder / "ca.crt")
    assert (folder / "server.key").stat().st_mode & 0o077 == 0


def test_a_certificate_that_ends_is_announced(home: ServerHome) -> None:
    assert expiry_warnings(home.path) == []
    ends = expiry(home.path / "server.pem")
    assert ends > datetime.now(UTC) + timedelta(days=800)
    [soon] = expiry_warnings(home.path, ends - timedelta(days=3))
    assert f"expires on {ends:%Y-%m-%d}" in soon and "playerfl flower renew" in soon
    assert "server.pem expired on" in expiry_warnings(home.path, ends + timedelta(days=3))[0]


def status_of(job: str, state: str, **changes: Any) -> JobStatus:
    status = JobStatus(job, state, "", 3, 10, "fedavg", {"north": "2:fit"}, 12.0, "2026-11-18T08:00:00Z")
    return replace(status, **changes)


def write_status(home: ServerHome, status: JobStatus) -> None:
    (home.jobs / status.job).mkdir(exist_ok=True)
    (home.jobs / status.job / STATUS).write_text(json.dumps(asdict(status)))


def test_interrupted_jobs_are_submitted_again_and_stopped_ones_are_not(home: ServerHome) -> None:
    now, submitted, said = [0.0], [], []

    def submit(_: ServerHome, folder: Path) -> str:
        submitted.append(folder.parent.name)
        return "1"

    for state in ("running", "stopped", "failed", "finished", "ended"):
        write_status(home, status_of(state, state))
        (home.submitted / state / "app").mkdir(parents=True)
    supervisor = Supervisor(home, said.append, lambda: now[0], submit)
    supervisor.look()
    assert submitted == []
    now[0] += FIRST_SECONDS
    supervisor.look()
    supervisor.look()
    assert submitted == ["running"] and "submitted again" in said[0]
    for _ in range(100):
        now[0] += 600
        supervisor.look()
    # Without a new round, only so often; after one, again.
    assert len(submitted) == MOST_ATTEMPTS
    write_status(home, status_of("running", "running", round=4))
    for _ in range(3):
        now[0] += 10
        supervisor.look()
    assert len(submitted) == MOST_ATTEMPTS + 1


def test_a_job_is_submitted_again_as_soon_as_it_was_interrupted(
    home: ServerHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also right after its submission, but not while it is still starting."""
    monkeypatch.setattr(ServerHome, "flwr", lambda *_: {"run-id": "2"})
    write_app_folder(
        tmp_path / "app", Deployment("heart", ("north",), Experiment.resolve({"task": "synthetic"}).to_toml())
    )
    (home.submitted / "heart").mkdir(parents=True)
    now = datetime.now(UTC)
    run = json.dumps({"run-id": "1", "time": now.timestamp() - 20})
    for seconds_ago, expected in ((60, "1"), (5, "2")):
        (home.submitted / "heart" / RUN).write_text(run)
        updated = (now - timedelta(seconds=seconds_ago)).strftime("%Y-%m-%dT%H:%M:%SZ")
        write_status(home, status_of("heart", "running", updated=updated))
        assert submit(home, tmp_path / "app") == expected


def test_a_job_is_submitted_again_after_the_clock_was_set_back(
    home: ServerHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would count as just submitted until the clock is where it was."""
    monkeypatch.setattr(ServerHome, "flwr", lambda *_: {"run-id": "2"})
    experiment = Experiment.resolve({"task": "synthetic"}).to_toml()
    write_app_folder(tmp_path / "app", Deployment("heart", ("north",), experiment))
    (home.submitted / "heart").mkdir(parents=True)
    later = datetime.now(UTC) + timedelta(hours=2)
    (home.submitted / "heart" / RUN).write_text(json.dumps({"run-id": "1", "time": later.timestamp()}))
    write_status(home, status_of("heart", "running", updated=f"{later - timedelta(minutes=1):%Y-%m-%dT%H:%M:%SZ}"))
    assert submit(home, tmp_path / "app") == "2"


@pytest.mark.parametrize("changed", ["experiment", "sites"])
def test_a_job_that_has_begun_is_not_submitted_with_another_experiment_or_other_sites(
    changed: str, home: ServerHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server resumes a job with the files that were submitted last: with others, it could never do so again."""
    monkeypatch.setattr(ServerHome, "flwr", lambda *_: {"run-id": "2"})
    first = Deployment("heart", ("north", "south"), Experiment.resolve({"task": "synthetic"}).to_toml())
    other = Experiment.resolve({"task": "synthetic", "rounds": 7}).to_toml()
    second = replace(first, **{"experiment": {"experiment": other}, "sites": {"sites": ("north",)}}[changed])  # type: ignore[arg-type]
    for name, deployment in (("first", first), ("second", second)):
        write_app_folder(tmp_path / name, deployment)
    # Before it has begun, everything may still change.
    for name in ("second", "first"):
        assert submit(home, tmp_path / name) == "2"
    for state in ("running", "interrupted", "failed"):
        write_status(home, status_of("heart", state))
        (home.jobs / "heart" / "experiment.toml").write_text(first.experiment)
        with pytest.raises(ConfigError, match=f"job heart was started with .*{changed}; give this one another name"):
            submit(home, tmp_path / "second")
        assert read_app_folder(home.submitted / "heart" / "app") == first
        assert submit(home, tmp_path / "first") == "2"


@pytest.mark.system
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("doing", ["lock.acquire()", "time.sleep(600)", "signal.signal(2, signal.SIG_IGN); input()"])
def test_an_orphaned_job_ends_at_once_whatever_it_is_doing(home: ServerHome, doing: str) -> None:
    """Also while the server's process is a zombie, which still has its ID."""
    waiting = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    up = "import os, sys; from playerfl.flower.operate.launch import *\nfrom pathlib import Path\n"
    up += "print(ServerHome(Path(sys.argv[1])).environment()[SERVER], flush=True); input()"
    job = "import os, signal, threading, time; from playerfl.flower.operate.processes import end_with\n"
    job += f"end_with(os.environ['SERVER']); lock = threading.Lock(); lock.acquire(); print(1, flush=True); {doing}"
    with subprocess.Popen([sys.executable, "-c", up, str(home.path)], **waiting) as server:
        assert server.stdout is not None
        environment = {**os.environ, "SERVER": server.stdout.readline().decode()}
        with subprocess.Popen([sys.executable, "-c", job], env=environment, **waiting) as orphan:
            assert orphan.stdout is not None and orphan.stdout.readline() == b"1\n" and orphan.poll() is None
            os.kill(server.pid, signal.SIGKILL)
            try:
                assert orphan.wait(30) == 1
            finally:
                orphan.kill()


@pytest.mark.parametrize("updated", ["yesterday", 7, None])
def test_a_status_without_a_time_is_refused_and_does_not_stop_the_supervisor(home: ServerHome, updated: Any) -> None:
    write_status(home, status_of("heart", "running", updated=updated))
    with pytest.raises(RunDirectoryError, match="cannot be read"):
        read_status(home.jobs / "heart")
    Supervisor(home, print).look()


def test_metrics_are_served_on_loopback_in_prometheus_format(home: ServerHome) -> None:
    missing = {'no"rth': {"since": "2026-11-18T08:00:00Z", "asked": 2, "why": "offline"}}
    write_status(home, status_of("heart", "waiting for sites", missing=missing))
    (home.jobs / "heart" / "participation.csv").write_text("round,verbs,site,outcome\n0,fit,a,answered\n0,fit,b,late\n")
    with serving_metrics(home, "127.0.0.1", 0) as port:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            text = answer.read().decode()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/../server.key")
    samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert samples['playerfl_job_state{job="heart",state="interrupted"}'] == "1"
    assert samples['playerfl_job_round{job="heart"}'] == "3"
    assert samples['playerfl_messages_total{job="heart",site="b",outcome="late"}'] == "1"
    assert float(samples['playerfl_certificate_expiry_seconds{file="server.pem"}']) > 1.8e9
    assert len([line for line in text.splitlines() if line.startswith("# TYPE playerfl_job_state ")]) == 1


@pytest.mark.slow
def test_a_site_that_is_missing_is_a_metric(home: ServerHome, tmp_path: Path) -> None:
    job = Job(tmp_path / "job", "fedper", rounds=1)
    texts = []

    def look(site: str, _: Any, response: Any) -> Any:
        texts.append(metrics_text(ServerHome(job.home)))
        return None if site == "site-1" and len(texts) < 5 else response

    job.tamper(look)
    job.run(deadline=600.0)
    assert any('playerfl_site_missing_seconds{job="job",site="site-1"}' in text for text in texts)


def doctor(*arguments: str) -> tuple[int, dict[str, list[tuple[str, str]]]]:
    done = CliRunner().invoke(app, ["flower", "doctor", "--json", *arguments])
    findings: dict[str, list[tuple[str, str]]] = {}
    for finding in json.loads(done.stdout):
        findings.setdefault(finding["check"], []).append((finding["outcome"], finding["message"]))
    return done.exit_code, findings


def test_the_doctor_finds_what_would_fail_at_the_server(home: ServerHome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "SECONDS", 0.2)  # the port below never answers
    code, found = doctor("--home", str(home.path))
    assert code == 0 and "is not running" in found["port"][0][1] and found["certificate"][0][0] == "ok"
    (home.path / "server.key").chmod(0o644)
    with socket.create_server(("127.0.0.1", 8123)):
        code, found = doctor("--home", str(home.path))
    assert any("others may read the server.key" in said for _, said in found["permissions"])
    assert code == 1
    (home.path / "server.json").unlink()
    code, found = doctor("--home", str(home.path))
    assert code == 1 and "is not a server's directory" in found["directory"][0][1]


def test_the_doctor_finds_what_would_fail_at_a_site(home: ServerHome, tmp_path: Path) -> None:
    key, _ = write_key_pair("north", tmp_path)
    (tmp_path / "data").mkdir()
    options = ["--key", str(key), "--state", str(tmp_path / "state"), "--ca", str(home.authority)]
    code, found = doctor("--server", "127.0.0.1:1", "--task", str(tmp_path / "data"), *options)
    assert code == 1 and found["key"][0][0] == "ok" and "SHA256:" in found["key"][0][1]
    assert found["data"][0][0] == "failure" and "cannot be reached" in found["server"][0][1]
    code, found = doctor("--server", "nowhere", *options)
    assert code == 1 and "must be NAME:PORT" in found["server"][0][1]


@pytest.mark.parametrize(("days", "outcome"), [(0, "ok"), (1, "failure")])
def test_the_doctor_compares_clocks_over_tls(home: ServerHome, days: int, outcome: str, tmp_path: Path) -> None:
    from email.utils import format_datetime
    from http.server import BaseHTTPRequestHandler, HTTPServer

    class Health(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response_only(200 if self.path == "/health" else 404)
            self.send_header("Date", format_datetime(datetime.now(UTC) + timedelta(days=days), usegmt=True))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(home.path / "server.pem", home.path / "server.key")
    with HTTPServer(("127.0.0.1", 0), Health) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = int(server.server_address[1])
        found = {one.check: one.outcome for one in preflight.check_connection("127.0.0.1", port, home.authority)}
        stranger = tmp_path / "stranger"
        stranger.mkdir()
        write_certificates(stranger, ["127.0.0.1"])
        [foreign] = preflight.check_connection("127.0.0.1", port, stranger / "ca.crt")
        server.shutdown()
    assert found == {"server": "ok", "clock": outcome}
    assert foreign.outcome == "failure" and "does not vouch" in foreign.message


def test_stop_and_status_without_a_job_are_sentences(home: ServerHome) -> None:
    done = CliRunner().invoke(app, ["flower", "stop", "hart", "--home", str(home.path)])
    assert isinstance(done.exception, ConfigError) and "unknown job 'hart'" in str(done.exception)
    done = CliRunner().invoke(app, ["flower", "stop", "../up", "--home", str(home.path)])
    assert isinstance(done.exception, ConfigError) and "is not a valid job name" in str(done.exception)


def test_stopping_an_interrupted_job_needs_no_server(home: ServerHome) -> None:
    write_status(home, status_of("heart", "running"))
    done = CliRunner().invoke(app, ["flower", "stop", "heart", "--home", str(home.path), "--final"])
    assert done.exit_code == 0 and done.stdout.startswith("ended, round 3 of 10"), done.exception


def test_container_files_run_commands_that_exist_and_share_nothing_they_should_not(tmp_path: Path) -> None:
    import typer
    import yaml

    done = CliRunner().invoke(
        app, ["flower", "files", str(tmp_path), "--home", str(tmp_path), "--name", "fl.example.org"]
    )
    assert done.exit_code == 0
    compose = yaml.safe_load((tmp_path / "compose.yaml").read_text())
    group: Any = typer.main.get_command(app)
    for name in ("server", "agent", "node"):
        service = compose["services"][name]
        assert service["read_only"] and service["cap_drop"] == ["ALL"] and service["init"]
        assert service["user"].split(":")[0] != "0"
        verb, *arguments = service["command"]
        # Raises an error about options that do not exist.
        group.commands["flower"].commands[verb].make_context(verb, arguments)
    agent, node = compose["services"]["agent"], compose["services"]["node"]
    assert agent["network_mode"] == "none" and agent["user"] != node["user"]
    shared = {volume.split(":")[0] for volume in agent["volumes"]} & {v.split(":")[0] for v in node["volumes"]}
    assert shared == {"meeting"}
    named = {volume.split(":")[0] for s in compose["services"].values() for volume in s.get("volumes", ())}
    assert {volume for volume in named if volume[0] not in "./"} == set(compose["volumes"])
    lines = (tmp_path / "Dockerfile").read_text().splitlines()
    assert "USER nobody" in lines and not any(line.startswith("ADD ") for line in lines)


@pytest.mark.system
def test_the_servers_own_commands_import_no_torch() -> None:
    """`flower up` runs for months beside the SuperLink, and only looks at small files."""
    check = (
        "import sys, playerfl.cli.flower, playerfl.cli.flower_jobs\n"
        "from playerfl.cli.flower_server import doctor, server, sites, stop\n"
        "from playerfl.flower.operate import (\n"
        "    app_folder, certificates, enrolment, job_monitor, launch, metrics, preflight, supervision)\n"
        "print([m for m in ('torch', 'numpy', 'pandas', 'safetensors', 'flwr') if m in sys.modules])"
    )
    assert printed_by(check) == "[]"
