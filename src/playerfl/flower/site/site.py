"""Site: one institution's side of a job. It keeps to what was agreed, and writes its state before it responds."""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from playerfl.data.check.result import DataCheck
from playerfl.data.schema import Schema
from playerfl.engine.scheduler import drive
from playerfl.errors import ConfigError, DataError, LayerError, RunDirectoryError
from playerfl.federation.client import Client
from playerfl.federation.messages import Reply, Request, SiteId, Upload
from playerfl.flower.site.attempts import Attempts
from playerfl.flower.site.data_check import add_unknown_units, checked_data, keep_check
from playerfl.flower.site.files.audit import AuditLog
from playerfl.flower.site.files.budget import BudgetLedger
from playerfl.flower.site.files.contract import Contract, Decision, Status, Terms, check_status, status
from playerfl.flower.site.files.job_folder import JobFolder
from playerfl.flower.site.files.names import AUDIT, CONTRACT, OWN, POLICY
from playerfl.flower.site.files.stored_state import Generation, StoredState, reply_digest
from playerfl.flower.site.pinning import Pinned, check_step
from playerfl.flower.site.policy import Policy
from playerfl.flower.site.privacy import check_privacy, outside, private_upload, secret_generator, secret_key
from playerfl.flower.site.setup import FindSetup, Workspace
from playerfl.flower.wire.envelopes import Code, Envelope, Privacy, RefusedError, Response, check_job
from playerfl.runs.api import limited_threads
from playerfl.runs.experiment import Experiment, resolved_algorithm
from playerfl.storage.atomic_files import make_directory, storage_advice, write_atomically
from playerfl.version import __version__
from playerfl.weights import digest

log = logging.getLogger("playerfl.flower.site")

GENERATIONS = 2
"""Earlier states that are stored: a server that crashes may lose its last two exchanges."""


