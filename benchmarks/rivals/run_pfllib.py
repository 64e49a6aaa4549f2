"""PFLlib's FedAvg server and clients, from a clone of its repository.

Its own training loop, and its own way to the data: every site's rows are read from a file each round and collated by a
DataLoader. Four things are changed, as users must: data and model from this script, a new AdamW each round instead of
SGD, the last batch of an epoch is not dropped, and FedProx's term is in the loss (its FedProx is tied to SGD). Its
evaluation, which goes through all training rows each round, is replaced by the one that all frameworks get. `tuned`
also keeps the rows in memory.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader
from work import Part, Run, Site, Stopwatch, Work, adamw, arguments, batches, evaluate, measure, proximal_term

sys.path.insert(0, str(arguments()[1].source / "system"))

from flcore.clients.clientavg import clientAVG
from flcore.servers.serveravg import FedAvg
from utils.data_utils import read_client_data

DATASET = "rivals"


def train(work: Work, sites: list[Site], run: Run, watch: Stopwatch, tuned: bool) -> int:
    steps = 0

    class Client(clientAVG):
        def load_train_data(self, batch_size: int | None = None) -> Iterable[Part]:
            if tuned:
                return batches(work, sites[self.id].train, self.id, watch.round, run.seed)
            rows = read_client_data(self.dataset, self.id, is_train=True, few_shot=self.few_shot)
            return DataLoader(rows, self.batch_size, sampler=work.order(self.id, watch.round, run.seed).tolist())

        def train(self) -> None:
            pull = proximal_term(self.model, run.proximal)

            def loss(output: Tensor, targets: Tensor) -> Tensor:
                nonlocal steps
                steps += 1
                return F.cross_entropy(output, targets) + (pull() if run.proximal else 0)

            self.loss, self.optimizer = loss, adamw(self.model, tuned=tuned)
            super().train()

    class Server(FedAvg):
        def set_clients(self, clientObj: type) -> None:  # noqa: N803
            super().set_clients(Client)

        def evaluate(self, acc: object = None, loss: object = None) -> None:
            # It evaluates before each round, so the first time is before any training.
            if steps:
                watch.mark(evaluate(self.global_model, sites))
            self.rs_test_acc.append(0.0)

        def save_results(self) -> None:
            pass

        def save_global_model(self) -> None:
            pass

    # Its messages go nowhere, because a terminal would slow it down.
    with contextlib.redirect_stdout(io.StringIO()):
        # It trains for one round more than it is told, and does not evaluate the last one.
        server = Server(settings(work, run, tuned), times=0)
        server.train()
        server.send_models()
        server.evaluate()
    return steps


def settings(work: Work, run: Run, tuned: bool) -> argparse.Namespace:
    """What its command line would produce; what is not about this work has the default from there."""
    own = {
        "dataset": DATASET,
        "model": work.build_model(run.seed, tuned=tuned),
        "num_classes": work.classes,
        "num_clients": work.sites,
        "global_rounds": work.rounds - 1,
        "batch_size": work.batch,
        "local_epochs": 1,
        "local_learning_rate": 1e-3,
        "algorithm": "FedAvg",
        "device": "cpu",
    }
    defaults = {
        "goal": "test",
        "learning_rate_decay": False,
        "learning_rate_decay_gamma": 0.99,
        "join_ratio": 1.0,
        "random_join_ratio": False,
        "eval_gap": 1,
        "save_folder_name": "items",
        "auto_break": False,
        "top_cnt": 100,
        "dlg_eval": False,
        "dlg_gap": 100,
        "batch_num_per_client": 2,
        "num_new_clients": 0,
        "fine_tuning_epoch_new": 0,
        "few_shot": 0,
        "client_drop_rate": 0.0,
        "train_slow_rate": 0.0,
        "send_slow_rate": 0.0,
        "time_select": False,
        "time_threthold": 10000,
    }
    return argparse.Namespace(**defaults, **own)


def write_files() -> None:
    """Every site's rows where PFLlib looks for them: it wants to be run beside its folder of datasets."""
    for number, site in enumerate(arguments()[0].load_sites()):
        for name, (inputs, targets) in (("train", site.train), ("test", site.test)):
            folder = Path("dataset", DATASET, name)
            folder.mkdir(parents=True, exist_ok=True)
            np.savez_compressed(folder / f"{number}.npz", data={"x": inputs.numpy(), "y": targets.numpy()})
    Path("system").mkdir(exist_ok=True)
    os.chdir("system")


if __name__ == "__main__":
    write_files()
    measure(train, "")
