"""Methods newer than the paper's next to PLayer-FL, by the plan in experiments/README.md."""

from __future__ import annotations

from playerfl.paper.rivals import SUBJECT, duels
from playerfl.report.formats import listed
from playerfl.wording import counted
from reproduction.archives import NEWER, PRIMARY, archives
from reproduction.markdown import filled
from reproduction.tasks import duel_table, learnt_text, scale, score_table


def newer_part() -> str:
    """A section for every archive; empty until there is one."""
    if not NEWER.is_dir():
        return ""
    every = archives(NEWER)
    report = every.report
    rivals = [name for label in report.grid.algorithms if (name := report.grid.plain_name(label)) != SUBJECT]
    parts = []
    for task in report.grid.tasks:
        fought = [duel for duel in duels(report, rivals) if (duel.over, duel.table) == (task, PRIMARY)]
        verdicts = {
            verdict: [duel.rival for duel in fought if duel.verdict == verdict] for verdict in ("better", "worse")
        }
        found = [f"significantly {verdict} than {listed(names)}" for verdict, names in verdicts.items() if names]
        rest = counted(sum(duel.verdict not in verdicts for duel in fought), "other method")
        parts += [
            filled(f"`{every.studies[task]}`, {scale(every, task)}. {' '.join(learnt_text(report, task))}"),
            score_table(report, task, beside_paper=False),
            filled(
                f"**PLayer-FL is {listed([*found, f'not shown to differ from {rest}'])}.** "
                "By macro-F1 in points, with Holm's correction over all of them:"
            ),
            duel_table(report, task, rivals),
        ]
    return "\n\n".join(parts)
