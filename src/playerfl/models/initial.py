"""Initial weights other than torch's own."""

from __future__ import annotations

import torch
from torch import nn


def kaiming(model: nn.Module) -> None:
    """Kaiming-normal weights (fan in) and zero biases; embedding rows scaled to unit length."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                if module.bias is not None:
                    module.bias.zero_()
            elif isinstance(module, nn.Embedding):
                module.weight.div_(module.weight.norm(dim=1, keepdim=True).clamp_min(1e-12))
