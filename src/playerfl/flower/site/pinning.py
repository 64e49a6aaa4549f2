"""Checks of one envelope against what a site agreed to, and of one upload before it leaves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from playerfl.algorithms import Algorithm, FedLAMA, Local, PartialAlgorithm, PLayerFL
from playerfl.federation.client import Client
from playerfl.federation.messages import Download, ExpectedUpload, Request, Upload, Verb
from playerfl.federation.server import Server
from playerfl.flower.site.files.contract import Contract, Decision
from playerfl.flower.site.policy import ProtectedLayers
from playerfl.flower.wire.envelopes import Envelope, RefusedError
from playerfl.flower.wire.values import unusable_values
from playerfl.layers.layer_map import LayerMap
from playerfl.weights import Weights

_STEPS: frozenset[tuple[Verb, ...]] = frozenset(
    {("prepare",), ("fit",), ("evaluate",), ("finish",), ("evaluate", "fit"), ("evaluate", "finish")}
)
_CLOSE = 1e-5
"""How far the weights of round 0 may be from the initial model: some methods average equal models first."""


def check_step(contract: Contract, envelope: Envelope, request: Request, asked: str, rounds: int) -> None:
    """Refuses verbs and rounds that no server following the protocol asks for, and a second answer to one of them."""
    round_, verbs = request.download.round, request.verbs
    if verbs not in _STEPS:
        raise RefusedError("pinned", f"no step of a job asks for {'+'.join(verbs) or 'nothing'}")
    least, most = (0, 0) if "prepare" in verbs else (0, rounds - 1) if "fit" in verbs else (1, rounds)
    if not least <= round_ <= most:
        raise RefusedError("pinned", f"round {round_} of {rounds} cannot {verbs[-1]}")
    if request.best_round is not None and not 0 <= request.best_round <= round_:
        raise RefusedError("pinned", f"round {request.best_round} cannot be the best of {round_} rounds")
    for step in envelope.steps:
        before = contract.answers.get(step)
        if before is not None and (before.key, before.asked) != (envelope.key, asked):
            raise RefusedError("pinned", f"{step} was already answered, for a different request ({before.key})")
        if contract.questions.get(step, asked) != asked:
            # Whether an answer may leave depends on the rows: asked with many weights, one round would tell an update.
            raise RefusedError("pinned", f"{step} was already asked, with a different request")
    known = all(step in contract.answers for step in envelope.steps)
    if contract.finished and not known:
        raise RefusedError("finished", "this site has finished the job")
    if round_ < contract.latest_round and not known:
        raise RefusedError("pinned", f"round {round_} comes after round {contract.latest_round} was answered")


@dataclass(frozen=True)
class Pinned:
    """What may be loaded and what may leave, by the pinned algorithm, the cut and the site's policy."""

    algorithm: Algorithm
    layers: LayerMap
    initial: Weights
    protected: ProtectedLayers

    def first_cut(self) -> int | None:
        """The cut that the algorithm's settings decide; None if the server decides it, or if there is none."""
        if isinstance(self.algorithm, PLayerFL):
            # Variants that move the measured cut say so only to the server.
            return self.algorithm.fixed_cut if type(self.algorithm).final_cut is PLayerFL.final_cut else None
        if not isinstance(self.algorithm, PartialAlgorithm) or self.algorithm.prepares:
            return None
        return self.algorithm.cut(Server(self.initial, self.layers, ("site",), 0))

    def shared(self, cut: int | None) -> tuple[str, ...] | None:
        """The layers that the job's fits upload at most; None if that is not known yet."""
        uploads = self._uploads(cut)
        return None if uploads is None else uploads.layers

    def kept_back(self) -> frozenset[str]:
        """Entries that stay here even if their layer is shared: what is frozen, and what the algorithm keeps."""
        if isinstance(self.algorithm, PartialAlgorithm):
            return self.layers.never_sent
        return self.layers.never_sent | self._expected({}, 0, ("fit",)).without

    def _uploads(self, cut: int | None) -> ExpectedUpload | None:
        """What the fits of all rounds upload together at most; None if that is not known yet."""
        if isinstance(self.algorithm, Local):
            return ExpectedUpload()
        if not isinstance(self.algorithm, PartialAlgorithm):
            # One round may tell less than another: FedLAMA uploads a layer every few rounds.
            return replace(self._expected({}, 0, ("fit",)), layers=self.layers.names)
        if cut is None and self.algorithm.prepares:
            return None
        return self._expected({} if cut is None else {"cut": cut}, 0, ("fit",))

    def _expected(self, memory: Mapping[str, Any], round_: int, verbs: tuple[Verb, ...]) -> ExpectedUpload:
        """The upload that the algorithm's server accepts in return for these verbs."""
        server = Server(self.initial, self.layers, ("site",), 0)
        server.memory, server.round = dict(memory), round_
        return self.algorithm.server_expects(server, verbs)

    def numbers_at_start(self) -> Mapping[str, int]:
        """The lists of numbers that are uploaded once, before the first round: name and length."""
        return self._expected({}, 0, ("prepare",)).numbers if self.algorithm.prepares else {}

    def numbers_per_round(self) -> Mapping[str, int]:
        """The lists of numbers that are uploaded with every fit: name and length."""
        return self._expected({"cut": 0}, 0, ("fit",)).numbers

    def check_shared(self, cut: int | None, decision: Decision | None) -> None:
        """Refuses a job that would share more than the policy and the person who approved it allow."""
        kept = self.never_sent()
        shared = self.shared(cut)
        if shared is None:
            return
        memory = {} if cut is None else {"cut": cut}
        if leaving := kept & self._expected(memory, 0, ("fit",)).entries(self.layers, self.initial).keys():
            raise RefusedError("refused", f"the job shares {min(leaving)}, which the policy never sends")
        most = len(self.layers.names) - self.protected.least_private
        if decision is not None and decision.most_layers is not None:
            most = min(most, decision.most_layers)
        if len(shared) > most:
            raise RefusedError("refused", f"the job shares {len(shared)} layers, but at most {most} are allowed here")

    def never_sent(self) -> set[str]:
        """The tensors that the policy never sends, even where another layer owns what a protected one uses."""
        entries: set[str] = set()
        for name in self.protected.never_send:
            if name not in self.layers.entries and name not in self.layers.all_entries:
                # A name that protects nothing is a mistake that nobody would notice.
                known = ", ".join(self.layers.names)
                raise RefusedError("refused", f"the policy never sends {name!r}, but the model has the layers {known}")
            entries |= {name} | set(self.layers.entries.get(name, ()))
            entries |= {entry for entry, users in self.layers.tied.items() if name in users}
        return entries

    def told_cut(self, agreed: int | None, download: Download) -> int | None:
        """The cut after this envelope: the agreed one, or the one that the server states for the first time."""
        told = download.info.get("cut")
        if told is None:
            return agreed
        if type(told) is not int or not 0 <= told <= len(self.layers.names):
            raise RefusedError("pinned", f"the cut must be between 0 and {len(self.layers.names)}, not {told!r:.40}")
        if agreed is not None and told != agreed:
            raise RefusedError("pinned", f"the envelope has the cut {told}, but this site agreed to {agreed}")
        return told

    def check_download(self, download: Download, cut: int | None, *, trained: bool) -> None:
        """Refuses weights that are not those of the model, and numbers that no algorithm sends.

        `trained`: whether this site has private layers of its own, which nothing in a message may replace.
        """
        travelling = self._downloaded()
        uploads = self._uploads(cut)
        # Until the cut is known, any layer may turn out to be private.
        common = {} if uploads is None else uploads.entries(self.layers, self.initial)
        for name, tensor in download.weights.items():
            wanted = travelling.get(name)
            if wanted is None:
                raise RefusedError("pinned", f"the envelope holds {name[:80]!r}, which is never sent")
            if tensor.shape != wanted.shape or tensor.dtype != wanted.dtype:
                raise RefusedError(
                    "pinned",
                    f"{name!r} is {tuple(tensor.shape)} {tensor.dtype}, not {tuple(wanted.shape)} {wanted.dtype}",
                )
            if reason := unusable_values(name, tensor):
                raise RefusedError("pinned", reason)
            if name not in common and trained:
                raise RefusedError("pinned", f"the envelope holds {name!r}, which is private")
            start = wanted if name in self.initial else torch.zeros_like(wanted)
            if (download.round == 0 or name not in common) and not _close(tensor, start):
                # A layer made for the purpose can copy rows into its gradient. Nobody else has trained a private one.
                raise RefusedError("pinned", f"{name!r} must be as in the initial model, but differs")
        intervals = download.info.get("intervals")
        # What sites measured at the start comes back as one list of the same length.
        measured = self.numbers_at_start()
        known = {"cut", "intervals"} if isinstance(self.algorithm, FedLAMA) else {"cut"}
        for name in sorted(download.info.keys() - known):
            values = download.info[name]
            if name not in measured or not isinstance(values, list) or len(values) != measured[name]:
                raise RefusedError("pinned", f"the envelope holds unknown information: {name[:80]!r}")
            if not all(isinstance(value, int | float) and math.isfinite(value) for value in values):
                raise RefusedError("pinned", f"{name!r} must be a list of finite numbers")
        if intervals is not None and not (
            isinstance(intervals, list)
            and len(intervals) == len(self.layers.names)
            and all(type(interval) is int and 1 <= interval < 2**31 for interval in intervals)
        ):
            raise RefusedError("pinned", "the intervals must be one positive integer per layer")

    def _downloaded(self) -> Weights:
        """Names, shapes and types of all tensors that a server following the algorithm may send."""
        travelling = self.layers.travelling(self.initial)
        beside = self._expected({}, 0, ("fit",)).beside if not self.algorithm.prepares else ()
        return travelling | {
            prefix + name: tensor
            for prefix in beside
            for name, tensor in travelling.items()
            if name not in self.layers.buffers
        }

    def check_upload(self, upload: Upload, client: Client, request: Request, cut: int | None) -> None:
        """The last check before anything leaves: only what the pinned algorithm uploads, and no protected layer."""
        memory = dict(client.memory)
        if cut is not None and memory.get("cut", cut) != cut:
            raise RefusedError("pinned", f"the site's cut became {memory['cut']}, but {cut} was agreed to")
        expected = self._expected(memory, request.download.round, request.verbs)
        kept = {prefix + name for prefix in ("", *expected.beside) for name in self.never_sent()}
        extra = upload.weights.keys() - (expected.entries(self.layers, self.initial).keys() - kept)
        if extra:
            raise RefusedError("privacy", f"{min(extra)} would leave this site, which was not agreed to")
        for name, values in upload.info.items():
            if name not in expected.numbers or not isinstance(values, list) or len(values) != expected.numbers[name]:
                raise RefusedError("privacy", f"{name!r} would leave this site, which was not agreed to")
            if not all(isinstance(value, int | float) and math.isfinite(value) for value in values):
                raise RefusedError("privacy", f"{name!r} is not a list of numbers")


def _close(tensor: Tensor, initial: Tensor) -> bool:
    return torch.allclose(tensor.double(), initial.double(), rtol=_CLOSE, atol=_CLOSE)
