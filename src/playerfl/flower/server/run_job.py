"""run_job: a whole job at the server, from the introductions to the results."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from playerfl.engine.loop import run_rounds
from playerfl.engine.scheduler import drive
from playerfl.engine.transport import Traffic
from playerfl.errors import StorageError
from playerfl.federation.messages import ConfusionKey, Score, SiteId
from playerfl.federation.server import Server
from playerfl.flower.deployment import Deployment
from playerfl.flower.server.checks import JobChecks
from playerfl.flower.server.files import JobFiles
from playerfl.flower.server.job import Job
from playerfl.flower.server.messenger import Grid
from playerfl.flower.server.state import JobState
from playerfl.flower.server.transport import FlowerTransport
from playerfl.learning.confusion import Matrix
from playerfl.runs.api import limited_threads
from playerfl.storage.atomic_files import storage_advice
from playerfl.tasks.task import Task
from playerfl.time_left import TimeLeft, left_text

RUN_AGAIN = "submit the job again with playerfl flower run"


def run_job(
    grid: Grid,
    deployment: Deployment,
    jobs: Path,
    *,
    task: Task | None = None,
    say: Callable[[str], None] = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Runs a job to its end, or resumes it from its last checkpoint, in the folder of its name in `jobs`.

    `task` defaults to the experiment's.
    """
    job = Job.of(deployment, task)
    with storage_advice(RUN_AGAIN):
        files = JobFiles.open(jobs, job)
    if files.directory.is_finished:
        files.confirm_finished()
        say(f"job {deployment.job} is already finished; see {files.path}")
        return
    state = JobState()
    transport = FlowerTransport(
        grid, deployment, job.header, JobChecks(job, state), state.contacts, clock=clock, sleep=sleep, say=say
    )
    time_left = TimeLeft(job.experiment.rounds, clock)
    recorder = _Recorder(job, files, state, transport, say, clock, clock(), time_left)
    files.directory.lock()
    try:
        with storage_advice(RUN_AGAIN):
            files.resume(state)
            files.write_status("waiting for sites", state)
            if state.server is not None:
                say(f"job {deployment.job} continues after round {state.server.round}")
                state.readmit(deployment.readmit)
            if not state.done:
                transport.hello()
                _run_rounds(job, state.server or state.start(job), transport, recorder)
            files.add_participation(transport.take_participation(), state)
            assert state.server is not None
            files.write_results(state.server, state)
            say(f"job {deployment.job} is finished; results: {files.path}")
    except BaseException as problem:
        # If the disk is full, the original error is raised, not one from here.
        with suppress(StorageError):
            files.write_status("failed", state, str(problem) or type(problem).__name__)
            files.add_participation(transport.take_participation(), state)
        raise
    finally:
        files.directory.unlock()


def _run_rounds(job: Job, server: Server, transport: FlowerTransport, recorder: _Recorder) -> None:
    transport.set_initial(server.layers.travelling(job.initial))
    experiment = job.experiment
    with limited_threads(experiment.threads):
        drive(
            run_rounds(
                job.algorithm,
                server,
                transport,
                experiment.rounds,
                recorder,
                experiment.evaluation,
                experiment.participation,
            )
        )


@dataclass
class _Recorder:
    """The round loop's observer: updates state and files after every exchange."""

    job: Job
    files: JobFiles
    state: JobState
    transport: FlowerTransport
    say: Callable[[str], None]
    clock: Callable[[], float]
    counted_until: float
    time_left: TimeLeft

    def exchanged(
        self,
        scores: Mapping[SiteId, tuple[Score, ...]],
        traffic: list[Traffic],
        confusions: Mapping[ConfusionKey, Matrix],
        *,
        done: bool,
    ) -> None:
        """There are no `confusions`: sites do not send them."""
        now = self.clock()
        self.state.seconds += now - self.counted_until
        self.counted_until = now
        self.state.done = done
        self.files.add_participation(self.transport.take_participation(), self.state)
        self.files.exchanged(scores, traffic, self.state)
        self.files.write_status("running", self.state)
        self.say(self._progress(scores))

    def _progress(self, scores: Mapping[SiteId, tuple[Score, ...]]) -> str:
        assert self.state.server is not None
        round_, rounds = self.state.server.round, self.job.experiment.rounds
        every_score = [score for of_site in scores.values() for score in of_site]
        losses = [score.value for score in every_score if (score.split, score.metric) == ("validation", "loss")]
        line = f"round {round_}/{rounds}"
        if losses:
            line += f", validation loss {sum(losses) / len(losses):.4f}"
        seconds = self.time_left.seconds(round_)
        if seconds is not None:
            line += f", {left_text(seconds)}"
        return line
