"""The page in a real browser: its cut is Python's, it is harmless, usable with a keyboard, and fits a phone."""

from __future__ import annotations

import importlib.resources
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from browser import Opened, browser
from made_up_runs import made_up
from playerfl.errors import LayerError
from playerfl.layers.sensitivity import combine_sites
from playerfl.layers.split import choose_cut
from playerfl.report.compute.collected import Collected, Gap
from playerfl.report.compute.report import build_report
from playerfl.report.write.page import page

pytestmark = pytest.mark.system
__all__ = ["browser"]

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
    return Collected(
        [
            made_up(
                name,
                seed,
                sites=sites,
                scores_of_layers=profiles(sites, seed) if name == "player_fl" else None,
                **options,
            )
            for name in NAMES
            for seed in range(seeds)
        ]
    )


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Open:
    def open_(what: Collected, **size: int) -> Opened:
        file = tmp_path / "report.html"
        file.write_text(page(build_report(what), "A report"), encoding="utf-8")
        assert file.stat().st_size < 5_000_000
        return Opened(browser, file, **size)

    return open_


# The calculation in the page is Python's.


def cases() -> list[tuple[dict[str, dict[str, float]], dict[str, int], dict[str, Any]]]:
    """Profiles with every oddity, under every rule, threshold, scale and policy."""
    draw = np.random.default_rng(3)
    layer_sets = [1, 2, 3, 5, 9]
    found = []
    for number in range(400):
        layers = [f"l{i}" for i in range(layer_sets[number % 5])]
        scores = {}
        for site in range(1 + number % 4):
            values = 10.0 ** draw.uniform(-8, 3, len(layers))
            values[draw.uniform(size=len(layers)) < 0.15] = 0.0
            if draw.uniform() < 0.06:
                values[0] = draw.choice([math.nan, math.inf])
            scores[f"Åsite-{site}" if site % 2 else f"z{site}"] = dict(zip(layers, map(float, values), strict=True))
        rule = ("layer_ratio", "cumulative_ratio", "max_jump", "fixed")[number % 4]
        reduce, weight = (("mean", "uniform"), ("median", "uniform"), ("mean", "samples"), ("median", "samples"))[
            draw.integers(4)
        ]
        threshold = (None, 1.0, 2.0, 3.5, 1e3, 0.5, math.inf)[draw.integers(7)]
        found.append(
            (
                scores,
                {site: int(draw.integers(1, 500)) for site in scores},
                {
                    "rule": rule,
                    "threshold": threshold,
                    "on_no_transition": ("all", "all_but_last", "error")[draw.integers(3)],
                    "fixed": int(draw.integers(-1, len(layers) + 2)) if rule == "fixed" else None,
                    "client_weight": weight,
                    "normalise": ("none", "first_layer", "last")[draw.integers(3)],
                    "reduce": reduce,
                },
            )
        )
    return found


def in_python(scores: Any, examples: Any, options: dict[str, Any]) -> Any:
    try:
        cut = choose_cut(scores, num_examples=examples, **options)
    except LayerError:
        return None
    together = {key: options[key] for key in ("client_weight", "normalise", "reduce")}
    combined = combine_sites(scores, num_examples=examples, **together)
    return {
        "index": cut.index,
        "importance": list(combined.importance.values()),
        "ratios": list(cut.ratios),
        "found": not any("no clear transition" in warning for warning in cut.warnings),
        "close": sum("close call" in warning for warning in cut.warnings),
        "leftOut": sum("is left out" in warning for warning in cut.warnings),
        "dominating": any("decides the cut" in warning for warning in cut.warnings),
        "elsewhere": any("the cut would be after" in warning for warning in cut.warnings),
    }


IN_THE_PAGE = """(cases) => cases.map(([scores, examples, o]) => {
  try {
    const threshold = o.threshold === "inf" ? Infinity : o.threshold ?? undefined;
    const c = cut.chooseCut(scores, {rule: o.rule, threshold,
      onNoTransition: o.on_no_transition, fixed: o.fixed, clientWeight: o.client_weight, normalise: o.normalise,
      reduce: o.reduce, numExamples: examples});
    return {index: c.index, importance: c.importance, ratios: c.ratios, found: c.found, close: c.closeCalls.length,
      leftOut: c.leftOut.length, dominating: c.dominating !== null, elsewhere: c.otherNormalise !== null};
  } catch (problem) { return null; }
})"""


