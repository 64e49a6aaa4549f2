"""Flower's SecAgg+ for one round's uploads: the server learns only their weighted mean. Experimental.

Sites train and store their upload, but send it without weights; four more messages then give the masked sum. It
protects only against a server that follows the protocol, because the sites' keys pass through the server unsigned.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key
from flwr.compat.common import recorddict_compat as compat

from playerfl.algorithms import Algorithm, Local, PFedMe
from playerfl.errors import ConfigError
from playerfl.federation.messages import Upload
from playerfl.flower.wire.parcel import Parcel
from playerfl.flower.wire.records import from_records, to_records

QUANTISATION = 2**22
MODULUS = 2**32
"""Masks are spread over all of it; a smaller one would leave an upload readable."""
MOST_TIMES_LARGER = 2**16
"""How many times this site's examples another site may have; with more, this site's upload is rounded away."""
THRESHOLD = 0.6
"""The fraction of sites that can reconstruct a lost site's mask; fewer may collude with the server."""
LEAST_SITES = 3
MERGED_BY_THEIR_MEAN = (Algorithm.server_merge, PFedMe.server_merge)


def threshold(sites: int) -> int:
    """How many sites' shares open a mask: always more than half of them.

    >>> [threshold(sites) for sites in (3, 4, 5, 10)]
    [2, 3, 3, 6]
    """
    return math.ceil(THRESHOLD * sites)


def check_secure(algorithm: Algorithm, num_sites: int) -> None:
    """Rejects algorithms that need more than the mean."""
    if isinstance(algorithm, Local) or type(algorithm).server_merge not in MERGED_BY_THEIR_MEAN:
        raise ConfigError(
            f"secure aggregation does not work with {type(algorithm).__name__}: its server needs more than the mean "
            "of all uploads, or receives no uploads"
        )
    if num_sites < LEAST_SITES:
        raise ConfigError(
            f"secure aggregation needs at least {LEAST_SITES} sites in every round (--min-sites, participation): with "
            "two, each could subtract its own upload from the mean"
        )


@dataclass
class StageMemory:
    """What a site remembers from one stage to the next; lost when the site restarts, as the masks must be."""

    context: Context = field(default_factory=lambda: Context(0, 0, {}, RecordDict(), {}))
    sites: int = 0
    bound: float = 0.0
    """The range of values, which must be the job's."""
    largest: float = 0.0
    """The number of examples that counts as a weight of 1."""
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
    held: Callable[[str, str, float], Upload],
    unmask: Callable[[str, str, tuple[int, ...], float], None],
    least_sites: int = LEAST_SITES,
) -> tuple[Parcel, Stage]:
    """A site's part in one of the four stages. `held` returns the upload stored for a job and an exchange's key,
    and refuses a range of values other than the job's.

    `unmask` is called before the shares that open a sum leave; it refuses a second sum over other sites or with other
    weights, from which the first one could be subtracted.
    """
    from flwr.app.message import make_message
    from flwr.app.metadata import Metadata
    from flwr.client.mod import secaggplus_mod

    content = to_records(parcel)
    configs = content.config_records[RECORD_KEY_CONFIGS]
    stage = str(configs.get(Key.STAGE))
    _check_stage(stage, configs, memory, least_sites, parcel.node)
    entries: dict[str, list[Any]] = {}
    if stage == "unmask":
        unmask(memory.job, memory.key, memory.participants, memory.largest)

    def vectors(asked: Message, _: Context) -> Message:
        config = compat.recorddict_to_fitins(asked.content, keep_input=True).config
        memory.job, memory.key = str(config["job"]), str(config["key"])
        upload = held(memory.job, memory.key, memory.bound)
        if not upload.num_examples <= memory.largest <= MOST_TIMES_LARGER * upload.num_examples:
            raise ConfigError(f"a weight of 1 for {memory.largest} examples is refused")
        arrays = [upload.weights[name].double().numpy() for name in sorted(upload.weights)]
        entries.update({name: ["masked", list(upload.weights[name].shape)] for name in sorted(upload.weights)})
        result = FitRes(Status(Code.OK, ""), ndarrays_to_parameters(arrays), upload.num_examples, {})
        return Message(compat.fitres_to_recorddict(result, keep_input=False), reply_to=asked)

    metadata = Metadata(0, "", 0, parcel.node, "", "", time.time(), 3600.0, "train")
    with _same_rounding(stage, content, parcel.node):
        reply = secaggplus_mod(make_message(metadata, content), memory.context, vectors)
    return from_records(reply.content, "secure"), Stage(stage, memory.job, memory.key, entries)


