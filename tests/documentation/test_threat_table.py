"""Every threat in the security model names a test, and the test exists."""

from __future__ import annotations

import re

from documented import ROOT


def test_every_row_of_the_threat_tables_names_a_test_that_exists() -> None:
    page = (ROOT / "docs" / "security-model.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ") and not line.startswith("| attack")]
    assert len(rows) > 20
    code = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("test_*.py"))
    defined = set(re.findall(r"^def (test_\w+)\(", code, flags=re.MULTILINE))
    for row in rows:
        _, attack, _, tests, _, _ = row.split("|")
        named = re.findall(r"`(test_\w+)`", tests)
        assert named and set(named) <= defined, f"{attack.strip()}: {sorted(set(named) - defined) or 'names no test'}"
