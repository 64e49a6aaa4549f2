"""Which rows or images of a folder belong together, and a split that never separates them."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from playerfl.data.encoding.cells import Cells
from playerfl.data.partition import Indices
from playerfl.data.readers.csv_tables import read_rows
from playerfl.data.sites import PartGroups
from playerfl.errors import ConfigError, DataError
from playerfl.tasks.folder.options import FolderOptions
from playerfl.tasks.task import Parts, split_across_sites, split_positions

Names = Sequence[str | None]
"""The group of every row; None for a row that belongs to none."""


def names_in(cells: Cells) -> list[str | None]:
    """The groups that a column names."""
    names, codes = cells.spellings
    plain = [plain_name(name) for name in names]
    return [None if code < 0 else plain[code] for code in codes.tolist()]


def plain_name(name: str) -> str:
    """A group's name without what programs and people change: case, spaces, leading zeros, a ".0" at the end.

    Two patients whose names differ only in these become one group, which is never divided; the other mistake, one
    patient in two groups, would leak from training into test.

    >>> plain_name("00028"), plain_name("28.0"), plain_name(" P 012"), plain_name("p012"), plain_name("1.5")
    ('28', '28', 'p12', 'p12', '1.5')
    """
    joined = "".join(unicodedata.normalize("NFKC", name).casefold().split())
    return re.sub(r"(?<![\d.])0+(?=\d)", "", re.sub(r"^(\d+)\.0+$", r"\1", joined))


def groups_of_pictures(
    folder: Path, files: Mapping[str, Sequence[Path]], options: FolderOptions
) -> dict[str, Names] | None:
    """The group of every image, from the table `data.group` or from file names; None if neither is given."""
    if options.group is not None and options.group_pattern is not None:
        raise ConfigError("data.group and data.group_pattern both name groups; give one of them")
    if options.group_pattern is not None:
        pattern = _compiled(options.group_pattern)
        return {site: [plain_name(_matched(pattern, file)) for file in at_site] for site, at_site in files.items()}
    if options.group is None:
        return None
    table = folder / options.group
    if not table.is_file():
        raise ConfigError(
            f"data.group: {folder} has no file {options.group}; for images, name a CSV file there with the columns "
            "picture and group, or set data.group_pattern"
        )
    known = {row["picture"].strip().replace("\\", "/"): row["group"].strip() for row in read_rows(table, _COLUMNS)}
    return {site: [plain_name(_listed(known, file, table.name)) for file in at_site] for site, at_site in files.items()}


_COLUMNS = ("picture", "group")


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as problem:
        raise ConfigError(f"data.group_pattern is not a regular expression: {problem}") from problem


def _matched(pattern: re.Pattern[str], file: Path) -> str:
    matched = pattern.search(file.name)
    if matched is None:
        raise DataError(
            f"data.group_pattern {pattern.pattern!r} does not match the file name {file.name!r}; change the pattern"
        )
    return matched[1 if pattern.groups else 0] or ""


def _listed(known: Mapping[str, str], file: Path, table: str) -> str:
    for name in ("/".join(file.parts[-3:]), "/".join(file.parts[-2:]), file.name):
        if name in known:
            return known[name]
    raise DataError(f"{table} has no row for the image {'/'.join(file.parts[-3:])}; add it")


def split_sites(
    targets: Mapping[str, Tensor], groups: Mapping[str, Names] | None, options: FolderOptions
) -> tuple[dict[str, Parts], dict[str, PartGroups]]:
    """Every site's split, and the groups of its parts."""
    if groups is None:
        return {
            site: split_positions(values, options.split_seed, site, shares=options.shares)
            for site, values in targets.items()
        }, {}
    numbers = numbered(groups)
    if options.groups_span_sites:
        split = split_across_sites(targets, numbers, options.split_seed, shares=options.shares)
    else:
        split = {
            site: split_positions(values, options.split_seed, site, numbers[site], shares=options.shares)
            for site, values in targets.items()
        }
    return split, {site: PartGroups(*(numbers[site][part] for part in parts)) for site, parts in split.items()}


def numbered(groups: Mapping[str, Names]) -> dict[str, Indices]:
    """A number for every name, the same at all sites; rows without a name get a number each."""
    known: dict[str, int] = {}
    numbers = {}
    alone = -1
    for site, names in groups.items():
        of_site = np.empty(len(names), dtype=np.int64)
        for position, name in enumerate(names):
            if name is None:
                of_site[position], alone = alone, alone - 1
            else:
                of_site[position] = known.setdefault(name, len(known))
        numbers[site] = of_site
    return numbers


def group_notes(groups: Mapping[str, Names] | None, where: str) -> list[str]:
    """How many groups every site has."""
    if groups is None:
        return []
    counts = ", ".join(f"{site} {len(set(names) - {None}):,}" for site, names in groups.items())
    lacking = sum(name is None for names in groups.values() for name in names)
    rest = f"; {lacking} rows without one count as groups of their own" if lacking else ""
    return [f"groups: {where}, never divided between training, validation and test ({counts}){rest}"]
