"""How much one site may count: a cap on its share of the mean, and a bound on how far its weights may move."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import median_low

from torch import Tensor

from playerfl.federation.messages import SiteId
from playerfl.flower.deployment import MAX_WEIGHT
from playerfl.weights import squared_distance

MOST_SIZE = 2.0
"""A site with more examples makes more steps, so it may move further: as many times as it has more examples than the
median site, but at most this many times, because the number is only what the site claims."""


def capped_examples(examples: Mapping[SiteId, int], max_weight: float = MAX_WEIGHT) -> dict[SiteId, int]:
    """The number of examples each site is weighted by, so that none has more than `max_weight` of the total.

    Sites below the cap keep their number, so without a site above it nothing changes.

    >>> capped_examples({"a": 100, "b": 200, "c": 300})
    {'a': 100, 'b': 200, 'c': 300}
    >>> capped_examples({"a": 100, "b": 200, "c": 10**12})
    {'a': 100, 'b': 200, 'c': 900}
    >>> capped_examples({"a": 1, "b": 9}, 0.25)    # less than an equal share is not possible
    {'a': 1, 'b': 1}
    """
    if max_weight * len(examples) <= 1:
        return dict.fromkeys(examples, 1) if len(examples) > 1 else dict(examples)
    capped: set[SiteId] = set()
    while True:
        others = sum(count for site, count in examples.items() if site not in capped)
        left = 1 - max_weight * len(capped)
        above = {site for site, count in examples.items() if site not in capped and count * left > max_weight * others}
        if not above:
            most = math.floor(max_weight * others / left)
            return {site: max(1, most) if site in capped else count for site, count in examples.items()}
        capped |= above


def far_away(
    uploads: Mapping[SiteId, Mapping[str, Tensor]],
    common: Mapping[str, Tensor],
    bound: float,
    examples: Mapping[SiteId, int] | None = None,
) -> dict[SiteId, str]:
    """Sites whose weights moved more than `bound` times as far from the common model as the round's median site.

    With two sites the nearer one is the median, so a distant site is noticed. A site that has not moved at all says
    nothing about how far is usual. A site with more `examples` than the median site may move further, see MOST_SIZE.

    >>> import torch
    >>> common = {"w": torch.zeros(1)}
    >>> far_away({"a": {"w": torch.ones(1)}, "b": {"w": torch.full((1,), 1e30)}}, common, 20)
    {'b': "it moved 1e+30 away from the common model, more than 20 times the round's median of 1"}
    """
    if not bound or len(uploads) < 2:
        return {}
    moved = {site: math.sqrt(squared_distance(weights, common)) for site, weights in uploads.items() if weights}
    moved = {site: far for site, far in moved.items() if far}
    if len(moved) < 2:
        return {}
    median = median_low(sorted(moved.values()))
    typical = median_low(sorted(examples[site] for site in moved)) if examples else 1
    bounds = {site: bound * (min(MOST_SIZE, max(1.0, examples[site] / typical)) if examples else 1.0) for site in moved}
    return {
        site: f"it moved {far:.3g} away from the common model, more than {bounds[site]:g} times the round's median of "
        f"{median:.3g}"
        for site, far in moved.items()
        if not far <= bounds[site] * median
    }
