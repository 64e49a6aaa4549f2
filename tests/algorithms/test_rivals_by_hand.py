"""The rivals of PLayer-FL against a second computation in numpy, written from their equations and from nothing else.

As in `test_by_hand`: two sites of 9 and 5 rows, ŷ = B·A·x, squared error, full batches, gradient descent, three rounds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from algorithms.linear import FULL_BATCH, HIDDEN, INPUTS, OUTPUTS, ROWS, data, squared_error
from algorithms.recorder import watch
from algorithms.test_by_hand import (
    DATA,
    RATE,
    ROUNDS,
    SHARE,
    Array,
    Model,
    assert_common,
    assert_reported,
    averaged,
    descend,
    federated,
    gradient,
)
from federations import build
from playerfl.algorithms import APFL, FedALA, FedAvg, FedBN, FedCAC, FedDBE, FedSelect, LGFedAvg, Scaffold
from playerfl.tasks.task import Task, own_task


def plus(left: Model, right: Model, factor: float = 1.0) -> Model:
    return [a + factor * b for a, b in zip(left, right, strict=True)]


def times(model: Model, factor: float) -> Model:
    return [factor * a for a in model]


@pytest.mark.parametrize("trainer", ["loop", "stacked"])
@pytest.mark.parametrize("epochs", [1, 3])
def test_scaffold_is_option_two_of_the_paper(epochs: int, trainer: str) -> None:
    watched, w = federated(Scaffold(), **{"training.local_epochs": epochs, "trainer": trainer})
    zero = times(w, 0.0)
    common, own = zero, dict.fromkeys(DATA, zero)
    for _ in range(ROUNDS):
        trained = {}
        for site in DATA:
            theta = w
            for _ in range(epochs):
                step = plus(plus(gradient(theta, site), own[site], -1), common)
                theta = plus(theta, step, -RATE)
            own[site] = plus(plus(own[site], common, -1), plus(w, theta, -1), 1 / (epochs * RATE))
            trained[site] = theta
        w, common = averaged(trained), averaged(own)
    assert_common(watched, w)
    assert_reported(watched, dict.fromkeys(DATA, w))


def test_lg_fedavg_shares_the_head() -> None:
    watched, (body, head) = federated(LGFedAvg(shared_layers=1))
    bodies = dict.fromkeys(DATA, body)
    for _ in range(ROUNDS):
        heads = {}
        for site in DATA:
            bodies[site], heads[site] = descend([bodies[site], head], site)
        head = sum(SHARE[site] * heads[site] for site in DATA)  # type: ignore[assignment]
    assert_reported(watched, {site: [bodies[site], head] for site in DATA})
    assert_common(watched, [body, head], layers=(1,))


@pytest.mark.parametrize("trainer", ["loop", "stacked"])
@pytest.mark.parametrize("alpha_rate", [0.0, 0.5])
def test_apfl(alpha_rate: float, trainer: str) -> None:
    epochs = 2
    algorithm = APFL(alpha=0.3, alpha_learning_rate=alpha_rate)
    watched, w = federated(algorithm, **{"training.local_epochs": epochs, "trainer": trainer})
    personal, alpha = dict.fromkeys(DATA, w), dict.fromkeys(DATA, 0.3)
    for _ in range(ROUNDS):
        copies = {}
        for site in DATA:
            copy, v, a, slope = w, personal[site], alpha[site], 0.0
            for _ in range(epochs):
                at_mixture = gradient(plus(times(v, a), copy, 1 - a), site)
                slope += sum(float(((p - q) * g).sum()) for p, q, g in zip(v, copy, at_mixture, strict=True))
                v, copy = plus(v, at_mixture, -RATE * a), descend(copy, site)
            personal[site], copies[site] = v, copy
            alpha[site] = float(np.clip(a - alpha_rate * slope, 0, 1))
        w = averaged(copies)
    assert_common(watched, w)
    assert_reported(watched, {s: plus(times(personal[s], alpha[s]), w, 1 - alpha[s]) for s in DATA})
    if alpha_rate:
        assert len({0.3, *alpha.values()}) == 3


@pytest.mark.parametrize("trainer", ["loop", "stacked"])
@pytest.mark.parametrize("eta", [1.0, 20.0])
def test_fedala(eta: float, trainer: str) -> None:
    algorithm = FedALA(mixed_layers=1, eta=eta, rows=1.0, settled=1e-3, most_epochs=15)
    watched, (body, head) = federated(algorithm, trainer=trainer)
    own: dict[str, Array] = {}
    mix: dict[str, Array] = {}
    for _ in range(ROUNDS):
        bodies, heads = {}, {}
        for site in DATA:
            start = head
            if site in own:
                losses: list[float] = []
                first = site not in mix
                learned, way = mix.get(site, np.ones_like(head)), head - own[site]
                while len(losses) < (15 if first else 1):
                    if len(losses) > 10 and np.std(losses[-10:]) < 1e-3:
                        break
                    at = own[site] + way * learned
                    losses.append(float(((DATA[site][0] @ body.T @ at.T - DATA[site][1]) ** 2).mean()))
                    learned = np.clip(learned - eta * gradient([body, at], site)[1] * way, 0, 1)
                mix[site], start = learned, own[site] + way * learned
            bodies[site], heads[site] = descend([body, start], site)
            own[site] = heads[site]
        body = sum(SHARE[s] * bodies[s] for s in DATA)  # type: ignore[assignment]
        head = sum(SHARE[s] * heads[s] for s in DATA)  # type: ignore[assignment]
    assert_common(watched, [body, head])
    assert_reported(watched, {s: [body, own[s] + (head - own[s]) * mix[s]] for s in DATA})
    if eta > 1:
        assert any((m < 1).any() for m in mix.values())


@pytest.mark.parametrize(("tau", "beta"), [(0.5, 100), (0.5, 1), (0.25, 0)])
def test_fedcac(tau: float, beta: int) -> None:
    watched, w = federated(FedCAC(tau=tau, beta=beta))
    models = dict.fromkeys(DATA, w)
    for round_ in range(1, ROUNDS + 1):
        trained = {site: descend(models[site], site) for site in DATA}
        w = averaged(trained)
        masks = {site: [critical(a, b, tau) for a, b in zip(models[site], trained[site], strict=True)] for site in DATA}
        # With two sites there is one pair, so the mean overlap is the largest: they work together until round beta.
        for site in DATA:
            shared = w if round_ <= beta else trained[site]
            models[site] = [np.where(m, s, c) for m, s, c in zip(masks[site], shared, w, strict=True)]
    assert_reported(watched, models)
    assert_common(watched, w)


def critical(before: Array, after: Array, tau: float) -> Array:
    score = np.abs((after - before) * after).ravel()
    mask = np.zeros(score.size, dtype=bool)
    mask[np.argsort(-score, kind="stable")[: int(tau * score.size)]] = True
    return mask.reshape(before.shape)  # type: ignore[return-value]


def test_fedcac_partners_are_those_with_the_same_critical_weights() -> None:
    """Three sites: two of them alike. The threshold rises from the mean overlap to the largest."""
    masks = {
        "a": {"w": torch.tensor([True, True, False, False])},
        "b": {"w": torch.tensor([True, True, False, False])},
        "c": {"w": torch.tensor([False, True, True, False])},
    }
    method = FedCAC(tau=0.5, beta=4)
    assert method.partners(masks, 1) == {"a": ["a", "b"], "b": ["a", "b"], "c": ["c"]}
    assert method.partners(masks, 4) == {"a": ["a", "b"], "b": ["a", "b"], "c": ["c"]}
    assert method.partners(masks, 5) == {"a": ["a"], "b": ["b"], "c": ["c"]}


@pytest.mark.parametrize("trainer", ["loop", "stacked"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_fedselect(momentum: float, trainer: str) -> None:
    rate, limit = 0.25, 0.4
    settings: dict[str, Any] = {"training.momentum": momentum, "trainer": trainer}
    watched, w = federated(FedSelect(rate=rate, limit=limit), **settings)
    own = {site: [np.zeros_like(part, dtype=bool) for part in w] for site in DATA}
    personal = {site: list(w) for site in DATA}
    speed = {site: [np.zeros_like(part) for part in w] for site in DATA}
    for _ in range(ROUNDS):
        trained: dict[str, Model] = {}
        for site in DATA:
            theta = before = [np.where(m, p, c) for m, p, c in zip(own[site], personal[site], w, strict=True)]
            for chosen in (own[site], [~mask for mask in own[site]]):
                if not any(mask.any() for mask in chosen):
                    continue
                slope = gradient(theta, site)
                for layer, mask in enumerate(chosen):
                    new = momentum * speed[site][layer] + slope[layer]
                    speed[site][layer] = np.where(mask, new, speed[site][layer])
                theta = [np.where(mask, t - RATE * s, t) for t, s, mask in zip(theta, speed[site], chosen, strict=True)]
            trained[site] = personal[site] = theta
            grown = [grow(*parts, rate, limit) for parts in zip(own[site], before, theta, strict=True)]
            trained[f"{site} mask"], own[site] = own[site], grown
        for layer in (0, 1):
            shares = {site: ROWS[site] * ~trained[f"{site} mask"][layer] for site in DATA}
            count = sum(shares.values())
            total = sum(shares[site] * trained[site][layer] for site in DATA)
            w[layer] = np.where(count > 0, total / np.maximum(count, 1), w[layer])
    assert_common(watched, w)
    mixed = {s: [np.where(m, p, c) for m, p, c in zip(own[s], personal[s], w, strict=True)] for s in DATA}
    assert_reported(watched, mixed)


def grow(mask: Array, before: Array, after: Array, rate: float, limit: float) -> Array:
    shared = int((~mask).sum())
    count = max(0, min(int(limit * mask.size) - int(mask.sum()), round(rate * shared)))
    change = np.where(mask, -1, np.abs(after - before)).ravel()
    flat = mask.ravel().copy()
    flat[np.argsort(-change, kind="stable")[:count]] = True
    return flat.reshape(mask.shape)


def biased() -> nn.Module:
    return nn.Sequential(
        nn.Linear(INPUTS, HIDDEN, bias=False, dtype=torch.float64),
        nn.Linear(HIDDEN, OUTPUTS, dtype=torch.float64),
    )


def in_parts(build_model: Any) -> Task:
    sites = {site: {"train": rows, "validation": rows, "test": rows} for site, rows in data().items()}
    return own_task(build_model, sites, loss=squared_error, metrics={})


@pytest.mark.parametrize(("kappa", "momentum"), [(0.0, 1.0), (3.0, 1.0), (3.0, 0.4)])
@pytest.mark.parametrize("offset", [True, False])
def test_feddbe(kappa: float, momentum: float, offset: bool) -> None:
    epochs = 2
    settings = {**FULL_BATCH, "training.local_epochs": epochs}
    algorithm = FedDBE(kappa=kappa, momentum=momentum, offset=offset)
    watched = watch(build(algorithm, in_parts(biased), rounds=ROUNDS, **settings))
    initial = watched.run.setup.initial
    w = [initial[name].numpy() for name in ("0.weight", "1.weight", "1.bias")]

    def slopes(model: Model, site: str, shift: Array, pulled: Array | None) -> tuple[Model, Array, Array]:
        """Gradients of the weights and of the offset, and the mean of z. `pulled`: the gradient of z's mean."""
        (a, b, c), (x, y) = model, DATA[site]
        z = x @ a.T
        error = 2 * ((z + shift) @ b.T + c - y) / y.size
        at_z = error @ b + (0 if pulled is None else pulled / len(x))
        return [at_z.T @ x, error.T @ (z + shift), error.sum(0)], (error @ b).sum(0), z.mean(0)

    still = np.zeros(HIDDEN)
    means = {}
    for site in DATA:
        model, total = w, np.zeros(HIDDEN)
        for _ in range(epochs):
            slope, _, mean = slopes(model, site, still, None)
            model, total = plus(model, slope, -RATE), total + mean
        means[site] = total / epochs
    common = sum(SHARE[site] * means[site] for site in DATA)
    shifts = dict.fromkeys(DATA, still)
    for _ in range(ROUNDS):
        trained = {}
        for site in DATA:
            model, shift, running = w, shifts[site], None
            for _ in range(epochs):
                mean = (DATA[site][0] @ model[0].T).mean(0)
                running = mean if running is None else (1 - momentum) * running + momentum * mean
                pulled = kappa * momentum * (running - common) / HIDDEN
                slope, at_shift, _ = slopes(model, site, shift, pulled)
                model = plus(model, slope, -RATE)
                shift = shift - RATE * at_shift if offset else shift
            trained[site], shifts[site] = model, shift
        w = [sum(SHARE[site] * trained[site][i] for site in DATA) for i in range(3)]  # type: ignore[misc]
    for site in DATA:
        found = watched.result.weights[site]
        expected = [w[0], w[1], w[2] + w[1] @ shifts[site]]
        for name, part in zip(("0.weight", "1.weight", "1.bias"), expected, strict=True):
            np.testing.assert_allclose(found[name].numpy(), part, rtol=0, atol=1e-9, err_msg=f"{site}, {name}")
    if offset:
        assert all(np.abs(shift).max() > 1e-3 for shift in shifts.values())


