"""Whether sites are treated alike, whatever their names and order, and may be away, come late or share a stack."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from playerfl.engine.scheduler import drive
from playerfl.engine.transport import InProcess
from playerfl.errors import sentence_of
from playerfl.federation.messages import Reply, Request, SiteId, Upload
from playerfl.federation.server import Server
from playerfl.runs.run import Run
from playerfl.selftest.subject import BrokenError, Subject, finished
from playerfl.selftest.transports import Absent
from playerfl.selftest.watched import RenamedClient
from playerfl.storage import tensor_tree
from playerfl.weights import Weights, digest

_OTHER_NAMES = {"site-0": "zz", "site-1": "m", "site-2": "a-hospital"}
_PLAIN_STEPS: dict[str, Any] = {
    "training.batch_size": 1000,
    "training.optimizer": "sgd",
    "training.learning_rate": 0.05,
}
_ALIKE = 1e-4


def merges_in_any_order(subject: Subject) -> None:
    """The order of sites does not matter to the merge."""
    subject.run(transport=_Reordering)


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
                            f"gives {site} a different {name}; treat all sites alike, or sort them by name"
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


def ignores_names(subject: Subject) -> None:
    """Sites under other names, in another order, get the same models."""
    plain = subject.run(**_PLAIN_STEPS)
    run = subject.started(**_PLAIN_STEPS)
    run.clients = {
        _OTHER_NAMES[site]: RenamedClient(client, run, _OTHER_NAMES[site]) for site, client in run.clients.items()
    }
    run.server = Server(run.setup.initial, run.server.layers, run.clients, run.server.seed, run.server.merge)
    finished(run)
    site, apart = max(
        ((site, _apart(plain, run, site, other)) for site, other in _OTHER_NAMES.items()), key=lambda found: found[1]
    )
    if not apart <= _ALIKE and not _draws_at_the_server(subject, plain):
        raise BrokenError(
            f"under another name, {site} ends with a model that differs by {apart:.3g}; treat all sites alike, "
            "whatever they are called and whichever comes first"
        )


def _draws_at_the_server(subject: Subject, plain: Run) -> bool:
    """Whether results depend on random numbers drawn at the server, which may rightly depend on the sites' names."""
    run = subject.started(**_PLAIN_STEPS)
    run.server.seed += 1
    finished(run)
    return any(_apart(plain, run, site, site) > 0 for site in run.clients)


def _apart(left: Run, right: Run, site: SiteId, other: SiteId) -> float:
    """The largest difference between two sites' models."""
    one, two = left.clients[site].kept, right.clients[other].kept
    assert one
    assert two
    return max(float((w.double() - two.weights[name].double()).abs().max()) for name, w in one.weights.items())


def common_model_is_common(subject: Subject) -> None:
    """If it says that all sites predict with one model, they do."""
    ended = subject.run("batch norm")
    algorithm, server = ended.algorithm, ended.server
    if not algorithm.common_model(server):
        return
    models = {}
    for site, client in ended.clients.items():
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
            ended = subject.run(transport=transport, **settings)
        except Exception as problem:
            raise BrokenError(
                f"while {what}: {sentence_of(problem)}; uploads holds only the sites that answered, and a site that is "
                "not in server.initialised needs the whole model"
            ) from problem
        without = [site for site, client in ended.clients.items() if client.kept is None]
        if without:
            raise BrokenError(f"while {what}, {without[0]} ends without a model")


def takes_in_late_sites(subject: Subject) -> None:
    """A site that joins after the last round gets a model, and changes nothing for the others."""
    before, run = subject.started(), subject.started(unseen=["site-1"])
    del before.clients["site-1"]
    before.server = Server(run.setup.initial, run.server.layers, before.clients, run.server.seed, run.server.merge)
    finished(before)
    try:
        result = drive(run.rounds())
    except Exception as problem:
        raise BrokenError(
            f"when site-1 joins after the last round: {sentence_of(problem)}; look at server_join and client_join"
        ) from problem
    bad = [name for name, weight in result.weights["site-1"].items() if not torch.isfinite(weight).all()]
    if bad:
        raise BrokenError(f"{bad[0]} of a site that joins late is not finite; look at server_join and client_join")
    for site in before.clients:
        if _apart(before, run, site, site) != 0:
            raise BrokenError(f"a site that joins late changes the model of {site}; server_join must change nothing")


def stacks(subject: Subject) -> None:
    """Trained in one stack with other sites, it gives the same models up to rounding."""
    stacked, alone = (subject.run(trainer=trainer) for trainer in ("stacked", "loop"))
    largest = max(_apart(stacked, alone, site, site) for site in stacked.clients)
    if not largest < 1e-3:
        raise BrokenError(
            f"the stacked trainer and the plain loop differ by {largest:.3g}; an optimiser of your own must work "
            "element by element"
        )
