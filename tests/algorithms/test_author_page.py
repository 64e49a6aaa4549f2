"""The page for algorithm authors lists what their classes have, with the signatures they have."""

from __future__ import annotations

import doctest
import inspect
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from documented import ROOT, blocks
from federations import build
from playerfl.algorithms import Algorithm, PartialAlgorithm
from playerfl.federation.messages import Download, Upload
from playerfl.layers.layer_map import LayerMap

PAGE = (ROOT / "docs" / "add-an-algorithm.md").read_text(encoding="utf-8")
ENGINES_OWN = {
    "Client": {"begin", "end", "state", "restore"},
    "Server": {"state", "restore"},
    "LayerMap": {"of", "from_groups", "to_json", "from_json", "difference"},
}


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def listed(title: str) -> dict[str, str]:
    """The signatures and attributes that the items of a section begin with, by name."""
    items = re.findall(r"^- ((?:`[^`]+`(?:, )?)+):", section(title), re.MULTILINE)
    codes = [code for item in items for code in re.findall(r"`([^`]+)`", item)]
    return {re.match(r"\w+", code)[0]: code for code in codes}  # type: ignore[index]


def signature(function: Callable[..., Any], name: str) -> str:
    """As the page writes it: without `self`, annotations as in the source."""
    described = inspect.signature(function)
    parameters = [p for p in described.parameters.values() if p.name != "self"]
    text = str(described.replace(parameters=parameters))
    return name + re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)


def members(kind: type, thing: object) -> set[str]:
    """Public methods, properties and attributes."""
    return {name for name in {*vars(kind), *vars(thing)} if not name.startswith("_")}


run = build("fedper")


@pytest.mark.parametrize(
    ("title", "thing", "kind"),
    [
        ("`Client`", run.clients["site-0"], type(run.clients["site-0"])),
        ("`Server`", run.server, type(run.server)),
        ("`LayerMap`", run.server.layers, LayerMap),
        ("The methods", Algorithm(), Algorithm),
        ("Some layers private: `PartialAlgorithm`", run.algorithm, PartialAlgorithm),
    ],
)
def test_members_and_their_signatures_are_those_of_the_code(title: str, thing: object, kind: type) -> None:
    on_page = listed(title)
    expected = members(kind, thing) - ENGINES_OWN.get(kind.__name__, set())
    if kind is PartialAlgorithm:
        # The methods of Algorithm have their own section.
        expected -= {*vars(Algorithm), *(field.name for field in fields(run.algorithm))}
    assert on_page.keys() == expected
    for name, text in on_page.items():
        code = vars(kind).get(name)
        if inspect.isfunction(code):
            assert text == signature(code, name)
        elif isinstance(code, property):
            assert code.fget is not None
            assert text == f"{name}: {inspect.signature(code.fget).return_annotation}".replace("'", "")
        else:
            assert hasattr(thing, name)
            assert re.fullmatch(rf"{name}: .+", text)


@pytest.mark.parametrize("kind", [Download, Upload])
def test_messages_have_the_fields_on_the_page(kind: type) -> None:
    text = listed("`Download` and `Upload`")[kind.__name__]
    required = ("round", "num_examples")
    parts = [f"{f.name}: {f.type}" + ("" if f.name in required else " = {}") for f in fields(kind)]
    written = ", ".join(parts)
    assert text == f"{kind.__name__}({written})"


@pytest.mark.slow
def test_the_recipe_for_pytest_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    median, *_, recipe = blocks(PAGE, "python")
    (tmp_path / "mine.py").write_text("".join(e.source for e in doctest.DocTestParser().get_examples(median)))
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(recipe, names)
    tests = {name: test for name, test in names.items() if name.startswith("test_")}
    assert len(tests) == 4
    for test in tests.values():
        test(*([tmp_path] if inspect.signature(test).parameters else []))
