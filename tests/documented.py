"""The commands that the documentation prints: in blocks, in tables and sentences, and in the help's examples."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from site_pages import commands, examples_of

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


@dataclass(frozen=True)
class Printed:
    """A command as it is printed somewhere."""

    text: str
    place: str
    whole: bool = True
    """False in a sentence, where `playerfl probe` may merely name the command."""

    @property
    def arguments(self) -> list[str]:
        return shlex.split(self.text)[1:]


def blocks(page: str, kind: str = r"\w*") -> list[str]:
    """The contents of a page's code fences of one kind."""
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    return [content for of_kind, content in fences if re.fullmatch(kind, of_kind)]


def printed_commands() -> list[Printed]:
    """Each once, at the first place it is found."""
    found: dict[str, Printed] = {}
    for page in PAGES:
        for command in _of_page(page.read_text(encoding="utf-8"), str(page.relative_to(ROOT))):
            if command.text not in found or command.whole > found[command.text].whole:
                found[command.text] = command
    for path, command, _ in commands():
        for line in examples_of(command):
            found.setdefault(_cleaned(line), Printed(_cleaned(line), f"{path} --help"))
    return list(found.values())


def _of_page(page: str, place: str) -> Iterator[Printed]:
    for block in blocks(page):
        for line in block.replace("\\\n", " ").splitlines():
            for part in re.split(r"&&|; do\b", line):
                if part.strip().startswith(("playerfl ", "make ")):
                    yield Printed(_cleaned(part), place)
    outside = re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)
    for text in re.findall(r"`((?:playerfl|make) [^`]+)`", outside):
        yield Printed(_cleaned(text), place, whole=False)


def _cleaned(line: str) -> str:
    """Without comments, with one value for a loop's variable, and with single spaces."""
    return re.sub(r"\s+", " ", re.sub(r"\s#\s.*", "", line)).replace("$seed", "0").strip()