def test_the_pages_cut_is_pythons_to_the_last_bit(browser: Any) -> None:
    script = (importlib.resources.files("playerfl.report") / "assets" / "cut.js").read_text(encoding="utf-8")
    blank = browser.new_page()
    blank.add_script_tag(content=script.replace("const cut =", "window.cut ="))
    given = cases()
    written = [
        [
            {site: [None if not math.isfinite(v) else v for v in own.values()] for site, own in scores.items()},
            examples,
            {**options, "threshold": "inf" if options["threshold"] == math.inf else options["threshold"]},
        ]
        for scores, examples, options in given
    ]
    theirs = blank.evaluate(IN_THE_PAGE, written)
    ours = [in_python(*case) for case in given]
    assert sum(found is None for found in ours) > 20
    assert len({found["index"] for found in ours if found}) > 4
    for case, left, right in zip(given, ours, theirs, strict=True):
        assert left == right, case


def test_exact_sums_are_pythons(browser: Any) -> None:
    script = (importlib.resources.files("playerfl.report") / "assets" / "cut.js").read_text(encoding="utf-8")
    blank = browser.new_page()
    blank.add_script_tag(content=script.replace("const cut =", "window.cut ="))
    draw = np.random.default_rng(0)
    lists = [[0.1] * 10, [1e16, 1.0, -1e16], [1e-300, 1e300, -1e300], [2.0**53, 1.0, 1e-10], []]
    lists += [[float(x) for x in 10.0 ** draw.uniform(-20, 20, 30) * draw.choice([-1, 1], 30)] for _ in range(200)]
    # Whole numbers come back as integers.
    theirs = [float(value) for value in blank.evaluate("(lists) => lists.map((own) => cut.fsum(own))", lists)]
    assert theirs == [math.fsum(values) for values in lists]


def test_the_slider_cuts_where_python_does(opened: Open) -> None:
    shown = opened(collected())
    scores = {
        site: dict(zip(("conv1", "conv2", "fc"), own, strict=True))
        for site, own in profiles(("north", "south", "west")).items()
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
        ] == ["travels" if layer in cut.federated else "stays at the site" for layer in cut.layers]
    assert "12.0 kB a round together" in _said(shown, "fixed", 2)
    shown.page.click("#what-if-reset")
    assert shown.page.input_value("#pick-rule") == "layer_ratio"
    assert shown.page.input_value("#threshold-number") == "3.5"
    assert shown.complaints == []


def _said(shown: Opened, rule: str, layers: int) -> str:
    shown.page.select_option("#pick-rule", rule)
    shown.page.locator("#fixed").fill(str(layers))
    return shown.text("#cut-said")


def test_stability_is_that_of_cuts_computed_again(opened: Open) -> None:
    sites = ("a", "b", "c", "d")
    odd = {"a": [1.0, 9.0, 20.0], "b": [1.0, 0.5, 30.0], "c": [1.0, 0.4, 40.0], "d": [1.0, 0.3, 10.0]}
    runs = [made_up(name, 0, sites=sites, scores_of_layers=odd if name == "player_fl" else None) for name in NAMES]
    shown = opened(Collected(runs))
    scores = {site: dict(zip(("conv1", "conv2", "fc"), own, strict=True)) for site, own in odd.items()}
    whole = choose_cut(scores).index
    alone = sum(choose_cut({site: own}).index == whole for site, own in scores.items())
    without = sum(choose_cut({k: v for k, v in scores.items() if k != site}).index == whole for site in scores)
    assert (
        f"Deciding alone, {alone} of 4 sites would cut here; without any one site, {without} of 4 times"
        in shown.text("#cut-notes")
    )


# Harmless.


def test_names_with_markup_are_text_and_nothing_else(opened: Open) -> None:
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


def test_a_page_may_run_no_script_but_its_own(opened: Open) -> None:
    shown = opened(collected())
    shown.run(
        "() => { const s = document.createElement('script'); s.textContent = 'window.caught = 1';"
        "document.body.append(s); }"
    )
    assert shown.run("window.caught") is None


def test_three_hundred_sites(opened: Open) -> None:
    shown = opened(collected(tuple(f"site-{i:03}" for i in range(300)), seeds=2))
    assert shown.page.locator("#site-table tbody tr").count() == 300
    assert shown.page.locator("#pick-site option").count() == 301
    shown.page.select_option("#pick-site", "299")
    assert "site-299" in shown.text("#curve-caption")
    assert shown.complaints == []


def test_one_run_only(opened: Open) -> None:
    shown = opened(Collected([made_up("player_fl", scores_of_layers=profiles(("north", "south", "west")))]))
    assert "Each method ran once" in shown.text("#summary")
    assert "not two methods" in shown.text("#friedman")
    assert "[" not in shown.text("table[data-name=f1]")
    assert shown.complaints == []


