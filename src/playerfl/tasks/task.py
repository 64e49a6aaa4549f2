"""Task: a dataset divided into sites, a model for it, and how it is trained and scored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import torch
from pydantic import BeforeValidator, ConfigDict, Field
from torch import Tensor, nn

from playerfl.data.check.result import DataCheck
from playerfl.data.examples import SiteData, TensorExamples, as_examples
from playerfl.data.partition import Indices
from playerfl.data.schema import Schema
from playerfl.data.sites import Sites
from playerfl.data.splits import SHARES, Shares, three_way_split
from playerfl.errors import ConfigError, DataError
from playerfl.learning.losses import cross_entropy
from playerfl.learning.metrics.catalogue import DEFAULT, AnyMetric, is_classification
from playerfl.learning.metrics.numbers import TargetScale
from playerfl.learning.metrics.scoring import UNSCALED
from playerfl.models.initial import kaiming
from playerfl.paper import facts as paper
from playerfl.seeding import seed_for
from playerfl.tasks.added_options import AddedOptions, named_in

METRICS = DEFAULT
_SUM_TOLERANCE = 1e-6
_PARTS = ("train", "validation", "test")
Parts = tuple[Indices, Indices, Indices]
"""The positions of a site's training, validation and test examples."""


def _checked_shares(given: Any) -> Any:
    numbers = given if isinstance(given, list | tuple) else ()
    are_numbers = all(isinstance(share, int | float) and not isinstance(share, bool) for share in numbers)
    if len(numbers) != 3 or not are_numbers or not min(numbers) > 0 or not abs(sum(numbers) - 1) < _SUM_TOLERANCE:
        raise ValueError(
            "give three numbers above 0 that add up to 1, for training, validation and test, like [0.7, 0.2, 0.1]"
        )
    return tuple(map(float, numbers))


class DataOptions(AddedOptions):
    """The options of every task's `[data]` table."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    added: ClassVar[frozenset[str]] = frozenset({"split", "shares"})
    redrawn: ClassVar[frozenset[str]] = frozenset({"split_seed"})
    """The seeds that differ from run to run with `split = "per_run"`. A subclass adds its own to those of its bases."""

    split_seed: int = Field(42, ge=0)
    """Decides the training, validation and test parts; separate from the run's seed, so that runs share them."""
    accept_small_sites: bool = False
    """Whether sites with a single class, or with fewer rows than a batch, may take part."""
    split: Literal["fixed", "per_run"] = "fixed"
    """Whether all runs share one split (and partition, where sites are made by dividing a pool), or each seed has its
    own, the same for all algorithms."""
    shares: Annotated[Shares, BeforeValidator(_checked_shares)] = SHARES
    """The shares of the training, validation and test parts."""

    def for_run(self, seed: int) -> Self:
        """The options for the run with this seed: with `split = "per_run"`, every seed in `redrawn` depends on it.

        Apply it only once, to the options as they were given: a second call would derive other seeds.

        >>> DataOptions().for_run(7).split_seed, DataOptions(split="per_run").for_run(7).split_seed
        (42, 525385140155432698)
        """
        if self.split == "fixed":
            return self
        seeds = {name: seed_for(getattr(self, name), "run", seed) for name in named_in("redrawn", type(self))}
        return self.model_copy(update=seeds)


