"""Which files and folders of a folder are sites."""

from __future__ import annotations

import re
from pathlib import Path

from playerfl.data.readers import image_folders, site_tables
from playerfl.data.readers.image_folders import listed
from playerfl.errors import ConfigError, DataError
from playerfl.tasks.folder.options import FolderOptions

_DOCUMENTS = (".md", ".txt", ".pdf", ".html", ".docx", ".toml", ".rst", ".doc", ".rtf", ".odt", ".log", ".bak", "~")
_BARE = ("readme", "license", "licence", "changelog")
# What the commands themselves write if they are run in the folder.
_FIGURE = re.compile(r".*-check\.(png|svg|pdf)")
_RUN_FILES = ("experiment.toml", "comparison.json", "study.toml")
_PICTURES = (*image_folders.ENDINGS, ".tif", ".tiff", ".bmp", ".gif", ".dcm", ".webp")


def sites_in(folder: Path, options: FolderOptions) -> tuple[dict[str, Path], dict[str, Path]]:
    """Table files or image folders by site; one of the two is empty."""
    files: dict[str, Path] = {}
    folders: dict[str, Path] = {}
    kinds = set()
    skipped = set(options.skip_sites)
    not_met = set(skipped)
    for path in listed(folder):
        name = path.name.lower()
        not_met -= {path.name, path.name.partition(".")[0]}
        # For images, `data.group` names a table next to the sites.
        if path.name in skipped or path.name == options.group:
            continue
        ending = next((ending for ending in site_tables.ENDINGS if name.endswith(ending)), None)
        if _FIGURE.fullmatch(name) or _holds_runs(path):
            continue
        if path.is_dir():
            kinds.add("folders")
            folders[path.name] = path
        elif ending is not None:
            site = path.name[: -len(ending)]
            if site in skipped:
                continue
            kinds.add(ending.removesuffix(".gz"))
            if site in files:
                raise DataError(
                    f"{folder} has two files for the site {site!r}, {files[site].name} and {path.name}; keep one"
                )
            files[site] = path
        elif name.endswith(_PICTURES):
            raise DataError(
                f"{folder} has the image {path.name} next to the sites; put it into the folder of a site and class, "
                f"such as SITE/CLASS/{path.name}, or move it elsewhere"
            )
        elif not name.endswith(_DOCUMENTS) and name not in _BARE:
            raise DataError(
                f"{folder} has {path.name}, which cannot be read as a site; save it as "
                f"{', '.join(site_tables.ENDINGS)}, or move it elsewhere"
            )
    if not_met:
        raise ConfigError(f"data.skip_sites: {folder} has no {', '.join(sorted(not_met))}; name files or sites in it")
    if len(kinds) > 1:
        raise DataError(
            f"{folder} mixes {' and '.join(sorted(kinds))}; use one format for all sites, and move what is not a site "
            "elsewhere or name it in data.skip_sites"
        )
    if not kinds:
        passed = next((path.name for path in listed(folder) if path.is_file()), None)
        raise DataError(
            f"{folder} has no sites{'' if passed is None else f' ({passed} is not read)'}; put one file "
            f"({', '.join(site_tables.ENDINGS)}) or one folder of images per site there"
        )
    for path in folders.values():
        _refuse_nested_tables(path, alone=len(folders) == 1)
    for site in (*files, *folders):
        if not site.strip() or not site.isprintable():
            raise DataError(f"{folder} has a site called {site!r}; give it a printable name")
    return files, folders


def _holds_runs(path: Path) -> bool:
    """Whether a folder is a run directory, or has some in it, as the default `runs/` does."""
    return path.is_dir() and any(
        next(path.glob(f"{inside}{name}"), None) is not None for inside in ("", "*/") for name in _RUN_FILES
    )


def _refuse_nested_tables(site: Path, *, alone: bool) -> None:
    """Tables are looked for in the folder itself; in a folder of their own, they would be taken for images."""
    tables = [path.name for path in listed(site) if path.name.lower().endswith(site_tables.ENDINGS)]
    if not tables or any(path.is_dir() for path in listed(site)):
        return
    if alone and len(tables) > 1:
        raise DataError(f"{site.parent} has only the folder {site.name}, with the tables in it; give the path {site}")
    raise DataError(
        f"{site.name}/{tables[0]} is a table in a folder of its own; put one table per site into {site.parent} itself, "
        f"such as {site.name}{tables[0][tables[0].index('.') :]}"
    )
