"""JobFiles: the files of a job at the server: those of a run, and a few more. Only this module writes them."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch

from playerfl.engine.transport import Traffic
from playerfl.errors import ConfigError
from playerfl.federation.messages import Score, SiteId
from playerfl.federation.server import Server
from playerfl.flower.server.job import Job
from playerfl.flower.server.job_status import PARTICIPATION, STATUS, JobStatus, read_status
from playerfl.flower.server.messenger import Missing
from playerfl.flower.server.state import JobState
from playerfl.flower.server.transport import Participation
from playerfl.runs.directory import ROSTER, RunDirectory
from playerfl.runs.environment import environment
from playerfl.runs.files import DataFile, TimingFile
from playerfl.runs.result import SCORE_COLUMNS, reported_stage
from playerfl.runs.run import found_layers, score_rows
from playerfl.storage import tensor_tree
from playerfl.storage.atomic_files import fsync_dir, storage_error, write_atomically
from playerfl.storage.csv_table import csv_text
from playerfl.weights import digest

COMMON = "common.safetensors"
SITES = "sites.json"


def _utc(moment: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))


class JobFiles:
    """A job's directory. Like a run's, it can be resumed from its last checkpoint at any moment."""

    def __init__(self, directory: RunDirectory, job: Job) -> None:
        self.directory = directory
        self.path = directory.path
        self.job = job

    @classmethod
    def open(cls, jobs: Path, job: Job) -> JobFiles:
        """The directory of a job below `jobs`: created for a new job, otherwise checked to belong to this one."""
        name, path = job.deployment.job, jobs / job.deployment.job
        if (path / "experiment.toml").exists():
            directory = RunDirectory.open(path)
            if (path / "experiment.toml").read_text(encoding="utf-8") != job.deployment.experiment:
                raise ConfigError(f"job {name} was started with a different experiment; give this one another name")
        else:
            made_with = environment(job.experiment.device, job.experiment.threads)
            directory = RunDirectory.create(path, job.deployment.experiment, made_with)
            directory.unlock()
        sites = sorted(job.deployment.sites)
        if not directory.has(ROSTER):
            directory.write_json(ROSTER, {"sites": sites})
        elif directory.read_json(ROSTER)["sites"] != sites:
            raise ConfigError(f"job {name} was started with different sites; give this one another name")
        return cls(directory, job)

    def resume(self, state: JobState) -> None:
        """Resets `state` and the tables to the last checkpoint; if there is none, starts the tables."""
        resumed = self.directory.resume(self.job.description)
        table = self.path / PARTICIPATION
        if resumed is None:
            write_atomically(table, csv_text([Participation._fields]).encode())
            state.participation_bytes = table.stat().st_size
            return
        state.restore(resumed.state, self.job)
        try:
            os.truncate(table, state.participation_bytes)
        except OSError as problem:
            raise storage_error(table, problem) from problem

    def add_participation(self, lines: Sequence[Participation], state: JobState) -> None:
        if not lines:
            return
        table = self.path / PARTICIPATION
        try:
            with table.open("ab") as file:
                file.write(csv_text(lines).encode())
                state.participation_bytes = file.tell()
        except OSError as problem:
            raise storage_error(table, problem) from problem

    def exchanged(self, scores: Mapping[SiteId, tuple[Score, ...]], traffic: list[Traffic], state: JobState) -> None:
        self.directory.exchanged(score_rows(scores), traffic, {}, state.checkpoint)
        # Sites continue from what was accepted here, so not even a power cut may undo it.
        fsync_dir(self.path)

    def write_status(
        self, name: str, state: JobState, detail: str = "", missing: Mapping[SiteId, Missing] | None = None
    ) -> None:
        status = JobStatus(
            job=self.job.deployment.job,
            state=name,
            detail=detail,
            round=state.server.round if state.server else None,
            rounds=self.job.experiment.rounds,
            algorithm=self.job.experiment.algorithm["name"],
            sites={site: state.contacts.accepted.get(site, "") for site in self.job.deployment.sites},
            seconds=round(state.seconds, 1),
            updated=_utc(time.time()),
            missing={
                site: {"since": _utc(one.since), "asked": one.asked, "why": one.why}
                for site, one in (missing or {}).items()
            },
        )
        self.directory.write_json(STATUS, asdict(status))

    def write_results(self, server: Server, state: JobState) -> None:
        """All files of a finished run except the sites' models, of which the server knows only the fingerprints."""
        # What the sites trained together: private layers keep their initial values in the server's model.
        initial = self.job.initial
        common = {name: w for name, w in server.weights.items() if not torch.equal(w, initial[name])}
        write_atomically(self.path / COMMON, tensor_tree.model_pieces(common))
        self.directory.write_json("data.json", self._data_with_scores(state))
        fingerprints = dict(sorted(state.contacts.fingerprints.items()))
        self.directory.write_json(SITES, {"models": fingerprints, "common": digest(common)})
        timing: TimingFile = {"wall_seconds": state.seconds, "runs_side_by_side": 1}
        self.directory.write_ending({}, found_layers(server, {}), timing)
        self.write_status("finished", state)

    def _data_with_scores(self, state: JobState) -> DataFile:
        rows = self.directory.read_table("scores.csv", SCORE_COLUMNS)
        stage = reported_stage(rows)
        scored = {row[2] for row in rows if (row[0], row[3]) == (stage, "validation")}
        return {
            **self.job.description,
            "notes": [
                *state.data_notes(),
                *(
                    f"{site} has no scores to report; see {PARTICIPATION}"
                    for site in sorted(self.job.deployment.sites)
                    if site not in scored
                ),
            ],
            "sites": {site: {"train": {"examples": n}} for site, n in sorted(state.examples.items()) if site in scored},
        }

    def confirm_finished(self) -> None:
        """Completes what a crash right after the last result may have left undone."""
        self.directory.drop_checkpoint()
        status = read_status(self.path)
        if status is not None and status.state != "finished":
            self.directory.write_json(STATUS, asdict(replace(status, state="finished", detail="", missing={})))
