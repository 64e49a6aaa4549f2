"""The page in a real browser: it cuts where Python does, is safe, works with a keyboard, and fits a phone."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from browser import Opened
from made_up_runs import LAYERS, constant, made_up
from playerfl.layers.cut import choose_cut
from playerfl.report.compute.collected import Collected, Gap
from playerfl.report.compute.report import build_report
from playerfl.report.write.documents import as_page
from playerfl.runs.result import RunResult

NAMES = ("local", "fedavg", "ditto", "player_fl")
HOSTILE = (
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(2)>",
    "a\"b' onload=alert(3) & <b>bold</b>",
    "__proto__",
    "{{ 7 * 7 }} ${alert(4)} \u2028",
)
Open = Callable[..., Opened]


def profiles(sites: tuple[str, ...], seed: int = 0) -> dict[str, list[float]]:
    draw = np.random.default_rng(seed)
    return {site: [float(x) for x in np.array([1.0, 0.3, 20.0]) * draw.uniform(0.3, 3, 3)] for site in sites}


def collected(sites: tuple[str, ...] = ("north", "south", "west"), seeds: int = 3, **options: Any) -> Collected:
    def run(name: str, seed: int) -> RunResult:
        measured = profiles(sites, seed) if name == "player_fl" else None
        return made_up(name, seed, sites=sites, scores_of_layers=measured, **options)

    return Collected([run(name, seed) for name in NAMES for seed in range(seeds)])


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Open:
    def open_(what: Collected | None = None, **size: int) -> Opened:
        file = tmp_path / "report.html"
        file.write_text(_page(what) if what else _usual_page(), encoding="utf-8")
        assert file.stat().st_size < 2_000_000
        return Opened(browser, file, **size).unfold()

    return open_


def _page(what: Collected) -> str:
    return as_page(build_report(what), "A report")


@cache
def _usual_page() -> str:
    """The page of four methods on three sites, which most tests open."""
    return _page(collected())


@pytest.mark.slow
def test_the_page_opens_and_draws_everything(opened: Open) -> None:
    """The smoke test; what a reader can do with the page is tested by `make test-system`."""
    shown = opened()
    labels = shown.run("[...document.querySelectorAll('svg[role=img]')].map(s => s.getAttribute('aria-label'))")
    assert [label.split(":")[0].split(" by ")[0] for label in labels] == [
        "Ditto scores best",
        "PLayer-FL",
        "Each layer’s sensitivity, relative to the first layer, of all sites together",
        "Mean ranks, best first",
        "Macro-F1 of all sites (average) on digits",
    ]
    assert "The cut is after 2 layers" in labels[2]
    assert shown.page.locator("#site-table tbody tr").count() == 3
    assert (shown.complaints, shown.asked_the_network) == ([], [])


# The what-if.


@pytest.mark.system
def test_the_slider_cuts_where_python_does(opened: Open) -> None:
    shown = opened()
    scores = {
        site: dict(zip(LAYERS, values, strict=True)) for site, values in profiles(("north", "south", "west")).items()
    }
    for rule, threshold in (
        ("layer_ratio", "3.5"),
        ("layer_ratio", "1000"),
        ("layer_ratio", "0.1"),
        ("cumulative_ratio", "1.01"),
        ("max_jump", ""),
    ):
        shown.page.select_option("#pick-rule", rule)
        if threshold:
            shown.page.fill("#threshold-number", threshold)
        cut = choose_cut(scores, rule=rule, threshold=float(threshold) if threshold else None)  # type: ignore[arg-type]
        assert shown.run("document.getElementById('cut-said').dataset.index") == str(cut.index)
        assert [
            cell.split("\n")[0] for cell in shown.page.locator("#layer-table tbody tr td:last-child").all_inner_texts()
        ] == ["shared" if layer in cut.federated else "private" for layer in cut.layers]
    assert "12.0 kB per round for 3 sites" in _said(shown, "fixed", 2)
    shown.page.click("#what-if-reset")
    assert shown.page.input_value("#pick-rule") == "layer_ratio"
    assert shown.page.input_value("#threshold-number") == "3.5"
    assert shown.complaints == []


def _said(shown: Opened, rule: str, layers: int) -> str:
    shown.page.select_option("#pick-rule", rule)
    shown.page.locator("#fixed").fill(str(layers))
    return shown.text("#cut-said")


@pytest.mark.system
def test_stability_notes_agree_with_python(opened: Open) -> None:
    sites = ("a", "b", "c", "d")
    odd = {"a": [1.0, 9.0, 20.0], "b": [1.0, 0.5, 30.0], "c": [1.0, 0.4, 40.0], "d": [1.0, 0.3, 10.0]}
    runs = [made_up(name, 0, sites=sites, scores_of_layers=odd if name == "player_fl" else None) for name in NAMES]
    shown = opened(Collected(runs))
    scores = {site: dict(zip(LAYERS, values, strict=True)) for site, values in odd.items()}
    whole = choose_cut(scores).index
    alone = sum(choose_cut({site: values}).index == whole for site, values in scores.items())
    without = sum(choose_cut({k: v for k, v in scores.items() if k != site}).index == whole for site in scores)
    notes = shown.text("#cut-notes")
    assert f"Deciding alone, {alone} of 4 sites would cut here." in notes
    assert f"With one site left out, the cut stays the same in {without} of 4 cases." in notes


# Safe.


@pytest.mark.system
def test_markup_in_names_is_shown_as_text(opened: Open) -> None:
    runs = collected(HOSTILE, seeds=2, task="<i>task</i> & co").results
    gaps = [Gap("<img src=x onerror=alert(5)>", "</td>", 0, "<script>alert(6)</script>")]
    shown = opened(Collected(runs, gaps, gaps))
    names = shown.run("[...document.querySelectorAll('#site-table tbody th')].map(cell => cell.textContent)")
    assert sorted(names) == sorted(HOSTILE)
    for site in range(len(HOSTILE)):
        shown.page.select_option("#pick-site", str(site))
    for algorithm in shown.page.locator("#pick-algorithm option").all_inner_texts():
        shown.page.select_option("#pick-algorithm", algorithm)
    assert shown.page.locator("img, i, b:not(.tip b), iframe, object").count() == 0
    assert shown.page.locator("script").count() == 2
    assert (shown.complaints, shown.asked_the_network) == ([], [])


@pytest.mark.system
def test_the_page_blocks_scripts_other_than_its_own(opened: Open) -> None:
    shown = opened()
    shown.run(
        "() => { const s = document.createElement('script'); s.textContent = 'window.caught = 1';"
        "document.body.append(s); }"
    )
    assert shown.run("window.caught") is None


@pytest.mark.system
def test_three_hundred_sites(opened: Open) -> None:
    shown = opened(collected(tuple(f"site-{i:03}" for i in range(300)), seeds=2))
    assert shown.page.locator("#site-table tbody tr").count() == 300
    assert shown.page.locator("#pick-site option").count() == 301
    shown.page.select_option("#pick-site", "299")
    assert "site-299" in shown.text("#curve-caption")
    assert shown.complaints == []


@pytest.mark.system
def test_one_run_only(opened: Open) -> None:
    shown = opened(Collected([made_up("player_fl", scores_of_layers=profiles(("north", "south", "west")))]))
    assert "Each method ran once" in shown.text("#summary-details")
    assert shown.page.locator("#tests").count() == 0
    assert "[" not in shown.text("table[data-name=f1]")
    assert shown.complaints == []


@pytest.mark.system
def test_a_failed_run_and_an_unfinished_one_are_listed(opened: Open) -> None:
    missing = [Gap("digits", "fedlp", 4, "3 of 20 rounds done")]
    failed = [Gap("digits", "pfedla", 1, "out of memory")]
    shown = opened(Collected(collected().results, missing, failed))
    assert "3 of 20 rounds done" in shown.text("#missing")
    assert "out of memory" in shown.text("#missing")


@pytest.mark.system
def test_losses_that_are_nan(opened: Open) -> None:
    diverged = [made_up("fedprox", s, score=constant(loss=math.nan, f1=0.1, accuracy=0.1)) for s in range(3)]
    shown = opened(Collected([*collected().results, *diverged]))
    shown.page.select_option("#pick-metric", "loss")
    assert "diverged" in shown.text("table[data-name=loss]")
    shown.page.select_option("#pick-algorithm", "FedProx")
    assert "−∞" in shown.text("#site-table")
    assert "NaN" not in shown.text("main").replace("a loss became NaN", "")
    assert shown.complaints == []


# Interaction.


@pytest.mark.system
def test_tables_sort_by_any_column(opened: Open) -> None:
    shown = opened()
    head = shown.page.locator("table[data-name=f1] thead th").nth(1)

    def values() -> list[float]:
        cells = "[...document.querySelectorAll('table[data-name=f1] tbody td:nth-child(2)')]"
        return [float(value) for value in shown.run(f"{cells}.map(c => c.dataset.value)")]

    head.locator("button").click()
    assert values() == sorted(values())
    assert head.get_attribute("aria-sort") == "ascending"
    head.locator("button").focus()
    shown.page.keyboard.press("Enter")
    assert values() == sorted(values(), reverse=True)


@pytest.mark.system
def test_the_metric_picker_shows_that_metrics_tables(opened: Open) -> None:
    shown = opened()
    visible = "[...document.querySelectorAll('.by-metric')].filter(b => b.offsetParent).map(b => b.dataset.metric)"
    assert set(shown.run(visible)) == {"f1"}
    shown.page.select_option("#pick-metric", "accuracy")
    assert shown.run(visible) == ["accuracy"] * 3
    assert "Accuracy" in shown.text("#curve-caption")
    assert "Accuracy" in shown.text("#site-table")


@pytest.mark.system
def test_values_are_shown_under_the_pointer_and_by_arrow_keys(opened: Open) -> None:
    shown = opened()
    chart = shown.page.locator("#curve-chart svg")
    chart.scroll_into_view_if_needed()
    chart.hover()
    assert "PLayer-FL:" in shown.text("#tip")
    shown.page.mouse.move(0, 0)
    chart.focus()
    shown.page.keyboard.press("ArrowLeft")
    assert "round 1" in shown.text("#tip")


@pytest.mark.system
def test_every_control_is_reached_with_the_tab_key(opened: Open) -> None:
    shown = opened()
    controls = "[...document.querySelectorAll('select, input, #what-if-reset')]"
    wanted = set(shown.run(f"{controls}.filter(e => e.offsetParent).map(e => e.id).filter(Boolean)"))
    seen = set()
    for _ in range(200):
        shown.page.keyboard.press("Tab")
        seen.add(shown.run("document.activeElement.id"))
    assert wanted <= seen


# Everywhere.


@pytest.mark.system
@pytest.mark.parametrize("width", [1280, 390, 320])
def test_the_page_is_never_wider_than_the_screen(opened: Open, width: int) -> None:
    shown = opened(collected(("north", "a-site-with-quite-a-long-and-winding-name", "west")), width=width)
    assert shown.run("document.documentElement.scrollWidth") <= width


@pytest.mark.system
def test_it_prints_every_table(opened: Open) -> None:
    shown = opened()
    shown.page.emulate_media(media="print")
    assert shown.run("[...document.querySelectorAll('.by-metric')].every(b => b.offsetParent !== null)")
    assert not shown.page.locator("#pickers").is_visible()
    assert shown.page.pdf(prefer_css_page_size=True).startswith(b"%PDF")


@pytest.mark.system
@pytest.mark.parametrize("width", [1280, 390])
def test_axe_finds_no_serious_violation(opened: Open, width: int) -> None:
    axe = pytest.importorskip("axe_playwright_python", reason="needs axe: pip install 'playerfl[dev]'")
    script = (Path(axe.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
    shown = opened(Collected(collected().results, [Gap("digits", "fedlp", 4, "not started")]), width=width)
    violations = json.loads(
        shown.run(f"() => {{ {script}; return axe.run().then(r => JSON.stringify(r.violations)); }}")
    )
    serious = [v for v in violations if v["impact"] in ("serious", "critical")]
    assert [(v["id"], [node["target"] for node in v["nodes"]][:3]) for v in serious] == []


@pytest.mark.system
def test_too_few_blocks_for_holm_are_said_only_beside_its_p_values(opened: Open) -> None:
    shown = opened()
    assert shown.text("#pairs-caption") == "Shaded: below 0.05."
    shown.page.select_option("#pick-posthoc", "holm")
    assert "cannot give a p-value below" in shown.text("#pairs-caption")
    assert shown.page.locator("#pairs .sure").count() == 0
