"""Flower's SecAgg+ for one round's uploads: the server learns only their weighted mean. Experimental.

Sites train and store their upload, but send it without weights; four more messages then give the masked sum. It
protects only against a server that follows the protocol, because the sites' keys pass through the server unsigned.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.common import Code, FitIns, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key
from flwr.compat.common import recorddict_compat as compat
from torch import Tensor

from playerfl.algorithms import Algorithm, Local, PFedMe
from playerfl.errors import ConfigError
from playerfl.federation.messages import SiteId, Upload
from playerfl.flower.wire.parcel import Parcel
from playerfl.flower.wire.records import from_records, to_records
from playerfl.weights import Weights

QUANTISATION = 2**22
THRESHOLD = 0.6
"""The fraction of sites that can reconstruct a lost site's mask; fewer may collude with the server."""
LEAST_SITES = 3
MERGED_BY_THEIR_MEAN = (Algorithm.server_merge, PFedMe.server_merge)


def check_secure(algorithm: Algorithm, num_sites: int) -> None:
    """Rejects algorithms that need more than the mean."""
    if isinstance(algorithm, Local) or type(algorithm).server_merge not in MERGED_BY_THEIR_MEAN:
        raise ConfigError(
            f"secure aggregation does not work with {type(algorithm).__name__}: its server needs more than the mean "
            "of all uploads, or receives no uploads"
        )
    if num_sites < LEAST_SITES:
        raise ConfigError(
            f"secure aggregation needs at least {LEAST_SITES} sites in every round (--min-sites): with two, each could "
            "subtract its own upload from the mean"
        )


@dataclass
class StageMemory:
    """What a site remembers from one stage to the next; lost when the site restarts, as the masks must be."""

    context: Context = field(default_factory=lambda: Context(0, 0, {}, RecordDict(), {}))
    participants: tuple[int, ...] = ()
    job: str = ""
    key: str = ""


class Stage(NamedTuple):
    """A site's last step in a secure aggregation."""

    name: str
    job: str
    key: str
    entries: dict[str, list[Any]]
    """The masked tensors that leave: name to type and shape."""


def respond_to_stage(
    parcel: Parcel,
    memory: StageMemory,
    held: Callable[[str, str], Upload],
    unmask: Callable[[str, str, tuple[int, ...]], None],
    least_sites: int = LEAST_SITES,
) -> tuple[Parcel, Stage]:
    """A site's part in one of the four stages. `held` returns the upload stored for a job and an exchange's key.

    `unmask` is called before the shares that open a sum leave; it refuses a second sum over other sites, from which
    the first one could be subtracted.
    """
    from flwr.app.message import make_message
    from flwr.app.metadata import Metadata
    from flwr.client.mod import secaggplus_mod

    content = to_records(parcel)
    configs = content.config_records[RECORD_KEY_CONFIGS]
    stage = str(configs.get(Key.STAGE))
    _check_stage(stage, configs, memory, least_sites)
    entries: dict[str, list[Any]] = {}
    if stage == "unmask":
        unmask(memory.job, memory.key, memory.participants)

    def vectors(asked: Message, _: Context) -> Message:
        config = compat.recorddict_to_fitins(asked.content, keep_input=True).config
        memory.job, memory.key = str(config["job"]), str(config["key"])
        upload = held(memory.job, memory.key)
        arrays = [upload.weights[name].double().numpy() for name in sorted(upload.weights)]
        entries.update({name: ["masked", list(upload.weights[name].shape)] for name in sorted(upload.weights)})
        result = FitRes(Status(Code.OK, ""), ndarrays_to_parameters(arrays), upload.num_examples, {})
        return Message(compat.fitres_to_recorddict(result, keep_input=False), reply_to=asked)

    metadata = Metadata(0, "", 0, parcel.node, "", "", time.time(), 3600.0, "train")
    reply = secaggplus_mod(make_message(metadata, content), memory.context, vectors)
    return from_records(reply.content, "secure"), Stage(stage, memory.job, memory.key, entries)


