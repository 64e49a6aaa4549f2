"""Methods against a second computation in numpy, written from their equations and from nothing else.

Two sites of 9 and 5 rows, ŷ = B·A·x, mean squared error, one full batch per epoch, gradient descent, three rounds.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from algorithms.linear import FULL_BATCH, ROWS, data, linear_task
from algorithms.recorder import Watched, watch
from federations import build
from playerfl.algorithms import Algorithm, Ditto, FedProx, FedRep, PFedMe

ROUNDS, RATE = 3, 0.1
Array = NDArray[np.float64]
Model = list[Array]
"""[A, B]: the first and the second layer."""

DATA = {site: (x.numpy(), y.numpy()) for site, (x, y) in data().items()}
SHARE = {site: rows / sum(ROWS.values()) for site, rows in ROWS.items()}


def gradient(model: Model, site: str) -> Model:
    a, b = model
    x, y = DATA[site]
    hidden = x @ a.T
    error = 2 * (hidden @ b.T - y) / y.size
    return [(error @ b).T @ x, error.T @ hidden]


def descend(model: Model, site: str, *, rate: float = RATE, anchor: Model | None = None, pull: float = 0.0) -> Model:
    slope = gradient(model, site)
    towards = model if anchor is None else anchor
    return [w - rate * (g + pull * (w - v)) for w, g, v in zip(model, slope, towards, strict=True)]


def averaged(models: dict[str, Model]) -> Model:
    return [sum(SHARE[site] * models[site][layer] for site in models) for layer in (0, 1)]  # type: ignore[misc]


def federated(algorithm: Algorithm, **settings: object) -> tuple[Watched, Model]:
    """The run, and the model it started from."""
    watched = watch(build(algorithm, linear_task(), rounds=ROUNDS, **FULL_BATCH, **settings))
    return watched, [watched.run.setup.initial[f"{layer}.weight"].numpy() for layer in (0, 1)]


def assert_reported(watched: Watched, expected: dict[str, Model]) -> None:
    for site, model in expected.items():
        for layer in (0, 1):
            found = watched.result.weights[site][f"{layer}.weight"].numpy()
            np.testing.assert_allclose(found, model[layer], rtol=0, atol=1e-9, err_msg=f"{site}, layer {layer}")


def assert_common(watched: Watched, expected: Model, layers: tuple[int, ...] = (0, 1)) -> None:
    for layer in layers:
        found = watched.run.server.weights[f"{layer}.weight"].numpy()
        np.testing.assert_allclose(found, expected[layer], rtol=0, atol=1e-9, err_msg=f"server, layer {layer}")


@pytest.mark.parametrize("epochs", [1, 3])
def test_fedprox(epochs: int) -> None:
    watched, w = federated(FedProx(mu=0.8), **{"training.local_epochs": epochs})
    for _ in range(ROUNDS):
        trained = {}
        for site in DATA:
            theta = w
            for _ in range(epochs):
                theta = descend(theta, site, anchor=w, pull=0.8)
            trained[site] = theta
        w = averaged(trained)
    assert_reported(watched, dict.fromkeys(DATA, w))
    assert_common(watched, w)


@pytest.mark.parametrize("beta", [1.0, 0.4])
@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize("decay", [0.0, 0.05])
@pytest.mark.parametrize("lam", [0.0, 2.0])
def test_pfedme(beta: float, epochs: int, decay: float, lam: float) -> None:
    inner, local_rate = 3, 0.2
    algorithm = PFedMe(lam=lam, inner_steps=inner, beta=beta, local_learning_rate=local_rate, weight_decay=decay)
    watched, w = federated(algorithm, **{"training.local_epochs": epochs})
    personal: dict[str, Model] = {}
    for _ in range(ROUNDS):
        copies = {}
        for site in DATA:
            theta, w_c = list(w), list(w)
            for _ in range(epochs):
                for _ in range(inner):
                    slope = gradient(theta, site)
                    theta = [
                        t - RATE * (g + lam * (t - v) + decay * t) for t, g, v in zip(theta, slope, w_c, strict=True)
                    ]
                w_c = [v - local_rate * lam * (v - t) for v, t in zip(w_c, theta, strict=True)]
            personal[site], copies[site] = theta, w_c
        w = [(1 - beta) * old + beta * new for old, new in zip(w, averaged(copies), strict=True)]
    assert_reported(watched, personal)
    assert_common(watched, w)


def test_by_default_pfedme_uses_the_training_rate_for_its_local_copy() -> None:
    given, _ = federated(PFedMe(lam=2.0, local_learning_rate=RATE))
    default, _ = federated(PFedMe(lam=2.0))
    assert_common(default, [given.run.server.weights[f"{layer}.weight"].numpy() for layer in (0, 1)])


@pytest.mark.parametrize("anchor", ["round_start", "post_agg"])
@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize("personal_epochs", [1, 3])
@pytest.mark.parametrize("own_rate", [None, 0.03])
def test_ditto(anchor: str, epochs: int, personal_epochs: int, own_rate: float | None) -> None:
    algorithm = Ditto(lam=0.7, personal_epochs=personal_epochs, anchor=anchor, personal_learning_rate=own_rate)  # type: ignore[arg-type]
    watched, w = federated(algorithm, **{"training.local_epochs": epochs})
    own = dict.fromkeys(DATA, w)
    for _ in range(ROUNDS):
        received, trained = w, {}
        for site in DATA:
            theta = received
            for _ in range(epochs):
                theta = descend(theta, site)
            trained[site] = theta
        w = averaged(trained)
        for site in DATA:
            for _ in range(personal_epochs):
                towards = received if anchor == "round_start" else w
                own[site] = descend(own[site], site, rate=own_rate or RATE, anchor=towards, pull=0.7)
    assert_reported(watched, own)
    assert_common(watched, w)


@pytest.mark.parametrize(("head_epochs", "body_epochs"), [(1, 1), (3, 1), (1, 2)])
def test_fedrep(head_epochs: int, body_epochs: int) -> None:
    watched, (body, head) = federated(FedRep(head_epochs=head_epochs, body_epochs=body_epochs))
    heads = dict.fromkeys(DATA, head)
    for _ in range(ROUNDS):
        bodies = {}
        for site in DATA:
            for _ in range(head_epochs):
                heads[site] = heads[site] - RATE * gradient([body, heads[site]], site)[1]
            own = body
            for _ in range(body_epochs):
                own = own - RATE * gradient([own, heads[site]], site)[0]
            bodies[site] = own
        body = sum(SHARE[site] * bodies[site] for site in DATA)  # type: ignore[assignment]
    assert_reported(watched, {site: [body, heads[site]] for site in DATA})
    assert_common(watched, [body, head], layers=(0,))
