"""Ranking: mean ranks over blocks, and tests of whether they differ."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from playerfl.report.compute.statistics import (
    Array,
    Friedman,
    apart,
    cliques,
    critical_difference,
    detectable,
    friedman_of_ranks,
    nemenyi,
    rank_biserial,
    ranks,
    smallest_wilcoxon_p,
    wilcoxon_holm,
)
from playerfl.report.compute.tables import ScoreTable

Group = tuple[str, ...]
"""Algorithms that give the same bits: one method under several names."""


@dataclass(frozen=True)
class Ranking:
    """Algorithms ranked within each block, and how far apart they are."""

    table: str
    over: str
    """What a block is: "tasks", or a task whose runs are the blocks."""
    algorithms: tuple[str, ...]
    blocks: tuple[str, ...]
    ranks: Array
    """Blocks × algorithms."""
    left_out: tuple[str, ...]
    """Algorithms that lack too many blocks to be ranked."""
    blocks_left_out: tuple[str, ...]
    """Blocks in which one of the ranked algorithms has no result."""
    friedman: Friedman | None = None
    critical_difference: float | None = None
    cliques: tuple[tuple[int, ...], ...] = ()
    nemenyi: Array | None = None
    wilcoxon: Array | None = None
    holm: Array | None = None
    effect: Array | None = None
    """Rank-biserial correlation of every pair, positive where the row's algorithm is better."""
    difference: Array | None = None
    """The mean difference of every pair over blocks, positive where the row's algorithm is better."""
    detectable: Array | None = None
    """The smallest mean difference of every pair that these blocks could have shown; see `statistics.detectable`."""
    remark: str = ""
    """Why a test is missing."""
    holm_limit: str = ""
    """Why no Holm-corrected p-value can be small, where there are too few blocks."""
    same_as: Mapping[str, str] = field(default_factory=dict)
    """Algorithms that equal a ranked one in every block, and its name: they get its rank and are not tested."""
    not_learnt: tuple[str, ...] = ()
    """Tasks that are not used as blocks, because no method learnt them."""

    @property
    def tested(self) -> Friedman:
        """Friedman's test; only for rankings that have one."""
        assert self.friedman is not None
        return self.friedman

    @property
    def block_name(self) -> str:
        return "tasks" if self.over == "tasks" else f"runs on {self.over}"

    @property
    def mean_ranks(self) -> Array:
        return np.asarray(self.ranks.mean(axis=0))

    @property
    def rank_of(self) -> dict[str, float]:
        """The mean rank of every algorithm, including those that share another's place."""
        ranked = dict(zip(self.algorithms, map(float, self.mean_ranks), strict=True))
        return ranked | {name: ranked[other] for name, other in self.same_as.items()}

    @property
    def labels(self) -> list[str]:
        """The name of every place: all algorithms that share it."""
        return [
            " = ".join((name, *(n for n, other in self.same_as.items() if other == name))) for name in self.algorithms
        ]


def rankings(
    table: ScoreTable,
    keep: Collection[str] = (),
    alike: Mapping[str, Sequence[Group]] | None = None,
    not_learnt: Collection[str] = (),
    *,
    over_tasks: bool = True,
) -> list[Ranking]:
    """Rankings over tasks, if there are several and `over_tasks` is set, and over the runs of each task.

    `keep`: algorithms that are never left out; `alike`: those that are the same on a task; `not_learnt`: tasks that are
    left out of the ranking over tasks.
    """
    every, alike = [], alike or {}
    tasks = tuple(task for task in table.tasks if task not in not_learnt)
    if over_tasks and len(table.tasks) > 1 and tasks:
        values = np.full((len(tasks), len(table.ranked)), np.nan)
        for (name, task), cell in table.cells.items():
            if name in table.ranked and task in tasks:
                values[tasks.index(task), table.ranked.index(name)] = cell.value
        same = [alike.get(task, ()) for task in tasks]
        ranking = rank(values, table.ranked, tasks, table.name, "tasks", table.lower_is_better, keep, same)
        every.append(replace(ranking, not_learnt=tuple(task for task in table.tasks if task in not_learnt)))
    for task in table.tasks:
        cells = {name: table.cells[name, task] for name in table.ranked if (name, task) in table.cells}
        seeds = sorted({seed for cell in cells.values() for seed in cell.seeds})
        scores = np.full((len(seeds), len(cells)), np.nan)
        for column, cell in enumerate(cells.values()):
            scores[[seeds.index(seed) for seed in cell.seeds], column] = cell.per_run
        blocks = [f"seed {seed}" for seed in seeds]
        same = [alike.get(task, ())] * len(seeds)
        every.append(rank(scores, tuple(cells), blocks, table.name, task, table.lower_is_better, keep, same))
    # Methods that were never run on the same task or seed cannot be ranked.
    return [ranking for ranking in every if len(ranking.algorithms) > 1 and ranking.blocks]


