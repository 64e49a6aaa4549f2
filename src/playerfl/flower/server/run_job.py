"""run_job: a whole job at the server, from the introductions to the results."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playerfl.engine.loop import Measurements, run_rounds
from playerfl.engine.scheduler import drive
from playerfl.errors import ConfigError, StorageError
from playerfl.federation.messages import Score, SiteId
from playerfl.federation.server import Server
from playerfl.flower.deployment import Deployment
from playerfl.flower.server.checks import JobChecks
from playerfl.flower.server.files import JobFiles
from playerfl.flower.server.job import Job
from playerfl.flower.server.job_status import STOP, UNDER_WAY, stop_requested, stopped_state
from playerfl.flower.server.messenger import Grid, Missing, StoppedJobError
from playerfl.flower.server.patience import limit_pulling, most_response_bytes, piece_seconds
from playerfl.flower.server.state import JobState
from playerfl.flower.server.transport import FlowerTransport, Participation
from playerfl.runs.api import limited_threads
from playerfl.storage.atomic_files import storage_advice
from playerfl.tasks.task import Task
from playerfl.time_left import TimeLeft, left_text
from playerfl.weights import num_bytes

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
    name_of: Callable[[Any], SiteId | None] | None = None,
) -> None:
    """Runs a job to its end, or resumes it from its last checkpoint, in the folder of its name in `jobs`.

    `task` defaults to the experiment's. `name_of` is as in `Messenger`. Returns early if an operator stops the job.
    Only an `Exception` is a failure. If the SuperLink is gone, Flower ends the job's process by other means (a signal,
    its own exceptions): the status file then stays as it is, so the job counts as interrupted and is resumed.
    """
    job = Job.of(deployment, task)
    with storage_advice(RUN_AGAIN):
        files = JobFiles.open(jobs, job)
        if stop_requested(files.path):
            raise ConfigError(f"job {deployment.job} was ended for good; start a new job under another name")
    if files.directory.is_finished:
        files.confirm_finished()
        say(f"job {deployment.job} is already finished; see {files.path}")
        return
    size = num_bytes(job.initial)
    limit_pulling(piece_seconds(deployment.deadline, size), most_response_bytes(size))
    state = JobState()
    recorder = _Recorder(job, files, state, say, clock, clock(), TimeLeft(job.experiment.rounds, clock))
    transport = FlowerTransport(
        grid,
        deployment,
        job.header,
        JobChecks(job, state),
        state.contacts,
        clock=clock,
        sleep=sleep,
        say=say,
        name_of=name_of,
        stopping=lambda: stop_requested(files.path) is not None,
        on_missing=recorder.missing,
    )
    recorder.take_participation = transport.take_participation
    files.directory.lock()
    try:
        with storage_advice(RUN_AGAIN):
            (files.path / STOP).unlink(missing_ok=True)
            files.resume(state)
            files.write_status("waiting for sites", state)
            if state.server is not None:
                say(f"job {deployment.job} continues after round {state.server.round}")
                state.readmit(deployment.readmit)
            if not state.done:
                transport.hello()
                for note in state.data_notes():
                    say(note)
                _run_rounds(job, state.server or state.start(job), transport, recorder)
            files.add_participation(transport.take_participation(), state)
            assert state.server is not None
            files.write_results(state.server, state)
            say(f"job {deployment.job} is finished; results: {files.path}")
    except StoppedJobError:
        name, detail = stopped_state(bool(stop_requested(files.path)))
        files.write_status(name, state, detail)
        files.add_participation(transport.take_participation(), state)
        say(f"job {deployment.job}: {detail}")
    except Exception as problem:
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
    say: Callable[[str], None]
    clock: Callable[[], float]
    counted_until: float
    time_left: TimeLeft
    take_participation: Callable[[], list[Participation]] = list
    under_way: str = UNDER_WAY[0]

    def missing(self, missing: Mapping[SiteId, Missing]) -> None:
        """Shows which sites the job waits for."""
        self.files.write_status(self.under_way, self.state, missing=missing)

    def exchanged(self, measurements: Measurements, *, done: bool) -> None:
        now = self.clock()
        self.state.seconds += now - self.counted_until
        self.counted_until = now
        self.state.done = done
        self.files.add_participation(self.take_participation(), self.state)
        self.files.exchanged(measurements.scores, measurements.traffic, self.state)
        self.under_way = UNDER_WAY[1]
        self.files.write_status(self.under_way, self.state)
        self.say(self._progress(measurements.scores))

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
