"""Writes docs/licences.md: every dependency in pyproject.toml and its licence, from the installed packages' metadata.

python tools/licences.py            # write the page
python tools/licences.py --check    # exit code 1 if the page is out of date
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "licences.md"

# SPDX identifiers, for packages that still state their licence in words.
_SPDX = {
    "MIT License": "MIT",
    "MIT license": "MIT",
    "ISC License": "ISC",
    "Apache 2.0": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "Apache 2.0 License": "Apache-2.0",
    "Apache": "Apache-2.0",
    "BSD License": "BSD",
    "BSD 3-Clause": "BSD-3-Clause",
    "BSD 3-Clause License": "BSD-3-Clause",
    "BSD-3-Clause License": "BSD-3-Clause",
    "Python Software Foundation License": "PSF-2.0",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
}

_NAMED = "## Packages named in pyproject.toml\n\n| package | licence | for |\n|---|---|---|"
_HEAD = """\
# Licences

playerfl is licensed under [Apache-2.0](https://www.apache.org/licenses/LICENSE-2.0). It ships one file by other
authors; its dependencies are installed separately. `make licences` generates this page from the metadata of the
installed packages; do not edit it by hand.

## Files shipped with the package

| file | licence | source |
|---|---|---|
| `tasks/bundled/files/digits.csv.gz`: 1,797 handwritten digits | BSD-3-Clause, in `digits-licence.txt` beside it | an \
unmodified copy from [scikit-learn](https://scikit-learn.org); by E. Alpaydin and C. Kaynak (1998), \
[UCI](https://archive.ics.uci.edu/dataset/80), CC BY 4.0 |

The website that `make docs` builds has `docs/scripts/iframe-worker.js`, an unmodified copy of iframe-worker 1.0.4 by
Martin Donath (MIT, in the file itself), and the files of its theme.
"""


def dependencies() -> dict[str, list[str]]:
    """What each package is needed for: "every installation", or the names of extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = {"every installation": project["dependencies"], **project["optional-dependencies"]}
    needed_for: dict[str, list[str]] = {}
    for group, requirements in groups.items():
        for requirement in map(Requirement, requirements):
            if (name := canonicalize_name(requirement.name)) != project["name"]:
                needed_for.setdefault(name, []).append(group)
    return needed_for


def licence_of(name: str) -> str:
    """An SPDX identifier if possible; raises `PackageNotFoundError` if the package is not installed."""
    about = metadata.metadata(name)
    if expression := about.get("License-Expression"):
        return expression
    classified = [c.rpartition(" :: ")[2] for c in about.get_all("Classifier", []) if c.startswith("License :: ")]
    # Some packages put the whole text of their licence into this field.
    stated = (about.get("License") or "").strip()
    named = [stated] if stated and "\n" not in stated and len(stated) < 60 else classified
    if not named:
        named = [title for file in metadata.files(name) or [] if file.name == "LICENSE" for title in _title(file)]
    return " AND ".join(_SPDX.get(words, words) for words in named) or "not stated"


def _title(file: metadata.PackagePath) -> list[str]:
    return file.read_text(encoding="utf-8").strip().splitlines()[:1]


def brought_along(names: Iterable[str]) -> list[str]:
    """Indirect dependencies of these packages, on this platform and without their extras."""
    known, waiting = set(names), list(names)
    direct = set(known)
    while waiting:
        try:
            needed = metadata.requires(waiting.pop()) or []
        except metadata.PackageNotFoundError:
            continue
        for requirement in map(Requirement, needed):
            name = canonicalize_name(requirement.name)
            wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            if wanted and name not in known and is_installed(name):
                known.add(name)
                waiting.append(name)
    return sorted(known - direct)


def is_installed(name: str) -> bool:
    try:
        metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def rows_of(page: str) -> dict[str, str]:
    """The rows of a page for what pyproject.toml names, by package."""
    named = page.partition(_NAMED)[2].partition("\n## ")[0]
    return {match[1]: line for line in named.splitlines() if (match := re.match(r"\| ([a-z0-9-]+) \|", line))}


def page(before: str) -> str:
    """The whole page; a package that is not installed here keeps the row it had."""
    asked, old = dependencies(), rows_of(before)
    lines = [_HEAD, _NAMED]
    for name, groups in sorted(asked.items()):
        if is_installed(name):
            lines.append(f"| {name} | {licence_of(name)} | {', '.join(groups)} |")
        elif name in old:
            lines.append(old[name])
        else:
            sys.exit(f"licences: {name} is not installed, so its licence is unknown; pip install --no-deps {name}")
    core = [name for name, groups in asked.items() if "every installation" in groups]
    lines += ["", "## Other packages in an installation without extras", ""]
    lines += ["On Linux, with torch for the CPU.", "", "| package | licence |", "|---|---|"]
    lines += [f"| {name} | {licence_of(name)} |" for name in brought_along(core)]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true")
    before = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    text = page(before)
    if parser.parse_args().check:
        sys.exit(0 if text == before else "docs/licences.md is out of date; run make licences")
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
