"""The services for systemd: their commands exist, they fit together, and they are as confined as the guides say."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer

from playerfl.cli.main import app
from playerfl.flower.operate.files import write_files

DOCS = Path(__file__).parents[3] / "docs"
STATED = {
    "server": ("deploy-server.md", r"rates the server's service\s+(\d\.\d)"),
    "agent": ("deploy-site.md", r"rates the agent (\d\.\d)"),
    "node": ("deploy-site.md", r"the node (\d\.\d) \(ok\)"),
}


@pytest.fixture
def units(tmp_path: Path) -> dict[str, Path]:
    write_files(tmp_path, Path("/var/lib/playerfl"), "fl.example.org", 8000, 443, "north")
    return {name: tmp_path / f"playerfl-{name}.service" for name in STATED}


def settings(unit: Path, key: str) -> list[str]:
    text = unit.read_text().replace("\\\n", " ")
    return [line.partition("=")[2] for line in text.splitlines() if line.startswith(f"{key}=")]


def options(unit: Path) -> dict[str, str]:
    _, *words = shlex.split(settings(unit, "ExecStart")[0])
    return {word: after for word, after in zip(words, [*words[1:], ""], strict=True) if word.startswith("--")}


def test_services_run_commands_that_exist(units: dict[str, Path]) -> None:
    group: Any = typer.main.get_command(app)
    for unit in units.values():
        _, first, verb, *arguments = shlex.split(settings(unit, "ExecStart")[0])
        assert first == "flower"
        # Raises an error about options that do not exist.
        group.commands["flower"].commands[verb].make_context(verb, arguments)


def test_agent_and_node_meet_and_share_nothing_else(units: dict[str, Path]) -> None:
    """Further: a key that root had made was unreadable for the service's user."""
    agent, node = options(units["agent"]), options(units["node"])
    [node_user], [agent_user] = settings(units["node"], "User"), settings(units["agent"], "User")
    assert agent["--node-user"] == node_user != agent_user
    assert agent["--socket"] == node["--socket"] == "/run/playerfl/agent.sock"
    assert settings(units["agent"], "RuntimeDirectory") == ["playerfl"]
    for name in ("agent", "node"):
        assert options(units[name])["--state"] == f"/var/lib/{settings(units[name], 'StateDirectory')[0]}"
    # systemd reads the key as root and hands it to the node; neither the data nor the agent's files are visible there.
    credentials = dict(one.split(":") for one in settings(units["node"], "LoadCredential"))
    assert node["--key"] == "%d/site.key" and node["--ca"] == "%d/ca.crt"
    assert credentials == {"site.key": "/etc/playerfl/north.key", "ca.crt": "/etc/playerfl/ca.crt"}
    assert f"-{agent['--state']}" in settings(units["node"], "InaccessiblePaths")[0].split()
    assert settings(units["agent"], "PrivateNetwork") == ["yes"] and "--task" not in agent


@pytest.mark.system
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("name", STATED)
def test_services_are_as_confined_as_the_guides_say(name: str, units: dict[str, Path]) -> None:
    page, pattern = STATED[name]
    stated = re.search(pattern, (DOCS / page).read_text())
    assert stated is not None
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(units[name])]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    found = re.search(r"Overall exposure level for .*: (\d+\.\d)", said)
    assert found is not None and float(found[1]) <= float(stated[1]), said[-500:]
    checked = subprocess.run(
        ["systemd-analyze", "verify", str(units[name])], capture_output=True, text=True, check=False
    )
    problems = [line for line in checked.stderr.splitlines() if "playerfl" in line and "not executable" not in line]
    assert not problems
