"""FedLab's standalone pipeline.

Its quickest reasonable configuration: the serial trainer in one process, batches by tensor indexing. Two things are
changed, as users must: a new AdamW for each site (its trainer has one optimiser for all sites, which carries its
moments from one site to the next), and data from this script (its own datasets are MNIST and CIFAR). FedProx's term is
in the training code, as in its own FedProx trainer.
"""

from __future__ import annotations

import logging
import sys
import types
from importlib.metadata import version

import torch
from torch import Tensor
from work import Part, Run, Site, Stopwatch, Work, adamw, batches, evaluate, measure, train_epoch

# FedLab imports torchvision for datasets that are not used here. It would install another torch, so an empty module
# replaces it.
sys.modules["torchvision"] = types.ModuleType("torchvision")
sys.modules["torchvision"].transforms = types.ModuleType("torchvision.transforms")  # type: ignore[attr-defined]

from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer  # noqa: E402
from fedlab.contrib.algorithm.basic_server import SyncServerHandler  # noqa: E402
from fedlab.contrib.dataset.basic_dataset import FedDataset  # noqa: E402
from fedlab.core.standalone import StandalonePipeline  # noqa: E402


def train(work: Work, sites: list[Site], run: Run, watch: Stopwatch, tuned: bool) -> int:
    class Rows(FedDataset):
        def get_dataloader(self, id, batch_size):  # type: ignore[no-untyped-def]  # noqa: A002
            return batches(work, sites[id].train, id, watch.round, run.seed)

    class Trainer(SGDSerialClientTrainer):
        steps = 0

        def train(self, model_parameters: Tensor, train_loader: list[Part]) -> list[Tensor]:
            self.set_model(model_parameters)
            if tuned:
                self.model.to(memory_format=torch.channels_last)
            self.steps += train_epoch(self.model, adamw(self.model, tuned=tuned), train_loader, run.proximal)
            # FedLab flattens parameters with `view`, which refuses channels-last ones.
            self.model.to(memory_format=torch.contiguous_format)
            return [self.model_parameters]

    class Pipeline(StandalonePipeline):
        def evaluate(self) -> None:
            model = self.handler.model
            if tuned:
                model.to(memory_format=torch.channels_last)
            watch.mark(evaluate(model, sites))
            model.to(memory_format=torch.contiguous_format)

    trainer = Trainer(work.build_model(run.seed), work.sites)
    trainer.setup_optim(1, work.batch, 1e-3)
    trainer.setup_dataset(Rows())
    handler = SyncServerHandler(work.build_model(run.seed), work.rounds, 1.0)
    logging.getLogger().setLevel(logging.WARNING)
    Pipeline(handler, trainer).main()
    return trainer.steps


if __name__ == "__main__":
    measure(train, version("fedlab"))
