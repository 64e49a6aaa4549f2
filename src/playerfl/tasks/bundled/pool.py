"""One pool of examples divided among sites: what tasks without natural sites share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field

from playerfl.data.examples import TensorExamples
from playerfl.data.partition import Indices, dirichlet_partition, equal_partition, quantity_partition, shard_partition
from playerfl.data.sites import Sites
from playerfl.data.splits import three_way_split
from playerfl.tasks.task import DataOptions, split_site


class PoolOptions(DataOptions):
    """How a pool is divided among sites."""

    redrawn: ClassVar[frozenset[str]] = frozenset({"partition_seed"})

    sites: int = Field(5, ge=1)
    """How many sites the pool is divided among."""
    partition: Literal["dirichlet", "quantity", "shards", "equal"] = "dirichlet"
    """Label skew, size skew, a few classes each, or no skew."""
    alpha: float = Field(0.5, gt=0, allow_inf_nan=False)
    """For dirichlet and quantity: small for unequal sites, large for equal ones."""
    shards_per_site: int = Field(2, ge=1)
    """For shards: how many pieces of the pool, sorted by class, a site gets; about as many classes."""
    min_size: int = Field(50, ge=1)
    """For dirichlet and quantity: minimum rows per site; the division is drawn again until every site has them."""
    partition_seed: int = Field(42, ge=0)
    """Decides which rows go to which site."""

    def parts(self, labels: Indices) -> list[Indices]:
        """The rows of each site."""
        if self.partition == "shards":
            return shard_partition(labels, self.sites, self.shards_per_site, seed=self.partition_seed)
        if self.partition == "equal":
            return equal_partition(labels, self.sites, seed=self.partition_seed)
        if self.partition == "quantity":
            return quantity_partition(labels, self.sites, self.alpha, seed=self.partition_seed, min_size=self.min_size)
        return dirichlet_partition(
            labels,
            self.sites,
            self.alpha,
            seed=self.partition_seed,
            min_size=self.min_size,
            usable=lambda parts: self.accept_small_sites or all(self._has_two_classes(labels[rows]) for rows in parts),
        )

    def _has_two_classes(self, labels: Indices) -> bool:
        """Whether a site's training part has two classes; a site with one is refused (`check_sites`)."""
        train, _, _ = three_way_split(labels, seed=self.split_seed, shares=self.shares)
        return len(np.unique(labels[train])) > 1


def deal_pool(pool: TensorExamples, options: PoolOptions, notes: Sequence[str] = ()) -> Sites:
    """Sites called site-0, site-1, …, each split into three parts."""
    width = len(str(options.sites - 1))
    sites = {}
    for i, rows in enumerate(options.parts(pool.targets.numpy())):
        name = f"site-{i:0{width}}"
        sites[name] = split_site(pool.rows(torch.from_numpy(rows)), options.split_seed, name, shares=options.shares)
    return Sites(sites, notes)