class PaperOptions(DataOptions):
    """Further options of the paper's tasks: the size of the network and its initial weights."""

    size: Literal["paper", "small", "tiny"] = "paper"
    """The paper's layer widths, a quarter of them (for studies on a CPU), or an eighth (for tests)."""
    init: Literal["default", "kaiming"] = "default"
    """torch's default initial weights, or kaiming-normal with zero biases."""

    def width(self, paper: int) -> int:
        """A layer's width at the chosen size."""
        return max(1, paper // {"paper": 1, "small": 4, "tiny": 8}[self.size])

    def initialised(self, model: nn.Module) -> nn.Module:
        if self.init == "kaiming":
            kaiming(model)
        return model


@dataclass(frozen=True)
class Task:
    """Everything an experiment needs to know about a dataset."""

    name: str
    about: str
    load_sites: Callable[[Any], Mapping[str, SiteData]]
    build_model: Callable[[Any], nn.Module]
    options: type[DataOptions] = DataOptions
    loss: Callable[[Any, Tensor], Tensor] = cross_entropy
    metrics: Mapping[str, AnyMetric] = field(default_factory=lambda: METRICS)
    """Recorded besides the loss, unless the experiment names others. Without any, targets are not classes."""
    scale: TargetScale = UNSCALED
    """How numeric targets were scaled for training; metrics are in their own units."""
    classes: tuple[str, ...] = ()
    """The names of the classes, where they have names."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Defaults for the experiment: {"rounds": 20, "training": {…}}."""
    paper: str | None = None
    """Its name in the paper's tables, if it is one of the paper's datasets."""
    adapt: Callable[[Any], Task] | None = None
    """Builds the task from its data, for tasks whose loss and metrics depend on the data; see `for_options`."""
    schema: Schema | None = None
    """The names of its columns and classes, where known: across institutions, all sites must agree."""

    check: Callable[[Any, int], DataCheck] | None = None
    """Checks the data (options, batch size), for tasks that know more than their examples; see `check_task`."""

    def for_options(self, options: DataOptions) -> Task:
        """The task with these options: itself, unless its loss and metrics depend on the data."""
        return self if self.adapt is None else self.adapt(options)

    @property
    def classification(self) -> bool:
        return is_classification(self.metrics)

    def defaults_for(self, algorithm: str) -> dict[str, Any]:
        """`defaults`, with the paper's number of rounds and learning rate for this algorithm if it gives them."""
        defaults = dict(self.defaults)
        given = defaults.get("training", {}).get("learning_rate")
        if algorithm == "pfedme" and given is not None:
            # Its plain gradient steps need larger rates than AdamW's.
            defaults["training"] = {**defaults["training"], "learning_rate": 10 * given}
        if self.paper is not None:
            defaults.setdefault("rounds", paper.protocol(self.paper)["rounds"])
            rate = paper.learning_rates(self.paper).get(algorithm)
            if rate is not None:
                defaults["training"] = {"learning_rate": rate, **defaults.get("training", {})}
        return defaults


def own_task(
    model: Callable[[], nn.Module],
    sites: Mapping[str, object] | Sequence[object],
    *,
    name: str = "own",
    loss: Callable[[Any, Tensor], Tensor] = cross_entropy,
    metrics: Mapping[str, AnyMetric] | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> Task:
    """Your own model and data as a task.

    A site is either (inputs, targets) tensors or a torch Dataset, which is split 64/16/20 (`data.shares`), or a mapping
    with three of these (or three DataLoaders) under "train", "validation" and "test". Sites in a list are called
    site-0, site-1, …
    `loss` may return one value per example or their mean. `metrics` are functions of predicted classes and targets, or
    declared with `playerfl.metric`; pass `metrics={}`, or metrics of numbers, if targets are not classes.

    >>> x, y = torch.randn(60, 4), torch.arange(60) % 3
    >>> task = own_task(lambda: nn.Linear(4, 3), {"north": (x, y), "south": (x, y)})
    >>> sorted(task.load_sites(DataOptions()))
    ['north', 'south']
    """
    if isinstance(model, nn.Module) or not callable(model):
        raise ConfigError("pass a function that builds the model, not a model: every run starts from a new one")
    named = _named(sites)

    def load_sites(options: DataOptions) -> Sites:
        sites = {site: _site_data(site, source, options) for site, source in named.items()}
        return Sites(sites, _given_parts(named, options))

    return Task(
        name=name,
        about="your own model and data",
        load_sites=load_sites,
        build_model=lambda _: model(),
        loss=loss,
        metrics=METRICS if metrics is None else dict(metrics),
        defaults=defaults or {},
    )


def unsplit_task(
    model: Callable[[], nn.Module],
    sites: Mapping[str, object] | Sequence[object],
    loss: Callable[[Any, Tensor], Tensor] | None = None,
    name: str = "own",
) -> Task:
    """`own_task` for probing, where nothing is evaluated: all of a site's examples are training data.

    A site that comes in three parts contributes its training part.
    """
    unsplit: dict[str, object] = {}
    for site, source in _named(sites).items():
        examples = as_examples(source["train"] if isinstance(source, Mapping) and "train" in source else source, site)
        unsplit[site] = SiteData(examples, examples, examples)
    return own_task(model, unsplit, name=name, loss=loss or cross_entropy, metrics=None if loss is None else {})


def _named(sites: Mapping[str, object] | Sequence[object]) -> dict[str, object]:
    return dict(sites) if isinstance(sites, Mapping) else {f"site-{i}": site for i, site in enumerate(sites)}


def _given_parts(sites: Mapping[str, object], options: DataOptions) -> list[str]:
    """A note if the options ask for a different split, but a site already comes in three parts."""
    if options.split == "fixed" and options.shares == SHARES:
        return []
    given = [site for site, source in sites.items() if isinstance(source, SiteData) or _has_parts(source)]
    return [f"these sites come in three parts, which the options do not change: {', '.join(given)}"] if given else []


def _has_parts(source: object) -> bool:
    return isinstance(source, Mapping) and set(source) == set(_PARTS)


def _site_data(site: str, source: Any, options: DataOptions) -> SiteData:
    if isinstance(source, SiteData):
        return source
    if _has_parts(source):
        return SiteData(*(as_examples(source[part], f"{site}, {part}") for part in _PARTS))
    examples = as_examples(source, site)
    if not isinstance(examples, TensorExamples):
        raise DataError(f"{site}: a DataLoader cannot be split; give three, under 'train', 'validation' and 'test'")
    return split_site(examples, options.split_seed, site, shares=options.shares)


def split_site(examples: TensorExamples, split_seed: int, site: str, *, shares: Shares = SHARES) -> SiteData:
    """A site's examples in three parts; see `split_positions`."""
    parts = split_positions(examples.targets, split_seed, site, shares=shares)
    return SiteData(*(examples.rows(torch.from_numpy(part)) for part in parts))


def split_positions(
    targets: Tensor, split_seed: int, site: str, groups: Indices | None = None, *, shares: Shares = SHARES
) -> Parts:
    """A site's split, stratified if targets are classes; members of a group stay together."""
    if len(targets) == 0:
        raise DataError(f"{site} is empty; add examples, or leave the site out")
    try:
        return three_way_split(_labels(targets), seed=split_seed, groups=groups, shares=shares)
    except DataError as problem:
        raise DataError(f"{site}: {problem}") from problem


def split_across_sites(
    targets: Mapping[str, Tensor], groups: Mapping[str, Indices], split_seed: int, *, shares: Shares = SHARES
) -> dict[str, Parts]:
    """The splits of all sites where a group may have members at several of them: all are in the same part."""
    if empty := [site for site, at_site in targets.items() if len(at_site) == 0]:
        raise DataError(f"{empty[0]} is empty; add examples, or leave the site out")
    labels = [_labels(at_site) for at_site in targets.values()]
    classes = 1 + max(int(at_site.max()) for at_site in labels)
    strata = np.concatenate([at_site + classes * number for number, at_site in enumerate(labels)])
    together = np.concatenate([groups[site] for site in targets])
    parts = three_way_split(strata, seed=split_seed, groups=together, shares=shares)
    stops = np.cumsum([0, *map(len, labels)])
    split: dict[str, Parts] = {}
    for site, start, stop in zip(targets, stops[:-1], stops[1:], strict=True):
        train, validation, test = (part[(part >= start) & (part < stop)] - start for part in parts)
        split[site] = train, validation, test
    return split


def _labels(targets: Tensor) -> Indices:
    is_class = not targets.is_floating_point() and targets.dim() == 1
    return targets.numpy() if is_class else np.zeros(len(targets), dtype=np.int64)