def rank(
    values: Array,
    algorithms: tuple[str, ...],
    blocks: list[str] | tuple[str, ...],
    table: str,
    over: str,
    lower_is_better: bool,
    keep: Collection[str] = (),
    same: Sequence[Sequence[Group]] = (),
) -> Ranking:
    """Ranks and tests of blocks × algorithms; NaN is a missing value.

    `same`: for every block, the groups of names that stand for one method. A group takes a single place, so methods
    behind it are not pushed down. An algorithm that is the same as another in every block is not ranked separately.
    """
    rows, columns = complete_part(values, [i for i, name in enumerate(algorithms) if name in keep])
    complete = tuple(algorithms[i] for i in columns)
    leaders = [_leaders(complete, same[i] if same else ()) for i in rows]
    first = _same_everywhere(leaders, len(complete))
    placed = [i for i, leader in enumerate(first) if leader == i]
    scores = values[np.ix_(rows, columns)]
    positions = ranks_of_places(scores, leaders, lower_is_better=lower_is_better)[:, placed]
    scores = scores[:, placed]
    names = tuple(complete[i] for i in placed)
    same_as = {complete[i]: complete[leader] for i, leader in enumerate(first) if leader != i}
    kept = tuple(blocks[i] for i in rows)
    gone = tuple(name for i, name in enumerate(algorithms) if i not in columns)
    blocks_gone = tuple(name for i, name in enumerate(blocks) if i not in rows)
    count, k = scores.shape
    if count < 2 or k < 2:
        remark = "With a single block there is no test: these ranks may be due to chance."
        return Ranking(table, over, names, kept, positions, gone, blocks_gone, remark=remark, same_as=same_as)
    mean = positions.mean(axis=0)
    test = friedman_of_ranks(positions) if k > 2 else None
    difference = critical_difference(k, count)
    raw, holm = wilcoxon_holm(scores)
    sign = -1.0 if lower_is_better else 1.0
    effect = sign * rank_biserial(scores.T[:, None], scores.T[None, :])
    gaps = sign * apart(scores.T[:, None], scores.T[None, :])
    return Ranking(
        table,
        over,
        names,
        kept,
        positions,
        gone,
        blocks_gone,
        test,
        difference,
        tuple(cliques(mean, difference)),
        nemenyi(mean, count),
        raw,
        holm,
        effect,
        gaps.mean(axis=-1),
        detectable(gaps),
        _not_tested(count, k, test),
        _holm_limit(count, k),
        same_as,
    )


def ranks_of_places(scores: Array, leaders: Sequence[Sequence[int]], *, lower_is_better: bool) -> Array:
    """Ranks within each block; columns with the same leader take a single place.

    >>> ranks_of_places(np.array([[0.9, 0.9, 0.7]]), [[0, 0, 2]], lower_is_better=False).tolist()
    [[1.0, 1.0, 2.0]]
    """
    positions = np.empty_like(scores)
    for row, of_block in enumerate(leaders):
        places = sorted(set(of_block))
        ranked = ranks(scores[[row]][:, places], lower_is_better=lower_is_better)[0]
        positions[row] = ranked[[places.index(leader) for leader in of_block]]
    return positions


def _leaders(names: Sequence[str], groups: Sequence[Group]) -> list[int]:
    """For every name, the position of the first name for the same method: usually its own."""
    group_of = {name: group for group in groups for name in group}
    return [min(names.index(n) for n in group_of.get(name, (name,)) if n in names) for name in names]


def _same_everywhere(leaders: Sequence[Sequence[int]], count: int) -> list[int]:
    """For every column, the position of the first column that is the same in all blocks."""
    if not leaders:
        return list(range(count))
    columns = list(zip(*leaders, strict=True))
    return [columns.index(column) for column in columns]


def _not_tested(blocks: int, treatments: int, test: Friedman | None) -> str:
    if treatments < 3:
        return "Friedman’s test needs at least three methods."
    if test is not None and np.isnan(test.f):
        return f"All {blocks} blocks give the same order, so Iman and Davenport’s F is infinite and has no p."
    return ""


def _holm_limit(blocks: int, treatments: int) -> str:
    pairs = treatments * (treatments - 1) // 2
    smallest = min(1.0, smallest_wilcoxon_p(blocks) * pairs)
    if smallest <= 0.05:
        return ""
    return (
        f"With {blocks} blocks and {pairs} {'pair' if pairs == 1 else 'pairs'}, Wilcoxon’s test with Holm’s correction "
        f"cannot give a p-value below {smallest:.2g}, so it cannot show any difference here."
    )


def complete_part(values: Array, keep: Collection[int] = ()) -> tuple[list[int], list[int]]:
    """Blocks (rows) and algorithms (columns) without a missing cell.

    Algorithms that lack more than half of the blocks are left out first, then incomplete blocks. If fewer than two
    blocks remain, the algorithms that lack the most blocks are left out too. Columns in `keep` always stay.

    >>> complete_part(np.array([[1.0, 2.0, np.nan], [3.0, 4.0, 8.0], [5.0, 6.0, 7.0]]))
    ([1, 2], [0, 1, 2])
    >>> complete_part(np.array([[1.0, 2.0, np.nan], [3.0, 4.0, np.nan], [5.0, 6.0, 7.0]]))
    ([0, 1, 2], [0, 1])
    """
    empty = np.isnan(values)
    columns = [i for i in range(values.shape[1]) if i in keep or 2 * empty[:, i].sum() <= len(empty)]
    while True:
        rows = np.flatnonzero(~empty[:, columns].any(axis=1)).tolist()
        spare = [i for i in columns if i not in keep and empty[:, i].any()]
        if len(rows) > 1 or not spare:
            return rows, columns
        columns.remove(max(spare, key=lambda i: (empty[:, i].sum(), i)))
