"""The check of a site's own data for a job: kept for the person who decides, and shared as far as the policy says."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from playerfl.data.check.result import DataCheck
from playerfl.data.schema import Schema
from playerfl.flower.site.files.names import DATA_CHECK
from playerfl.flower.site.policy import Sharing
from playerfl.flower.wire.check_summary import CheckSummary
from playerfl.storage.atomic_files import write_atomically
from playerfl.wording import counted

log = logging.getLogger("playerfl.flower.site")

_MOST_SHOWN = 8


def checked_data(check: Callable[[], DataCheck]) -> DataCheck:
    """The check; if a user's task fails in it, that is the finding: a check informs, and never stops a job."""
    try:
        return check()
    except Exception as problem:
        log.exception("the data check failed")
        failed = DataCheck("")
        failed.add("warning", "check", f"the data check itself failed ({type(problem).__name__}); see the site's log")
        return failed


def add_unknown_units(check: DataCheck, schema: Schema | None, units: Mapping[str, str]) -> None:
    """Warns about units that the policy declares for columns which are not there: they are compared with nothing."""
    columns = [column.name for column in schema.columns] if schema else []
    for name in sorted(units.keys() - set(columns)) if columns else ():
        close = get_close_matches(name, columns, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        check.add("warning", "units", f"the policy has a unit for {name!r}, which is not a column of this job{hint}")


def keep_check(check: DataCheck, folder: Path) -> None:
    """Writes the check for `playerfl flower jobs`, and its warnings into the log."""
    write_atomically(folder / DATA_CHECK, (json.dumps(check.as_dict(), indent=1) + "\n").encode())
    for line in check_lines(check.as_dict()):
        log.info("%s: %s", folder.name, line)


def read_check(folder: Path) -> dict[str, Any] | None:
    """The check of a job; None if there is none that can be read."""
    try:
        table = json.loads((folder / DATA_CHECK).read_bytes())
        return table if isinstance(table, dict) and isinstance(table["findings"], list) else None
    except (OSError, ValueError, KeyError, RecursionError):
        return None


def check_lines(check: dict[str, Any]) -> list[str]:
    """The check in sentences, problems first."""
    problems = [f for f in check["findings"] if f["severity"] in ("stop", "warning")]
    rows = f"{sum(check['rows'].values()):,} rows; " if check["rows"] else ""
    lines = [f"data check: {rows}{counted(len(problems), 'warning') if problems else 'no warnings'}"]
    lines += [f"  {problem['text']}" for problem in problems[:_MOST_SHOWN]]
    if len(problems) > _MOST_SHOWN:
        lines.append(f"  and {len(problems) - _MOST_SHOWN} more, in {DATA_CHECK}")
    return lines


def shared_summary(check: Callable[[], DataCheck], sharing: Sharing) -> CheckSummary | None:
    """What the server learns of the check."""
    if sharing.data_check == "none":
        return None
    return CheckSummary.of(checked_data(check), columns=sharing.data_check == "columns")
