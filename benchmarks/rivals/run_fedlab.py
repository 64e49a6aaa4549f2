"""FedLab's standalone pipeline.

Its quickest reasonable configuration: the serial trainer in one process, batches by tensor indexing. Two things are
changed, as users must: a new AdamW for each site (its trainer has one optimiser for all sites, which carries its
moments from one site to the next), and data from this script (its own datasets are MNIST and CIFAR).
"""

from __future__ import annotations

import logging
import sys
import types
from importlib.metadata import version

import torch
from torch import Tensor
from work import Part, Stopwatch, adamw, arguments, batches, evaluate, train_epoch

# FedLab imports torchvision for datasets that are not used here. It would install another torch, so an empty module
# replaces it.
sys.modules["torchvision"] = types.ModuleType("torchvision")
sys.modules["torchvision"].transforms = types.ModuleType("torchvision.transforms")  # type: ignore[attr-defined]

from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer  # noqa: E402
from fedlab.contrib.algorithm.basic_server import SyncServerHandler  # noqa: E402
from fedlab.contrib.dataset.basic_dataset import FedDataset  # noqa: E402
from fedlab.core.standalone import StandalonePipeline  # noqa: E402


def main() -> None:
    work, given = arguments()
    sites = work.load_sites()
    watch = Stopwatch(work.rounds)
    losses: list[float] = []

    class Rows(FedDataset):
        def get_dataloader(self, id, batch_size):  # type: ignore[no-untyped-def]  # noqa: A002
            return batches(work, sites[id].train, id, len(losses))

    class Trainer(SGDSerialClientTrainer):
        steps = 0

        def train(self, model_parameters: Tensor, train_loader: list[Part]) -> list[Tensor]:
            self.set_model(model_parameters)
            if given.tuned:
                self.model.to(memory_format=torch.channels_last)
            self.steps += train_epoch(self.model, adamw(self.model, tuned=given.tuned), train_loader)
            # FedLab flattens parameters with `view`, which refuses channels-last ones.
            self.model.to(memory_format=torch.contiguous_format)
            return [self.model_parameters]

    class Pipeline(StandalonePipeline):
        def evaluate(self) -> None:
            model = self.handler.model
            if given.tuned:
                model.to(memory_format=torch.channels_last)
            losses.append(evaluate(model, sites))
            model.to(memory_format=torch.contiguous_format)
            watch.mark()

    trainer = Trainer(work.build_model(), work.sites)
    trainer.setup_optim(1, work.batch, 1e-3)
    trainer.setup_dataset(Rows())
    handler = SyncServerHandler(work.build_model(), work.rounds, 1.0)
    logging.getLogger().setLevel(logging.WARNING)
    Pipeline(handler, trainer).main()
    watch.report(version("fedlab"), losses, trainer.steps)


if __name__ == "__main__":
    main()
