"""The contract of an algorithm, a user's own included: what it must do so that its results can be trusted anywhere.

Each check runs the algorithm for a few rounds on small made-up sites, and says in one sentence what broke, where, and
what to do about it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from playerfl.errors import PlayerflError, sentence_of, users_traceback
from playerfl.runs.api import limited_threads
from playerfl.selftest.checks import definition, messages, repeating, sites, training
from playerfl.selftest.fresh_process import FreshProcess, can_be_found
from playerfl.selftest.subject import BrokenError, Subject
from playerfl.selftest.time_limit import TimeUpError, time_limit

SECONDS = 60.0
"""The time limit of each check, most of which take a fraction of a second."""

CHECKS: tuple[Callable[[Subject], str | None], ...] = (
    definition.built_from_defaults,
    definition.declares_what_it_reads,
    training.runs,
    training.learns,
    training.leaves_test_data_alone,
    repeating.draws_from_its_own_streams,
    repeating.repeats,
    messages.writes_nothing_into_tensors,
    messages.sends_without_side_effects,
    repeating.remembers_what_can_be_stored,
    messages.uploads_what_it_announces,
    sites.merges_in_any_order,
    sites.ignores_names,
    repeating.survives_the_wire,
    repeating.resumes,
    sites.common_model_is_common,
    sites.copes_with_absence,
    sites.takes_in_late_sites,
    sites.stacks,
    repeating.repeats_in_a_new_process,
)
_NEEDED = (definition.declares_what_it_reads, training.runs)
"""If one of these fails, the other checks would only repeat it."""


@dataclass(frozen=True)
class Checked:
    """One check of a contract, and what broke; None if it holds."""

    check: str
    problem: str | None = None
    warning: str | None = None
    """What holds, but is probably not meant."""
    traceback: str | None = None
    """Of an exception in the algorithm's own file."""

    @property
    def holds(self) -> bool:
        return self.problem is None


def check_contract(
    name: str,
    progress: Callable[[Checked], None] = lambda finding: None,
    *,
    checks: Sequence[Callable[[Subject], str | None]] = CHECKS,
    seconds: float = SECONDS,
) -> list[Checked]:
    """Checks an algorithm, given as a name or FILE.py:NAME. If it cannot run at all, the other checks are left out.

    `seconds`: the time limit of each check. The last one starts a process, which works while the others run.
    """
    subject, findings = Subject(name, seconds), []
    if repeating.repeats_in_a_new_process in checks and can_be_found(name):
        subject.fresh_process = FreshProcess([name])
    try:
        with limited_threads(1):
            for check in checks:
                findings.append(_checked(check, subject))
                progress(findings[-1])
                if check in _NEEDED and not findings[-1].holds:
                    break
    finally:
        if subject.fresh_process:
            subject.fresh_process.close()
    return findings


def _checked(check: Callable[[Subject], str | None], subject: Subject) -> Checked:
    title = (check.__doc__ or "").splitlines()[0].rstrip(".")
    try:
        with time_limit(subject.seconds, subject.kind.__module__):
            return Checked(title, warning=check(subject))
    except (BrokenError, TimeUpError) as broken:
        return Checked(title, str(broken))
    except PlayerflError as problem:
        return Checked(title, sentence_of(problem))
    except Exception as problem:
        return Checked(title, sentence_of(problem), traceback=users_traceback(problem))
