"""Which round is reported for each site, from validation losses alone."""

from __future__ import annotations

import pytest

from playerfl.runs.result import Row, choose_rounds

NAN = float("nan")


def losses(table: dict[str, list[float | None]], stage: str = "round") -> list[Row]:
    """Rows of validation losses by site, for rounds 1, 2, …; None where a site was not scored."""
    return [
        (stage, round_, site, "validation", "loss", value)
        for site, values in table.items()
        for round_, value in enumerate(values, start=1)
        if value is not None
    ]


TWO_SITES = losses({"a": [0.5, 0.2, 0.4], "b": [0.1, 0.9, 0.3]})


@pytest.mark.parametrize(
    ("selection", "sizes", "expected"),
    [
        ("client_best", {"a": 1, "b": 1}, {"a": 2, "b": 1}),
        ("last", {"a": 1, "b": 1}, {"a": 3, "b": 3}),
        ("round_best", {"a": 1, "b": 1}, {"a": 1, "b": 1}),
        ("round_best", {"a": 9, "b": 1}, {"a": 2, "b": 2}),
    ],
)
def test_each_selection_chooses_by_its_own_loss(
    selection: str, sizes: dict[str, int], expected: dict[str, int]
) -> None:
    assert choose_rounds(TWO_SITES, sizes, selection) == expected


@pytest.mark.parametrize("selection", ["client_best", "round_best"])
def test_of_equal_losses_the_earliest_round_is_chosen(selection: str) -> None:
    assert choose_rounds(losses({"a": [0.3, 0.2, 0.2]}), {"a": 1}, selection) == {"a": 2}


@pytest.mark.parametrize("selection", ["client_best", "round_best"])
@pytest.mark.parametrize("values", [[NAN, 0.5, NAN], [0.5, NAN, 0.6], [NAN, NAN, 0.5]])
def test_a_diverged_round_is_never_chosen_over_a_number(selection: str, values: list[float | None]) -> None:
    assert choose_rounds(losses({"a": values}), {"a": 1}, selection) == {"a": values.index(0.5) + 1}


def test_one_diverged_site_rules_a_round_out_for_all() -> None:
    rows = losses({"a": [0.1, 0.5], "b": [NAN, 0.5]})
    assert choose_rounds(rows, {"a": 1, "b": 1}, "round_best") == {"a": 2, "b": 2}


def test_test_scores_training_losses_and_other_metrics_are_not_looked_at() -> None:
    tempting: list[Row] = [
        ("round", 2, "a", "test", "loss", 0.0),
        ("round", 2, "a", "train", "loss", 0.0),
        ("round", 2, "a", "validation", "accuracy", 0.0),
    ]
    assert choose_rounds([*losses({"a": [0.1, 0.2]}), *tempting], {"a": 1}, "client_best") == {"a": 1}


@pytest.mark.parametrize("selection", ["client_best", "round_best", "last"])
def test_after_a_finishing_phase_only_finished_models_are_candidates(selection: str) -> None:
    rows = [*losses({"a": [0.1, 0.2]}), ("finish", 2, "a", "validation", "loss", 0.9)]
    assert choose_rounds(rows, {"a": 1}, selection) == {"a": 2}


@pytest.mark.parametrize(("selection", "expected"), [("client_best", {"a": 2, "b": 3}), ("last", {"a": 2, "b": 3})])
def test_a_site_is_judged_by_the_rounds_it_took_part_in(selection: str, expected: dict[str, int]) -> None:
    rows = losses({"a": [0.5, 0.2, None], "b": [0.5, 0.4, 0.3]})
    assert choose_rounds(rows, {"a": 1, "b": 1}, selection) == expected


def test_one_round_for_all_is_one_in_which_all_were_scored() -> None:
    rows = losses({"a": [0.5, 0.4, None], "b": [0.5, 0.4, 0.1]})
    assert choose_rounds(rows, {"a": 1, "b": 1}, "round_best") == {"a": 2, "b": 2}


@pytest.mark.parametrize("selection", ["client_best", "last"])
def test_a_site_without_scores_has_no_round_and_the_others_keep_theirs(selection: str) -> None:
    assert choose_rounds(losses({"a": [0.5, 0.4]}), {"a": 1, "lost": 1}, selection) == {"a": 2}


def test_a_round_best_for_all_is_none_where_one_was_never_scored() -> None:
    assert choose_rounds(losses({"a": [0.5, 0.4]}), {"a": 1, "lost": 1}, "round_best") == {}
