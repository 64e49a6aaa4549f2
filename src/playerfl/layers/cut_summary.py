"""Cut summary: what is shared, what stays private, how many bytes travel, and under which names."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from playerfl.layers.adapters import without_adapters
from playerfl.layers.layer_map import LayerMap, LayerName, state_entries
from playerfl.layers.wrappers import unwrapped
from playerfl.weights import num_bytes


@dataclass(frozen=True)
class CutSummary:
    """A cut in numbers, for one site."""

    federated: tuple[LayerName, ...]
    private: tuple[LayerName, ...]
    federated_parameters: int
    """Trainable scalars that are averaged."""
    private_parameters: int
    frozen_parameters: int
    """Scalars that never train, so they are never sent."""
    bytes_per_round: int
    """Sent down to a site, and the same amount up; buffers included."""
    bytes_of_whole_model: int
    """Bytes that a round of FedAvg would send down to a site, and up."""
    federated_keys: tuple[str, ...]
    """Keys of `model.state_dict()` that are sent, in its order; both names of a tied tensor."""
    private_keys: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    bytes_of_full_fine_tuning: int | None = None
    """What a round would send, each way, if the whole model were trained, without adapters; None if all of it is."""

    @property
    def private_share(self) -> float:
        """The share of trainable parameters that never leaves a site: less exposure, not a privacy guarantee."""
        trainable = self.federated_parameters + self.private_parameters
        return self.private_parameters / trainable if trainable else 0.0

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "private_share": self.private_share}


def summarise_cut(model: nn.Module, layers: LayerMap, cut: int) -> CutSummary:
    """The summary of sharing the first `cut` layers of a model.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> summary = summarise_cut(net, LayerMap.of(net), 1)
    >>> summary.federated_parameters, summary.private_parameters, summary.bytes_per_round
    (9, 4, 36)
    >>> summary.federated_keys
    ('0.weight', '0.bias')
    """
    model = unwrapped(model)
    tensors = state_entries(model)
    federated, private = layers.names[:cut], layers.names[cut:]
    travels = layers.travelling(tensors, federated).keys()
    first_name = {id(tensor): name for name, tensor in tensors.items()}
    owners = {
        name: first_name[id(tensor)]
        for name, tensor in (
            *model.named_parameters(remove_duplicate=False),
            *model.named_buffers(remove_duplicate=False),
        )
        if id(tensor) in first_name
    }
    # Not every key is a tensor with an owner: modules may add extra keys (get_extra_state).
    keys = list(model.state_dict())
    return CutSummary(
        federated=federated,
        private=private,
        federated_parameters=sum(layers.num_parameters[name] for name in federated),
        private_parameters=sum(layers.num_parameters[name] for name in private),
        frozen_parameters=sum(tensors[name].numel() for name in layers.frozen),
        bytes_per_round=num_bytes(layers.travelling(tensors, federated)),
        bytes_of_whole_model=num_bytes(layers.travelling(tensors)),
        federated_keys=tuple(key for key in keys if owners.get(key) in travels),
        private_keys=tuple(key for key in keys if owners.get(key) not in travels),
        warnings=tuple(layers.cut_warnings(cut)),
        bytes_of_full_fine_tuning=num_bytes({name: tensors[name] for name in without_adapters(tensors)})
        if layers.frozen
        else None,
    )
