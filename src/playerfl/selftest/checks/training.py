"""Whether it trains: models of every kind, finite numbers, weights that move, and nothing learned from test data."""

from __future__ import annotations

from dataclasses import replace

import torch

from playerfl.selftest.small import MODELS
from playerfl.selftest.subject import ROUNDS, BrokenError, Subject, finished


def runs(subject: Subject) -> None:
    """It trains every kind of model: finite weights and scores."""
    for model in MODELS:
        ended = subject.run(model)
        for site, client in ended.clients.items():
            bad = [n for n, w in (client.kept.weights if client.kept else {}).items() if not torch.isfinite(w).all()]
            if bad:
                raise BrokenError(f"{bad[0]} of {site} is not finite after {ROUNDS} rounds with the model {model!r}")
        for row in ended.score_rows:
            if row[5] != row[5]:
                raise BrokenError(f"{row[2]} has no {row[4]} in round {row[1]} (it is NaN) with the model {model!r}")


def learns(subject: Subject) -> str | None:
    """Training changes the models, and what sites upload changes what they are sent."""
    ended = subject.run()
    initial = ended.setup.initial
    models = [client.kept.weights for client in ended.clients.values() if client.kept]
    if all(torch.equal(model[name], initial[name]) for model in models for name in model):
        return (
            f"after {ROUNDS} rounds every site still has the initial model; call await client.train() in client_fit, "
            "and merge what it gives"
        )
    start = subject.started()
    start.algorithm.server_start(start.server)
    unchanged = []
    for site in ended.server.sites:
        before, after = (run.algorithm.server_send(run.server, site).weights for run in (start, ended))
        unchanged += [torch.equal(after[name], before[name]) for name in after.keys() & before.keys()]
    uploads = any(row[4] for row in ended.traffic_rows if "fit" in str(row[2]))
    if uploads and unchanged and all(unchanged):
        return f"sites upload, but after {ROUNDS} rounds they are still sent the initial model; look at server_merge"
    return None


def leaves_test_data_alone(subject: Subject) -> None:
    """Test data have no effect on the models."""
    whole, swapped = subject.started(), subject.started()
    for client in swapped.clients.values():
        client.data = replace(client.data, test=client.data.train)
    for run in (whole, swapped):
        finished(run)
    for site, client in whole.clients.items():
        other = swapped.clients[site]
        assert client.kept
        assert other.kept
        for name, weight in client.kept.weights.items():
            if not torch.equal(weight, other.kept.weights[name]):
                raise BrokenError(
                    f"with other test data, {name} of {site}'s model differs; train on client.data.train only, and "
                    "make choices on client.data.validation"
                )
