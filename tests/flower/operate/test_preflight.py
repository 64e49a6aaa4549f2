"""What a careless administrator overlooks: a certificate that has ended, a policy that others may write."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from playerfl.cli.main import app
from playerfl.flower.operate import certificates
from playerfl.flower.operate.certificates import expiry, expiry_warnings, write_certificates
from playerfl.flower.operate.keys import fingerprint_of, write_key_pair
from playerfl.flower.operate.launch import ServerHome


@pytest.fixture
def home(tmp_path: Path) -> ServerHome:
    home = ServerHome(tmp_path / "server")
    home.prepare([], 8123)
    return home


def doctor(*arguments: str) -> tuple[int, dict[str, tuple[str, str]]]:
    done = CliRunner().invoke(app, ["flower", "doctor", "--json", *arguments])
    findings: list[dict[str, Any]] = json.loads(done.stdout)
    return done.exit_code, {one["check"]: (one["outcome"], one["message"]) for one in findings}


def renewed(folder: Path, days: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """New certificates that are valid for so many days."""
    monkeypatch.setattr(certificates, "SERVER_DAYS", days)
    write_certificates(folder, ["127.0.0.1", "localhost"])


@pytest.mark.parametrize(("days", "outcome", "code"), [(3, "warning", 0), (0, "failure", 1)])
def test_an_expired_certificate_is_a_failure(
    days: int, outcome: str, code: int, home: ServerHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The doctor found nothing that would fail."""
    renewed(home.path, days, monkeypatch)
    assert doctor("--home", str(home.path))[1]["certificate"][0] == outcome
    assert doctor("--home", str(home.path))[0] == code


def test_a_certificate_in_front_of_a_longer_one_is_the_one_that_ends(
    home: ServerHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As other authorities deliver it: behind the server's own certificate is the authority's, which lasts longer."""
    renewed(home.path, 3, monkeypatch)
    chain = (home.path / "server.pem").read_bytes() + (home.path / "ca.crt").read_bytes()
    (home.path / "server.pem").write_bytes(chain)
    assert expiry(home.path / "server.pem") < datetime.now(UTC) + timedelta(days=4)
    assert "server.pem expires on" in expiry_warnings(home.path)[0]


@pytest.mark.parametrize(
    ("text", "mode", "outcome", "said"),
    [
        ('approval = "automatic"', 0o600, "ok", "jobs start without approval"),
        ("[jobs]\nleast_rows = 50", 0o644, "ok", "a person approves every new job"),
        ("", 0o666, "warning", "others may write"),
        ('aproval = "automatic"', 0o600, "failure", "did you mean 'approval'"),
        (None, 0o600, "failure", "cannot read"),
    ],
)
def test_the_doctor_reads_the_policy(text: str | None, mode: int, outcome: str, said: str, tmp_path: Path) -> None:
    key, _ = write_key_pair("north", tmp_path)
    if text is not None:
        (tmp_path / "site.toml").write_text(text)
        (tmp_path / "site.toml").chmod(mode)
    options = ["--key", str(key), "--state", str(tmp_path / "state"), "--policy", str(tmp_path / "site.toml")]
    _, found = doctor("--server", "nowhere", *options)
    assert found["policy"][0] == outcome and said in found["policy"][1]


def test_the_doctor_reads_the_private_key_itself(tmp_path: Path) -> None:
    """It looked at the .pub file only, so the public key, or another site's, passed for the site's key."""
    key, public = write_key_pair("north", tmp_path)
    other, _ = write_key_pair("south", tmp_path)

    def found(file: Path) -> tuple[str, str]:
        return doctor("--server", "nowhere", "--state", str(tmp_path / "state"), "--key", str(file))[1]["key"]

    assert found(key) == ("ok", f"{key}, fingerprint {fingerprint_of(public.read_bytes())}")
    assert found(public)[0] == "failure" and "not a private key" in found(public)[1]
    key.write_bytes(other.read_bytes())
    assert found(key)[0] == "failure" and "is another key's" in found(key)[1]
