"""The server's part in SecAgg+: the weighted mean of what sites hold, without any single upload. Experimental."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import httpx
import numpy as np
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.common import FitIns, bytes_to_ndarray, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key
from flwr.compat.common import recorddict_compat as compat
from flwr.supercore.primitives.asymmetric import bytes_to_public_key
from torch import Tensor

from playerfl.federation.messages import SiteId
from playerfl.flower.server.messenger import STOPPED, StoppedJobError
from playerfl.flower.wire.secure import MODULUS, QUANTISATION, threshold
from playerfl.weights import Weights

TELL_SECONDS = 30.0
"""How long a stage may take before the log names the sites that it waits for; their messages cannot be sent again."""


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
    say: Callable[[str], None] = lambda _: None,
    stopping: Callable[[], bool] = lambda: False,
) -> SecureMean | None:
    """The mean of what these sites hold, weighted by examples; None if a site was lost, or sent what nobody can use."""
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
        reconstruction_threshold=threshold(len(nodes)),
        max_weight=float(max(examples[site] for site in nodes)),
        clipping_range=bound,
        quantization_range=QUANTISATION,
        modulus_range=MODULUS,
    )
    level = logging.getLogger("flwr").level
    logging.getLogger("flwr").setLevel(logging.ERROR)
    shapes = [(1,), *(tuple(like[name].shape) for name in sorted(like))]
    stages = _Stages(grid, seconds, poll, {node: site for site, node in nodes.items()}, shapes, say, stopping)
    try:
        workflow(stages, legacy)  # type: ignore[arg-type]
    except StoppedJobError:
        raise
    except Exception as problem:
        # Flower's workflow trusts what sites send; whatever it is, the job ends with a sentence.
        say(f"secure aggregation failed ({type(problem).__name__})")
        return None
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
    """Flower's grid as the workflow uses it, but messages stay valid for as long as we wait for them.

    What a site sends that Flower could not use counts as nothing, and the site is named.
    """

    def __init__(
        self,
        grid: Any,
        seconds: float,
        poll: float,
        sites: Mapping[int, SiteId],
        shapes: list[tuple[int, ...]],
        say: Callable[[str], None],
        stopping: Callable[[], bool],
    ) -> None:
        self.grid, self.seconds, self.poll = grid, seconds, poll
        self.sites, self.shapes, self.say, self.stopping = sites, shapes, say, stopping

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        ends = time.monotonic() + self.seconds
        waiting: dict[str, tuple[str, SiteId]] = {}
        for message in messages:
            message.metadata.ttl = self.seconds
            stage = str(message.content.config_records[RECORD_KEY_CONFIGS][Key.STAGE])
            for number in self._tried(lambda sent=message: list(self.grid.push_messages([sent])), ends):  # type: ignore[misc]
                if number is not None:
                    waiting[number] = stage, self.sites[message.metadata.dst_node_id]
        replies: list[Message] = []
        tells = time.monotonic() + TELL_SECONDS
        while waiting:
            if self.stopping():
                raise StoppedJobError(STOPPED)
            if time.monotonic() > tells:
                tells = ends
                names = ", ".join(sorted(site for _, site in waiting.values()))
                self.say(f"secure aggregation waits for {names}, until the deadline")
            for message in self._tried(lambda: list(self.grid.pull_messages(list(waiting))), ends):
                stage, site = waiting.pop(message.metadata.reply_to_message_id)
                if message.has_error() or self._is_usable(stage, message.content):
                    replies.append(message)
                else:
                    self.say(f"{site}: its part in secure aggregation ({stage}) cannot be used")
            if not waiting or time.monotonic() > ends:
                break
            time.sleep(self.poll)
        return replies

    def _tried(self, ask: Callable[[], list[Any]], ends: float) -> list[Any]:
        """The SuperLink's answer. It answers with errors under load, and no job resumes within a secure aggregation."""
        told = False
        while True:
            try:
                return ask()
            except (httpx.HTTPError, OSError) as problem:
                if time.monotonic() > ends:
                    raise
                if self.stopping():
                    raise StoppedJobError(STOPPED) from problem
                if not told:
                    self.say(f"the SuperLink is busy ({type(problem).__name__}); secure aggregation asks again")
                told = True
                time.sleep(self.poll)

    def _is_usable(self, stage: str, content: RecordDict) -> bool:
        try:
            answer = content.config_records[RECORD_KEY_CONFIGS]
            if stage == "setup":
                return all(bytes_to_public_key(_bytes(answer[key])) for key in (Key.PUBLIC_KEY_1, Key.PUBLIC_KEY_2))
            if stage == "collect_masked_vectors":
                compat.recorddict_to_fitres(content, keep_input=True)
                masked = [bytes_to_ndarray(_bytes(data)) for data in _list(answer[Key.MASKED_PARAMETERS])]
                return [array.shape for array in masked] == self.shapes and all(a.dtype == np.int64 for a in masked)
            to, texts = (
                (Key.DESTINATION_LIST, Key.CIPHERTEXT_LIST)
                if stage == "share_keys"
                else (Key.NODE_ID_LIST, Key.SHARE_LIST)
            )
            nodes, pieces = _list(answer[to]), _list(answer[texts])
            known = len(set(nodes)) == len(nodes) == len(pieces) and set(nodes) <= self.sites.keys()
            return known and all(type(piece) is bytes for piece in pieces)
        except Exception:
            return False


def _bytes(value: object) -> bytes:
    if type(value) is not bytes:
        raise TypeError
    return value


def _list(value: object) -> list[Any]:
    if type(value) is not list:
        raise TypeError
    return value
