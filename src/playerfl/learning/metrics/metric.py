"""Metric: a function of predictions and targets, with the declarations needed to use its value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import TypedDict

from playerfl.errors import ConfigError, described, one_of

Function = Callable[[Tensor, Tensor], float]
Direction = Literal["higher", "lower"]
Needs = Literal["classes", "scores", "numbers"]
Unit = Literal["", "share", "target"]
TaskKind = Literal["classification", "regression"]
_GIVEN = {
    "classes": "the predicted class of each row",
    "scores": "the probability of every class in each row",
    "numbers": "the predicted number of each row",
}


def always_defined(targets: Tensor) -> None:
    """For a metric that has a value for any targets."""
    return


class MetricRecord(TypedDict):
    """A metric's declarations as a run stores them, so that its results can be read without its code."""

    direction: Direction
    unit: Unit
    title: str
    averaging: str
    bundled: bool
    """Whether it is one of the catalogue, found by its name; otherwise a user's own."""


@dataclass(frozen=True)
class Metric:
    """A metric: what computes it, and its declarations.

    >>> error = Metric(lambda predicted, targets: float((predicted != targets).double().mean()), direction="lower")
    >>> import torch
    >>> error(torch.tensor([0, 1]), torch.tensor([1, 1])), error.lower_is_better, error.task
    (0.5, True, 'classification')
    """

    function: Function
    direction: Direction = "higher"
    """Which values are better."""
    needs: Needs = "classes"
    """The function's input besides the targets, which decides the kind of task it is for: the predicted classes (rows),
    the probabilities of all classes (rows × classes, float64), or predicted numbers (rows, float64, in the target's own
    units, as are the targets)."""
    averaging: str = ""
    """How it averages over classes, in words; empty if it does not."""
    unit: Unit = ""
    """`share`: between 0 and 1, shown in percent; `target`: in the units of the target; otherwise a plain number."""
    title: str = ""
    """Its name in reports; default: the name it has in the task."""
    undefined: Callable[[Tensor], str | None] = always_defined
    """Why it has no value for these targets, whatever is predicted; None if it has one."""
    together: Callable[[Tensor, Tensor], list[float]] | None = None
    """The same for several models at once (one row of predictions and of targets each), where that is faster."""
    weighted: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None
    """The same with row weights: (resamples × rows) to one value per resample; for intervals over rows."""
    of_confusions: Callable[[NDArray[Any]], list[float]] | None = None
    """The same from confusion matrices, one value each: used where these are recorded anyway."""

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ConfigError(f"a metric must be a function of predictions and targets, not {self.function!r}")
        for what, value, allowed in (
            ("direction", self.direction, get_args(Direction)),
            ("needs", self.needs, get_args(Needs)),
            ("unit", self.unit, get_args(Unit)),
        ):
            if value not in allowed:
                raise ConfigError(one_of(value, [name or '""' for name in allowed], f"{what} of a metric"))

    def __call__(self, predicted: Tensor, targets: Tensor) -> float:
        return self.function(predicted, targets)

    @property
    def lower_is_better(self) -> bool:
        return self.direction == "lower"

    @property
    def task(self) -> TaskKind:
        return "regression" if self.needs == "numbers" else "classification"

    def record(self, *, bundled: bool) -> MetricRecord:
        return {
            "direction": self.direction,
            "unit": self.unit,
            "title": self.title,
            "averaging": self.averaging,
            "bundled": bundled,
        }

    def measured(self, name: str, predicted: Tensor, targets: Tensor) -> float:
        """Its value; ConfigError in one sentence if the function fails or returns anything but one number.

        NaN is a number here: it says that there is no value for these rows.
        """
        try:
            value = self.function(predicted, targets)
        except Exception as problem:  # a user's function may raise anything
            raise ConfigError(
                f"metric {name!r} failed: {described(problem)}; it is given {_GIVEN[self.needs]}, shape "
                f"{tuple(predicted.shape)}, and the targets; its declaration (needs = …) can ask for something else"
            ) from problem
        try:
            return float(value)
        except (TypeError, ValueError, RuntimeError) as problem:
            shape = f" of shape {tuple(value.shape)}" if isinstance(value, Tensor) else ""
            raise ConfigError(
                f"metric {name!r} returned {type(value).__name__}{shape}; it must return one number"
            ) from problem


def metric(
    direction: Direction, *, needs: Needs = "classes", averaging: str = "", unit: Unit = "", title: str = ""
) -> Callable[[Function], Metric]:
    """A decorator that declares a metric of your own.

    >>> @metric("lower", needs="scores", title="Cost of misses")
    ... def cost(probabilities, targets):
    ...     return float((targets * (1 - probabilities[:, 1])).mean())
    >>> cost.lower_is_better, cost.needs
    (True, 'scores')
    """
    return lambda function: Metric(function, direction, needs, averaging, unit, title)
