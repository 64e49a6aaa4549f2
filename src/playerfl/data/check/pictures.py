"""Folders of pictures: copies, depths and brightness that differ, names that suggest several of one subject."""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from playerfl.data.check.result import DataCheck, listing
from playerfl.data.readers.image_folders import read_picture_files
from playerfl.data.readers.pictures import is_transparent
from playerfl.errors import DataError

MOST_READ = 500
"""Pictures per site that are decoded."""
_SIDE = 16
_SUBJECTS = (
    (re.compile(r"(?P<subject>.*\d.*?|.*?[A-Za-z]{2,}\d*)[ _-]+\d{1,3}"), r"'(.+)[ _-]+\d+\.'"),
    # The first number, unless it is a date or a year, with what is before it.
    (
        re.compile(r"(?P<subject>\D*(?!(?:19|20)\d{2}(?!\d)|(?:19|20)\d{6}(?!\d))\d+)(?:[a-z]|[ _-].+)", re.IGNORECASE),
        r"'^(\D*\d+)'",
    ),
)
"""How names say whose image it is, and the setting that finds it."""
_MOST_EACH = 20
ByClass = Mapping[str, Sequence[Path]]


def check_pictures(check: DataCheck, sites: Mapping[str, ByClass], *, grouped: bool) -> None:
    """Adds findings on the files of every site and class."""
    _check_copies(check, sites)
    brightness: dict[str, float] = {}
    depths: dict[str, list[str]] = {"8-bit": [], "16-bit": []}
    for site, by_class in sites.items():
        files = [file for of_class in by_class.values() for file in of_class]
        try:
            looked_at = files[:: max(1, -(-len(files) // MOST_READ))]
            read = read_picture_files(looked_at, _SIDE)
        except DataError as problem:
            check.add("stop", "files", str(problem), sites=(site,))
            continue
        deep = int(read.is_deep.sum())
        if 0 < deep < len(read.is_deep):
            check.add(
                "warning", "depth", f"{site} mixes 8-bit and 16-bit images, which are scaled differently", sites=(site,)
            )
        else:
            depths["16-bit" if deep else "8-bit"].append(site)
        # By the largest value that occurs at the site, as in training.
        top = 255.0 if deep == 0 else max(1.0, float(np.percentile(read.pixels[read.is_deep], 99.9)))
        brightness[site] = float(read.pixels.mean()) / top
        clear = sum(is_transparent(file.read_bytes()) for file in looked_at)
        if clear:
            text = f"{site} has {clear:,} images with transparent pixels (of {len(looked_at):,} that were looked at)"
            remedy = "their hidden colours are read, and what only the transparency shows is lost; save them without"
            check.add("warning", "alpha", f"{text}: {remedy}", sites=(site,))
        flat = int((read.pixels.reshape(len(read.pixels), -1).std(1) == 0).sum())
        if flat:
            counted = "1 image" if flat == 1 else f"{flat:,} images"
            text = f"{site} has {counted} of a single colour (of {len(read.pixels):,} that were looked at)"
            check.add("warning", "blank", text, sites=(site,))
    if all(depths.values()):
        check.add(
            "warning",
            "depth",
            f"16-bit images at {listing(depths['16-bit'])}, but 8-bit ones at {listing(depths['8-bit'])}: 16-bit "
            "images are scaled by their range at the site, 8-bit ones from 0 to 255, so equal greys may differ; "
            "convert them alike, with the same window",
            sites=sorted(depths.values(), key=len)[0],
        )
    _check_brightness(check, brightness)
    if not grouped:
        _suggest_groups(check, sites)
    if any(sum(map(len, by_class.values())) > MOST_READ for by_class in sites.values()):
        check.add("note", "sample", f"at most {MOST_READ} images of each site were decoded")


def _check_copies(check: DataCheck, sites: Mapping[str, ByClass]) -> None:
    places: dict[bytes, list[tuple[str, str, str]]] = defaultdict(list)
    sizes = Counter(_size(file) for by_class in sites.values() for files in by_class.values() for file in files)
    for site, by_class in sites.items():
        for name, files in by_class.items():
            for file in files:
                # Files of different sizes are different, so most are never read.
                if sizes[_size(file)] > 1:
                    places[_content(file)].append((site, name, file.name))
    copies = [copy for copy in places.values() if len(copy) > 1]
    if contrary := [copy for copy in copies if len({name for _, name, _ in copy}) > 1]:
        # One place of each class: a picture may also be there twice in one of them.
        places_of = [
            list({name: "/".join((site, name, file)) for site, name, file in copy}.values()) for copy in contrary
        ]
        several = "two" if all(len(of_image) == 2 for of_image in places_of) else "several"
        shown = listing([listing(of_image, 3) for of_image in places_of], 2)
        check.add("warning", "duplicates", f"the same image in {several} classes: {shown}")
    if shared := [copy for copy in copies if len({site for site, _, _ in copy}) > 1]:
        where = sorted({site for copy in shared for site, _, _ in copy})
        counted = "1 image is" if len(shared) == 1 else f"{len(shared):,} images are"
        check.add("warning", "duplicates", f"{counted} at several sites: {listing(where)}", sites=where)
    if within := [copy for copy in copies if len({site for site, _, _ in copy}) < len(copy)]:
        count = sum(len(copy) - len({site for site, _, _ in copy}) for copy in within)
        counted = "1 image repeats" if count == 1 else f"{count:,} images repeat"
        text = f"{counted} an earlier one of the same site, such as {'/'.join(within[0][1])}"
        check.add("warning", "duplicates", f"{text}; copies may be in both training and test")


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return -1


def _content(file: Path) -> bytes:
    try:
        return hashlib.blake2b(file.read_bytes(), digest_size=16).digest()
    except OSError:
        return str(file).encode()


def _check_brightness(check: DataCheck, brightness: Mapping[str, float]) -> None:
    if len(brightness) < 2:
        return
    for site, value in brightness.items():
        others = [other for name, other in brightness.items() if name != site]
        if value < 0.25 * min(others) or (len(others) > 1 and value > 4 * max(others)):
            text = (
                f"{site}'s images are much {'darker' if value < min(others) else 'brighter'} than those of other sites"
            )
            check.add(
                "warning",
                "units",
                f"{text} (mean {value:.0%} of the range, {np.median(others):.0%} elsewhere)",
                sites=(site,),
            )


def _suggest_groups(check: DataCheck, sites: Mapping[str, ByClass]) -> None:
    """Names such as p012_1.png and p012_2.png, or p012_left.png, suggest several pictures of one subject."""
    names = {site: [file.stem for files in by_class.values() for file in files] for site, by_class in sites.items()}
    total = sum(map(len, names.values()))
    for pattern, setting in _SUBJECTS:
        subjects: Counter[tuple[str, str]] = Counter()
        for site, stems in names.items():
            subjects.update((site, match["subject"]) for stem in stems if (match := pattern.fullmatch(stem)))
        named = sum(subjects.values())
        # A prefix that all files share, such as IMG_, is no subject; nor is a scanner that took hundreds of pictures.
        several = 3 * len(sites) <= len(subjects) <= 0.7 * named <= _MOST_EACH * len(subjects)
        if named > 0.8 * total and several:
            example = next(name for (_, name), count in subjects.items() if count > 1)
            check.add(
                "warning",
                "groups",
                f"file names suggest several images of one subject ({len(subjects):,} subjects such as {example!r} in "
                f"{named:,} images); without grouping, they are in both training and test",
                f"data.group_pattern={setting}",
            )
            return