def names_its_job(parcel: Parcel) -> bool:
    """Whether a message is one of the last two stages, which open something of a job that they name."""
    return parcel.configs.get(RECORD_KEY_CONFIGS, {}).get(Key.STAGE) in ("collect_masked_vectors", "unmask")


@contextmanager
def _same_rounding(stage: str, content: RecordDict, node: int) -> Iterator[None]:
    """Flower rounds at random, by numpy's global generator: rounded afresh each time, an upload could be averaged."""
    if stage != "collect_masked_vectors":
        yield
        return
    config = compat.recorddict_to_fitins(content, keep_input=True).config
    seed = hashlib.sha256(f"{config.get('job')!r}\0{config.get('key')!r}\0{node}".encode()).digest()
    before = np.random.get_state()  # noqa: NPY002
    np.random.seed(np.frombuffer(seed, dtype=np.uint32))  # noqa: NPY002
    try:
        yield
    finally:
        np.random.set_state(before)  # noqa: NPY002


def _check_stage(stage: str, configs: Mapping[str, Any], memory: StageMemory, least_sites: int, node: int = 0) -> None:
    """Refuses what would let the server open an individual upload; Flower's own code trusts the server."""
    if stage == "setup":
        memory.participants, memory.job, memory.key = (), "", ""
        sites = configs.get(Key.SAMPLE_NUMBER)
        if type(sites) is not int or sites < max(least_sites, LEAST_SITES):
            raise ConfigError(f"secure aggregation over {sites} sites is refused")
        fixed = {
            Key.SHARE_NUMBER: sites,
            Key.THRESHOLD: threshold(sites),
            Key.TARGET_RANGE: QUANTISATION,
            Key.MOD_RANGE: MODULUS,
        }
        for name, wanted in fixed.items():
            if type(value := configs.get(name)) is not int or value != wanted:
                raise ConfigError(f"{name} = {value!r:.40} is refused for {sites} sites; it is always {wanted}")
        bound, largest = configs.get(Key.CLIPPING_RANGE), configs.get(Key.MAX_WEIGHT)
        for name, value in ((Key.CLIPPING_RANGE, bound), (Key.MAX_WEIGHT, largest)):
            if type(value) is not float or not 0 < value < math.inf:
                raise ConfigError(f"{name} = {value!r:.40} is refused; it is a positive number")
        assert isinstance(bound, float) and isinstance(largest, float)
        memory.sites, memory.bound, memory.largest = sites, bound, largest
    elif stage == "share_keys":
        memory.participants = tuple(sorted({int(site) for site in configs if site != Key.STAGE}))
        if len(memory.participants) < max(least_sites, LEAST_SITES) or len(memory.participants) != memory.sites:
            raise ConfigError(f"secure aggregation over {len(memory.participants)} sites is refused")
    elif stage == "collect_masked_vectors":
        # Each site's mask is added once: those that are left out, or added twice, hide nothing.
        sources = sorted([node, *(configs.get(Key.SOURCE_LIST) or ())])
        if sources != list(memory.participants):
            raise ConfigError("the masks must be those of all sites that took part, each once")
    elif stage == "unmask":
        # A site whose two kinds of shares are both revealed has no mask left. If one is lost, our server starts again.
        active = tuple(sorted(configs.get(Key.ACTIVE_NODE_ID_LIST) or ()))
        if configs.get(Key.DEAD_NODE_ID_LIST) or active != memory.participants:
            raise ConfigError("a sum over fewer sites than took part is refused")
