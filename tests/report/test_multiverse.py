"""A multiverse in the report: read strictly, said and drawn as its ranks are, and safe whatever its names are."""

from __future__ import annotations

import copy
import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.patches import StepPatch

from browser import Opened
from command_line import playerfl
from made_up_multiverse import made_up_multiverse
from made_up_runs import made_up
from playerfl.errors import RunDirectoryError
from playerfl.report.compute.collected import Collected
from playerfl.report.compute.multiverse import Multiverse, read_multiverse
from playerfl.report.compute.report import build_report
from playerfl.report.plots.comparison import save
from playerfl.report.plots.multiverse import multiverse_figure
from playerfl.report.plots.report import report_figures
from playerfl.report.view.facts import records
from playerfl.report.view.multiverse import answer, finding
from playerfl.report.write import multiverse_payload
from playerfl.report.write.documents import as_latex, as_markdown, as_page
from playerfl.studies.collecting import collect

METHODS = ("fedavg", "local", "ditto", "player_fl")
FACTORS = {"schedule": ["none", "authors"], "measure": ["f1", "loss"]}
# PLayer-FL is 1st, 2nd, 4th and 4th: without a schedule it is ahead of FedAvg, with the authors' it is last.
PROTOCOLS = [
    ((0, 0), (0.4, 0.5, 0.55, 0.625), (3.75, 3.0, 2.0, 1.25)),
    ((0, 1), (0.9, 0.7, 0.5, 0.6), (4.0, 3.0, 1.25, 1.75)),
    ((1, 0), (0.6, 0.5, 0.55, 0.4), (1.0, 3.0, 2.0, 4.0)),
    ((1, 1), (0.5, 0.6, 0.7, None), (1.0, 2.0, 3.0, 4.0)),
]
HOSTILE = "</script><img src=x onerror=alert(1)>"
Content = dict[str, Any]


def usual(name: str = "heart") -> Content:
    return made_up_multiverse(METHODS, FACTORS, PROTOCOLS, name)


def written(folder: Path, content: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "multiverse.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return file


@pytest.fixture
def multiverse(tmp_path: Path) -> Multiverse:
    return read_multiverse(written(tmp_path, usual()))


# Reading.


def change(*keys: str | int, to: object) -> Callable[[Content], None]:
    def apply(content: Content) -> None:
        place: Any = content
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = to

    return apply


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (change("format", to="playerfl multiverse 2"), "format"),
        (change("runs", to="20"), "runs"),
        (change("methods", 1, to="fedavg"), "methods are not all different"),
        (change("methods", 1, to="a\u202eb"), "cannot be shown"),
        (change("factors", 0, "values", 1, to="none"), "values of schedule are not all different"),
        (change("factors", 0, "name", to="=cmd()"), "letters, digits"),
        (change("factors", 0, "name", to="rank"), "cannot be called 'rank'"),
        (change("factors", 1, "name", to="metric"), "factor called 'measure'"),
        (change("measures", to={"f1": "higher"}), "factor called 'measure'"),
        (change("protocols", to=[]), "protocols"),
        (change("protocols", 2, "choices", to=[0]), r"protocols\.2 must choose"),
        (change("protocols", 2, "choices", to=[0, 2]), r"protocols\.2 must choose"),
        (change("protocols", 2, "choices", to=[0, 1]), "occurs twice"),
        (change("protocols", 2, "choices", 0, to=-1), r"protocols\.2\.choices\.0"),
        (change("protocols", 2, "scores", to=[0.1]), r"protocols\.2 must have one number"),
        (change("protocols", 2, "scores", 0, to=float("nan")), r"protocols\.2\.scores\.0"),
        (change("protocols", 2, "mean_ranks", 0, to=float("inf")), r"protocols\.2\.mean_ranks\.0"),
        (change("protocols", 2, "ranks", 0, to=5), r"protocols\.2 ranks a method beyond 4"),
        (change("protocols", 2, "ranks", 0, to=1.0), r"protocols\.2\.ranks\.0"),
        (change("protocols", 2, "ranks", 3, to=1), "summary of player_fl does not follow"),
        (change("summary", 3, "first", to=0.5), "summary of player_fl does not follow"),
        (change("summary", 3, "worst_rank", to=3), "summary of player_fl does not follow"),
        (change("summary", 3, "decided_by", to="weather"), "not a factor"),
        (change("summary", 3, "ahead_of", to={"fedprox": 1.0}), "not a method"),
        (change("summary", to=[]), "one entry for each method"),
    ],
)
def test_what_contradicts_itself_is_refused_in_one_sentence(
    tmp_path: Path, broken: Callable[[Content], None], said: str
) -> None:
    content = copy.deepcopy(usual())
    broken(content)
    with pytest.raises(RunDirectoryError, match=said) as refused:
        read_multiverse(written(tmp_path, content))
    assert str(tmp_path / "multiverse.json") in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["", "{]", "[]", "null", '{"format": "\\ud800"}', "[" * 100_000])