def _check_stage(stage: str, configs: Mapping[str, Any], memory: StageMemory, least_sites: int) -> None:
    """Refuses what would let the server open an individual upload; Flower's own code trusts the server."""
    if stage == "setup":
        memory.participants, memory.job, memory.key = (), "", ""
        sites, threshold = configs.get(Key.SAMPLE_NUMBER), configs.get(Key.THRESHOLD)
        if not isinstance(sites, int) or sites < max(least_sites, LEAST_SITES):
            raise ConfigError(f"secure aggregation over {sites} sites is refused")
        if not isinstance(threshold, int) or threshold <= sites / 2:
            raise ConfigError(f"a threshold of {threshold} out of {sites} sites is refused")
    elif stage == "share_keys":
        memory.participants = tuple(sorted(int(node) for node in configs if node != Key.STAGE))
        if len(memory.participants) < max(least_sites, LEAST_SITES):
            raise ConfigError(f"secure aggregation over {len(memory.participants)} sites is refused")
    elif stage == "unmask":
        # A site whose two kinds of shares are both revealed has no mask left. If one is lost, our server starts again.
        active = tuple(sorted(configs.get(Key.ACTIVE_NODE_ID_LIST) or ()))
        if configs.get(Key.DEAD_NODE_ID_LIST) or active != memory.participants:
            raise ConfigError("a sum over fewer sites than took part is refused")


class SecureMean(NamedTuple):
    weights: Weights
    sites: set[SiteId]
    """The sites it is the mean of."""


def secure_mean(
    grid: Any,
    nodes: Mapping[SiteId, int],
    examples: Mapping[SiteId, int],
    like: Mapping[str, Tensor],
    *,
    job: str,
    key: str,
    bound: float,
    seconds: float,
    poll: float,
) -> SecureMean | None:
    """The mean of what these sites hold, weighted by examples; None if too many were lost."""
    from flwr.server.compat import LegacyContext
    from flwr.server.workflow import SecAggPlusWorkflow
    from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD
    from flwr.server.workflow.constant import Key as WorkflowKey

    strategy = _Mean({"job": job, "key": key}, nodes)
    context = Context(0, 0, {}, RecordDict(), {})
    manager = SimpleNamespace(num_available=lambda: len(nodes))
    legacy = LegacyContext(context=context, strategy=strategy, client_manager=manager)  # type: ignore[arg-type]
    legacy.state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord({WorkflowKey.CURRENT_ROUND: 1})
    legacy.state.array_records[MAIN_PARAMS_RECORD] = compat.parameters_to_arrayrecord(
        ndarrays_to_parameters([]), keep_input=True
    )
    workflow = SecAggPlusWorkflow(
        num_shares=1.0,
        reconstruction_threshold=THRESHOLD,
        max_weight=float(max(examples[site] for site in nodes)),
        clipping_range=bound,
        quantization_range=QUANTISATION,
    )
    level = logging.getLogger("flwr").level
    logging.getLogger("flwr").setLevel(logging.ERROR)
    try:
        workflow(_Stages(grid, seconds, poll), legacy)  # type: ignore[arg-type]
    finally:
        logging.getLogger("flwr").setLevel(level)
    if strategy.mean is None:
        return None
    weights = {
        name: torch.from_numpy(array).reshape(like[name].shape).to(like[name].dtype)
        for name, array in zip(sorted(like), strategy.mean, strict=True)
    }
    return SecureMean(weights, strategy.sites)


class _Mean:
    """The two methods of a strategy that the workflow calls."""

    def __init__(self, config: dict[str, Any], nodes: Mapping[SiteId, int]) -> None:
        self.config = config
        self.names = {node: site for site, node in nodes.items()}
        self.mean: list[Any] | None = None
        self.sites: set[SiteId] = set()

    def configure_fit(self, _: int, parameters: Any, __: Any) -> list[Any]:
        return [(SimpleNamespace(node_id=node), FitIns(parameters, dict(self.config))) for node in self.names]

    def aggregate_fit(self, _: int, results: list[Any], __: Any) -> tuple[None, dict[str, Any]]:
        self.sites = {self.names[proxy.node_id] for proxy, _ in results}
        self.mean = parameters_to_ndarrays(results[0][1].parameters)
        return None, {}


class _Stages:
    """Flower's grid as the workflow uses it, but messages stay valid for as long as we wait for them."""

    def __init__(self, grid: Any, seconds: float, poll: float) -> None:
        self.grid, self.seconds, self.poll = grid, seconds, poll

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        ends = time.monotonic() + self.seconds
        waiting = []
        for message in messages:
            message.metadata.ttl = self.seconds
            waiting += [number for number in self.grid.push_messages([message]) if number is not None]
        replies: list[Message] = []
        while waiting:
            for message in self.grid.pull_messages(waiting):
                waiting.remove(message.metadata.reply_to_message_id)
                replies.append(message)
            if not waiting or time.monotonic() > ends:
                break
            time.sleep(self.poll)
        return replies
