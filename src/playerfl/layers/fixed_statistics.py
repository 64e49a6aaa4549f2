"""Statistics of norms that never change: those of a frozen norm that the model keeps in evaluation mode."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

_FROZEN_NORM = "FrozenBatchNorm"
"""The classes of torchvision, detectron2 and timm for it; their weights are buffers too."""


def fixed_statistics(model: nn.Module) -> frozenset[str]:
    """The buffers of norms without a parameter that trains which are in evaluation mode even while the model trains.

    Freezing the parameters is not enough: the statistics of a norm in training mode follow the data. A model keeps a
    norm in evaluation mode with a `train` method of its own.

    >>> class Kept(nn.BatchNorm1d):
    ...     def train(self, mode=True):
    ...         return super().train(False)
    >>> net = nn.Sequential(Kept(2, affine=False), nn.BatchNorm1d(2, affine=False))
    >>> sorted(fixed_statistics(net))
    ['0.num_batches_tracked', '0.running_mean', '0.running_var']
    """
    frozen = {
        path: module
        for path, module in model.named_modules()
        if isinstance(module, _NormBase) and not any(p.requires_grad for p in module.parameters())
    }
    if frozen:
        resting = _in_evaluation_while_training(model)
        frozen = {path: module for path, module in frozen.items() if module in resting}
    frozen |= {path: m for path, m in model.named_modules() if type(m).__name__.startswith(_FROZEN_NORM)}
    return frozenset(
        f"{path}.{name}" if path else name
        for path, module in frozen.items()
        for name, _ in module.named_buffers(recurse=False)
    )


def _in_evaluation_while_training(model: nn.Module) -> set[nn.Module]:
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.train()
        return {module for module, _ in modes if not module.training}
    except NotImplementedError:  # what torch.export makes has no modes
        return set()
    finally:
        for module, training in modes:
            module.training = training
