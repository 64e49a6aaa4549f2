"""Identities that must hold if the algorithms are what they claim to be, run on small made-up sites in seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from playerfl.algorithms import (
    ALGORITHMS,
    APFL,
    Algorithm,
    Ditto,
    FedALA,
    FedAvg,
    FedBABU,
    FedBN,
    FedCAC,
    FedDBE,
    FedLAMA,
    FedLP,
    FedPer,
    FedProx,
    FedRep,
    FedSALoRA,
    FedSelect,
    FFALoRA,
    LGFedAvg,
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
    Scaffold,
)
from playerfl.engine.scheduler import drive
from playerfl.federation.messages import SiteId
from playerfl.federation.server import Server
from playerfl.models.mlp import MLP
from playerfl.runs.api import limited_threads
from playerfl.runs.experiment import Experiment
from playerfl.runs.run import Run
from playerfl.runs.settings_table import with_settings
from playerfl.runs.setup import prepare_setup
from playerfl.selftest.small import with_adapters
from playerfl.tasks.task import Task, own_task
from playerfl.weights import Weights

LAYERS, ROUNDS = 4, 3
COMMON = "the common model"
Models = dict[str, Weights]
FULL_BATCH = {"training.batch_size": 1000, "training.optimizer": "sgd", "training.learning_rate": 0.05}


@dataclass(frozen=True)
class Side:
    """One side of an identity: a method, and how its run differs from the standard small one."""

    name: str
    algorithm: Algorithm
    sites: int = 3
    model: str = "mlp"
    """A key of `_MODELS`."""
    renamed: bool = False
    """Whether two sites swap their names; each model is compared with that of the site's new name."""
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
class CheckedIdentity:
    """An identity, and how far apart its two sides are."""

    identity: Identity
    difference: float
    """The largest over all sites and weights; 0 means equal bit for bit."""

    @property
    def holds(self) -> bool:
        return self.difference <= self.identity.tolerance


@dataclass(frozen=True)
class SelfOnly(PFedLA):
    """pFedLA in which every site gets only its own model."""

    def fresh_mixer(self, server: Server, site: SiteId) -> Weights:
        wanted = torch.tensor([1e4 if other == site else 0.0 for other in server.sites])
        return super().fresh_mixer(server, site) | {"output.bias": wanted.repeat(len(server.layers.names))}


@dataclass(frozen=True)
class BySize(PFedLA):
    """pFedLA that starts with every site weighted by its training examples."""

    sizes: tuple[int, ...] = ()

    def fresh_mixer(self, server: Server, site: SiteId) -> Weights:
        wanted = torch.tensor(self.sizes, dtype=torch.float32).log()
        return super().fresh_mixer(server, site) | {"output.bias": wanted.repeat(len(server.layers.names))}


