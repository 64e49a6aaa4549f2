"""Identities that must hold if the algorithms are what they say: run on small made-up sites in seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from playerfl.algorithms import (
    ALGORITHMS,
    Algorithm,
    Ditto,
    FedAvg,
    FedBABU,
    FedLAMA,
    FedLP,
    FedPer,
    FedProx,
    FedRep,
    Local,
    LocalAdaptation,
    PFedLA,
    PFedMe,
    PLayerFL,
    PLayerFLDitto,
    PLayerFLFedProx,
    PLayerFLFedRep,
    PLayerFLMinusOne,
    PLayerFLPlusOne,
    PLayerFLRandom,
)
from playerfl.engine.scheduler import drive
from playerfl.federation.messages import SiteId
from playerfl.federation.server import Server
from playerfl.models.mlp import MLP
from playerfl.runs.api import limited_threads
from playerfl.runs.experiment import Experiment, with_settings
from playerfl.runs.run import Run
from playerfl.runs.setup import prepare_setup
from playerfl.tasks.task import Task, own_task
from playerfl.weights import Weights

LAYERS, ROUNDS = 4, 3
COMMON = "the common model"
Models = dict[str, Weights]
FULL_BATCH = {"training.batch_size": 1000, "training.optimizer": "sgd", "training.learning_rate": 0.05}


@dataclass(frozen=True)
class Side:
    """One side of an identity: a method, and where it differs from the usual small federation."""

    name: str
    algorithm: Algorithm
    sites: int = 3
    frozen_head: bool = False
    renamed: bool = False
    """Whether the sites carry each other's names; their models are compared after naming them back."""
    settings: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Identity:
    """Two runs that must give every site the same model: bit for bit, or within a tolerance."""

    left: Side
    right: Side
    tolerance: float = 0.0
    common: bool = False
    """Whether the server's model is compared instead of the sites'."""


@dataclass(frozen=True)
class Finding:
    """An identity put to the test."""

    identity: Identity
    difference: float
    """The largest over all sites and weights."""

    @property
    def holds(self) -> bool:
        return self.difference <= self.identity.tolerance


@dataclass(frozen=True)
class _SelfOnly(PFedLA):
    """pFedLA in which every site listens to itself alone."""

    def fresh_mixer(self, server: Server, site: SiteId) -> Weights:
        wanted = torch.tensor([1e4 if other == site else 0.0 for other in server.sites])
        return super().fresh_mixer(server, site) | {"output.bias": wanted.repeat(len(server.layers.names))}


@dataclass(frozen=True)
class _BySize(PFedLA):
    """pFedLA in which every site counts by its training examples, for good."""

    sizes: tuple[int, ...] = ()

    def fresh_mixer(self, server: Server, site: SiteId) -> Weights:
        wanted = torch.tensor(self.sizes, dtype=torch.float32).log()
        return super().fresh_mixer(server, site) | {"output.bias": wanted.repeat(len(server.layers.names))}


