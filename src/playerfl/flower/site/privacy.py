"""Clipping and noise for uploads, as pure functions, and the privacy they give. Experimental."""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from playerfl.algorithms import Algorithm, name_of
from playerfl.errors import ConfigError, RunDirectoryError
from playerfl.federation.messages import Info, Upload
from playerfl.federation.server import Server
from playerfl.flower.wire.envelopes import Privacy
from playerfl.layers.layer_map import LayerMap
from playerfl.storage.atomic_files import fsync_dir, write_atomically
from playerfl.weights import Weights, squared_distance

_KEY_BYTES = 32


def check_privacy(privacy: Privacy, algorithm: Algorithm, layers: LayerMap, initial: Weights) -> None:
    """Rejects options that would break the model, or promise what they do not hold."""
    statistics_travel = layers.statistics == "follow" and bool(layers.buffers)
    if (privacy.clip or privacy.secure_range) and statistics_travel:
        # A noisy variance may be negative, and a step counter can be neither clipped nor masked.
        raise ConfigError(
            "clipping, noise and secure aggregation do not work with batch norm statistics that travel; "
            'set bn_stats = "local"'
        )
    server = Server(initial, layers, ("site",), 0)
    # Which layers leave does not matter here, so any cut will do.
    server.memory["cut"] = 0
    if privacy.noise and algorithm.server_expects(server, ("fit",)).numbers:
        raise ConfigError(
            f"noise covers weights only, but {name_of(algorithm)} also uploads other numbers in every round; leave out "
            "the noise, or choose another algorithm"
        )


def private_upload(upload: Upload, sent: Mapping[str, Tensor], privacy: Privacy, rng: torch.Generator) -> Upload:
    """An upload that may leave the site. `sent`: the weights before the update, which the server knows."""
    weights = dict(upload.weights)
    if privacy.clip:
        # Rounded only at the end: between large weights, float32 would round a clipped update up, beyond the bound.
        exact = {name: w.double() if w.is_floating_point() else w for name, w in weights.items()}
        weights = {
            name: (w + noise_like(w, privacy.noise * privacy.clip, rng)).to(upload.weights[name].dtype)
            if w.is_floating_point()
            else w
            for name, w in clipped(exact, sent, privacy.clip).items()
        }
    return Upload(upload.num_examples, weights, noisy_numbers(upload.info, privacy.sensitivity_noise, rng))


def clipped(weights: Mapping[str, Tensor], sent: Mapping[str, Tensor], bound: float) -> Weights:
    """Weights whose distance from `sent`, over all entries together, is at most `bound`; what was not sent counts as 0.

    An update that is not finite counts as none: left as it is, noise could not hide that a model diverged.

    >>> clipped({"w": torch.tensor([3.0, 4.0])}, {"w": torch.zeros(2)}, 1.0)
    {'w': tensor([0.6000, 0.8000])}
    """
    sent = {name: sent[name] if name in sent else torch.zeros_like(w) for name, w in weights.items()}
    distance = math.sqrt(squared_distance(weights, sent))
    if not math.isfinite(distance):
        return {name: sent[name].to(w.dtype) if w.is_floating_point() else w for name, w in weights.items()}
    if distance <= bound:
        return dict(weights)
    share = bound / distance
    return {
        name: (sent[name].double() + share * (w.double() - sent[name].double())).to(w.dtype)
        if w.is_floating_point()
        else w
        for name, w in weights.items()
    }


def noise_like(tensor: Tensor, spread: float, rng: torch.Generator) -> Tensor:
    return torch.randn(tensor.shape, generator=rng, dtype=torch.float64).mul_(spread).to(tensor.dtype)


def noisy_numbers(info: Info, spread: float, rng: torch.Generator) -> Info:
    """Multiplies every number in a list by exp(noise): importances stay positive, whatever their scale."""
    if not spread:
        return info
    return {
        key: [float(v) * math.exp(spread * float(torch.randn((), generator=rng))) for v in value]
        if isinstance(value, list)
        else value
        for key, value in info.items()
    }


def outside(weights: Mapping[str, Tensor], bound: float) -> str | None:
    """The first entry with values out of range, which SecAgg+ would clip silently.

    >>> outside({"a": torch.tensor([7.9]), "b": torch.tensor([-60.0])}, 8.0)
    'b'
    """
    return next((name for name, w in weights.items() if not bool((w.abs() <= bound).all())), None)


def secret_key(file: Path) -> bytes:
    """The site's own secret, from which its noise is derived; made once, readable by its owner only."""
    if not file.exists():
        write_atomically(file, secrets.token_bytes(_KEY_BYTES), secret=True)
        fsync_dir(file.parent)
    key = file.read_bytes()
    if len(key) != _KEY_BYTES:
        # The noise of an empty file is no secret: the server could subtract it.
        raise RunDirectoryError(
            f"{file} has {len(key)} bytes instead of {_KEY_BYTES}, so nothing with noise leaves this site; restore it "
            "from a backup. Without one, delete it: answers to the same question then have other noise than before"
        )
    return key


def secret_generator(key: bytes, *hides: str) -> torch.Generator:
    """For noise that nobody can subtract: the server knows the seed of the run's other random streams.

    `hides`: the question, and a fingerprint of the upload as it is without noise. The same question about the same data
    gets the same noise, even after a crash, so asking again reveals nothing new. After the data have changed, equal
    noise would show the difference of two uploads as it is.
    """
    seed = hmac.new(key, "\0".join(hides).encode(), hashlib.sha256).digest()
    return torch.Generator().manual_seed(int.from_bytes(seed[:8], "little") >> 1)


def epsilon(noise: float, rounds: int, delta: float = 1e-5) -> float:
    """ε of (ε, δ)-differential privacy for one site's uploads of all rounds, against everyone, the server included.

    Two data sets of a site give updates at most 2·clip apart, so a round is ρ = (2·clip)² / (2·(noise·clip)²) =
    2 / noise² zero-concentrated private, T rounds are T·ρ, and ε = ρ + 2·√(ρ·ln(1/δ)) (Bun and Steinke 2016,
    https://arxiv.org/abs/1605.02065, Lemma 2.3 and Proposition 1.3). It covers uploaded weights only.

    >>> round(epsilon(noise=20.0, rounds=10), 2)
    1.57
    """
    return epsilon_of(rounds * round_cost(noise), delta)


def round_cost(noise: float) -> float:
    """ρ of one round's upload."""
    return 2 / noise**2 if noise > 0 else math.inf


def epsilon_of(rho: float, delta: float) -> float:
    """ε of ρ-zero-concentrated privacy; losses of several uploads add up in ρ.

    >>> epsilon_of(0.0, 1e-5)
    0.0
    """
    return rho + 2 * math.sqrt(rho * math.log(1 / delta))
