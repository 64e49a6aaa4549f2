"""The contract of an algorithm, for anybody's own: what it must do so that its results can be trusted anywhere.

Each check runs the algorithm for a few rounds on small made-up sites, and says in one sentence what broke, where, and
what to do about it.
"""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from playerfl.engine.handle import handle
from playerfl.engine.loop import run_rounds
from playerfl.engine.scheduler import drive
from playerfl.engine.transport import InProcess, Transport
from playerfl.errors import PlayerflError, sentence_of, users_traceback
from playerfl.federation.messages import Reply, Request, SiteId, Upload
from playerfl.federation.server import Server
from playerfl.runs.api import limited_threads, resume, run
from playerfl.runs.experiment import Experiment, find_algorithm, with_settings
from playerfl.runs.result import RunResult
from playerfl.runs.run import Progress, Run
from playerfl.runs.setup import Setups
from playerfl.selftest.small import MODELS, sites
from playerfl.selftest.transports import Absent, WireTransport
from playerfl.storage import tensor_tree
from playerfl.tasks.task import Task, own_task
from playerfl.weights import Weights, digest

ROUNDS = 3
_SETTINGS: dict[str, Any] = {
    "rounds": ROUNDS, "device": "cpu", "selection": "last", "data.accept_small_sites": True,
    "training.batch_size": 8, "training.learning_rate": 0.01,
}  # fmt: skip
_NO_STATE = "keep what must last in client.memory or server.memory, never in the class, a global or a closure"


class BrokenError(Exception):
    """What an algorithm does wrong, and what to do about it."""


@dataclass(frozen=True)
class Finding:
    """One check of a contract, and what broke; None if it holds."""

    check: str
    problem: str | None = None
    traceback: str | None = None
    """Of an exception in the algorithm's own file."""

    @property
    def holds(self) -> bool:
        return self.problem is None


class Subject:
    """The algorithm under test, and how it is run."""

    def __init__(self, name: str) -> None:
        """`name`: of the package, or FILE.py:NAME."""
        self.name = name
        self.kind: Any = find_algorithm(name)
        self._setups: dict[str, Setups] = {}
        self._tasks: dict[str, Task] = {}

    def task(self, model: str = "mlp") -> Task:
        if model not in self._tasks:
            self._tasks[model] = own_task(MODELS[model], sites(), name="selftest")
            self._setups[model] = Setups(self._tasks[model])
        return self._tasks[model]

    def started(self, model: str = "mlp", **settings: Any) -> Run:
        """A run that has not begun."""
        task = self.task(model)
        table = with_settings({"algorithm": {"name": self.name}}, {**_SETTINGS, **settings})
        experiment = Experiment.resolve(table, task)
        setup = self._setups[model].of(experiment)
        experiment.build_algorithm().check_layers(setup.learner.layers)
        return Run(experiment, setup)

    def run(self, model: str = "mlp", transport: Callable[[Run], Transport] | None = None, **settings: Any) -> Run:
        """A finished run."""
        run = self.started(model, **settings)
        way = (
            transport(run) if transport else InProcess(run.algorithm, run.clients, run.experiment.seed, run.evaluation)
        )
        drive(
            run_rounds(
                run.algorithm,
                run.server,
                way,
                run.experiment.rounds,
                run,
                run.evaluation,
                run.experiment.participation,
            )
        )
        return run


def check_contract(name: str, progress: Callable[[Finding], None] = lambda finding: None) -> list[Finding]:
    """Checks an algorithm, given as a name or FILE.py:NAME. If it cannot run at all, the other checks are left out."""
    subject, findings = Subject(name), []
    with limited_threads(1):
        for check in CHECKS:
            findings.append(_checked(check, subject))
            progress(findings[-1])
            if check is runs and not findings[-1].holds:
                break
    return findings


def _checked(check: Callable[[Subject], None], subject: Subject) -> Finding:
    title = (check.__doc__ or "").splitlines()[0].rstrip(".")
    try:
        check(subject)
    except BrokenError as broken:
        return Finding(title, str(broken))
    except PlayerflError as problem:
        return Finding(title, str(problem))
    except Exception as problem:
        return Finding(title, sentence_of(problem), users_traceback(problem))
    return Finding(title)


