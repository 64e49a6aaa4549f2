"""Asks pip-audit for known vulnerabilities in the installed packages, and says so if the database could not be reached.

    python tools/audit.py
    python tools/audit.py --must-reach    # for pipelines: exit code 2 if the database cannot be reached

Exit code 1 if a vulnerability is known. pip-audit itself ends in a traceback without a network. Behind a package mirror
that lacks the database it reports "no known vulnerabilities" without having looked anything up.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

UNREACHABLE = (
    "Nothing was audited: the vulnerability database cannot be reached from here. Try again from another network."
)


def findings(timeout: int) -> list[dict[str, Any]] | None:
    """What pip-audit reports for each package; None if it reported nothing."""
    command = [sys.executable, "-m", "pip_audit", "--local", "--skip-editable", "--format", "json"]
    done = subprocess.run(
        [*command, "--progress-spinner", "off", "--timeout", str(timeout)], capture_output=True, text=True
    )
    if "No module named pip_audit" in done.stderr:
        sys.exit("pip-audit is not installed; pip install 'playerfl[dev]'")
    try:
        packages: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        return None
    return packages


def verdict(packages: list[dict[str, Any]] | None) -> tuple[str, int]:
    """A summary, and the number of known vulnerabilities; -1 if nothing was looked up.

    >>> verdict([{"name": "a", "version": "1", "skip_reason": "not found"}])[1]
    -1
    >>> print(verdict([{"name": "a", "version": "1", "vulns": []}])[0])
    No known vulnerability in 1 package.
    """
    looked_up = [package for package in packages or [] if "skip_reason" not in package]
    if not looked_up:
        return UNREACHABLE, -1
    left_out = [package["name"] for package in packages or [] if "skip_reason" in package]
    known = [(package, vulnerability) for package in looked_up for vulnerability in package["vulns"]]
    lines = [
        f"{package['name']} {package['version']}: {vulnerability['id']}, "
        f"fixed in {', '.join(vulnerability['fix_versions']) or 'no release yet'}"
        for package, vulnerability in known
    ]
    if left_out:
        lines.append(f"Not in the database: {', '.join(sorted(left_out))}.")
    count = "1 package" if len(looked_up) == 1 else f"{len(looked_up)} packages"
    lines.append(f"{len(known) or 'No'} known vulnerabilit{'ies' if len(known) > 1 else 'y'} in {count}.")
    return "\n".join(lines), len(known)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--must-reach", action="store_true")
    parser.add_argument("--timeout", type=int, default=15, help="seconds per request")
    given = parser.parse_args()
    sentences, known = verdict(findings(given.timeout))
    print(sentences)
    sys.exit(2 * given.must_reach if known < 0 else min(known, 1))


if __name__ == "__main__":
    main()