def test_a_failed_run_and_an_unfinished_one_are_listed(opened: Open) -> None:
    what = collected()
    shown = opened(
        Collected(
            what.results,
            [Gap("digits", "fedlp", 4, "3 of 20 rounds done")],
            [Gap("digits", "pfedla", 1, "out of memory")],
        )
    )
    assert "3 of 20 rounds done" in shown.text("#missing")
    assert "out of memory" in shown.text("#missing")


def test_losses_that_are_no_numbers(opened: Open) -> None:
    diverged = [
        made_up("fedprox", s, score=lambda site, r: {"loss": math.nan, "f1": 0.1, "accuracy": 0.1}) for s in range(3)
    ]
    shown = opened(Collected([*collected().results, *diverged]))
    shown.page.select_option("#pick-metric", "loss")
    assert "diverged" in shown.text("table[data-name=loss]")
    shown.page.select_option("#pick-algorithm", "FedProx")
    assert "−∞" in shown.text("#site-table")
    assert "NaN" not in shown.text("main").replace("a loss became NaN", "")
    assert shown.complaints == []


# Interaction.


def test_tables_sort_by_any_column(opened: Open) -> None:
    shown = opened(collected())
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


def test_the_metric_picker_shows_that_metrics_tables(opened: Open) -> None:
    shown = opened(collected())
    visible = "[...document.querySelectorAll('.by-metric')].filter(b => b.offsetParent).map(b => b.dataset.metric)"
    assert set(shown.run(visible)) == {"f1"}
    shown.page.select_option("#pick-metric", "accuracy")
    assert shown.run(visible) == ["accuracy"] * 3
    assert "Accuracy" in shown.text("#curve-caption")
    assert "Accuracy" in shown.text("#site-table")


def test_values_are_shown_under_the_pointer_and_by_arrow_keys(opened: Open) -> None:
    shown = opened(collected())
    chart = shown.page.locator("#curve-chart svg")
    chart.scroll_into_view_if_needed()
    chart.hover()
    assert "PLayer-FL:" in shown.text("#tip")
    shown.page.mouse.move(0, 0)
    chart.focus()
    shown.page.keyboard.press("ArrowLeft")
    assert "round 1" in shown.text("#tip")


def test_every_control_is_reached_with_the_tab_key(opened: Open) -> None:
    shown = opened(collected())
    controls = "[...document.querySelectorAll('select, input, #what-if-reset')]"
    wanted = set(shown.run(f"{controls}.filter(e => e.offsetParent).map(e => e.id).filter(Boolean)"))
    seen = set()
    for _ in range(200):
        shown.page.keyboard.press("Tab")
        seen.add(shown.run("document.activeElement.id"))
    assert wanted <= seen


# Everywhere.


@pytest.mark.parametrize("width", [1280, 390, 320])
def test_the_page_is_never_wider_than_the_screen(opened: Open, width: int) -> None:
    shown = opened(collected(("north", "a-site-with-quite-a-long-name-of-its-own", "west")), width=width)
    assert shown.run("document.documentElement.scrollWidth") <= width


def test_it_prints_every_table(opened: Open) -> None:
    shown = opened(collected())
    shown.page.emulate_media(media="print")
    assert shown.run("[...document.querySelectorAll('.by-metric')].every(b => b.offsetParent !== null)")
    assert not shown.page.locator("#pickers").is_visible()
    assert shown.page.pdf(prefer_css_page_size=True).startswith(b"%PDF")


@pytest.mark.parametrize("width", [1280, 390])
def test_axe_finds_no_serious_violation(opened: Open, width: int) -> None:
    axe = pytest.importorskip("axe_playwright_python", reason="needs axe: pip install 'playerfl[dev]'")
    script = (Path(axe.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
    what = collected()
    shown = opened(Collected(what.results, [Gap("digits", "fedlp", 4, "not started")]), width=width)
    found = json.loads(shown.run(f"() => {{ {script}; return axe.run().then(r => JSON.stringify(r.violations)); }}"))
    told = [(v["id"], v["impact"], [n["target"] for n in v["nodes"]][:3]) for v in found]
    assert [v for v in told if v[1] in ("serious", "critical")] == []


def test_figures_have_words(opened: Open) -> None:
    shown = opened(collected())
    labels = shown.run("[...document.querySelectorAll('svg[role=img]')].map(s => s.getAttribute('aria-label'))")
    assert len(labels) == 3
    assert "Mean ranks, best first" in labels[0]
    assert "In the last round" in labels[1]
    assert "The cut is after 2 layers" in labels[2]
