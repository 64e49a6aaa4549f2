"""SensitivityProbe: measures federation sensitivity inside any training loop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Self, get_args

import torch
from torch import Tensor, nn

from playerfl.errors import LayerError
from playerfl.layers.gradients import LossFunction, batch_gradients, mean_gradient, preserve_state
from playerfl.layers.layer_map import LayerMap, check_choice
from playerfl.layers.sensitivity import Profile, ScoreRecorder
from playerfl.layers.wrappers import unwrapped

Mode = Literal["running", "post_epoch", "post_batches", "one_batch"]
EmbeddingRows = Literal["all", "touched"]
MODES: tuple[Mode, ...] = get_args(Mode)


class SensitivityProbe:
    """Scores every layer of a model while your own loop trains it; the training stays the same, bit for bit.

    Gradients are read just before each optimiser step: complete if they are accumulated over several batches,
    and unscaled if mixed precision scales them. If you clip them, attach with `before_clipping=True`, or call
    `record()` yourself before you clip.

    >>> model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> probe = SensitivityProbe(model)
    >>> with probe.attach(optimizer):
    ...     for _ in range(5):
    ...         optimizer.zero_grad()
    ...         loss = model(torch.randn(8, 3)).square().mean()
    ...         loss.backward()
    ...         _ = optimizer.step()
    >>> len(probe.profile().batches), list(probe.profile().importance)
    (5, ['0', '2'])

    The other modes measure at fixed weights, after the epoch: `measure(batches, loss)`.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        mode: Mode = "running",
        layers: LayerMap | None = None,
        example: object = None,
        include_bias: bool = True,
        weight_batches: bool = False,
        embedding_rows: EmbeddingRows = "all",
        max_batches: int | None = None,
    ) -> None:
        """`example`: a batch of inputs, which shows the order of the layers; modules may be registered in an order
        that differs from the flow of data."""
        check_choice(mode, Mode, "sensitivity mode")
        check_choice(embedding_rows, EmbeddingRows, "embedding_rows")
        if max_batches is not None and max_batches < 1:
            raise LayerError(f"max_batches must be at least 1, not {max_batches}")
        model = unwrapped(model)
        self.model = model
        self.mode = mode
        self.layers = layers or LayerMap.of(model, example)
        self.max_batches = max_batches
        self._weight_batches = weight_batches
        self._num_examples = 0
        self._recorded = 0
        self._new_recorder = partial(
            ScoreRecorder,
            dict(model.named_parameters()),
            self.layers,
            include_bias=include_bias,
            weight_batches=weight_batches,
            touched_rows=embedding_tables(model) if embedding_rows == "touched" else frozenset(),
        )
        self._recorder = self._new_recorder()
        self._handles: list[Any] = []
        self._keeps_arrivals = False
        self._arrivals: dict[int, Tensor] = {}
        _reject_sharded(model)

    def attach(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        before_clipping: bool = False,
        scaler: torch.amp.GradScaler | None = None,
    ) -> Self:
        """Measures before every step of this optimiser until `detach`, or the end of the `with` block.

        `before_clipping` keeps a copy of the gradients as backward leaves them, before they are clipped; under mixed
        precision it needs the `scaler`, since they are still scaled then.
        """
        self._check_attachable(optimizer)
        self.detach()
        if before_clipping:
            self._handles += [
                parameter.register_post_accumulate_grad_hook(self._arrived)  # type: ignore[no-untyped-call]
                for parameter in self.model.parameters()
                if parameter.requires_grad
            ]
        self._handles.append(
            optimizer.register_step_pre_hook(lambda _, args, kwargs: self._before_step(optimizer, args, kwargs, scaler))
        )
        self._keeps_arrivals = before_clipping
        return self

    def _check_attachable(self, optimizer: torch.optim.Optimizer) -> None:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise LayerError(f"expected a torch optimizer, not {type(optimizer).__name__}")
        if self.mode != "running":
            raise LayerError(
                f"mode {self.mode!r} measures after the epoch: call measure(batches, loss), or use mode 'running'"
            )
        stepped = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        if not any(id(parameter) in stepped for parameter in self.model.parameters()):
            raise LayerError("this optimizer steps none of the model's parameters; attach the one that trains it")
        if self._weight_batches:
            raise LayerError(
                "an optimizer does not know batch sizes: call record(batch_size) yourself to weight batches"
            )

    def _arrived(self, parameter: Tensor) -> None:
        """Called after each backward pass; if several are accumulated, the last one leaves the whole gradient."""
        if parameter.grad is not None and not self._is_full:
            self._arrivals[id(parameter)] = parameter.grad.detach().clone()

    def _before_step(
        self,
        optimizer: torch.optim.Optimizer,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        scaler: torch.amp.GradScaler | None,
    ) -> None:
        # The arguments of a bound step include the optimiser itself.
        if kwargs.get("closure") is not None or any(callable(a) and a is not optimizer for a in args):
            raise LayerError(
                "this optimizer computes its gradients inside step(closure), where the probe cannot see them; call "
                "probe.record() at the end of the closure instead of attaching"
            )
        if self._keeps_arrivals:
            arrived, self._arrivals = self._arrivals, {}
            names = {id(parameter): name for name, parameter in self.model.named_parameters()}
            scale = scaler.get_scale() if scaler is not None and scaler.is_enabled() else None
            self.record(gradients={names[key]: gradient for key, gradient in arrived.items()}, scale=scale)
            return
        # A fused optimiser is handed the scale, and unscales inside its step.
        found_inf = getattr(optimizer, "found_inf", None)
        if found_inf is None or not bool(found_inf):
            self.record(scale=getattr(optimizer, "grad_scale", None))

    def record(
        self,
        batch_size: int = 1,
        *,
        gradients: Mapping[str, Tensor | None] | None = None,
        scale: float | Tensor | None = None,
    ) -> None:
        """Records the scores of one batch from the parameters' `.grad`; call it between backward and step.

        `gradients`: by parameter name, if they are not in `.grad`. `scale`: the factor that mixed precision applied.
        """
        if self._counts(batch_size):
            self._recorder.record(gradients, batch_size, scale)

    def take(self, norms: Tensor, batch_size: int = 1) -> None:
        """Records the scores of one batch that were computed elsewhere: ‖θ·g‖ of every entry in `scored`."""
        if self._counts(batch_size):
            self._recorder.take(norms, batch_size)

    @property
    def scored(self) -> list[str]:
        """The entries that are scored."""
        return self._recorder.names

    def _counts(self, batch_size: int) -> bool:
        if self._is_full:
            return False
        self._recorded += 1
        self._num_examples += batch_size
        return True

    @property
    def _is_full(self) -> bool:
        return self.max_batches is not None and self._recorded >= self.max_batches

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles, self._arrivals = [], {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()

    def measure(self, batches: Iterable[tuple[Any, Any]], loss: LossFunction) -> Profile:
        """Scores the layers at the model's current weights from a pass over `batches` of (inputs, targets).

        `post_epoch`: the gradient of the mean loss over all of them, in eval mode. `post_batches`: the mean of
        the batches' own scores. `one_batch`: the first batch, in train mode. The model, its buffers, its
        gradients and the random state are left as they were.
        """
        if self.mode == "running":
            raise LayerError("mode 'running' measures during training: use attach(optimizer)")
        self._recorder, self._num_examples = self._new_recorder(), 0
        with preserve_state(self.model):
            self.model.train(self.mode == "one_batch")
            self._pass_over(batches, loss)
        return self.profile()

    def _pass_over(self, batches: Iterable[tuple[Any, Any]], loss: LossFunction) -> None:
        if self.mode == "post_epoch":
            means, self._num_examples = mean_gradient(self.model, batches, loss, self.max_batches)
            if self._num_examples:
                self._recorder.record(means, self._num_examples)
            return
        limit = 1 if self.mode == "one_batch" else self.max_batches
        for gradients, size in batch_gradients(self.model, batches, loss, limit):
            self._recorder.record(gradients, size)
            self._num_examples += size

    def profile(self) -> Profile:
        """The measured profile: scores by batch and layer, and their mean."""
        return replace(self._recorder.profile(self._num_examples), layer_map=self.layers)


def _reject_sharded(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if type(parameter.data).__name__ == "DTensor" or parameter.is_meta:
            raise LayerError(
                f"{name} is sharded over processes or has no values here (FSDP, DeepSpeed, meta device), so its layer "
                "cannot be scored; measure one epoch on a single device"
            )


def embedding_tables(model: nn.Module) -> frozenset[str]:
    """Names of the weights of embedding modules."""
    return frozenset(f"{path}.weight" for path, m in model.named_modules() if isinstance(m, nn.Embedding))
