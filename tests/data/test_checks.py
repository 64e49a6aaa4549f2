"""Data that cannot train a meaningful model is refused before training, with the site's name and a remedy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from playerfl.data.checks import check_sites, check_targets
from playerfl.data.examples import LoaderExamples, SiteData, TensorExamples
from playerfl.errors import DataError

PARTS = ["train", "validation", "test"]


def examples(rows: int = 8, *, bad: float | None = None, classes: int = 2) -> TensorExamples:
    x = torch.zeros(rows, 3)
    if bad is not None:
        x[5, 1] = bad
    return TensorExamples(x, torch.arange(rows) % classes)


def site(**parts: Any) -> dict[str, SiteData]:
    """One good site alongside "north", which has the given parts."""
    good = dict.fromkeys(PARTS, examples())
    return {"south": SiteData(**good), "north": SiteData(**{**good, **parts})}


def check(sites: Mapping[str, SiteData], **options: Any) -> None:
    check_sites(sites, **{"batch_size": 8, **options})


def test_good_sites_pass() -> None:
    check(site())
    check_targets(site(), 2)


def test_no_sites_are_refused() -> None:
    with pytest.raises(DataError, match="there are no sites; give at least one"):
        check({})


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("small", [False, True])
def test_an_empty_part_is_refused_even_at_small_sites(part: str, small: bool) -> None:
    with pytest.raises(DataError, match=f"north has no {part} examples; add some, or leave the site out"):
        check(site(**{part: examples(0)}), accept_small_sites=small)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_nan_and_infinity_are_refused_with_their_row(part: str, bad: float) -> None:
    message = (
        f"north has NaN or infinite values in 1 of its 8 {part} examples, first in row 5 of that part; drop or impute"
    )
    with pytest.raises(DataError, match=message):
        check(site(**{part: examples(bad=bad)}), accept_small_sites=True)


@pytest.mark.parametrize("form", [lambda x: (x, x), lambda x: {"a": torch.zeros(8), "b": x}], ids=["tuple", "mapping"])
def test_every_input_is_checked(form: Any) -> None:
    bad = examples(bad=float("nan"))
    with pytest.raises(DataError, match="north has NaN"):
        check(site(train=TensorExamples(form(bad.inputs), bad.targets)))


def test_targets_are_checked() -> None:
    targets = torch.zeros(8)
    targets[5] = float("nan")
    with pytest.raises(DataError, match=r"north has NaN .* first in row 5"):
        check(site(train=TensorExamples(torch.zeros(8, 3), targets)), classification=False)


def test_a_site_smaller_than_a_batch_is_refused_with_three_remedies() -> None:
    message = (
        r"north has 7 training examples, fewer than training\.batch_size 8; use a smaller batch size, "
        r"merge it with another site, leave it out, or set data\.accept_small_sites=true"
    )
    with pytest.raises(DataError, match=message):
        check(site(train=examples(7)))


def test_a_site_of_one_class_is_refused_with_a_remedy() -> None:
    message = r"north has only class 0 in its training part, .* larger alpha or fewer sites, merge it"
    with pytest.raises(DataError, match=message):
        check(site(train=examples(classes=1)))


@pytest.mark.parametrize(
    ("train", "options"),
    [
        (examples(1), {"accept_small_sites": True}),
        (examples(classes=1), {"accept_small_sites": True}),
        (examples(classes=1), {"classification": False}),
        (LoaderExamples(DataLoader(TensorDataset(torch.zeros(3, 3), torch.zeros(3)))), {}),
    ],
    ids=["small accepted", "one class accepted", "no classes", "loader"],
)
def test_accepted_exceptions_pass(train: Any, options: dict[str, bool]) -> None:
    check(site(train=train), **options)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (torch.arange(8) % 4, "targets from 0 to 3, but the model has 3 outputs, .* use a model with 4"),
        (torch.arange(8) % 3 - 1, "targets from -1 to 1, .* or renumber the classes"),
        (torch.zeros(8), r"targets of kind torch\.float32 and shape \(8,\); they must be class numbers"),
        (
            torch.zeros(8, 2, dtype=torch.long),
            r"targets .* shape \(8, 2\); they must be class numbers: integers, one per row",
        ),
    ],
    ids=["too high", "negative", "floats", "one-hot"],
)
@pytest.mark.parametrize("part", PARTS)
def test_targets_that_do_not_fit_the_outputs_are_refused(targets: Tensor, message: str, part: str) -> None:
    with pytest.raises(DataError, match=f"north has {part} {message}"):
        check_targets(site(**{part: TensorExamples(torch.zeros(8, 3), targets)}), 3)


def test_targets_in_a_loader_are_left_to_the_user() -> None:
    loader = LoaderExamples(DataLoader(TensorDataset(torch.zeros(8, 3), torch.full((8,), 99))))
    check_targets(site(train=loader), 3)