def test_what_is_no_json_object_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(RunDirectoryError, match="is not what `playerfl multiverse` writes"):
        read_multiverse(written(tmp_path, text))


def test_collect_finds_multiverses_beside_runs_and_leaves_out_the_runs_below(tmp_path: Path) -> None:
    written(tmp_path / "multiverse" / "heart", usual())
    (tmp_path / "multiverse" / "heart" / "universe").mkdir()
    # Whoever opened this would refuse it.
    (tmp_path / "multiverse" / "heart" / "universe" / "study.toml").write_text("nonsense =", encoding="utf-8")
    written(tmp_path / "multiverse" / "digits", usual("digits"))
    found = collect(tmp_path)
    assert [multiverse.name for multiverse in found.multiverses] == ["digits", "heart"]
    assert (found.results, found.missing, found.failed) == ([], [], [])


# Words and tables.


def test_the_finding_is_counted_from_the_ranks(multiverse: Multiverse) -> None:
    ranks = [1, 2, 4, 4]
    first, top = (round(100 * sum(rank <= most for rank in ranks) / 4) for most in (1, 3))
    assert finding(multiverse, "player_fl") == (
        f"PLayer-FL ranks 1st in {first} % of 4 protocols and in the top three in {top} %; "
        "the choice of schedule matters most"
    )
    # Ranks 1.5 and 4 on average by schedule; the mean is 2.75 and the variance 1.6875.
    explained = round(100 * ((1.5 - 2.75) ** 2 + (4 - 2.75) ** 2) / 2 / 1.6875)
    said = answer(multiverse)
    assert (
        f"median rank is 3 of 4, from 1 to 4; the choice of schedule explains {explained} % of the variance" in said[1]
    )
    assert "ahead of FedAvg in 50 % and Local in 50 % of protocols" in said[1]
    assert said[2] == "Most often 1st: FedAvg, in 50 % of protocols."


def test_a_rank_that_never_changes_is_decided_by_nothing(tmp_path: Path) -> None:
    content = made_up_multiverse(
        ("player_fl", "local"), FACTORS, [(c, (0.5, 0.4), (1.0, 2.0)) for c, _, _ in PROTOCOLS]
    )
    steady = read_multiverse(written(tmp_path, content))
    assert finding(steady, "player_fl").endswith("in the top three in 100 %; no choice changes its rank")
    assert len(answer(steady)) == 1
    _, axes = multiverse_figure(steady)
    assert axes[0].get_ylim() == (2.6, 0.4)


def test_a_choice_that_explains_little_is_not_said_to_matter(tmp_path: Path) -> None:
    # The better of two depends on both choices together, and on neither alone.
    means = {(0, 0): (1.0, 2.0), (0, 1): (2.0, 1.0), (1, 0): (2.0, 1.0), (1, 1): (1.0, 2.0)}
    content = made_up_multiverse(("player_fl", "local"), FACTORS, [(c, (0.5, 0.4), m) for c, m in means.items()])
    said = finding(read_multiverse(written(tmp_path, content)), "player_fl")
    assert said.endswith("top three in 100 %; no single choice explains 10 % of the variance of its rank")


@pytest.mark.slow
def test_all_formats_have_the_summary_and_tables_have_every_protocol(multiverse: Multiverse) -> None:
    report = build_report(Collected(multiverses=[multiverse]))
    markdown = as_markdown(report, "x")
    assert "## Multiverse: which choices decide the ranking" in markdown
    assert "| PLayer-FL | 25 % | 50 % | 50 % | 50 % | 3 | 1 | 4 | schedule | 93 % |" in markdown
    assert r"PLayer-FL & 25 \% & 50 \% & 50 \% & 50 \% & 3 & 1 & 4 & schedule & 93 \%" in as_latex(report, "x")
    rows = records(report)["protocols"]
    assert len(rows) == 4 * 4
    assert rows[-1] == {
        "multiverse": "heart",
        "task": "heart",
        "protocol": 4,
        "schedule": "authors",
        "measure": "loss",
        "method": "PLayer-FL",
        "score": None,
        "mean_rank": 4.0,
        "rank": 4,
    }
    assert "protocols" not in records(build_report(Collected([made_up("fedavg")])))


