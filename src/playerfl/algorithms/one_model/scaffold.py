"""SCAFFOLD: every local step is corrected by how the site's gradients differ from everyone's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from playerfl.algorithms.algorithm import Algorithm
from playerfl.federation.client import Client
from playerfl.federation.messages import Download, ExpectedUpload, SiteId, Upload, Verb
from playerfl.federation.server import Server
from playerfl.learning.coupled import Corrected
from playerfl.weights import Weights, prefixed, unprefixed

_CONTROL = "control/"


@dataclass(frozen=True)
class Scaffold(Algorithm):
    """Control variates: c_i estimates a site's gradient, c everyone's; local steps follow g - c_i + c.

    After the round c_i⁺ = the mean of the site's gradients g of the round, and the site also sends c_i⁺ - c_i;
    c ← Σ_i (n_i / Σ n) · c_i. For plain gradient steps the mean of g is (w - θ_i)/(Kη) - c + c_i: Option II.

    Paper: Karimireddy et al. 2020, Algorithm 1, https://arxiv.org/abs/1910.06378
    Differs: the gradients are accumulated instead of derived from θ_i, which gives the same numbers for plain steps and
    also works with momentum, AdamW and weight decay; c is weighted by the sites' examples, like w.
    """

    def common_model(self, server: Server) -> bool:
        return True

    def server_send(self, server: Server, site: SiteId) -> Download:
        download = server.download()
        control = server.memory.get("control")
        return replace(download, weights=download.weights | prefixed(_CONTROL, control)) if control else download

    def server_expects(self, server: Server, verbs: tuple[Verb, ...]) -> ExpectedUpload:
        return ExpectedUpload(server.layers.names if "fit" in verbs else (), beside=(_CONTROL,))

    async def client_fit(self, client: Client, download: Download) -> Upload:
        self.client_model(client, download)
        fixed = client.layers.buffers | client.layers.frozen
        zeros = {n: torch.zeros_like(w) for n, w in client.weights().items() if n not in fixed}
        before: Weights = client.memory.get("control", zeros)
        common = unprefixed(_CONTROL, download.weights) or zeros
        trained = await client.train(
            optimizer=Corrected(client.plan.optimizer),
            slots={
                "correction": {name: common[name] - before[name] for name in zeros},
                "total": zeros,
                "steps": {name: torch.zeros(()) for name in zeros},
            },
        )
        total, steps = trained.slots["total"], trained.slots["steps"]
        after = {name: total[name] / steps[name].clamp_min(1).to(total[name].dtype) for name in zeros}
        client.memory["control"] = after
        upload = client.upload()
        change = {name: after[name] - before[name] for name in zeros}
        return replace(upload, weights={**upload.weights, **prefixed(_CONTROL, change)})

    def server_merge(self, server: Server, uploads: Mapping[SiteId, Upload]) -> None:
        models = {s: replace(u, weights={n: u.weights[n] for n in server.weights}) for s, u in uploads.items()}
        super().server_merge(server, models)
        sizes: dict[SiteId, int] = server.memory.setdefault("sizes", {})
        before = sum(sizes.values())
        sizes.update({site: upload.num_examples for site, upload in uploads.items()})
        total = sum(sizes.values())
        control: Weights = server.memory.get("control", {})
        parameters = [name for name in server.weights if name not in server.layers.buffers]
        server.memory["control"] = {name: self._control(control, name, uploads, before, total) for name in parameters}

    def _control(
        self, control: Weights, name: str, uploads: Mapping[SiteId, Upload], before: int, total: int
    ) -> Tensor:
        """c of one parameter: the mean of c_i over the sites seen so far, some of which have changed."""
        changes = ((upload.weights[_CONTROL + name], upload.num_examples) for upload in uploads.values())
        change = sum((share * tensor.double() for tensor, share in changes), torch.zeros((), dtype=torch.float64))
        held = control[name].double() * before if name in control else 0.0
        return ((held + change) / total).to(next(iter(uploads.values())).weights[name].dtype)

    def client_model(self, client: Client, download: Download) -> None:
        client.load({name: w for name, w in download.weights.items() if not name.startswith(_CONTROL)})