@dataclass(frozen=True)
class Site:
    """A site: its name, its directory, how it finds its data, and what it agrees to."""

    name: SiteId
    home: Path
    find_setup: FindSetup
    policy: Policy = field(default_factory=Policy)
    attempts: Attempts = field(default_factory=Attempts)
    """Jobs that do not fit this site."""
    choices: Attempts = field(default_factory=Attempts)
    """Choices of columns and rows for which no person was asked."""

    @property
    def audit(self) -> AuditLog:
        return AuditLog(self.home / AUDIT)

    @property
    def ledger(self) -> BudgetLedger:
        return BudgetLedger(self.home / OWN / "budget.json", self.policy.budget)

    def begin(self) -> None:
        """Records the policy, for the audit log and for the commands that show the jobs."""
        policy = self.policy.model_dump(mode="json", exclude_none=True)
        make_directory(self.home / OWN, secret=True)
        write_atomically(self.home / OWN / POLICY, json.dumps(policy).encode())
        self.audit.add("started", site=self.name, policy=policy)

    def respond(self, envelope: Envelope) -> Response:
        """Does what an envelope asks. If something goes wrong at the site, the response is a code, not an exception."""
        # A thousand verbs would make a key that the server itself refuses to read.
        key = envelope.key[:64]
        try:
            experiment = self._check(envelope)
            with self._folder(envelope.job).locked(), storage_advice("wait: the server asks again in the next round"):
                contract = self._contract(envelope, experiment)
                decision = self._folder(envelope.job).decision()
                check_status(contract, decision, automatic=self._automatic)
                if envelope.request is None:
                    return self._hello(envelope, experiment)
                return self._work(envelope, envelope.request, experiment, contract, decision)
        except RefusedError as refused:
            log.warning("%s, %s: %s (%s)", envelope.job[:64], key, refused.code, refused)
            return Response(self.name, key, code=refused.code, detail=str(refused))
        except Exception as problem:
            log.exception("%s, %s: failed", envelope.job[:64], key)
            return Response(self.name, key, code=_code_of(problem), detail=f"{type(problem).__name__}")

    @property
    def _automatic(self) -> bool:
        return self.policy.approval == "automatic"

    def _check(self, envelope: Envelope) -> Experiment:
        """Refuses what can be refused without reading a file, so that no file is left behind."""
        try:
            check_job(envelope.job)
        except ConfigError as problem:
            raise RefusedError("refused", str(problem)) from problem
        if not self._folder(envelope.job).is_free():
            raise RefusedError("refused", f"{envelope.job!r} cannot be the name of a job")
        if envelope.site not in ("", self.name):
            raise RefusedError("name", f"the envelope is addressed to {envelope.site!r}, but this is {self.name!r}")
        if envelope.version != __version__:
            raise RefusedError("version", f"the server has version {envelope.version!r}, but this is {__version__!r}")
        experiment = Experiment.from_resolved(envelope.experiment)
        refusal = self.policy.refusal(envelope.job, experiment, envelope.privacy, envelope.merge_sites)
        if refusal:
            raise RefusedError("refused", refusal)
        if experiment.model is not None:
            experiment = experiment.model_copy(update={"model": self.policy.model})
        # Hyper-parameters come from the server: types first, since an algorithm checks only their values.
        resolved = resolved_algorithm(experiment.algorithm)
        if {name: value for name, value in resolved.items() if value is not None} != experiment.algorithm:
            raise RefusedError("refused", f"the algorithm's options are not complete: {experiment.algorithm}")
        return experiment

    def _contract(self, envelope: Envelope, experiment: Experiment) -> Contract:
        """The contract of this job; an envelope that differs from it is refused."""
        folder = self._folder(envelope.job)
        known = folder.contract()
        if known is not None:
            if difference := known.terms.difference(Terms.of(envelope)):
                raise RefusedError("pinned", difference)
            return known
        if (
            not self._automatic
            and sum(s == "waiting" for s in self.statuses().values()) >= self.policy.jobs.most_waiting
        ):
            raise RefusedError("refused", f"{self.policy.jobs.most_waiting} jobs wait for approval already")
        if self.attempts.spent():
            raise RefusedError("refused", "too many of today's new jobs did not fit this site's data")
        if self._automatic and self.policy.jobs.data is None:
            self._count_choice(repr(experiment.data))
        try:
            contract, check = self._terms(envelope, experiment)
        except Exception as problem:
            if self._automatic:
                raise
            self.attempts.note(Terms.of(envelope).digest())
            # Nobody has approved anything yet, so the server learns that it does not fit, but not why.
            log.info("%s: a new job does not fit", envelope.job, exc_info=True)
            raise RefusedError("data", f"the job does not fit this site: {problem}") from problem
        # The log first: a contract without its line would never get one, a line without its contract gets another.
        self.audit.add("job", job=envelope.job, terms=contract.terms.digest(), approval=self.policy.approval)
        keep_check(check, folder.path)
        contract.write(folder.path)
        log.info("%s: new job, approval by %s", envelope.job, self.policy.approval)
        return contract

    def _count_choice(self, data: str) -> None:
        """Each choice of columns and rows reveals a number of rows; many choices would count rows by their values."""
        if not self.choices.known(data) and self.choices.spent():
            raise RefusedError("refused", "too many of today's new jobs chose other columns and rows; see [jobs.data]")
        self.choices.note(data)

    def _terms(self, envelope: Envelope, experiment: Experiment) -> tuple[Contract, DataCheck]:
        """The contract of a new job and the check of its data; refuses what the data or the policy do not allow."""
        workspace = self._prepare(envelope, experiment)
        pinned = workspace.pinned(self.policy)
        cut = pinned.first_cut()
        self._check_leaving(pinned, cut, None)
        contract = Contract.begin(
            envelope,
            pinned.layers.entries,
            len(workspace.setup.sites[self.name].train),
            cut=cut,
            kept_back=sorted(pinned.kept_back()),
            tied={entry: list(users) for entry, users in pinned.layers.tied.items()},
            numbers_at_start=dict(pinned.numbers_at_start()),
            numbers_per_round=dict(pinned.numbers_per_round()),
        )
        check = checked_data(workspace.check)
        add_unknown_units(check, workspace.schema, self.policy.units)
        return contract, check

    def _check_leaving(self, pinned: Pinned, cut: int | None, decision: Decision | None) -> None:
        """Refuses a job that would upload more than the policy and the person who approved it allow."""
        pinned.check_shared(cut, decision)
        if refusal := self.policy.uncountable(pinned.numbers_at_start()):
            raise RefusedError("refused", refusal)

    def statuses(self) -> dict[str, Status]:
        """Every job of this site whose files can be read, and its status."""
        return {job: now for job, (_, now) in self._jobs().items()}

    @property
    def masks(self) -> bool:
        """Whether this site has agreed to a job by secure aggregation that is not over."""
        return any(contract.privacy.secure_range and now == "approved" for contract, now in self._jobs().values())

    def _jobs(self) -> dict[str, tuple[Contract, Status]]:
        found: dict[str, tuple[Contract, Status]] = {}
        for file in sorted(self.home.glob(f"*/{CONTRACT}")):
            # A damaged job answers nothing itself; it must not keep others from starting.
            with suppress(RunDirectoryError):
                contract, decision = Contract.read(file.parent), Decision.read(file.parent)
                if contract is not None:
                    found[file.parent.name] = contract, status(contract, decision, automatic=self._automatic)
        return found

    def _prepare(self, envelope: Envelope, experiment: Experiment) -> Workspace:
        with limited_threads(experiment.threads):
            workspace = Workspace(experiment, self.name, *self.find_setup(experiment, self.name))
        parts = workspace.setup.sites[self.name]
        if refusal := self.policy.too_few_rows(len(parts.train), len(parts.validation), len(parts.test)):
            raise RefusedError("refused", refusal)
        fingerprint = digest(workspace.setup.initial)
        if fingerprint != envelope.model:
            raise RefusedError("model", f"the server's model is {envelope.model}, but this one is {fingerprint}")
        layers = workspace.setup.learner.layers
        algorithm = experiment.build_algorithm()
        algorithm.check_layers(layers)
        check_privacy(envelope.privacy, algorithm, layers, workspace.setup.initial)
        return workspace

    def _hello(self, envelope: Envelope, experiment: Experiment) -> Response:
        workspace = self._prepare(envelope, experiment)
        if envelope.after and self._folder(envelope.job).state() is None:
            raise self._lost(envelope)
        schema = workspace.schema and workspace.schema.with_units(self.policy.units)
        if schema and envelope.schema:
            difference = schema.difference(_schema(envelope.schema), self.name, "the server")
            if difference:
                raise RefusedError("schema", difference)
        log.info("%s, %s: done", envelope.job, envelope.key)
        return Response(self.name, envelope.key, introduction=workspace.introduction(schema, self.policy.sharing))

    def _work(
        self,
        envelope: Envelope,
        request: Request,
        experiment: Experiment,
        contract: Contract,
        decision: Decision | None,
    ) -> Response:
        stored = self._folder(envelope.job).state()
        asked = envelope.digest()
        starts_again = stored is None and not envelope.after and bool(contract.answers)
        if starts_again:
            # Only a site that lost its state, whether by accident or by hand, can be asked to start again.
            if contract.finished:
                raise RefusedError("finished", "this site has finished the job; its state is gone")
            contract = replace(contract, answers={}, questions={})
        check_step(contract, envelope, request, asked, experiment.rounds)
        if stored and (stored.key, stored.asked) == (envelope.key, asked):
            log.info("%s, %s: responded again with the stored reply", envelope.job, envelope.key)
            return self._stored_response(envelope, stored)
        history = self._accepted_history(envelope, stored)
        del stored  # while the site trains, its reply would take as much memory as a model
        workspace = self._prepare(envelope, experiment)
        if envelope.initial:
            initial = workspace.setup.learner.layers.travelling(workspace.setup.initial)
            request = replace(request, download=replace(request.download, weights=initial))
        pinned = workspace.pinned(self.policy)
        client = workspace.client(history[-1].state)
        # A run that began in one process has its cut in the site's own state.
        agreed = client.memory.get("cut") if contract.cut is None else contract.cut
        cut = pinned.told_cut(agreed, request.download)
        pinned.check_download(request.download, cut, trained=_has_trained(history, contract))
        self._check_leaving(pinned, cut, decision)
        contract = contract.asking(envelope, asked)
        if starts_again:
            self.audit.add("restart", job=envelope.job, detail="the state is gone; the site starts as a new one")
        contract.write(self._folder(envelope.job).path)
        if "fit" in request.verbs and pinned.shared(cut) != ():
            self._charge(envelope, asked)
        with limited_threads(experiment.threads):
            reply = drive(workspace.handle(client, request))
        pinned.check_upload(reply.upload, client, request, cut)
        reply = self._private(reply, request, envelope, asked, workspace)
        # A person may have stopped the job while it trained.
        check_status(contract, self._folder(envelope.job).decision(), automatic=self._automatic)
        now = self._store(envelope, request, experiment, replace(contract, cut=cut), asked, history, client, reply)
        log.info("%s, %s: done", envelope.job, envelope.key)
        return self._stored_response(envelope, now)

    def _charge(self, envelope: Envelope, asked: str) -> None:
        """Charges an upload before it exists, so that a crash cannot make it free."""
        make_directory(self.home / OWN, secret=True)
        noise = envelope.privacy.noise
        # Uploads without noise cost everything at once; one line for all of a job's uploads says so.
        self.ledger.charge(f"{envelope.job}/{envelope.key}/{asked}" if noise else envelope.job, noise)

    def _store(
        self,
        envelope: Envelope,
        request: Request,
        experiment: Experiment,
        contract: Contract,
        asked: str,
        history: tuple[Generation, ...],
        client: Client,
        reply: Reply,
    ) -> StoredState:
        """Writes everything that the site must remember of an answer, before it leaves."""
        finished = "finish" in request.verbs
        model = client.kept.weights if client.kept else {}
        now = StoredState(
            history[-GENERATIONS:],
            envelope.key,
            asked,
            client.state(),
            reply,
            secure=bool(envelope.privacy.secure_range),
            # Noise hides what a model was trained on; the fingerprint of the model itself would confirm a guess.
            fingerprint=digest(model) if finished and not envelope.privacy.noise else "",
        )
        answered = contract.answering(envelope, asked, reply_digest(reply))
        self._folder(envelope.job).store(experiment.to_toml(), answered, now, model if finished else None)
        return now

    def _private(self, reply: Reply, request: Request, envelope: Envelope, asked: str, workspace: Workspace) -> Reply:
        """The reply as it may leave the site."""
        privacy: Privacy = envelope.privacy
        if privacy.clip or privacy.sensitivity_noise:
            make_directory(self.home / OWN, secret=True)
            key = secret_key(self.home / OWN / "noise.key")
            noise = secret_generator(key, envelope.job, envelope.key, asked, reply_digest(reply))
            known = {**workspace.setup.initial, **request.download.weights}
            reply = replace(reply, upload=private_upload(reply.upload, known, privacy, noise))
        if privacy.secure_range and (name := outside(reply.upload.weights, privacy.secure_range)):
            raise RefusedError("privacy", f"{name} has values beyond ±{privacy.secure_range}, which would be clipped")
        return reply if self.policy.sharing.scores else replace(reply, scores=())

    def _accepted_history(self, envelope: Envelope, stored: StoredState | None) -> tuple[Generation, ...]:
        """The generations up to the last accepted response; later ones are undone."""
        if stored is None:
            if envelope.after:
                raise self._lost(envelope)
            return (Generation("", None),)
        keys = [past.key for past in stored.generations]
        if envelope.after not in keys:
            raise RefusedError(
                "state_differs",
                f"the last responses of this site are {', '.join(key or 'none' for key in keys)}, "
                f"but the last one accepted is {envelope.after[:64] or 'none'}",
            )
        accepted = keys.index(envelope.after)
        for key in keys[accepted + 1 :]:
            log.warning("%s: %s was not accepted and is undone", envelope.job, key)
        return stored.generations[: accepted + 1]

    def _lost(self, envelope: Envelope) -> RefusedError:
        return RefusedError(
            "state_lost", f"{self.home} has no state for this job, but {envelope.after[:64]} was accepted"
        )

    def _stored_response(self, envelope: Envelope, stored: StoredState) -> Response:
        reply = stored.reply
        if envelope.privacy.secure_range:
            # The weights are fetched masked, by `held`.
            reply = replace(reply, upload=replace(reply.upload, weights={}))
        return Response(self.name, envelope.key, reply, fingerprint=stored.fingerprint)

    def held(self, job: str, key: str, bound: float) -> Upload:
        """The upload of the last response, for secure aggregation of values within ±`bound`."""
        folder = self._folder(check_job(job))
        contract, stored = folder.contract(), folder.state()
        if contract is None or stored is None or stored.key != key or not stored.secure:
            raise RefusedError("state_differs", f"there is no upload for {key!r} to mask")
        check_status(contract, folder.decision(), automatic=self._automatic)
        if bound != contract.privacy.secure_range:
            raise RefusedError("privacy", f"the job's range is ±{contract.privacy.secure_range}, not ±{bound}")
        return stored.reply.upload

    def unmask(self, job: str, key: str, participants: tuple[int, ...], largest: float) -> None:
        """Notes which sites' sum is opened for an exchange, and the number of examples that counts as 1.

        A second sum over other sites, or with other weights, is refused.
        """
        folder = self._folder(check_job(job))
        contract = folder.contract()
        if contract is None:
            raise RefusedError("privacy", f"there is no job {job!r} whose sum could be opened")
        check_status(contract, folder.decision(), automatic=self._automatic)
        if contract.opened.get(key, list(participants)) != list(participants):
            raise RefusedError("privacy", f"the sum for {key!r} was opened before, over other sites")
        if contract.weighed.get(key, largest) != largest:
            raise RefusedError("privacy", f"the sum for {key!r} was opened before, with other weights")
        opened, weighed = {**contract.opened, key: list(participants)}, {**contract.weighed, key: largest}
        replace(contract, opened=opened, weighed=weighed).write(folder.path)

    def _folder(self, job: str) -> JobFolder:
        return JobFolder(self.home / job)


def _has_trained(history: tuple[Generation, ...], contract: Contract) -> bool:
    """Whether the server has accepted a training of this site, so that only shared layers are sent to it."""
    if any("fit" in past.key for past in history):
        return True
    # After many exchanges without training, the accepted training is no longer among the last states.
    return len(history) > GENERATIONS and any(key.endswith(":fit") for key in contract.answers)


def _schema(text: str) -> Schema:
    try:
        return Schema.from_json(json.loads(text))
    except (ValueError, RecursionError) as problem:
        raise RefusedError("schema", "the server's schema cannot be read") from problem


def _code_of(problem: Exception) -> Code:
    if isinstance(problem, RunDirectoryError | OSError):
        return "storage"
    if isinstance(problem, DataError | ConfigError | LayerError):
        return "data"
    return "failed"