@pytest.mark.slow
def test_several_multiverses_get_a_section_and_a_figure_each(tmp_path: Path) -> None:
    written(tmp_path / "a", usual())
    written(tmp_path / "b", usual())
    other = made_up_multiverse(METHODS, {"batch": ["32", "128"], "measure": ["f1", "loss"]}, PROTOCOLS, "digits")
    written(tmp_path / "c", other)
    report = build_report(collect(tmp_path))
    page = as_page(report, "x")
    assert [f'<section id="multiverse-{i}"' in page for i in (1, 2, 3, 4)] == [True, True, True, False]
    assert list(report_figures(report)) == ["multiverse_heart", "multiverse_heart_2", "multiverse_digits"]
    rows = records(report)["protocols"]
    assert [(rows[i]["schedule"], rows[i]["batch"]) for i in (0, -1)] == [("none", None), (None, "128")]


@pytest.mark.slow
def test_the_command_writes_each_format(tmp_path: Path) -> None:
    written(tmp_path, usual())
    for form in ("html", "md", "latex", "csv"):
        made = playerfl("report", ".", "--format", form, cwd=tmp_path)
        assert made.returncode == 0
        assert made.stderr.startswith("On heart, PLayer-FL ranks 1st in 25 % of 4 protocols")
    with (tmp_path / "report" / "tables" / "protocols.csv").open(newline="", encoding="utf-8") as table:
        ranks = [int(row["rank"]) for row in csv.DictReader(table) if row["method"] == "PLayer-FL"]
    assert ranks == [1, 2, 4, 4]


@pytest.mark.slow
def test_names_are_text_in_every_format(tmp_path: Path) -> None:
    content = made_up_multiverse(
        ("player_fl", HOSTILE), {"schedule": ["$x$", f"=1+{HOSTILE}"], "measure": ["f1", "loss"]},
        [(choices, scores[:2], (1.0, 2.0) if choices[0] else (2.0, 1.0)) for choices, scores, _ in PROTOCOLS], HOSTILE,
    )  # fmt: skip
    report = build_report(Collected(multiverses=[read_multiverse(written(tmp_path, content))]))
    for text in (as_page(report, "x"), as_markdown(report, "x")):
        assert "<img" not in text
    assert "\\textless{}img" in as_latex(report, "x")
    figure, _ = multiverse_figure(report.multiverses[0], HOSTILE)
    assert save(figure, tmp_path / "x.svg").stat().st_size > 1000


def test_what_a_page_cannot_hold_is_left_out(multiverse: Multiverse, monkeypatch: pytest.MonkeyPatch) -> None:
    assert multiverse_payload.multiverse_payload(multiverse) is not None
    monkeypatch.setattr(multiverse_payload, "_MOST_NUMBERS", 4 * 4 * 4 - 1)
    assert multiverse_payload.multiverse_payload(multiverse) is None


# The figure.


@pytest.mark.slow
def test_the_figure_shows_sorted_ranks_above_their_choices(multiverse: Multiverse, tmp_path: Path) -> None:
    figure, (above, below) = multiverse_figure(multiverse)
    assert figure.get_suptitle().replace("\n", " ") == finding(multiverse, "player_fl")
    curves = {patch.get_linewidth(): patch for patch in above.patches if isinstance(patch, StepPatch)}
    assert np.array(curves[max(curves)].get_data().values).tolist() == [1, 2, 4, 4]
    assert [label.get_text() for label in below.get_yticklabels()] == [
        "schedule", "none", "authors", "measure", "f1", "loss",
    ]  # fmt: skip
    starts = [[path.get_extents().intervalx.tolist() for path in bars.get_paths()] for bars in below.collections]
    assert starts == [[[0, 2]], [[2, 4]], [[0, 1], [2, 3]], [[1, 2], [3, 4]]]
    assert [text.get_text() for text in below.texts] == ["1.5", "4", "2.5", "3", "median\nrank"]
    assert above.get_ylabel()
    assert "PLayer-FL" in below.get_xlabel()
    for ending in ("png", "pdf"):
        assert save(figure, tmp_path / f"x.{ending}").stat().st_size > 1000


# The page.


def opened(browser: Any, folder: Path, collected: Collected, width: int = 1280) -> Opened:
    file = folder / "report.html"
    file.write_text(as_page(build_report(collected), "A report"), encoding="utf-8")
    return Opened(browser, file, width=width).unfold()


def ranking(shown: Opened) -> list[list[str]]:
    rows = shown.page.locator(".ranking tbody tr").all()
    return [row.locator("th, td").all_inner_texts() for row in rows]