def limit_cases(layers: int, rounds: int) -> Iterator[Identity]:
    """Hyper-parameters with which a method must equal another one, bit for bit, for a model with this many layers."""
    fedavg, local = Side("FedAvg", FedAvg()), Side("Local", Local())

    def at(cut: int, kind: type[PLayerFL] = PLayerFL, **options: Any) -> PLayerFL:
        return kind(rule="fixed", fixed_cut=cut, **options)

    def fedper(cut: int) -> Side:
        return fedavg if cut == layers else Side(f"FedPer({layers - cut} private)", FedPer(layers - cut))

    yield Identity(Side("FedProx(μ=0)", FedProx(0.0)), fedavg)
    yield Identity(Side("FedLP(q=1)", FedLP(1.0)), fedavg)
    yield Identity(Side("FedLAMA(τ=1, φ=1)", FedLAMA(1, 1)), fedavg)
    yield Identity(Side("FedPer(0 private)", FedPer(0)), fedavg)
    yield Identity(Side("FedRep(0 private)", FedRep(0)), fedavg)
    yield Identity(Side("LocalAdaptation(0 epochs)", LocalAdaptation(0)), fedavg)
    yield Identity(Side("LG-FedAvg(all shared)", LGFedAvg(layers)), fedavg)
    yield Identity(Side("FedALA(η=0)", FedALA(eta=0.0)), fedavg)
    yield Identity(Side("FedALA(no layer mixed)", FedALA(mixed_layers=0)), fedavg)
    yield Identity(Side("FedDBE(κ=0, no offset)", FedDBE(kappa=0.0, offset=False)), fedavg)
    yield Identity(Side("FedCAC(τ=0)", FedCAC(tau=0.0)), fedavg)
    yield Identity(Side("FedSelect(rate 0)", FedSelect(rate=0.0)), fedavg)
    yield Identity(Side("FedSelect(limit 0)", FedSelect(limit=0.0)), fedavg)
    yield Identity(Side("PLayer-FL(all shared)", at(layers)), fedavg)
    yield Identity(Side("PLayer-FL(huge threshold)", PLayerFL(threshold=1e30)), fedavg)
    cumulative = PLayerFL(rule="cumulative_ratio", threshold=1e30)
    yield Identity(Side("PLayer-FL(huge cumulative threshold)", cumulative), fedavg)

    yield Identity(Side("FedPer(all private)", FedPer(layers)), local)
    yield Identity(Side("FedRep(all private)", FedRep(layers)), local)
    yield Identity(Side("LG-FedAvg(all private)", LGFedAvg(0)), local)
    yield Identity(Side("FedLAMA(τ > rounds)", FedLAMA(rounds + 1)), local)
    yield Identity(Side("FedLAMA(τ > rounds, φ=1)", FedLAMA(rounds + 1, 1)), local)
    yield Identity(Side("pFedLA(self only)", SelfOnly()), local)
    yield Identity(Side("pFedLA(self only, fast)", SelfOnly(hyper_learning_rate=1.0)), local)
    yield Identity(Side("Ditto(λ=0)", Ditto(0.0)), local)
    yield Identity(Side("Ditto(λ=0, after the merge)", Ditto(0.0, anchor="post_agg")), local)
    yield Identity(Side("PLayer-FL(none shared)", at(0)), local)
    yield Identity(Side("PLayer-FL(none shared, restart)", at(0, first_epoch="restart")), local)
    # Private layers are not pulled, however strong the pull.
    yield Identity(Side("PLayer-FL + FedProx(none shared)", at(0, PLayerFLFedProx, mu=100.0)), local)
    yield Identity(Side("PLayer-FL + Ditto(none shared)", at(0, PLayerFLDitto, lam=100.0)), local)
    yield Identity(Side("PLayer-FL + FedRep(none shared)", at(0, PLayerFLFedRep)), local)
    yield Identity(Side("PLayer-FL + Ditto(λ=0)", at(layers - 1, PLayerFLDitto, lam=0.0)), local)

    for cut in range(1, layers):
        yield Identity(Side(f"PLayer-FL(cut {cut})", at(cut)), fedper(cut))
        yield Identity(Side(f"PLayer-FL(cut {cut}, restart)", at(cut, first_epoch="restart")), fedper(cut))
    for cut in range(1, layers + 1):
        yield Identity(Side(f"PLayer-FL-1(of cut {cut})", at(cut, PLayerFLMinusOne)), fedper(max(cut - 1, 1)))
        yield Identity(Side(f"PLayer-FL+1(of cut {cut})", at(cut, PLayerFLPlusOne)), fedper(min(cut + 1, layers)))
    less, more = (at(2, kind, first_epoch="restart") for kind in (PLayerFLMinusOne, PLayerFLPlusOne))
    yield Identity(Side("PLayer-FL-1(of cut 2, restart)", less), fedper(1))
    yield Identity(Side("PLayer-FL+1(of cut 2, restart)", more), fedper(3))
    without_pull = at(layers - 1, PLayerFLFedProx, mu=0.0)
    yield Identity(Side(f"PLayer-FL + FedProx(cut {layers - 1}, μ=0)", without_pull), fedper(layers - 1))

    later: Any = {"lam": 0.5, "anchor": "post_agg", "personal_epochs": 2, "personal_learning_rate": 0.02}
    for base, kind, options in (
        (FedProx(1.0), PLayerFLFedProx, {"mu": 1.0}),
        (Ditto(1.0), PLayerFLDitto, {"lam": 1.0}),
        (Ditto(**later), PLayerFLDitto, later),
        (FedRep(0, head_epochs=2), PLayerFLFedRep, {"head_epochs": 2}),
    ):
        name = f"{type(base).__name__}({', '.join(f'{key}={value}' for key, value in options.items())})"
        yield Identity(Side(f"PLayer-FL + {name}, all shared", at(layers, kind, **options)), Side(name, base))
    for private in (1, 2):
        combined = at(layers - private, PLayerFLFedRep, head_epochs=2)
        fedrep = Side(f"FedRep({private} private)", FedRep(private, head_epochs=2))
        yield Identity(Side(f"PLayer-FL + FedRep(cut {layers - private})", combined), fedrep)

    alone = Side("Local, one site", Local(), sites=1)
    for one in (FedAvg(), FedPer(), FedLAMA(), PLayerFL(), at(2)):
        yield Identity(Side(f"{type(one).__name__}, one site", one, sites=1), alone)


