"""Sites whose process is killed while it responds, and restarted with the same message."""

from __future__ import annotations

import pickle
import random
import time
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from flwr.app import Context, Message

from flower.jobs import Job
from flower.loop_grid import App, put_together, taken_apart, unreachable
from killing import ended, forked, kill_after
from playerfl.flower.server.transport import TooFewSitesError
from playerfl.flower.wire.codec import decode_envelope

MOST_RUNS = 100


class MortalSites:
    """Computes every response of a job's sites in a new process, as a SuperNode does, and kills some of them.

    A killed site is reported as Flower reports it (node unavailable), so the server's transport sends the
    message again, to a new process that knows nothing but the site's directory. The stages of a secure aggregation need
    an agent that remembers the ones before, so there is one per site, whose memory is lost when it is killed.
    """

    def __init__(
        self, job: Job, rng: random.Random | None = None, kills: int = 0, seconds: Mapping[str, float] | None = None
    ) -> None:
        """Kills at most `kills` processes; `seconds`: how long the response to each envelope takes undisturbed."""
        self.job = job
        self.rng = rng
        self.left = kills
        self.kills = 0
        self.known = seconds or {}
        self.seconds: dict[str, float] = {}
        for name, site in job.sites.items():
            # Load data and model now, so that kills hit the code that writes.
            site.find_setup(job.experiment, name)
        job.grid.apps = {site: self._mortal(site, app) for site, app in job.grid.apps.items()}

    def run(self) -> None:
        with TemporaryDirectory() as folder:
            self._replies = Path(folder)
            # A site that is killed during a secure aggregation ends the run, and the same job resumes it.
            for attempt in count():
                try:
                    # The job's clock only advances while it waits to send a message again.
                    self.job.run(min_sites=len(self.job.deployment.sites), deadline=1e6)
                    return
                except TooFewSitesError as problem:
                    if "secure aggregation" not in str(problem) or attempt > MOST_RUNS:
                        raise

    def _mortal(self, site: str, app: App) -> App:
        def respond(message: Message, context: Context) -> Message:
            if message.metadata.message_type == "train":
                return self._stage(site, app, message, context)
            file = self._replies / site
            envelope = f"{site} {decode_envelope(message.content).key}"

            def work() -> int:
                file.write_bytes(pickle.dumps(taken_apart(app(message, context))))
                return 0

            since = time.monotonic()
            child = forked(work)
            if self.left and self.rng and envelope in self.known and self.rng.random() < 0.5:
                if kill_after(child, self.rng.uniform(0, self.known[envelope])):
                    self.left -= 1
                    self.kills += 1
                    return unreachable(message)
            elif code := ended(child):
                raise AssertionError(f"{envelope} ended with {code}")
            self.seconds[envelope] = time.monotonic() - since
            return read_reply(file)

        return respond

    def _stage(self, site: str, app: App, message: Message, context: Context) -> Message:
        if self.left and self.rng and self.known and self.rng.random() < 1 / 20:
            self.left -= 1
            self.kills += 1
            self.job.agents.pop(site, None)
            return unreachable(message)
        return app(message, context)


def read_reply(file: Path) -> Message:
    parts: Any = pickle.loads(file.read_bytes())
    return put_together(*parts)
