"""Algorithm: the verbs every federated method is written in, with their defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from playerfl.errors import ConfigError
from playerfl.federation.client import Client
from playerfl.federation.messages import Download, ExpectedUpload, SiteId, Upload, Verb
from playerfl.federation.server import Server
from playerfl.federation.server_optimizer import ServerOptimizer, ServerRule
from playerfl.layers.layer_map import LayerMap

ADDED = MappingProxyType({"added": True})
"""Metadata for a hyper-parameter that was added after runs had been saved without it. It is not written while it has
its default value, so that finished runs are still found by their keys. Its default must never change."""


@dataclass(frozen=True)
class Algorithm:
    """Send everything, train, average the uploads, predict with what was sent.

    Subclasses are frozen dataclasses of hyper-parameters that override what they change. They hold no state:
    what lasts is in `client.memory` and `server.memory`.
    """

    server_optimizer: ServerRule = field(default="average", kw_only=True, metadata=ADDED)
    """How the server moves the common model towards the average of the uploads: see `ServerOptimizer`."""
    server_learning_rate: float = field(default=1.0, kw_only=True, metadata=ADDED)
    """η of the server's optimiser."""
    server_momentum: float = field(default=0.9, kw_only=True, metadata=ADDED)
    """β₁ of the server's optimiser: how slowly it forgets earlier directions."""
    server_beta2: float = field(default=0.99, kw_only=True, metadata=ADDED)
    """β₂ of adam and yogi: how slowly they forget earlier squared changes."""
    server_tau: float = field(default=1e-3, kw_only=True, metadata=ADDED)
    """τ of adagrad, adam and yogi: added to the root of the squared changes, so that small ones are not amplified."""

    def __post_init__(self) -> None:
        """Rejects invalid hyper-parameters."""

    def check_layers(self, layers: LayerMap) -> None:
        """Rejects hyper-parameters that do not fit the model, before anything is written or trained."""

    def training_notes(self, learning_rate: float) -> tuple[str, ...]:
        """Notes for the results about these hyper-parameters with this learning rate."""
        return ()

    @property
    def averages(self) -> bool:
        """Whether `server_merge` averages the uploads, so that a `server_optimizer` can use the average."""
        return True

    @property
    def prepares(self) -> bool:
        """Whether sites do something once before the first round."""
        return False

    @property
    def finishes(self) -> bool:
        """Whether sites do something once after the last round; only its result is then reported."""
        return False

    def server_start(self, server: Server) -> None:
        """Once, before anything is sent."""

    async def client_prepare(self, client: Client, download: Download) -> Upload:
        """Once, before the first round, if `prepares` is set."""
        return Upload(client.num_examples)

    def server_prepare(self, server: Server, uploads: Mapping[SiteId, Upload]) -> None:
        """Reads what `client_prepare` uploaded."""

    def server_send(self, server: Server, site: SiteId) -> Download:
        """What to send to one site now. Must not change anything."""
        return server.download()

    async def client_fit(self, client: Client, download: Download) -> Upload:
        """One round at one site. On return, the model that the site would predict with is loaded."""
        raise TypeError(f"{type(self).__name__} must define client_fit")

    def server_expects(self, server: Server, verbs: tuple[Verb, ...]) -> ExpectedUpload:
        """The layers and numbers that sites upload in reply to these verbs, so that anything else can be refused."""
        return ExpectedUpload(server.layers.names if "fit" in verbs else ())

    def server_merge(self, server: Server, uploads: Mapping[SiteId, Upload]) -> None:
        """Averages the uploads: w ← Σ_c (n_c / Σ n) · θ_c, entry by entry over the sites that sent it."""
        average = server.merged([(upload.weights, upload.num_examples) for upload in uploads.values()])
        if self.server_optimizer != "average":
            memory = server.memory.setdefault("server_optimizer", {})
            average = self.server_steps().moved(server.weights, average, server.layers.buffers, memory)
        server.weights |= average

    def server_steps(self) -> ServerOptimizer:
        """The server's optimiser; ConfigError if its options are not allowed, or if this method takes no average."""
        steps = ServerOptimizer(
            self.server_optimizer, self.server_learning_rate, self.server_momentum, self.server_beta2, self.server_tau
        )
        if steps.rule != "average" and not self.averages:
            raise ConfigError(
                f"server_optimizer = {steps.rule!r} has no effect on {type(self).__name__}, whose sites do not share "
                "one average of their uploads; leave it out"
            )
        return steps

    def common_model(self, server: Server) -> bool:
        """Whether all sites predict with one model after the merges so far; `selection = "by_owner"` depends on it."""
        return False

    async def client_finish(self, client: Client, download: Download) -> None:
        """Once, after the last round, if `finishes` is set. On return, the finished model is loaded."""

    def server_join(self, server: Server, site: SiteId) -> Download:
        """What to send to a site that joins after the last round: the common part. Must not change anything."""
        return server.download()

    async def client_join(self, client: Client, download: Download, epochs: int) -> None:
        """A site that joins after the last round tunes its own part of the model, or all of it if the method has none.

        On return, the tuned model is loaded.
        """
        client.load(download.weights)
        await client.train(epochs)

    def client_model(self, client: Client, download: Download) -> None:
        """Loads what this site predicts with. Must not write to memory."""
        client.load(download.weights)
