"""Every bundled task by name."""

from __future__ import annotations

from playerfl.tasks import digits, synthetic
from playerfl.tasks.task import Task, own_task

TASKS: dict[str, Task] = {task.name: task for task in (digits.TASK, synthetic.TASK)}

__all__ = ["TASKS", "Task", "own_task"]