def identities() -> Iterator[Identity]:
    """The equivalence matrix."""
    fedavg, local = Side("FedAvg", FedAvg()), Side("Local", Local())

    def fixed(cut: int, kind: type[PLayerFL] = PLayerFL) -> PLayerFL:
        return kind(rule="fixed", fixed_cut=cut)

    def fedper(cut: int) -> Side:
        return Side(f"FedPer({LAYERS - cut} personal)", FedPer(LAYERS - cut))

    yield Identity(Side("FedProx(μ=0)", FedProx(0.0)), fedavg)
    yield Identity(Side("FedLP(q=1)", FedLP(1.0)), fedavg)
    yield Identity(Side("FedLAMA(τ=1, φ=1)", FedLAMA(1, 1)), fedavg)
    yield Identity(Side("PLayer-FL(all federated)", fixed(LAYERS)), fedavg)
    yield Identity(Side("PLayer-FL(huge threshold)", PLayerFL(threshold=1e30)), fedavg)
    yield Identity(Side("FedPer(0 personal)", FedPer(0)), fedavg)
    yield Identity(Side("LocalAdaptation(0 epochs)", LocalAdaptation(0)), fedavg)

    yield Identity(Side("PLayer-FL(none federated)", fixed(0)), local)
    yield Identity(Side("FedPer(all personal)", FedPer(LAYERS)), local)
    yield Identity(Side("FedLAMA(τ > rounds)", FedLAMA(ROUNDS + 1)), local)
    yield Identity(Side("pFedLA(self only)", _SelfOnly()), local)
    yield Identity(Side("Ditto(λ=0)", Ditto(0.0)), local)

    for cut in (1, 2, 3):
        yield Identity(Side(f"PLayer-FL(cut {cut})", fixed(cut)), fedper(cut))
    yield Identity(Side("PLayer-FL-1(of cut 3)", fixed(3, PLayerFLMinusOne)), fedper(2))
    yield Identity(Side("PLayer-FL+1(of cut 2)", fixed(2, PLayerFLPlusOne)), fedper(3))
    yield Identity(Side("PLayer-FL+1(of cut 3)", fixed(3, PLayerFLPlusOne)), fedavg)
    random = PLayerFLRandom(reference_cut=2)
    drawn = random.draw(_server(), 2)[0]
    yield Identity(Side(f"PLayer-FL-Random(drew {drawn})", random), fedper(drawn))
    restarted = PLayerFL(rule="fixed", fixed_cut=2, first_epoch="restart")
    yield Identity(Side("PLayer-FL(cut 2, restart)", restarted), fedper(2))

    yield Identity(
        Side("FedBABU(before tuning)", FedBABU(finetune_epochs=0)),
        Side("FedAvg(head frozen in the model)", FedAvg(), frozen_head=True),
    )
    for base, combined in ((FedProx(), PLayerFLFedProx), (Ditto(), PLayerFLDitto)):
        name = type(base).__name__
        yield Identity(Side(f"PLayer-FL + {name}(all federated)", fixed(LAYERS, combined)), Side(name, base))
    yield Identity(Side("PLayer-FL + FedRep(cut 3)", fixed(3, PLayerFLFedRep)), Side("FedRep", FedRep()))

    alone = Side("Local, one site", Local(), sites=1)
    for one in (FedAvg(), FedPer(), PLayerFL(), FedLAMA()):
        yield Identity(Side(f"{type(one).__name__}, one site", one, sites=1), alone)

    sgd = tuple(FULL_BATCH.items())
    rate = 0.05
    envelope = PFedMe(lam=1 / rate, inner_steps=1)
    plain = Side("FedAvg with SGD", FedAvg(), settings=sgd)
    yield Identity(Side("w of pFedMe(K=1, η_w λ=1)", envelope, settings=sgd), plain, 1e-6, common=True)
    sizes = tuple(len(site.train) for _, site in sorted(_task(3, False).load_sites(_options()).items()))
    by_size = _BySize(hyper_learning_rate=0.0, sizes=sizes)
    yield Identity(Side("pFedLA(α by size, fixed)", by_size, settings=sgd), plain, 1e-6)

    for name, kind in ALGORITHMS.items():
        yield Identity(Side(name, kind()), Side(f"{name} again", kind()))
    for name, kind in ALGORITHMS.items():
        # Masks and hypernetworks are drawn by site name, so renaming a site rightly changes those two.
        same = {"fedlp": FedLP(1.0), "pfedla": PFedLA(hyper_learning_rate=0.0)}.get(name, kind())
        side = Side(name, same, settings=sgd)
        yield Identity(replace(side, name=f"{name}, sites renamed", renamed=True), side, 1e-6)


def check(progress: Callable[[Finding], None] | None = None) -> list[Finding]:
    """Puts every identity to the test."""
    known: dict[Side, Models] = {}
    findings = []
    with limited_threads(1):
        for identity in identities():
            for side in (identity.left, identity.right):
                if side not in known:
                    known[side] = _models(side)
            gap = _difference(identity, known[identity.left], known[identity.right])
            findings.append(Finding(identity, gap))
            if progress:
                progress(findings[-1])
    return findings


def _difference(identity: Identity, left: Models, right: Models) -> float:
    names = [COMMON] if identity.common else [name for name in left if name != COMMON]
    largest = 0.0
    for name in names:
        counterpart = right[_renamed(name) if identity.left.renamed else name]
        for entry, tensor in left[name].items():
            gap = float((tensor.double() - counterpart[entry].double()).abs().max())
            largest = gap if not gap <= largest else largest
    return largest


def _models(side: Side) -> Models:
    """Every site's final model, and the server's."""
    settings: dict[str, Any] = {"rounds": ROUNDS, "selection": "last", "device": "cpu"}
    options = {"training.batch_size": 8, "training.learning_rate": 0.01, "data.accept_small_sites": True}
    settings = with_settings(settings, {**options, **dict(side.settings)})
    task = _task(side.sites, side.frozen_head, side.renamed)
    experiment = Experiment.resolve(settings, task)
    run = Run(experiment, prepare_setup(experiment, task), algorithm=side.algorithm)
    return {**drive(run.rounds()).weights, COMMON: run.server.weights}


def _renamed(site: str) -> str:
    return {"site-0": "site-2", "site-2": "site-0"}.get(site, site)


@cache
def _task(sites: int, frozen_head: bool, renamed: bool = False) -> Task:
    """Small sites of different sizes that name their classes differently."""
    rng = torch.Generator().manual_seed(0)
    direction = torch.randn(6, 3, generator=rng)
    data: Mapping[str, tuple[Tensor, Tensor]] = {}
    for i, rows in enumerate((40, 57, 33)[:sites]):
        inputs = torch.randn(rows, 6, generator=rng)
        site = f"site-{i}"
        data = {**data, (_renamed(site) if renamed else site): (inputs, ((inputs @ direction).argmax(1) + i) % 3)}

    def model() -> nn.Module:
        net = MLP((6, 8, 8, 8, 3))
        if frozen_head:
            net.get_submodule("fc4").requires_grad_(False)
        return net

    return own_task(model, data, name="selftest")


def _options() -> Any:
    return _task(3, False).options()


def _server() -> Server:
    experiment = Experiment.resolve({"rounds": 1, "training": {"batch_size": 8}}, _task(3, False))
    return Run(experiment, prepare_setup(experiment, _task(3, False))).server