def normed() -> nn.Module:
    return nn.Sequential(
        nn.Linear(INPUTS, HIDDEN, bias=False, dtype=torch.float64),
        nn.BatchNorm1d(HIDDEN, dtype=torch.float64),
        nn.Linear(HIDDEN, OUTPUTS, bias=False, dtype=torch.float64),
    )


def test_fedbn_keeps_the_norm_of_every_site() -> None:
    watched = watch(build(FedBN(), in_parts(normed), rounds=ROUNDS, **FULL_BATCH))
    initial = {name: w.clone() for name, w in watched.run.setup.initial.items()}
    shared = {name: initial[name] for name in ("0.weight", "2.weight")}
    norms = {site: {n: initial[f"1.{n}"].clone() for n in ("weight", "bias")} for site in DATA}
    statistics = {site: [torch.zeros(HIDDEN).double(), torch.ones(HIDDEN).double()] for site in DATA}
    for _ in range(ROUNDS):
        trained = {}
        for site, (x, y) in data().items():
            leaves = {n: w.clone().requires_grad_() for n, w in {**shared, **norms[site]}.items()}
            hidden = F.batch_norm(
                x @ leaves["0.weight"].T, *statistics[site], leaves["weight"], leaves["bias"], training=True
            )
            squared_error(hidden @ leaves["2.weight"].T, y).mean().backward()  # type: ignore[no-untyped-call]
            stepped = {n: (leaf - RATE * leaf.grad).detach() for n, leaf in leaves.items() if leaf.grad is not None}
            trained[site] = {n: stepped[n] for n in shared}
            norms[site] = {n: stepped[n] for n in ("weight", "bias")}
        shared = {n: sum(SHARE[site] * trained[site][n] for site in DATA) for n in shared}  # type: ignore[misc]
    for site, found in watched.result.weights.items():
        mean, variance = statistics[site]
        expected = shared | {f"1.{n}": w for n, w in norms[site].items()}
        expected |= {"1.running_mean": mean, "1.running_var": variance}
        for name, weight in expected.items():
            torch.testing.assert_close(found[name], weight, rtol=0, atol=1e-9, msg=f"{site}, {name}")