def identities() -> Iterator[Identity]:
    """All identities: the limit cases, and those that need a special model or settings."""
    yield from limit_cases(LAYERS, ROUNDS)

    random = PLayerFLRandom(reference_cut=2)
    drawn = random.draw(_server(), 2)[0]
    fedper = Side(f"FedPer({LAYERS - drawn} private)", FedPer(LAYERS - drawn))
    yield Identity(Side(f"PLayer-FL-Random(drew {drawn})", random), fedper)
    yield Identity(
        Side("FedBABU(before tuning)", FedBABU(finetune_epochs=0)),
        Side("FedAvg(head frozen in the model)", FedAvg(), model="head frozen"),
    )

    yield from adapter_identities()

    # These hold without batch norm and dropout, of which the two passes per batch, or the average, see more.
    fedavg, local = Side("FedAvg", FedAvg()), Side("Local", Local())
    yield Identity(Side("FedBN(no batch norm)", FedBN()), fedavg)
    yield Identity(Side("APFL(α=0)", APFL(alpha=0.0)), fedavg)
    yield Identity(Side("APFL(α=1)", APFL(alpha=1.0)), local)
    yield Identity(Side("FedCAC(τ=1, β=0)", FedCAC(tau=1.0, beta=0)), local)
    yield Identity(Side("FedCAC(τ=1)", FedCAC(tau=1.0)), fedavg)
    yield Identity(Side("FedSelect(rate 1, limit 1)", FedSelect(rate=1.0, limit=1.0)), local)
    one_round, loop = (("rounds", 1),), (("trainer", "loop"),)
    first = Side("FedAvg, one round", FedAvg(), settings=one_round)
    yield Identity(Side("SCAFFOLD, one round", Scaffold(), settings=one_round), first)
    without = Side("FedDBE(κ=0)", FedDBE(kappa=0.0), settings=loop)
    yield Identity(Side("FedDBE(μ=0)", FedDBE(momentum=0.0), settings=loop), without)

    sgd = tuple(FULL_BATCH.items())
    rate = 0.05
    still = FedAvg(server_optimizer="momentum", server_momentum=0.0)
    yield Identity(Side("FedAvgM(β=0)", still), fedavg, 1e-6)
    alone = Side("Local, one site, SGD", Local(), sites=1, settings=sgd)
    yield Identity(Side("SCAFFOLD, one site, SGD", Scaffold(), sites=1, settings=sgd), alone, 1e-6)
    envelope = PFedMe(lam=1 / rate, inner_steps=1)
    plain = Side("FedAvg with SGD", FedAvg(), settings=sgd)
    yield Identity(Side("w of pFedMe(K=1, η_w λ=1)", envelope, settings=sgd), plain, 1e-6, common=True)
    sizes = tuple(len(site.train) for _, site in sorted(_task(3).load_sites(_options()).items()))
    by_size = BySize(hyper_learning_rate=0.0, sizes=sizes)
    yield Identity(Side("pFedLA(α by size, fixed)", by_size, settings=sgd), plain, 1e-6)

    for name, kind in ALGORITHMS.items():
        yield Identity(Side(name, kind()), Side(f"{name} again", kind()))
    for name, kind in ALGORITHMS.items():
        # Masks, hypernetworks and FedALA's rows are drawn by site name, so renaming a site rightly changes those three.
        drawn_by_name = {"fedlp": FedLP(1.0), "pfedla": PFedLA(hyper_learning_rate=0.0), "fedala": FedALA(rows=1.0)}
        same = drawn_by_name.get(name, kind())
        side = Side(name, same, settings=sgd)
        yield Identity(replace(side, name=f"{name}, sites renamed", renamed=True), side, 1e-6)


