"""FedALA: each site learns, weight by weight, how much of the common model to take."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import pstdev

import torch

from playerfl.algorithms.algorithm import Algorithm
from playerfl.data.examples import Examples, TensorExamples
from playerfl.errors import ConfigError, at_least_zero
from playerfl.federation.client import Client
from playerfl.federation.messages import Download, Upload
from playerfl.layers.layer_map import LayerMap, LayerName
from playerfl.learning.coupled import Interpolated
from playerfl.weights import Weights


@dataclass(frozen=True)
class FedALA(Algorithm):
    """Before it trains, a site mixes its own model with the common one; the mix W has a number for every weight.

    In the last `mixed_layers` layers  θ' = θ_c + (w - θ_c) ∘ W  with  W ← clip(W - η·∇_W f(θ'), 0, 1), learned on a
    random share of the site's rows; the layers before are w. W starts at 1 and is learned until the loss settles in
    the second round, for one epoch in each later one. θ_c, trained from θ', is uploaded.

    Paper: Zhang et al. 2023, https://arxiv.org/abs/2212.01197. eta = 0 is FedAvg.
    Differs: the loss has settled when its mean over an epoch (the authors' code: its last batch) varies by less than
    `settled` over ten epochs, or after `most_epochs` (the code: no limit). The mix that was learned last is applied
    when models are scored after a merge.
    """

    mixed_layers: int = 1
    """How many layers, from the last, are mixed."""
    eta: float = 1.0
    """η: the rate at which W is learned."""
    rows: float = 0.8
    """The share of a site's rows that W is learned on, drawn again in every round."""
    settled: float = 0.1
    """W has settled when the standard deviation of the loss over ten epochs is below this."""
    most_epochs: int = 50
    """Maximum number of epochs for learning W, even if the loss has not settled."""

    def __post_init__(self) -> None:
        at_least_zero("eta", self.eta)
        at_least_zero("settled", self.settled)
        if not 0 < self.rows <= 1:
            raise ConfigError(f"rows must be above 0 and at most 1, not {self.rows}")
        if self.most_epochs < 1:
            raise ConfigError(f"most_epochs must be at least 1, not {self.most_epochs}")

    def check_layers(self, layers: LayerMap) -> None:
        if not 0 <= self.mixed_layers <= len(layers.names):
            raise ConfigError(
                f"mixed_layers must be between 0 and {len(layers.names)}, the number of layers, not {self.mixed_layers}"
            )

    def same_as(self, layers: LayerMap) -> str | None:
        return "FedAvg" if self.eta == 0 or self.mixed_layers == 0 else None

    def mixed(self, client: Client) -> tuple[LayerName, ...]:
        """The layers that are mixed."""
        return client.layers.names[len(client.layers.names) - self.mixed_layers :]

    async def client_fit(self, client: Client, download: Download) -> Upload:
        self.client_model(client, download)
        if "own" in client.memory:
            await self._learn_mix(client, download)
            self.client_model(client, download)
        await client.train()
        fixed = client.layers.buffers | client.layers.frozen
        client.memory["own"] = {name: w for name, w in client.weights(self.mixed(client)).items() if name not in fixed}
        return client.upload()

    async def _learn_mix(self, client: Client, download: Download) -> None:
        own: Weights = client.memory["own"]
        first = "mix" not in client.memory
        mix = client.memory.get("mix") or {name: torch.ones_like(w) for name, w in own.items()}
        ends: dict[str, Weights] = {"start": own, "end": {name: download.weights[name] for name in own}}
        rows, losses = self._some_rows(client), list[float]()
        while len(losses) < (self.most_epochs if first else 1) and not self._has_settled(losses):
            learned = await client.train(
                1, only=self.mixed(client), optimizer=Interpolated(self.eta), slots={"mix": mix, **ends}, examples=rows,
                stream="mix",
            )  # fmt: skip
            mix = learned.slots["mix"]
            losses.append(learned.loss or 0.0)
        client.memory["mix"] = mix

    def _has_settled(self, losses: list[float]) -> bool:
        return len(losses) > 10 and pstdev(losses[-10:]) < self.settled

    def _some_rows(self, client: Client) -> Examples:
        """A user's own DataLoader cannot be sampled, so all of its rows are used."""
        examples = client.data.train
        if not isinstance(examples, TensorExamples) or self.rows == 1:
            return examples
        order = torch.randperm(len(examples), generator=client.stream("rows"))
        return examples.rows(order[: max(1, round(self.rows * len(examples)))].to(examples.targets.device))

    def client_model(self, client: Client, download: Download) -> None:
        own: Weights = client.memory.get("own", {})
        mix: Weights = client.memory.get("mix", {})
        mixed = {name: torch.lerp(own[name], download.weights[name], mix[name]) for name in mix}
        client.load(download.weights, mixed)
