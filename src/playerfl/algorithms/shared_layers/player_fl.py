"""PLayer-FL: measure in the first epoch which layers to share, then share those."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from playerfl.algorithms.algorithm import ADDED
from playerfl.algorithms.partial import PartialAlgorithm
from playerfl.errors import ConfigError, at_least_zero, one_of
from playerfl.federation.client import Client
from playerfl.federation.messages import Download, ExpectedUpload, SiteId, Upload, Verb
from playerfl.federation.server import Server
from playerfl.layers.cut import DEFAULT_THRESHOLDS, Cut, CutRule, OnNoTransition, check_rule, choose_cut
from playerfl.layers.layer_map import LayerMap
from playerfl.layers.probe import MODES, Mode
from playerfl.layers.sensitivity import ClientWeight, Normalise, Reduce
from playerfl.learning.job import Measure, Pull
from playerfl.weights import Weights


@dataclass(frozen=True)
class PLayerFL(PartialAlgorithm):
    """Cuts where federation sensitivity jumps; the layers before the cut are averaged, the rest stay private.

    s_l = mean over layer l of (θ·∂f/∂θ)²;  F_l = Σ_{k ≤ l} s_k;  cut at the first p where the score jumps.

    Paper: PLayer-FL, Algorithm 1.
    Differs: the paper prints no threshold; the default rule compares single layers, since the printed
    cumulative rule has no threshold that gives the printed cuts (`rule="cumulative_ratio"` is that rule).
    """

    rule: CutRule = "layer_ratio"
    """What must jump: a layer's score against that of the layer before (layer_ratio), or the sum up to it
    (cumulative_ratio, the printed rule). max_jump cuts at the largest jump, fixed after `fixed_cut` layers."""
    threshold: float | None = None
    """A jump must exceed this. Default: 3.5 for layer_ratio, 1.6 for cumulative_ratio."""
    fixed_cut: int | None = None
    """With rule="fixed": the number of shared layers."""
    first_epoch: Literal["continue", "restart"] = "continue"
    """Whether the measured epoch counts as round 1, or is discarded and training restarts from the initial model."""
    sensitivity_mode: Mode = "running"
    """When gradients are read: at every step of the first epoch (running), or at fixed weights after it, of the mean
    loss (post_epoch), batch by batch (post_batches) or of the first batch (one_batch)."""
    include_bias: bool = True
    """Whether biases count towards a layer's score."""
    weight_batches: bool = False
    """Whether the mean over batches weights them by their rows."""
    embedding_rows: Literal["all", "touched"] = "all"
    """Whether an embedding's score averages over all its rows, or those that had a gradient."""
    max_batches: int | None = None
    """Reads at most this many batches per site. Default: all of the epoch."""
    on_no_transition: OnNoTransition = "all"
    """What is shared if nothing jumps: everything, everything but the last layer, or the run ends with an error."""
    client_weight: ClientWeight = "uniform"
    """Whether the mean over sites counts them equally, or by their training rows."""
    normalise: Normalise = "none"
    """Divides each site's scores by that of its first layer, or by their sum, so that no site's gradients dominate."""
    reduce: Reduce = "mean"
    """How the sites' scores become one: their mean, or the median of their sums up to each layer."""
    private_pull: float = field(default=0.0, metadata=ADDED)
    """Only to reproduce the authors' early code: adds private_pull · ‖θ - θ̄‖² over the private layers to each site's
    objective, where θ̄ is the average of those layers over sites (the authors used 0.1). With any value other than 0,
    the private layers are sent to the server and their average to every site, so they are no longer private."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.first_epoch not in ("continue", "restart"):
            raise ConfigError(one_of(self.first_epoch, ("continue", "restart"), "first_epoch"))
        if self.sensitivity_mode not in MODES:
            raise ConfigError(one_of(self.sensitivity_mode, MODES, "sensitivity_mode"))
        if (self.rule == "fixed") != (self.fixed_cut is not None):
            raise ConfigError('rule="fixed" and fixed_cut belong together: give both or neither')
        if self.max_batches is not None and self.max_batches < 1:
            raise ConfigError(f"max_batches must be at least 1, not {self.max_batches}")
        at_least_zero("private_pull", self.private_pull)
        check_rule(self.rule, self.threshold, self.on_no_transition)
        if self.threshold is None:
            object.__setattr__(self, "threshold", DEFAULT_THRESHOLDS.get(self.rule))

    @property
    def prepares(self) -> bool:
        return True

    def check_layers(self, layers: LayerMap) -> None:
        super().check_layers(layers)
        if self.fixed_cut is not None and not 0 <= self.fixed_cut <= len(layers.names):
            raise ConfigError(f"fixed_cut must be between 0 and {len(layers.names)}, not {self.fixed_cut}")

    def cut(self, side: Client | Server) -> int:
        return int(side.memory["cut"])

    def final_cut(self, server: Server, measured: Cut) -> tuple[int, list[str]]:
        """The cut to use, given the measured one, and notes on it."""
        return measured.index, []

    async def client_prepare(self, client: Client, download: Download) -> Upload:
        """The first epoch, from the common initial model; only one number per layer leaves the site."""
        client.load(download.weights)
        trained = await client.train(
            measure=Measure(
                self.sensitivity_mode,
                self.include_bias,
                self.weight_batches,
                self.embedding_rows,
                self.max_batches,
            )
        )
        assert trained.profile is not None
        client.memory["profile"] = trained.profile.to_json(layer_map=False)
        if self.first_epoch == "continue":
            client.memory["first_epoch"] = {"weights": client.weights(), "loss": trained.loss}
        else:
            client.memory["personal"] = dict(download.weights)
            client.optimizers.clear()
        return Upload(client.num_examples, info={"importance": list(trained.profile.importance.values())})

    def server_prepare(self, server: Server, uploads: Mapping[SiteId, Upload]) -> None:
        def numbers(upload: Upload) -> list[Any]:
            values = upload.info["importance"]
            return values if isinstance(values, list) else [values]

        names = server.layers.names
        cut = choose_cut(
            {site: dict(zip(names, numbers(upload), strict=True)) for site, upload in uploads.items()},
            rule=self.rule,
            threshold=self.threshold,
            on_no_transition=self.on_no_transition,
            fixed=self.fixed_cut,
            num_examples={site: upload.num_examples for site, upload in uploads.items()},
            client_weight=self.client_weight,
            normalise=self.normalise,
            reduce=self.reduce,
        )
        index, notes = self.final_cut(server, cut)
        # If the cut was moved, the measured cut's reason does not explain it; the notes do.
        reason = cut.reason if index == cut.index else "; ".join(notes)
        warnings = notes if index == cut.index else []
        used = replace(
            cut, index=index, reason=reason, warnings=(*cut.warnings, *warnings, *server.layers.cut_warnings(index))
        )
        server.memory["cut"] = index
        server.memory["measured"] = list(uploads)
        server.memory["decision"] = used.to_json()

    def server_send(self, server: Server, site: SiteId) -> Download:
        if not server.prepared:
            return server.download()
        known = server.initialised if server.round > 0 else server.memory["measured"]
        if site not in known:
            return server.download(cut=server.memory["cut"])
        if server.round > 0:
            return server.download() if self.private_pull else super().server_send(server, site)
        # Sites that continue from their own first epoch need only the cut.
        layers = () if self.first_epoch == "continue" else self.federated(server)
        return server.download(layers, cut=server.memory["cut"])

    def server_expects(self, server: Server, verbs: tuple[Verb, ...]) -> ExpectedUpload:
        if "prepare" in verbs:
            return ExpectedUpload(numbers={"importance": len(server.layers.names)})
        if "fit" in verbs and self.private_pull:
            return ExpectedUpload(server.layers.names)
        return super().server_expects(server, verbs)

    async def client_fit(self, client: Client, download: Download) -> Upload:
        if "cut" in download.info:
            client.memory["cut"] = download.info["cut"]
        first_epoch = client.memory.pop("first_epoch", None)
        if first_epoch is None or download.round > 0:
            # A site that missed the merge of the first epochs starts from the common model, like a new one.
            return await super().client_fit(client, download)
        client.load(first_epoch["weights"])
        client.train_loss = first_epoch["loss"]
        return self.client_keep(client)

    def server_join(self, server: Server, site: SiteId) -> Download:
        return server.download(cut=server.memory["cut"])

    async def client_join(self, client: Client, download: Download, epochs: int) -> None:
        client.memory["cut"] = download.info["cut"]
        await super().client_join(client, download, epochs)

    def client_assemble(self, client: Client, download: Download) -> None:
        if not self.private_pull or "cut" not in client.memory:
            super().client_assemble(client, download)
            return
        # The average of the private layers is sent along as an anchor; a site that has private layers keeps its own.
        kept = client.memory.get("personal", {})
        client.load(kept, download.weights, client.layers.select(kept, self.personal(client)))

    def received(self, client: Client, download: Download) -> Weights:
        # Before the first merge there is no average yet, only the initial model.
        if self.private_pull and download.round > 0:
            return client.layers.select(download.weights)
        return super().received(client, download)

    async def client_train(self, client: Client, received: Weights) -> None:
        average = client.layers.select(received, self.personal(client)) if self.private_pull else {}
        if average:
            # A pull of strength s is s/2 · ‖·‖².
            await client.train(pull=Pull(average, 2 * self.private_pull))
        else:
            await super().client_train(client, received)

    def client_keep(self, client: Client) -> Upload:
        upload = super().client_keep(client)
        return client.upload() if self.private_pull else upload
