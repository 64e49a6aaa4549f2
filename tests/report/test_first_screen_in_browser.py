"""The first screen in a real browser: it fits, follows the pickers, is read by keyboard, and can be saved."""

from __future__ import annotations

import csv
import json
import re
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_page_in_browser import collected, profiles

from browser import Opened
from made_up_runs import SITES, constant, made_up
from playerfl.algorithms import ALGORITHMS
from playerfl.report.compute.collected import Collected
from playerfl.report.compute.report import build_report
from playerfl.report.write.documents import as_page
from playerfl.runs.result import RunResult

pytestmark = pytest.mark.system
CLASSES = [({"0": 9, "1": 6}, {"0": 4, "1": 4})] * 3
FIGURES = ("methods", "sites", "layers")


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixteen methods on two tasks, three runs each, beside the majority class."""
    names = [
        "local",
        "fedavg",
        "player_fl",
        *(name for name in ALGORITHMS if name not in ("local", "fedavg", "player_fl")),
    ]
    runs = [
        made_up(
            name,
            seed,
            task=task,
            scores_of_layers=profiles(("north", "south", "west"), seed) if name == "player_fl" else None,
            classes=CLASSES,
        )
        for task in ("digits", "heart")
        for name in names[:16]
        for seed in range(3)
    ]
    return _written(tmp_path_factory, runs)


def _written(factory: pytest.TempPathFactory, runs: list[RunResult]) -> Path:
    file = factory.mktemp("page") / "report.html"
    file.write_text(as_page(build_report(Collected(runs)), "A report"), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _written(tmp_path_factory, collected(classes=CLASSES).results)


def box(page: Opened, selector: str) -> Any:
    return page.page.locator(selector).bounding_box()


def test_three_pictures_are_side_by_side_on_a_wide_screen(browser: Any, many: Path) -> None:
    page = Opened(browser, many, width=1400, height=900)
    tops = [box(page, f"figure[data-file={name}]")["y"] for name in FIGURES]
    assert len(set(tops)) == 1
    for chart in ("#methods-chart svg", "#gains-chart svg", "#profile-chart svg"):
        found = box(page, chart)
        assert found["y"] + found["height"] < 900
    assert page.run("[...document.querySelectorAll('details')].every((part) => !part.open)")
    assert page.text("#answer").startswith("Over 2 tasks, ")


def test_they_are_stacked_on_a_phone(browser: Any, many: Path) -> None:
    page = Opened(browser, many, width=390, height=844)
    lefts = [box(page, f"figure[data-file={name}]")["x"] for name in FIGURES]
    tops = [box(page, f"figure[data-file={name}]")["y"] for name in FIGURES]
    assert len(set(lefts)) == 1
    assert tops == sorted(set(tops))
    assert page.run("document.documentElement.scrollWidth") <= 390


def test_many_methods_start_filtered_everywhere(browser: Any, many: Path) -> None:
    page = Opened(browser, many, width=1400).unfold()
    shown = "table[data-name={}] tbody:not(.reference) tr:not(.elsewhere)"
    rows = f"document.querySelectorAll('{shown}').length"
    lines = "document.querySelectorAll('#curve-legend input:checked').length"
    few = page.run(rows.format("f1"))
    assert 3 <= few <= 6
    assert page.run(rows.format("costs")) == few
    assert page.run(lines) == few
    assert f"{16 - few} more methods" in page.text("#methods-caption")
    page.page.select_option("#pick-methods", "all")
    assert (page.run(rows.format("f1")), page.run(rows.format("costs")), page.run(lines)) == (16, 16, 16)


def test_pickers_act_on_the_whole_page(browser: Any, many: Path) -> None:
    page = Opened(browser, many, width=1400).unfold()
    assert "On digits" in page.text("#methods-finding")
    page.page.select_option("#pick-task", "heart")
    assert "On heart" in page.text("#methods-finding")
    assert "on heart" in page.text("#gains-finding")
    assert page.page.input_value("#pick-over") == "heart"
    tasks = page.page.locator("table[data-name=costs] tbody tr:not(.elsewhere) td:nth-child(2)").all_inner_texts()
    assert set(tasks) == {"heart"}
    page.page.select_option("#pick-metric", "loss")
    assert "by loss" in page.text("#answer")
    assert "a lower loss" in page.text("#gains-caption")
    assert "(+ is better)" in page.text("#site-table")
    page.page.select_option("#pick-algorithm", "FedAvg")
    assert page.text("#gains-finding").startswith("FedAvg")
    assert "FedAvg on heart" in page.text("#sites-said")
    page.page.select_option("#pick-algorithm", "Local")
    assert "has the worst loss" in page.text("#gains-finding")
    assert page.complaints == []


def test_no_table_is_wider_than_a_wide_screen(browser: Any, many: Path) -> None:
    page = Opened(browser, many, width=1400).unfold()
    page.page.select_option("#pick-methods", "all")
    wide = "[...document.querySelectorAll('.by-metric .scroll')].filter(d => d.scrollWidth > d.clientWidth + 1).length"
    assert page.run(wide) == 0


def test_dots_are_read_with_the_arrow_keys(browser: Any, usual: Path) -> None:
    page = Opened(browser, usual, width=1400)
    page.page.locator("#methods-chart svg").focus()
    page.page.keyboard.press("ArrowDown")
    first = page.text("#tip")
    assert "over runs: " in first
    page.page.keyboard.press("ArrowDown")
    assert page.text("#tip") != first
    page.page.keyboard.press("Home")
    assert page.text("#tip") == first
    page.page.keyboard.press("End")
    assert page.text("#tip") != first
    page.page.keyboard.press("Escape")
    assert not page.page.locator("#tip").is_visible()


def test_a_figure_can_be_saved_as_picture_and_numbers(browser: Any, usual: Path) -> None:
    page = Opened(browser, usual, width=1400).unfold()
    figures = page.run("[...document.querySelectorAll('figure[data-file]')].map((figure) => figure.dataset.file)")
    assert figures == ["methods", "sites", "layers", "ranks", "curves"]
    saved: dict[str, bytes] = {}
    for name in figures:
        # Chromium lets a page start ten downloads.
        page = Opened(browser, usual, width=1400).unfold()
        for ending in ("SVG", "PNG", "CSV"):
            with page.page.expect_download() as waiting:
                page.page.click(f"figure[data-file={name}] .tools button:text-is('{ending}')")
            saved[waiting.value.suggested_filename] = Path(waiting.value.path()).read_bytes()
    for name in figures:
        drawing = saved[f"{name}.svg"].decode()
        assert drawing.startswith("<svg")
        assert "var(" not in drawing
        assert saved[f"{name}.png"].startswith(b"\x89PNG")
        assert struct.unpack(">II", saved[f"{name}.png"][16:24])[0] > 400
        assert len(list(csv.reader(saved[f"{name}.csv"].decode().splitlines()))) > 2
    rows = list(csv.DictReader(saved["methods.csv"].decode().splitlines()))
    assert {row["method"] for row in rows} == {"Local", "FedAvg", "Ditto", "PLayer-FL", "majority class"}
    assert page.complaints == []


def test_saved_figures_are_light_even_on_a_dark_screen(browser: Any, usual: Path) -> None:
    page = Opened(browser, usual, width=1400)
    page.page.emulate_media(color_scheme="dark")
    assert page.run("getComputedStyle(document.documentElement).backgroundColor") == "rgb(20, 22, 26)"
    drawing = page.run("asSvg(document.querySelector('figure[data-file=methods]'))")
    assert 'fill="#fff"' in drawing
    assert "#1a1f26" in drawing
    assert "#e8eaee" not in drawing


def test_names_cannot_become_formulas_in_saved_numbers(browser: Any, usual: Path) -> None:
    page = Opened(browser, usual)
    assert page.run("asCsv([['=1+1', '@x', 'a,b', 'say \"hi\"', -1, NaN]])") == '\'=1+1,\'@x,"a,b","say ""hi""",-1,\r\n'