@pytest.mark.parametrize("rule", ["momentum", "adagrad", "adam", "yogi"])
def test_the_servers_optimiser(rule: str) -> None:
    rate, b1, b2, tau = 0.3, 0.8, 0.95, 1e-2
    options: dict[str, Any] = {"server_learning_rate": rate, "server_momentum": b1, "server_beta2": b2}
    watched, w = federated(FedAvg(server_optimizer=rule, server_tau=tau, **options))  # type: ignore[arg-type]
    m, v = times(w, 0.0), [np.full_like(part, tau**2) for part in w]
    for _ in range(ROUNDS):
        delta = plus(averaged({site: descend(w, site) for site in DATA}), w, -1)
        if rule == "momentum":
            m = plus(delta, m, b1)
            w = plus(w, m, rate)
            continue
        m = plus(times(m, b1), delta, 1 - b1)
        square = [d**2 for d in delta]
        v = {
            "adagrad": lambda v=v, s=square: plus(v, s),
            "adam": lambda v=v, s=square: plus(times(v, b2), s, 1 - b2),
            "yogi": lambda v=v, s=square: [a - (1 - b2) * b * np.sign(a - b) for a, b in zip(v, s, strict=True)],
        }[rule]()
        w = [x + rate * a / (np.sqrt(b) + tau) for x, a, b in zip(w, m, v, strict=True)]
    assert_common(watched, w)
    assert_reported(watched, dict.fromkeys(DATA, w))
