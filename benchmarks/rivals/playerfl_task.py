"""The work on the command line as a task of playerfl: in a module of its own, because a study takes tasks by name."""

from __future__ import annotations

from work import Part, arguments

from playerfl import own_task

WORK = arguments()[0]
_SITES: list[dict[str, Part]] = [
    {part: getattr(site, part) for part in ("train", "validation", "test")} for site in WORK.load_sites()
]
task = own_task(WORK.build_model, _SITES)
