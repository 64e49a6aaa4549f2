"""FedBN: everything is shared except batch norm."""

from __future__ import annotations

from dataclasses import dataclass, replace

from playerfl.algorithms.algorithm import Algorithm
from playerfl.federation.client import Client
from playerfl.federation.messages import Download, ExpectedUpload, SiteId, Upload, Verb
from playerfl.federation.server import Server
from playerfl.layers.layer_map import LayerMap


@dataclass(frozen=True)
class FedBN(Algorithm):
    """FedAvg in which each site keeps its own batch norm: the scale γ, the shift β and the running statistics.

    θ_c = (w, norm_c);  w ← Σ_c (n_c / Σ n) · w_c over everything but norm_c, which never leaves its site.

    Paper: Li et al. 2021, Algorithm 1, https://arxiv.org/abs/2102.07623. Without batch norm it is FedAvg.
    Differs: averages are weighted by the sites' examples (the authors' code: all sites alike). Layer and group norm
    have no statistics of the site's data, so they are shared.
    """

    def same_as(self, layers: LayerMap) -> str | None:
        return None if batch_norm_entries(layers) else "FedAvg"

    def common_model(self, server: Server) -> bool:
        return not batch_norm_entries(server.layers)

    def server_send(self, server: Server, site: SiteId) -> Download:
        download = server.download()
        if site not in server.initialised:
            return download
        norms = batch_norm_entries(server.layers)
        return replace(download, weights={n: w for n, w in download.weights.items() if n not in norms})

    def server_expects(self, server: Server, verbs: tuple[Verb, ...]) -> ExpectedUpload:
        layers = server.layers.names if "fit" in verbs else ()
        return ExpectedUpload(layers, without=batch_norm_entries(server.layers))

    async def client_fit(self, client: Client, download: Download) -> Upload:
        self.client_model(client, download)
        await client.train()
        norms = batch_norm_entries(client.layers)
        client.memory["norms"] = {n: w for n, w in client.weights().items() if n in norms}
        upload = client.upload()
        return replace(upload, weights={n: w for n, w in upload.weights.items() if n not in norms})

    def client_model(self, client: Client, download: Download) -> None:
        client.load(download.weights, client.memory.get("norms", {}))


def batch_norm_entries(layers: LayerMap) -> frozenset[str]:
    """The entries of norms that have running statistics.

    >>> layers = LayerMap({"0": ("0.weight", "1.weight", "1.bias", "1.running_mean", "1.running_var")}, {"0": 9},
    ...     buffers=frozenset({"1.running_mean", "1.running_var"}))
    >>> sorted(batch_norm_entries(layers))
    ['1.bias', '1.running_mean', '1.running_var', '1.weight']
    """
    modules = {entry.removesuffix("running_mean") for entry in layers.buffers if entry.endswith("running_mean")}
    return frozenset(entry for entry in layers.all_entries if f"{entry.rpartition('.')[0]}." in modules)
