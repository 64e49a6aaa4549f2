"""What the files in a site's directory are called."""

from __future__ import annotations

LOG, AUDIT, OWN = "site.log", "audit.jsonl", ".agent"
"""What the site's directory holds besides its jobs; OWN is for the budget, the secret of the noise, and the policy."""
POLICY, POLICY_FILE, SOCKET = "policy.json", "site.toml", "agent.sock"
RESERVED = frozenset({LOG, f"{LOG}.1", AUDIT, POLICY_FILE, SOCKET})
"""Files in the site's directory whose place no job may take."""

CONTRACT, DECISION, STATE, DATA_CHECK = "contract.json", "decision.json", "state.safetensors", "data_check.json"
"""What a job's folder begins with."""