def adapter_identities() -> Iterator[Identity]:
    """Of models whose only trained entries are low-rank adapters and a head."""

    def side(name: str, algorithm: Algorithm, model: str = "adapters", **changes: Any) -> Side:
        return Side(
            f"{name} over adapters" if model == "adapters" else f"{name}({model})", algorithm, model=model, **changes
        )

    yield Identity(Side("FedSA-LoRA(no LoRA)", FedSALoRA()), Side("FedAvg", FedAvg()))
    yield Identity(Side("FFA-LoRA(no LoRA)", FFALoRA()), Side("FedAvg", FedAvg()))
    yield Identity(side("FFA-LoRA", FFALoRA()), side("FedAvg", FedAvg(), "adapters, A frozen"))
    only_a = "adapters, B and head frozen"
    yield Identity(side("FedSA-LoRA", FedSALoRA(), only_a), side("FedAvg", FedAvg(), only_a))
    alone = side("Local, one site,", Local(), sites=1)
    yield Identity(side("FedSA-LoRA, one site,", FedSALoRA(), sites=1), alone)
    yield Identity(side("FedAvg, one site,", FedAvg(), sites=1), alone)
    for cut in (1, 2, 3, 4):
        shared = FedPer(LAYERS - cut) if cut < LAYERS else FedAvg()
        same = side(f"FedPer({LAYERS - cut} private)" if cut < LAYERS else "FedAvg", shared)
        yield Identity(side(f"PLayer-FL(cut {cut})", PLayerFL(rule="fixed", fixed_cut=cut)), same)


def check(progress: Callable[[CheckedIdentity], None] | None = None) -> list[CheckedIdentity]:
    """Checks every identity; each distinct run is made only once."""
    models = cache(final_models)
    checked = []
    with limited_threads(1):
        for identity in identities():
            checked.append(check_one(identity, models))
            if progress:
                progress(checked[-1])
    return checked


def check_one(identity: Identity, models: Callable[[Side], Models]) -> CheckedIdentity:
    return CheckedIdentity(identity, _difference(identity, models(identity.left), models(identity.right)))


def _difference(identity: Identity, left: Models, right: Models) -> float:
    names = [COMMON] if identity.common else [name for name in left if name != COMMON]
    largest = 0.0
    for name in names:
        counterpart = right[_renamed(name) if identity.left.renamed else name]
        for entry, tensor in left[name].items():
            gap = float((tensor.double() - counterpart[entry].double()).abs().max())
            largest = gap if not gap <= largest else largest
    return largest


def final_models(side: Side) -> Models:
    """Every site's final model, and the server's."""
    settings: dict[str, Any] = {"rounds": ROUNDS, "selection": "last", "device": "cpu"}
    options = {"training.batch_size": 8, "training.learning_rate": 0.01, "data.accept_small_sites": True}
    settings = with_settings(settings, {**options, **dict(side.settings)})
    task = _task(side.sites, side.model, side.renamed)
    experiment = Experiment.resolve(settings, task)
    run = Run(experiment, prepare_setup(experiment, task), algorithm=side.algorithm)
    return {**drive(run.rounds()).weights, COMMON: run.server.weights}


def _renamed(site: str) -> str:
    return {"site-0": "site-2", "site-2": "site-0"}.get(site, site)


@cache
def _task(sites: int, model: str = "mlp", renamed: bool = False) -> Task:
    """Small sites of different sizes that name their classes differently."""
    rng = torch.Generator().manual_seed(0)
    direction = torch.randn(6, 3, generator=rng)
    data: Mapping[str, tuple[Tensor, Tensor]] = {}
    for i, rows in enumerate((40, 57, 33)[:sites]):
        inputs = torch.randn(rows, 6, generator=rng)
        site = f"site-{i}"
        data = {**data, (_renamed(site) if renamed else site): (inputs, ((inputs @ direction).argmax(1) + i) % 3)}

    return own_task(_MODELS[model], data, name="selftest")


def _without(build: Callable[[], nn.Module], *frozen: str) -> nn.Module:
    """A model in which the parameters with these words in their names do not train."""
    net = build()
    for name, parameter in net.named_parameters():
        if any(word in name for word in frozen):
            parameter.requires_grad_(False)
    return net


def _mlp() -> nn.Module:
    return MLP((6, 8, 8, 8, 3))


_MODELS: Mapping[str, Callable[[], nn.Module]] = {
    "mlp": _mlp,
    "head frozen": lambda: _without(_mlp, "fc4"),
    "adapters": with_adapters,
    "adapters, A frozen": lambda: _without(with_adapters, "lora_A"),
    "adapters, B and head frozen": lambda: _without(with_adapters, "lora_B", "6."),
}


def _options() -> Any:
    return _task(3).options()


def _server() -> Server:
    experiment = Experiment.resolve({"rounds": 1, "training": {"batch_size": 8}}, _task(3))
    return Run(experiment, prepare_setup(experiment, _task(3))).server
