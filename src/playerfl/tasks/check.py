"""check_task: what a user should know about a task's data before training."""

from __future__ import annotations

from playerfl.data.check.examples import check_examples
from playerfl.data.check.result import DataCheck
from playerfl.errors import PlayerflError
from playerfl.tasks.task import DataOptions, Task


def check_task(task: Task, options: DataOptions, batch_size: int = 32) -> DataCheck:
    """The check of a folder's files, or of the examples that any other task loads."""
    if task.check is not None:
        check = task.check(options, batch_size)
        check.task = task.name
        return check
    check = DataCheck(task.name)
    try:
        adapted = task.for_options(options)
        sites = adapted.load_sites(options)
    except PlayerflError as problem:
        check.add("stop", "task", str(problem))
        return check
    check_examples(check, sites, classification=adapted.classification)
    for note in getattr(sites, "notes", ()):
        check.add("note", "task", note)
    return check
