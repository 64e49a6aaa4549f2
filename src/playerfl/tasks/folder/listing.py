"""Which files and folders of a folder are sites."""

from __future__ import annotations

from pathlib import Path

from playerfl.data.readers import site_tables
from playerfl.data.readers.image_folders import listed
from playerfl.errors import ConfigError, DataError
from playerfl.tasks.folder.options import FolderOptions

_DOCUMENTS = (".md", ".txt", ".pdf", ".html", ".docx", ".toml")


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
        elif not name.endswith(_DOCUMENTS):
            raise DataError(
                f"{folder} has {path.name}, which cannot be read as a site; save it as "
                f"{', '.join(site_tables.ENDINGS)}, or move it elsewhere"
            )
    if not_met:
        raise ConfigError(f"data.skip_sites: {folder} has no {', '.join(sorted(not_met))}; name files or sites in it")
    if len(kinds) > 1:
        raise DataError(
            f"{folder} mixes {' and '.join(sorted(kinds))}; use one format for all sites and move other files elsewhere"
        )
    if not kinds:
        raise DataError(
            f"{folder} has no sites; put one file ({', '.join(site_tables.ENDINGS)}) or one folder of images per "
            "site there"
        )
    for site in (*files, *folders):
        if not site.strip() or not site.isprintable():
            raise DataError(f"{folder} has a site called {site!r}; give it a printable name")
    return files, folders