def test_hundreds_of_sites_show_both_ends(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    runs = collected(tuple(f"site-{i:03}" for i in range(300)), seeds=1).results
    page = Opened(browser, _written(tmp_path_factory, runs), width=1400)
    assert "288 sites in between" in page.text("#gains-caption")
    assert box(page, "#gains-chart svg")["height"] < 420


def test_a_diverged_method_does_not_hide_the_others(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    runs = collected().results
    runs += [made_up("fedprox", s, score=constant(loss=1e6, f1=float("nan"), accuracy=0.1)) for s in range(3)]
    page = Opened(browser, _written(tmp_path_factory, runs), width=1400)
    assert "diverged" in page.text("#methods-chart")
    assert page.run("document.querySelectorAll('#methods-chart path').length") == 0
    page.page.select_option("#pick-metric", "loss")
    places = page.run("[...document.querySelectorAll('#methods-chart circle')].map(dot => dot.cx.baseVal.value)")
    assert len(places) == 4
    assert max(places) - min(places) > 100
    assert page.complaints == []


def test_a_method_of_ones_own_is_named_by_its_class_and_fits(
    browser: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    runs = [*collected(seeds=1).results, made_up("mixed_head.py:MWMWMWMWMWMWMWMWMWMWMW")]
    for width in (1400, 390):
        page = Opened(browser, _written(tmp_path_factory, runs), width=width)
        texts = page.run(
            "[...document.querySelectorAll('#methods-chart text')].map(text => [text.textContent, text.getBBox().x])"
        )
        assert [name for name, _ in texts if name.startswith("MWMW")]
        assert [name for name, x in texts if x < 0] == []


def test_titles_of_curves_round_as_tables_do(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    one = made_up(score=constant(loss=0.25, f1=0.074512, accuracy=0.62294))
    page = Opened(browser, _written(tmp_path_factory, [one])).unfold()
    assert page.text("#curve-finding") == "In the last round, the macro-F1 of PLayer-FL is 7.5 %"
    two = made_up("local", score=constant(loss=0.5, f1=0.0744, accuracy=0.5))
    page = Opened(browser, _written(tmp_path_factory, [one, two])).unfold()
    page.page.select_option("#pick-metric", "loss")
    said = "In the last round, PLayer-FL has the lowest loss of the methods shown: 0.250"
    assert page.text("#curve-finding") == said


def test_the_curve_of_the_layers_jumps_where_the_model_is_cut(browser: Any, usual: Path) -> None:
    page = Opened(browser, usual, width=1400).unfold()
    said = str(page.page.locator("#profile-chart svg").get_attribute("aria-label"))
    drawn = [float(value) for value in re.findall(r"(?:conv1|conv2|fc) ([\d.e+-]+)", said)]
    table = page.page.locator("#layer-table tbody td:nth-child(3)").all_inner_texts()
    scores = [float(text) for text in table]
    assert drawn == pytest.approx([score / scores[0] for score in scores], rel=0.02)
    cut = int(str(page.page.locator("#cut-said").get_attribute("data-index")))
    assert f"× {drawn[cut] / drawn[cut - 1]:.1f}"[:5] in page.text("#profile-chart")
    page.page.select_option("#pick-rule", "cumulative_ratio")
    assert "summed from the input" in page.text("#profile-chart")
    assert page.run("[1e5, 1e-4, 100, 0.01, 2e5].map(powerOfTen)") == ["10⁵", "10⁻⁴", "100", "0.01", "2.00e+5"]


def test_long_names_do_not_widen_a_phone(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    runs = [made_up(name, task="a_dataset_with_a_rather_long_name_2026_final_version") for name in ("local", "fedavg")]
    page = Opened(browser, _written(tmp_path_factory, runs), width=390)
    assert page.run("document.documentElement.scrollWidth") <= 390
    page.unfold()
    assert page.run("document.documentElement.scrollWidth") <= 390


def test_a_job_across_institutions_shows_its_cut(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    run = made_up(scores_of_layers=profiles(("north", "south", "west"), 0))
    job = replace(run, layers={**run.layers, "profiles": {}})
    page = Opened(browser, _written(tmp_path_factory, [job]), width=1400).unfold()
    assert page.text("#cut-finding").startswith("PLayer-FL: ")
    assert "Deciding alone" not in page.text("#cut-sure")
    assert "grey" not in page.text("#cut-sure")
    assert box(page, "#profile-chart svg")["height"] > 100
    page.page.select_option("#pick-normalise", "first_layer")
    assert "only as they were combined" in page.text("#cut-said")
    assert page.complaints == []


def test_without_scripts_the_answer_stays_and_no_dead_control_is_shown(browser: Any, usual: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(usual.as_uri())
    assert "Ditto has the best macro-F1" in page.inner_text("#answer")
    assert not page.locator(".pickers, .pictures").first.is_visible()
    assert "Scripts are off" in page.inner_text("#summary")
    context.close()


def test_parts_unfold_by_link_and_for_print(browser: Any, usual: Path) -> None:
    page = Opened(browser, usual)
    page.run("() => { location.hash = '#cost'; }")
    page.page.wait_for_selector("#cost details[open]")
    page.page.emulate_media(media="print")
    page.page.wait_for_selector("#tables details[open]")
    page.page.emulate_media(media="screen")
    page.page.wait_for_selector("#tables details:not([open])")


def test_a_folded_page_prints_as_many_sheets_as_an_unfolded_one(browser: Any, usual: Path) -> None:
    folded, unfolded = Opened(browser, usual), Opened(browser, usual).unfold()
    assert _sheets(folded) == _sheets(unfolded) > 2
    assert folded.page.locator("#tables details[open]").count() == 0


def test_pictures_fill_a_sheet_however_many_there_are(browser: Any, usual: Path) -> None:
    page = Opened(browser, usual)
    page.run("document.querySelector('#picture-layers').remove()")
    page.page.emulate_media(media="print")
    right = "document.querySelector('{}').getBoundingClientRect().right"
    ends = [page.run(right.format(part)) for part in (".pictures figure:last-child", ".pictures")]
    assert ends[0] == pytest.approx(ends[1], abs=1)


def _sheets(page: Opened) -> int:
    return len(re.findall(rb"/Type\s*/Page\b", page.page.pdf(prefer_css_page_size=True)))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(browser: Any, usual: Path, scheme: Any) -> None:
    axe = pytest.importorskip("axe_playwright_python", reason="needs axe: pip install 'playerfl[dev]'")
    script = (Path(axe.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
    page = Opened(browser, usual, width=1400)
    page.page.emulate_media(color_scheme=scheme)
    page.unfold()
    violations = json.loads(
        page.run(f"() => {{ {script}; return axe.run().then(r => JSON.stringify(r.violations)); }}")
    )
    assert [(v["id"], [node["target"] for node in v["nodes"]][:3]) for v in violations] == []


def test_numbers_along_an_axis_are_round(browser: Any, usual: Path) -> None:
    """0 was labelled −1.388e-15 where steps of 0.05 had been added up."""
    page = Opened(browser, usual)
    assert page.run("ticks(-0.17, 0.12)") == [-0.15, -0.1, -0.05, 0, 0.05, 0.1]
    # Two runs of the same method gain exactly nothing: -1e-7 to 1e-7 was the axis.
    assert page.run("domain([0, 0], false)") == [-0.01, 0.01]
    assert page.run("logTicks(77, 900)") == [100, 200, 500]
    assert page.run("logTicks(50, 20000)") == [100, 1000, 10000]


def test_runs_of_different_methods_on_different_tasks_are_drawn(
    browser: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    measured = profiles(("north", "south", "west"), 0)
    runs = [made_up("player_fl", task="digits", scores_of_layers=measured), made_up("fedavg", task="heart")]
    page = Opened(browser, _written(tmp_path_factory, runs), width=1400)
    page.page.select_option("#pick-algorithm", "PLayer-FL")
    assert page.text("#cut-finding").startswith("PLayer-FL on digits: conv1")
    page.page.select_option("#pick-task", "heart")
    assert page.text("#methods-finding") == "On heart, FedAvg reaches a macro-F1 of 67.5\xa0%"
    assert page.complaints == []


def test_tasks_with_metrics_of_their_own_are_drawn(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    runs = [made_up(name, task="digits") for name in ("local", "player_fl")]
    runs += [made_up(name, task="stay", score=constant(loss=0.5, mae=2.0)) for name in ("local", "player_fl")]
    page = Opened(browser, _written(tmp_path_factory, runs), width=1400)
    page.page.select_option("#pick-task", "stay")
    assert page.page.input_value("#pick-metric") == "mae"
    assert "On stay" in page.text("#methods-finding")
    page.page.select_option("#pick-metric", "f1")
    assert page.page.input_value("#pick-task") == "digits"
    assert "On digits" in page.text("#methods-finding")
    page.page.select_option("#pick-metric", "loss")
    page.page.select_option("#pick-task", "stay")
    assert page.page.input_value("#pick-metric") == "loss"
    assert page.complaints == []


def test_a_method_without_runs_on_the_task_leaves_no_caption(
    browser: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    runs = [made_up("player_fl", task="digits"), made_up("fedavg", task="heart")]
    page = Opened(browser, _written(tmp_path_factory, runs), width=1400)
    page.page.select_option("#pick-algorithm", "PLayer-FL")
    page.page.select_option("#pick-task", "heart")
    assert page.text("#gains-finding") == "There are no runs of PLayer-FL on heart with this metric."
    assert page.text("#gains-caption") == ""


def test_names_stay_in_the_diagram_of_ranks_on_a_phone(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    names = ("local", "fedavg", "player_fl", "player_fl_fedprox", "player_fl_fedrep", "mine.py:AVeryLongNameOfAMethod")
    runs = [made_up(name, seed) for name in names for seed in range(3)]
    page = Opened(browser, _written(tmp_path_factory, runs), width=390).unfold()
    home, texts = page.page.locator("#cd-chart svg"), page.page.locator("#cd-chart text").all()
    low, wide = (home.bounding_box() or {})["x"], (home.bounding_box() or {})["width"]
    ends = {str(text.text_content()): text.bounding_box() or {} for text in texts}
    outside = [name for name, at in ends.items() if at["x"] < low or at["x"] + at["width"] > low + wide]
    assert outside == []


def test_cut_names_still_differ(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    sites = tuple(f"University Hospital of Schleswig-Holstein, {place}" for place in ("Kiel", "Lübeck", "Rendsburg"))
    layers = {f"encoder.blocks.{number:02}": 100 for number in range(12)}
    measured = {site: [1.0] * 11 + [20.0] for site in sites}
    runs = [made_up("local", sites=sites, layers=layers)]
    runs.append(made_up("player_fl", sites=sites, layers=layers, scores_of_layers=measured))
    for width in (1400, 390):
        page = Opened(browser, _written(tmp_path_factory, runs), width=width)
        gains = page.page.locator("#gains-chart text[text-anchor=end]").all_text_contents()
        assert len({text for text in gains if text.startswith("Univ")}) == 3
        boxes = page.run("[...document.querySelectorAll('#profile-chart rect + text')].map(text => text.textContent)")
        assert len(set(boxes)) == 12


def test_names_that_differ_in_between_still_differ(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    sites = tuple(f"University Hospital of Schleswig-Holstein, {place}, Medicine I" for place in ("Kiel", "Lübeck"))
    runs = [
        made_up(name, sites=sites, options={"rule": "fixed", "fixed_cut": cut} if cut else {})
        for name, cut in (("local", 0), ("fedavg", 0), ("player_fl", 1), ("player_fl", 2))
    ]
    for width in (1400, 390):
        page = Opened(browser, _written(tmp_path_factory, runs), width=width)
        for chart, names in (("methods", 4), ("gains", 2)):
            drawn = page.page.locator(f"#{chart}-chart text[text-anchor=end]:not([font-weight])").all_text_contents()
            assert len({text for text in drawn if not text.endswith("→")}) == names
        page.page.close()


def test_the_strip_names_its_method_and_says_where_sensitivity_falls(
    browser: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    falling = {site: [20.0, 0.3, 1.0] for site in SITES}
    fixed = made_up("player_fl_ditto", options={"rule": "fixed", "fixed_cut": 1}, scores_of_layers=falling)
    page = Opened(browser, _written(tmp_path_factory, [fixed]), width=1400)
    assert page.text("#cut-finding") == "PLayer-FL + Ditto: conv1 is shared; conv2 and fc stay private"
    assert "falls × 0.015" in page.text("#profile-chart")
    assert "it falls × 0.015" in str(page.page.locator("#profile-chart svg").get_attribute("aria-label"))
    line = "document.querySelector('#profile-chart [stroke-dasharray=\"6 4\"]').x1.baseVal.value"
    label = "[...document.querySelectorAll('#profile-chart text')].find(text => text.textContent.startsWith('falls'))"
    x, wide = page.run(f"(() => {{ const box = {label}.getBBox(); return [box.x, box.width]; }})()")
    assert not x < page.run(line) < x + wide


def test_another_threshold_does_not_change_what_the_runs_did(browser: Any, usual: Path) -> None:
    page = Opened(browser, usual, width=1400)
    assert "3 of 3 runs cut here." in page.text("#cut-sure")
    page.page.fill("#threshold-number", "10000")
    assert "3 of 3 runs would cut here." in page.text("#cut-sure")
    assert "The run itself cut after 2 layers." in page.text("#cut-sure")


def test_long_settings_do_not_stretch_a_row(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    options = {f"setting_{number}": number / 7 for number in range(8)}
    page = Opened(browser, _written(tmp_path_factory, [made_up(options=options)]), width=390).unfold()
    heights = page.run("[...document.querySelectorAll('table[data-name=runs] tbody tr')].map(row => row.offsetHeight)")
    assert max(heights) < 280


def test_no_line_ends_between_a_number_and_its_unit(browser: Any, usual: Path) -> None:
    page = Opened(browser, usual, width=1400)
    assert "\xa0%" in page.text("#answer")
    assert " %" not in page.text("#answer")