def built_from_defaults(subject: Subject) -> None:
    """It is a frozen dataclass with defaults."""
    if not subject.kind.__dataclass_params__.frozen:
        raise BrokenError(
            f"{subject.kind.__name__} is not frozen, so it can change while it runs; write @dataclass(frozen=True)"
        )
    required = [
        field.name
        for field in dataclasses.fields(subject.kind)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    if required:
        raise BrokenError(f"{', '.join(required)} has no default; give every hyper-parameter one")


def runs(subject: Subject) -> None:
    """It trains every kind of model: finite weights and scores."""
    for model in MODELS:
        finished = subject.run(model)
        for site, client in finished.clients.items():
            bad = [n for n, w in (client.kept.weights if client.kept else {}).items() if not torch.isfinite(w).all()]
            if bad:
                raise BrokenError(f"{bad[0]} of {site} is not finite after {ROUNDS} rounds with the model {model!r}")
        for row in finished.score_rows:
            if row[5] != row[5]:
                raise BrokenError(f"{row[2]} has no {row[4]} in round {row[1]} (it is NaN) with the model {model!r}")


def repeats(subject: Subject) -> None:
    """The same seed gives the same bits."""
    where = _difference(subject.run("dropout"), subject.run("dropout"))
    if where:
        raise BrokenError(
            f"two runs with the same seed differ {where}; draw random numbers only from client.stream(purpose), or at "
            f"the server from generator_for(server.seed, purpose, server.round), and {_NO_STATE}"
        )


def writes_nothing_into_messages(subject: Subject) -> None:
    """What was sent and received is not modified."""
    subject.run(transport=_Unmodified)


def sends_without_side_effects(subject: Subject) -> None:
    """Sending and predicting change nothing."""
    finished = subject.run()
    server, clients = finished.server, finished.clients
    for site in server.sites:
        before = _state(server)
        download = finished.algorithm.server_send(server, site)
        if _state(server) != before:
            raise BrokenError(
                f"server_send changed the server when it sent to {site}; it is called more than once per round, so "
                "change weights and memory only in server_start, server_prepare and server_merge"
            )
        memory = tensor_tree.encode(clients[site].memory)
        drive(handle(finished.algorithm, clients[site], Request(("evaluate",), download), 0, finished.evaluation))
        if tensor_tree.encode(clients[site].memory) != memory:
            raise BrokenError(
                f"client_model changed client.memory of {site}; a model may be scored any number of times, so write to "
                "memory only in client_prepare, client_fit and client_finish"
            )


def remembers_what_can_be_stored(subject: Subject) -> None:
    """Memory holds only what a checkpoint can hold."""
    finished = subject.run()
    memories = {f"client.memory of {site}": client.memory for site, client in finished.clients.items()}
    for whose, memory in {"server.memory": finished.server.memory, **memories}.items():
        if problem := _unstorable(memory, ""):
            raise BrokenError(
                f"{whose}{problem}; use tensors, numbers, strings, lists, and dicts whose keys are strings"
            )


def uploads_what_it_announces(subject: Subject) -> None:
    """Uploads are what server_expects announces."""
    for model, statistics in (("mlp", "follow"), ("batch norm", "local"), ("low-rank adapters", "follow")):
        subject.run(model, transport=_Announced, bn_stats=statistics)


def survives_the_wire(subject: Subject) -> None:
    """Messages and memory that are serialised, and sites in reverse order, give the same bits."""
    for model in ("mlp", "batch norm", "low-rank adapters"):
        where = _difference(subject.run(model), subject.run(model, transport=WireTransport))
        if where:
            raise BrokenError(
                f"with everything serialised, sites rebuilt for every message and called in reverse order, the run "
                f"differs {where} (model {model!r}); {_NO_STATE}, and let nothing depend on which site comes first"
            )


def resumes(subject: Subject) -> None:
    """A run that is killed after any exchange resumes to the same bits."""
    with tempfile.TemporaryDirectory() as folder:
        for left, whole, resumed in resumed_everywhere(subject.name, subject.task(), Path(folder)):
            where = _difference_of(whole, resumed)
            if where:
                raise BrokenError(f"a run that was killed {left} and resumed differs {where}; {_NO_STATE}")


def merges_in_any_order(subject: Subject) -> None:
    """The order of sites does not matter to the merge."""
    subject.run(transport=_Reordering)


def common_model_is_common(subject: Subject) -> None:
    """If it says that all sites predict with one model, they do."""
    finished = subject.run("batch norm")
    algorithm, server = finished.algorithm, finished.server
    if not algorithm.common_model(server):
        return
    models = {}
    for site, client in finished.clients.items():
        client.begin(0, server.round)
        algorithm.client_model(client, algorithm.server_send(server, site))
        models[site] = digest(client.weights())
    other = next((site for site in models if models[site] != models[server.sites[0]]), None)
    if other:
        raise BrokenError(
            f"common_model says that all sites predict with one model after round {server.round}, but {other}'s is not "
            f"that of {server.sites[0]}; return False, or load the same weights in client_model"
        )


def copes_with_absence(subject: Subject) -> None:
    """Sites may sit out rounds, or miss the first ones."""
    for what, settings, transport in (
        ("half of the sites train per round", {"participation": 0.5, "rounds": 4}, None),
        ("site-1 does not answer the first two messages", {"rounds": 4}, lambda run: Absent(run, "site-1", 2)),
    ):
        try:
            finished = subject.run(transport=transport, **settings)
        except Exception as problem:
            raise BrokenError(
                f"while {what}: {sentence_of(problem)}; uploads holds only the sites that answered, and a site that is "
                "not in server.initialised needs the whole model"
            ) from problem
        without = [site for site, client in finished.clients.items() if client.kept is None]
        if without:
            raise BrokenError(f"while {what}, {without[0]} ends without a model")


def stacks(subject: Subject) -> None:
    """Trained in one stack with other sites, it gives the same models up to rounding."""
    models = [subject.run(trainer=trainer) for trainer in ("stacked", "loop")]
    largest = max(
        float((w - models[1].clients[site].kept.weights[name]).abs().max())  # type: ignore[union-attr]
        for site, client in models[0].clients.items()
        for name, w in client.kept.weights.items()  # type: ignore[union-attr]
    )
    if not largest < 1e-3:
        raise BrokenError(
            f"the stacked trainer and the plain loop differ by {largest:.3g}; an optimiser of your own must work "
            "element by element"
        )


CHECKS: tuple[Callable[[Subject], None], ...] = (
    built_from_defaults,
    runs,
    repeats,
    writes_nothing_into_messages,
    sends_without_side_effects,
    remembers_what_can_be_stored,
    uploads_what_it_announces,
    merges_in_any_order,
    survives_the_wire,
    resumes,
    common_model_is_common,
    copes_with_absence,
    stacks,
)


class _Unmodified(InProcess):
    """Notices when an algorithm writes into a message."""

    def __init__(self, run: Run) -> None:
        super().__init__(run.algorithm, run.clients, run.experiment.seed, run.evaluation)
        self.run = run
        self.initial = digest(run.setup.initial)

    async def call(self, requests: Mapping[SiteId, Request]) -> dict[SiteId, Reply]:
        before = {site: digest(request.download.weights) for site, request in requests.items()}
        replies = await super().call(requests)
        for site, request in requests.items():
            if digest(request.download.weights) != before[site] or digest(self.run.setup.initial) != self.initial:
                raise BrokenError(
                    f"{site} wrote into the tensors it was sent ({'+'.join(request.verbs)} after round "
                    f"{request.download.round}), which other sites share; make new ones: w + 1 instead of w.add_(1)"
                )
        return replies


class _Announced(InProcess):
    """Compares every upload with what the server expects."""

    def __init__(self, run: Run) -> None:
        super().__init__(run.algorithm, run.clients, run.experiment.seed, run.evaluation)
        self.run = run

    async def call(self, requests: Mapping[SiteId, Request]) -> dict[SiteId, Reply]:
        replies = await super().call(requests)
        server = self.run.server
        for site, reply in replies.items():
            verbs = requests[site].verbs
            expected = self.algorithm.server_expects(server, verbs)
            what = expected.differs(reply.upload, server.layers, self.run.setup.initial)
            if what:
                raise BrokenError(
                    f"the upload of {site} in reply to {'+'.join(verbs)} after round {server.round} {what}; across "
                    "institutions it would be refused, so make server_expects and the upload agree"
                )
            for name, info in (("download", requests[site].download.info), ("upload", reply.upload.info)):
                if wrong := _not_plain(info):
                    raise BrokenError(
                        f"info[{wrong!r}] in the {name} of {site} cannot be sent; info holds numbers, strings and "
                        "lists of them"
                    )
        return replies


class _Reordering(InProcess):
    """Merges the uploads of every fit twice, in both orders, and compares what sites would be sent."""

    def __init__(self, run: Run) -> None:
        super().__init__(run.algorithm, run.clients, run.experiment.seed, run.evaluation)
        self.run = run

    async def call(self, requests: Mapping[SiteId, Request]) -> dict[SiteId, Reply]:
        replies = await super().call(requests)
        uploads = {site: replies[site].upload for site in sorted(replies) if "fit" in requests[site].verbs}
        if uploads:
            forwards, backwards = (self._merged(dict(order)) for order in (uploads.items(), reversed(uploads.items())))
            for site in forwards:
                for name, weight in forwards[site].items():
                    other = backwards[site].get(name)
                    if other is None or not torch.allclose(weight.double(), other.double(), rtol=1e-4, atol=1e-6):
                        raise BrokenError(
                            f"with the uploads of round {self.run.server.round + 1} in reverse order, server_merge "
                            f"gives {site} another {name}; treat all sites alike, or sort them by name"
                        )
        return replies

    def _merged(self, uploads: Mapping[SiteId, Upload]) -> dict[SiteId, Weights]:
        run = self.run
        server = Server(run.setup.initial, run.server.layers, run.server.sites, run.server.seed)
        server.restore(tensor_tree.decode(tensor_tree.encode(run.server.state())))
        server.initialised.update(uploads)
        run.algorithm.server_merge(server, uploads)
        server.round += 1
        return {site: run.algorithm.server_send(server, site).weights for site in server.sites}


def resumed_everywhere(name: str, task: Task, folder: Path) -> Iterator[tuple[str, RunResult, RunResult]]:
    """A run, and the same run resumed from what a kill after each of its exchanges leaves: when, and both results."""
    whole, left = folder / "whole", dict[str, Path]()

    def keep(progress: Progress) -> None:
        when = f"after exchange {len(left) + 1} (round {progress.round})"
        left[when] = shutil.copytree(whole, folder / f"left-{len(left)}")

    settings = {key: value for key, value in _SETTINGS.items() if key not in ("rounds", "device", "selection")}
    result = run(task, name, rounds=ROUNDS, settings=settings, out=whole, listener=keep, device="cpu")
    for when, directory in left.items():
        yield when, result, resume(directory, task=task)


def _difference(left: Run, right: Run) -> str | None:
    return _difference_of(left._result(), right._result())


def _difference_of(left: RunResult, right: RunResult) -> str | None:
    """Where two results differ first, in words; None if they are the same bit for bit."""
    rows = zip(sorted(left.score_rows, key=_place), sorted(right.score_rows, key=_place), strict=False)
    for one, other in rows:
        if one != other and not (one[:5] == other[:5] and one[5] != one[5] and other[5] != other[5]):
            return f"from round {one[1]} on, at {one[2]} ({one[3]} {one[4]} {one[5]:.6g}, not {other[5]:.6g})"
    for site, weights in left.weights.items():
        for name, weight in weights.items():
            if not torch.equal(weight, right.weights[site][name]):
                return f"in {name} of {site}'s model"
    return None if len(left.score_rows) == len(right.score_rows) else "in how often sites were scored"


def _place(row: Any) -> tuple[Any, ...]:
    return (row[1], row[0], *row[2:5])


def _state(server: Server) -> bytes:
    return tensor_tree.encode(server.state())


def _unstorable(tree: Any, path: str) -> str | None:
    if isinstance(tree, Mapping):
        odd = next((key for key in tree if not isinstance(key, str)), None)
        if odd is not None:
            return f"{path} has the key {odd!r}, which is {type(odd).__name__}, not a string"
        return next((p for key, value in tree.items() if (p := _unstorable(value, f"{path}[{key!r}]"))), None)
    if isinstance(tree, list):
        return next((p for i, value in enumerate(tree) if (p := _unstorable(value, f"{path}[{i}]"))), None)
    if tree is None or isinstance(tree, Tensor | bool | int | float | str):
        return None
    return f"{path} is of type {type(tree).__name__}, which cannot be stored in a checkpoint"


def _not_plain(info: Mapping[str, Any]) -> str | None:
    for key, value in info.items():
        if not all(type(one) in (int, float, str) for one in (value if isinstance(value, list) else [value])):
            return key
    return None
