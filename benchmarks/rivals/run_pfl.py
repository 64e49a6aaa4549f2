"""pfl-research on its simulated backend.

Its quickest reasonable configuration: its own evaluation, which goes through every site's training rows before and
after each epoch, runs only in the warm-up round; a callback evaluates the average directly; it prints no metrics.
FedProx is its own.
"""

from __future__ import annotations

import functools
from importlib.metadata import version

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.algorithm.fedprox import FedProx, FedProxParams
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor
from torch.nn import functional as F
from work import Run, Site, Stopwatch, Work, evaluate, measure


def train(work: Work, sites: list[Site], run: Run, watch: Stopwatch, tuned: bool) -> int:
    module = work.build_model(run.seed, tuned=tuned)
    steps = 0

    def loss(inputs: Tensor, targets: Tensor, eval: bool = False) -> Tensor:  # noqa: A002
        nonlocal steps
        steps += 1
        module.train()
        return F.cross_entropy(module(inputs), targets)

    @torch.inference_mode()
    def metrics(inputs: Tensor, targets: Tensor, eval: bool = False) -> dict[str, Weighted]:  # noqa: A002
        return {"loss": Weighted(F.cross_entropy(module(inputs), targets).item(), 1)}

    module.loss, module.metrics = loss, metrics
    model = PyTorchModel(
        module,
        functools.partial(torch.optim.AdamW, fused=tuned or None),
        torch.optim.SGD(module.parameters(), lr=1.0),
    )

    def rows_of(number: int) -> Dataset:
        # pfl reads rows in storage order, so they are stored in this round's order.
        order = work.order(number, watch.round, run.seed)
        return Dataset(tuple(entry[order] for entry in sites[number].train), user_id=str(number))

    class Evaluation(TrainingProcessCallback):
        def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):  # type: ignore[no-untyped-def]
            watch.mark(evaluate(module, sites))
            return False, Metrics()

    data = FederatedDataset(rows_of, get_user_sampler("minimize_reuse", list(range(work.sites))))
    settings = {
        "central_num_iterations": work.rounds,
        "evaluation_frequency": work.rounds,
        "train_cohort_size": work.sites,
        "val_cohort_size": 0,
    }
    algorithm = FedProx() if run.proximal else FederatedAveraging()
    algorithm.run(
        algorithm_params=FedProxParams(mu=run.proximal, **settings) if run.proximal else NNAlgorithmParams(**settings),
        backend=SimulatedBackend(data, data, postprocessors=[WeightByDatapoints()]),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_batch_size=work.batch, local_num_epochs=1, local_learning_rate=1e-3
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        callbacks=[Evaluation()],
        send_metrics_to_platform=False,
    )
    return steps


if __name__ == "__main__":
    measure(train, version("pfl"))
