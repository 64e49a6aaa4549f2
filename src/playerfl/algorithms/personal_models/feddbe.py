"""FedDBE: what is specific to a site goes into the site's own offset, so that the shared features are alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from playerfl.algorithms.algorithm import Algorithm
from playerfl.errors import ConfigError, at_least_zero
from playerfl.federation.client import Client
from playerfl.federation.messages import Download, ExpectedUpload, SiteId, Upload, Verb
from playerfl.federation.server import Server
from playerfl.layers.layer_map import LayerMap
from playerfl.learning.optimizers import Optimizer, OptimizerState
from playerfl.weights import Weights


@dataclass(frozen=True)
class FedDBE(Algorithm):
    """FedAvg with two changes at z, the input of the last layer: a site's own offset, and a mean that all sites share.

    The last layer reads z + o_c, where o_c learns with the weights and never leaves the site; and the mean over
    features of κ/2 · (m - m*)² is added to the loss, where m is the running mean of z over batches (momentum μ) and m*
    the sites' mean in an epoch of plain training before round 1. w with o_c is reported: its last bias is b + W·o_c.

    Paper: Zhang et al. 2023, https://arxiv.org/abs/2311.14975. kappa = 0 without an offset is FedAvg.
    Differs: o_c has the optimiser of the weights (the code: plain steps); the running mean starts from the first batch
    of a round (the code: from 0, which pulls every feature towards it). The last layer must be linear with a bias.
    """

    kappa: float = 1.0
    """κ: the weight of the distance between the site's mean and the common one."""
    momentum: float = 1.0
    """μ: the weight of the newest batch in the running mean."""
    offset: bool = True
    """Whether sites have an offset; without it only the mean is regularised."""

    def __post_init__(self) -> None:
        at_least_zero("kappa", self.kappa)
        if not 0 <= self.momentum <= 1:
            raise ConfigError(f"momentum must be between 0 and 1, not {self.momentum}")

    def check_layers(self, layers: LayerMap) -> None:
        head_of(layers)

    @property
    def prepares(self) -> bool:
        return self.kappa > 0

    def common_model(self, server: Server) -> bool:
        return not self.offset

    async def client_prepare(self, client: Client, download: Download) -> Upload:
        """An epoch of plain training, of which only the mean of z is kept."""
        client.load(download.weights)
        measured = Features(head_of(client.layers))
        await client.train(attach=measured.attached, stream="features")
        client.optimizers.clear()
        assert measured.total is not None
        return Upload(client.num_examples, info={"mean": (measured.total / measured.rows).tolist()})

    def server_prepare(self, server: Server, uploads: Mapping[SiteId, Upload]) -> None:
        total = sum(upload.num_examples for upload in uploads.values())
        means = [(numbers_of(upload.info["mean"]), upload.num_examples / total) for upload in uploads.values()]
        server.memory["mean"] = [sum(mean[k] * share for mean, share in means) for k in range(len(means[0][0]))]

    def server_send(self, server: Server, site: SiteId) -> Download:
        known = site in server.initialised or "mean" not in server.memory
        return server.download() if known else server.download(mean=server.memory["mean"])

    def server_expects(self, server: Server, verbs: tuple[Verb, ...]) -> ExpectedUpload:
        if "prepare" in verbs:
            width = server.weights[f"{head_of(server.layers)}weight"].shape[-1]
            return ExpectedUpload(numbers={"mean": width}, signed=True)
        return super().server_expects(server, verbs)

    async def client_fit(self, client: Client, download: Download) -> Upload:
        client.load(download.weights)
        weight = client.weights()[f"{head_of(client.layers)}weight"]
        if "mean" in download.info:
            client.memory["mean"] = torch.tensor(numbers_of(download.info["mean"]), dtype=weight.dtype)
        features = Features(head_of(client.layers), self.kappa, self.momentum, client.memory.get("mean"))
        if self.offset:
            features.offset = client.memory.get("offset", weight.new_zeros(weight.shape[-1])).clone()
            features.state = client.optimizers.setdefault("offset", {})
        await client.train(attach=features.attached if self.offset or self.kappa else None)
        if features.offset is not None:
            client.memory["offset"] = features.offset.cpu()
        upload = client.upload()
        client.load(client.weights(), self._folded(client, client.weights()))
        return upload

    def client_model(self, client: Client, download: Download) -> None:
        client.load(download.weights)
        client.load(client.weights(), self._folded(client, client.weights()))

    def _folded(self, client: Client, weights: Weights) -> Weights:
        """The last layer's bias with the offset folded into it."""
        if "offset" not in client.memory:
            return {}
        head = head_of(client.layers)
        return {f"{head}bias": weights[f"{head}bias"] + weights[f"{head}weight"] @ client.memory["offset"]}


def head_of(layers: LayerMap) -> str:
    """The prefix of the last layer's weight and bias; ConfigError if the layer has anything else."""
    last = layers.entries[layers.names[-1]]
    head = last[0].removesuffix("weight")
    if set(last) != {f"{head}weight", f"{head}bias"}:
        raise ConfigError(
            f"FedDBE needs a linear last layer with a bias, but {layers.names[-1]!r} has {', '.join(last)}; choose "
            "another algorithm, or declare the last layer with layer_groups()"
        )
    return head


def numbers_of(values: Any) -> list[float]:
    return [float(value) for value in (values if isinstance(values, list) else [values])]


class Features:
    """Attached to a model in training: reads the input of its last layer, shifts it, and compares its mean."""

    def __init__(self, head: str, kappa: float = 0.0, momentum: float = 1.0, common: Tensor | None = None) -> None:
        self.head = head
        self.kappa, self.momentum, self.common = kappa, momentum, common
        self.offset: Tensor | None = None
        self.state: OptimizerState = {}
        self.total: Tensor | None = None
        """The sum of all features seen."""
        self.rows = 0
        self._running: Tensor | None = None
        self._mean: Tensor | None = None

    @contextmanager
    def attached(self, model: nn.Module) -> Iterator[Features]:
        layer = model.get_submodule(self.head.removesuffix("."))
        if not isinstance(layer, nn.Linear):
            raise ConfigError(f"FedDBE needs a linear last layer with a bias, not {type(layer).__name__}")
        if self.offset is not None:
            self.offset = self.offset.to(layer.weight.device).requires_grad_()
        hook = layer.register_forward_pre_hook(self._read)
        try:
            yield self
        finally:
            hook.remove()
            self.offset = None if self.offset is None else self.offset.detach()

    def _read(self, _: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        features: Tensor = inputs[0]
        flat = features.reshape(-1, features.shape[-1])
        self._mean = flat.mean(0)
        seen = flat.detach().sum(0)
        self.total = seen if self.total is None else self.total + seen
        self.rows += len(flat)
        return inputs if self.offset is None else (features + self.offset, *inputs[1:])

    def term(self) -> Tensor | None:
        if not self.kappa or self.common is None or self._mean is None:
            return None
        before = self._mean.detach() if self._running is None else self._running
        mean = (1 - self.momentum) * before + self.momentum * self._mean
        self._running = mean.detach()
        return self.kappa * 0.5 * (mean - self.common.to(mean.device)).square().mean()

    def step(self, optimizer: Optimizer) -> None:
        if self.offset is None or self.offset.grad is None:
            return
        slots = {slot: dict(self.state.get(slot, {})) for slot in optimizer.slots}
        for slot, held in slots.items():
            held.setdefault("offset", optimizer.fresh(slot, self.offset))
        self.state.update(slots)
        optimizer.stepper([self.offset], {slot: [held["offset"]] for slot, held in slots.items()})([self.offset.grad])
        self.offset.grad = None
