"""The server's own optimiser: the change in the average serves as a gradient (FedAvgM, FedAdam, FedYogi …)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from playerfl.errors import ConfigError, at_least_zero, one_of
from playerfl.federation.client import Memory
from playerfl.weights import Weights

ServerRule = Literal["average", "momentum", "adagrad", "adam", "yogi"]


@dataclass(frozen=True)
class ServerOptimizer:
    """How the server moves the common model w, given the average a of the uploads; Δ = a - w.

    momentum:  m ← β₁·m + Δ,             w ← w + η·m
    the others:  m ← β₁·m + (1 - β₁)·Δ,  w ← w + η·m / (√v + τ),  where v starts at τ² and
      adagrad:  v ← v + Δ²
      adam:     v ← β₂·v + (1 - β₂)·Δ²
      yogi:     v ← v - (1 - β₂)·Δ²·sign(v - Δ²)

    Papers: Hsu et al. 2019, section 3 (FedAvgM), https://arxiv.org/abs/1909.06335; Reddi et al. 2021, Algorithm 2,
    https://arxiv.org/abs/2003.00295
    Differs: Δ is weighted by the sites' examples; buffers (batch-norm statistics) are averaged as usual.
    """

    rule: ServerRule
    learning_rate: float = 1.0
    momentum: float = 0.9
    """β₁."""
    beta2: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        if self.rule not in get_args(ServerRule):
            raise ConfigError(one_of(self.rule, get_args(ServerRule), "server_optimizer"))
        at_least_zero("server_learning_rate", self.learning_rate)
        for name, value in (("server_momentum", self.momentum), ("server_beta2", self.beta2)):
            if not 0 <= value < 1:
                raise ConfigError(f"{name} must be at least 0 and below 1, not {value}")
        if not 0 < self.tau < float("inf"):
            raise ConfigError(f"server_tau must be above 0 and finite, not {self.tau}")

    def moved(self, before: Weights, average: Weights, buffers: frozenset[str], memory: Memory) -> Weights:
        """The new weights of the averaged entries; `memory` holds the moments, in float64, and is updated."""
        if self.rule == "average":
            return average
        return {
            name: mean if name in buffers or name not in before else self._moved(before[name], mean, name, memory)
            for name, mean in average.items()
        }

    def _moved(self, weight: Tensor, mean: Tensor, name: str, memory: Memory) -> Tensor:
        delta = mean.double() - weight.double()
        first: Weights = memory.setdefault("m", {})
        second: Weights = memory.setdefault("v", {})
        before = first.get(name, torch.zeros_like(delta))
        if self.rule == "momentum":
            first[name] = self.momentum * before + delta
            return (weight.double() + self.learning_rate * first[name]).to(weight.dtype)
        first[name] = self.momentum * before + (1 - self.momentum) * delta
        second[name] = self._second(second.get(name, torch.full_like(delta, self.tau**2)), delta.square())
        step = first[name] / (second[name].sqrt() + self.tau)
        return (weight.double() + self.learning_rate * step).to(weight.dtype)

    def _second(self, before: Tensor, square: Tensor) -> Tensor:
        if self.rule == "adagrad":
            return before + square
        if self.rule == "adam":
            return self.beta2 * before + (1 - self.beta2) * square
        return before - (1 - self.beta2) * square * torch.sign(before - square)
