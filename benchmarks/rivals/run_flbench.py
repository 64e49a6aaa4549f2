"""FL-bench's FedAvg and FedProx, from a clone of its repository, one site after the other in one process.

Its own training loops, and its own way to the data: a dataset that is read row by row through a DataLoader. Data and
model come from this script, as its documentation says for custom ones. Its evaluation at the sites is switched off, and
that of the average is replaced by the one that all frameworks get. `tuned` also reads batches by tensor indexing.
"""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from work import Part, Run, Site, Stopwatch, Work, arguments, batches, evaluate, measure


class Compose:
    """torchvision's, for rows that are not changed."""

    def __init__(self, steps: list[Any]) -> None:
        self.steps = steps

    def __call__(self, row: Tensor) -> Tensor:
        for step in self.steps:
            row = step(row)
        return row


# FL-bench imports torchvision for models and datasets that are not used here. It would install another torch.
for name in ("torchvision", "torchvision.models", "torchvision.io", "torchvision.io.image"):
    sys.modules[name] = MagicMock()
transforms = ModuleType("torchvision.transforms")
transforms.Compose = Compose  # type: ignore[attr-defined]
sys.modules["torchvision"].transforms = transforms  # type: ignore[attr-defined]
SOURCE = arguments()[1].source
sys.path.insert(0, str(SOURCE))

import src.server.fedavg  # noqa: E402
from data.utils.datasets import BaseDataset  # noqa: E402
from hydra import compose, initialize_config_dir  # noqa: E402
from hydra.core.hydra_config import HydraConfig  # noqa: E402
from omegaconf import DictConfig  # noqa: E402
from src.server.fedprox import FedProxServer  # noqa: E402
from src.utils.functional import parse_args  # noqa: E402
from src.utils.models import DecoupledModel  # noqa: E402

DATASET = "rivals"


class Rows(BaseDataset):
    def _rescale_data(self) -> None:
        """It would divide by 255: rows are no images here."""


def train(work: Work, sites: list[Site], run: Run, watch: Stopwatch, tuned: bool) -> int:
    server_class = FedProxServer if run.proximal else src.server.fedavg.FedAvgServer
    steps = 0

    class Client(server_class.client_cls):
        def __init__(self, **commons: Any) -> None:
            super().__init__(**commons)
            self.trainloader = (
                TensorLoader(self) if tuned else DataLoader(self.trainset, batch_size=work.batch, sampler=Order(self))
            )
            self.criterion = self.counted_loss

        def counted_loss(self, output: Tensor, targets: Tensor) -> Tensor:
            nonlocal steps
            steps += 1
            return F.cross_entropy(output, targets)

    class Order:
        """The order of rows that all frameworks use."""

        def __init__(self, client: Client) -> None:
            self.client = client

        def __iter__(self) -> Iterator[int]:
            return iter(work.order(self.client.client_id, watch.round, run.seed).tolist())

        def __len__(self) -> int:
            return work.rows

    class TensorLoader(Order):
        def __iter__(self) -> Iterator[Part]:  # type: ignore[override]
            number = self.client.client_id
            return batches(work, sites[number].train, number, watch.round, run.seed)

    class Model(DecoupledModel):
        def __init__(self) -> None:
            super().__init__()
            self.base, self.classifier = work.build_model(run.seed, tuned=tuned), nn.Identity()

    class Server(server_class):
        client_cls = Client

        def init_model(self, *given: Any, **settings: Any) -> None:
            super().init_model(model=Model())

        def get_dataset(self) -> BaseDataset:
            parts = [part for site in sites for part in (site.train, site.validation, site.test)]
            inputs, targets = (torch.cat(columns) for columns in zip(*parts, strict=True))
            return Rows(inputs, targets, list(range(work.classes)), **self.get_dataset_transforms())

        def get_client_optimizer_cls(self) -> Any:
            optimizer = super().get_client_optimizer_cls()
            return partial(optimizer, fused=True) if tuned else optimizer

        def test_global_model(self) -> None:
            watch.mark(evaluate(self.model, sites))

    Server(args=settings(work, run)).train()
    return steps


def settings(work: Work, run: Run) -> DictConfig:
    """What its command line would produce."""
    method = "fedprox" if run.proximal else "fedavg"
    overrides = [
        f"method={method}",
        f"dataset.name={DATASET}",
        "model.name=custom",
        "optimizer.name=adamw",
        "optimizer.lr=0.001",
        "optimizer.weight_decay=0.01",
        "common.join_ratio=1.0",
        f"common.global_epoch={work.rounds}",
        "common.local_epoch=1",
        f"common.batch_size={work.batch}",
        "common.client_side_evaluation=false",
        "common.test.client.interval=-1",
        "common.test.client.test=false",
        "common.test.server.interval=1",
        "common.verbose_gap=1000000",
        "common.use_cuda=false",
        "common.save_log=false",
        "common.save_learning_curve_plot=false",
        "common.save_metrics=false",
        f"fedprox.mu={run.proximal}",
        f"hydra.runtime.output_dir={Path.cwd()}",
    ]
    with initialize_config_dir(str(SOURCE / "config"), version_base=None):
        config = compose("defaults", overrides, return_hydra_config=True)
    HydraConfig.instance().set_config(config)
    return parse_args(config, method, FedProxServer.get_hyperparams if run.proximal else None)


def write_files() -> None:
    """Which rows are whose, where FL-bench looks for it: in its own folder, which is not written to here."""
    work = arguments()[0]
    held = work.rows // 8
    indices, begin = [], 0
    for _ in range(work.sites):
        ends = [begin + work.rows, begin + work.rows + held, begin + work.rows + 2 * held]
        bounds = zip(("train", "val", "test"), (begin, *ends), ends, strict=False)
        indices.append({part: list(range(first, last)) for part, first, last in bounds})
        begin = ends[-1]
    everybody = list(range(work.sites))
    parties = {"train": everybody, "val": everybody, "test": everybody, "total": work.sites}
    folder = Path("data", DATASET)
    folder.mkdir(parents=True)
    (folder / "args.json").write_text(json.dumps({"dataset": DATASET, "split": "sample"}))
    (folder / "partition.pkl").write_bytes(pickle.dumps({"separation": parties, "data_indices": indices}))
    src.server.fedavg.FLBENCH_ROOT = Path.cwd()


if __name__ == "__main__":
    write_files()
    measure(train, "")
