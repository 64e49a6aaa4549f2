"""BudgetLedger: what a site's uploads of all jobs have revealed so far, kept on disk before anything leaves."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

from playerfl.errors import RunDirectoryError
from playerfl.flower.site.policy import PrivacyBudget
from playerfl.flower.site.privacy import epsilon_of, round_cost
from playerfl.flower.wire.envelopes import RefusedError
from playerfl.storage.atomic_files import fsync_dir, write_atomically


@dataclass(frozen=True)
class BudgetLedger:
    """The zero-concentrated privacy loss ρ of every upload, by job and exchange; losses of all jobs add up."""

    path: Path
    budget: PrivacyBudget

    def spent(self) -> dict[str, float]:
        """ρ by upload. A ledger that cannot be read counts as fully spent, so nothing leaves."""
        if not self.path.exists():
            return {}
        try:
            table = json.loads(self.path.read_bytes())
            if all(isinstance(rho, float) and rho >= 0 for rho in table.values()):
                return dict(table)
        except (OSError, ValueError, AttributeError, RecursionError) as problem:
            raise RunDirectoryError(f"{self.path} cannot be read, so nothing leaves this site: {problem}") from problem
        raise RunDirectoryError(f"{self.path} is damaged, so nothing leaves this site; restore it from a backup")

    def epsilon(self) -> float:
        """ε over everything uploaded so far; infinite if something was uploaded without noise."""
        return epsilon_of(math.fsum(self.spent().values()), self.budget.delta)

    def charge(self, upload: str, noise: float) -> float:
        """Counts an upload once, however often it is repeated; returns ε over all uploads with it."""
        spent = self.spent()
        known = upload in spent
        spent[upload] = round_cost(noise)
        total = epsilon_of(math.fsum(spent.values()), self.budget.delta)
        if known:
            return total
        if self.budget.epsilon is not None and total > self.budget.epsilon:
            raise RefusedError(
                "budget",
                f"the upload would bring ε to {total:.4g}, above the budget of {self.budget.epsilon:g}",
            )
        write_atomically(self.path, (json.dumps(spent, indent=0) + "\n").encode(), secret=True)
        fsync_dir(self.path.parent)
        return total
