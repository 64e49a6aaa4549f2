"""Asks pip-audit whether known vulnerabilities concern what is installed, and says plainly where it could not ask.

    python tools/audit.py
    python tools/audit.py --must-reach    # for pipelines: exit code 2 where the database cannot be reached

Exit code 1 if a vulnerability is known. pip-audit itself ends in a traceback where it reaches nothing, and where a
package mirror answers without the database it reports "no known vulnerabilities", having looked nothing up.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

UNREACHABLE = "Nothing was audited: the vulnerability database cannot be reached from here. Run it again where it can."


def findings(timeout: int) -> list[dict[str, Any]] | None:
    """What pip-audit says of each package; None where it could not say anything."""
    command = [sys.executable, "-m", "pip_audit", "--local", "--skip-editable", "--format", "json"]
    said = subprocess.run(
        [*command, "--progress-spinner", "off", "--timeout", str(timeout)], capture_output=True, text=True
    )
    if "No module named pip_audit" in said.stderr:
        sys.exit("pip-audit is not installed; pip install 'playerfl[dev]'")
    try:
        found: list[dict[str, Any]] = json.loads(said.stdout)["dependencies"]
    except (ValueError, KeyError):
        return None
    return found


def verdict(found: list[dict[str, Any]] | None) -> tuple[str, int]:
    """The sentences for what was found, and how many vulnerabilities are known; -1 where nothing was looked up.

    >>> verdict([{"name": "a", "version": "1", "skip_reason": "not found"}])[1]
    -1
    >>> print(verdict([{"name": "a", "version": "1", "vulns": []}])[0])
    No known vulnerability in 1 package.
    """
    looked_up = [package for package in found or [] if "skip_reason" not in package]
    if not looked_up:
        return UNREACHABLE, -1
    left_out = [package["name"] for package in found or [] if "skip_reason" in package]
    known = [(package, vulnerability) for package in looked_up for vulnerability in package["vulns"]]
    lines = [
        f"{package['name']} {package['version']}: {vulnerability['id']}, "
        f"mended in {', '.join(vulnerability['fix_versions']) or 'no release yet'}"
        for package, vulnerability in known
    ]
    if left_out:
        lines.append(f"Not looked up, for the database does not have them: {', '.join(sorted(left_out))}.")
    count = "1 package" if len(looked_up) == 1 else f"{len(looked_up)} packages"
    lines.append(f"{len(known) or 'No'} known vulnerabilit{'ies' if len(known) > 1 else 'y'} in {count}.")
    return "\n".join(lines), len(known)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--must-reach", action="store_true")
    parser.add_argument("--timeout", type=int, default=15, help="seconds for each answer")
    given = parser.parse_args()
    sentences, known = verdict(findings(given.timeout))
    print(sentences)
    sys.exit(2 * given.must_reach if known < 0 else min(known, 1))


if __name__ == "__main__":
    main()