@pytest.mark.system
@pytest.mark.parametrize("width", [1280, 400])
def test_the_ranking_moves_with_the_choice(browser: Any, tmp_path: Path, multiverse: Multiverse, width: int) -> None:
    shown = opened(browser, tmp_path, Collected(multiverses=[multiverse]), width)
    status = ".multiverse .verdict"
    assert "4 of 4 protocols: PLayer-FL has median rank 3 (1 to 4) and is first in 25 %." in shown.text(status)
    # Medians 2, 2.5, 3 and 3; the last two also have the same mean of mean ranks, so they keep the order of the file.
    assert [row[0] for row in ranking(shown)] == ["Ditto", "FedAvg", "Local", "PLayer-FL"]
    assert ranking(shown)[3] == ["PLayer-FL", "3", "1 to 4", "", "25 %", "50 %"]
    shown.page.select_option("[data-factor=schedule]", label="none")
    assert ranking(shown)[0][:3] == ["PLayer-FL", "1.5", "1 to 2"]
    shown.page.select_option("[data-factor=measure]", label="f1")
    assert ranking(shown)[0] == ["PLayer-FL", "1", "1.25", "62.5 %"]
    assert shown.text(status) == "One protocol: PLayer-FL is first; PLayer-FL has rank 1 of 4 (mean rank 1.25)."
    shown.page.click(".multiverse button:has-text('Any protocol')")
    assert shown.page.input_value("[data-factor=schedule]") == ""
    assert shown.run("document.documentElement.scrollWidth") <= width
    assert (shown.complaints, shown.asked_the_network) == ([], [])


@pytest.mark.system
def test_the_curve_is_read_and_used_with_the_keyboard(browser: Any, tmp_path: Path, multiverse: Multiverse) -> None:
    shown = opened(browser, tmp_path, Collected(multiverses=[multiverse]))
    chart = shown.page.locator(".multiverse figure svg")
    assert finding(multiverse, "player_fl") in chart.get_attribute("aria-label")
    chart.focus()
    for _ in range(4):
        shown.page.keyboard.press("ArrowRight")
    assert shown.text("#tip").split("\n") == ["PLayer-FL: rank 4 of 4, diverged", "schedule: authors", "measure: loss"]
    shown.page.keyboard.press("Enter")
    assert [row[0] for row in ranking(shown)] == ["FedAvg", "Local", "Ditto", "PLayer-FL"]
    assert ranking(shown)[3] == ["PLayer-FL", "4", "4.00", "diverged"]
    assert shown.run("document.activeElement.tagName") == "svg"
    shown.page.select_option(".multiverse select:not([data-factor])", label="Ditto")
    assert "Ditto ranks 1st in 25 % of 4 protocols" in shown.text(".multiverse figure h3")


@pytest.mark.system
def test_beside_runs_both_are_shown_and_names_are_text(browser: Any, tmp_path: Path) -> None:
    content = made_up_multiverse(
        (HOSTILE, "__proto__"), {"measure": [f"a{HOSTILE}", "{{ 7 * 7 }}"]},
        [((0,), (0.5, 0.4), (1.0, 2.0)), ((1,), (0.5, 0.6), (2.0, 1.0))],
    )  # fmt: skip
    runs = [made_up(name, seed) for name in ("local", "fedavg", "player_fl") for seed in range(2)]
    hostile = read_multiverse(written(tmp_path, content))
    shown = opened(browser, tmp_path, Collected(runs, multiverses=[hostile, hostile]))
    assert shown.page.locator(".multiverse figure svg").count() == 2
    assert shown.page.locator("#cd-chart svg, #curve-chart svg").count() == 2
    assert [row[0] for row in ranking(shown)][:2] == [HOSTILE, "__proto__"]
    assert shown.page.locator("img, iframe").count() == 0
    assert (shown.complaints, shown.asked_the_network) == ([], [])


@pytest.mark.system
@pytest.mark.parametrize("width", [1280, 400])
def test_axe_finds_no_serious_violation(browser: Any, tmp_path: Path, multiverse: Multiverse, width: int) -> None:
    axe = pytest.importorskip("axe_playwright_python", reason="needs axe: pip install 'playerfl[dev]'")
    script = (Path(axe.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
    shown = opened(browser, tmp_path, Collected(multiverses=[multiverse]), width)
    violations = json.loads(
        shown.run(f"() => {{ {script}; return axe.run().then(r => JSON.stringify(r.violations)); }}")
    )
    serious = [v for v in violations if v["impact"] in ("serious", "critical")]
    assert [(v["id"], [node["target"] for node in v["nodes"]][:3]) for v in serious] == []
