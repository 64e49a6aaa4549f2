"""The timed workloads: data of the right shape, models written the usual way, and FedAvg as in a notebook."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from playerfl.data.examples import SiteData, TensorExamples
from playerfl.models.cnn import ConvNet
from playerfl.models.mlp import MLP
from playerfl.models.transformer import TextTransformer

Sites = dict[str, SiteData]


@dataclass(frozen=True)
class Work:
    """One federation to train: its data, the batch size, our model and the same network written the usual way."""

    name: str
    sites: Sites
    batch: int
    ours: Callable[[], nn.Module]
    usual: Callable[[], nn.Module]

    @property
    def steps(self) -> int:
        """Model steps per round."""
        return sum(-(-len(site.train) // self.batch) for site in self.sites.values())


class UsualConvNet(ConvNet):
    """ReLU, then pooling."""

    def forward(self, x: Tensor) -> Tensor:
        for number, name in enumerate(self.convolutions, start=1):
            x = getattr(self, name)(x).relu()
            if number in self.pool_after:
                x = F.max_pool2d(x, 2)
        out: Tensor = self.fc2(self.fc1(x.mean((2, 3))).relu())
        return out


class UsualTransformer(TextTransformer):
    """Queries, keys, values and the feed-forward block of every token, attention by two matrix products."""

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        scores = self.query(x) @ self.key(x).transpose(1, 2) / math.sqrt(x.shape[-1])
        scores = scores.masked_fill((ids == 0)[:, None], -math.inf)
        x = x + self.projection(scores.softmax(-1) @ self.value(x))
        x = x + self.fc2(self.fc1(x).relu())
        out: Tensor = self.head(x[:, 0])
        return out


def made_up(rows: Sequence[int], classes: int, draw: Callable[[int, torch.Generator], Tensor], held: float) -> Sites:
    """Sites of random inputs and targets; validation and test are a fraction `held` of train each."""
    generator = torch.Generator().manual_seed(0)

    def part(size: int) -> TensorExamples:
        return TensorExamples(draw(size, generator), torch.randint(classes, (size,), generator=generator))

    return {
        f"site-{i}": SiteData(part(n), part(int(n * held)), part(int(n * held))) for i, n in enumerate(rows, start=1)
    }


def _pictures(*shape: int) -> Callable[[int, torch.Generator], Tensor]:
    return lambda rows, generator: torch.randn(rows, *shape, generator=generator)


def _tokens(rows: int, generator: torch.Generator) -> Tensor:
    return torch.randint(1, 2000, (rows, 64), generator=generator)


def cnn28() -> Work:
    arguments = {"widths": (16, 32, 64), "hidden": 128, "classes": 10, "pool_after": (1, 2, 3)}
    return Work(
        "CNN 28",
        made_up([1000] * 5, 10, _pictures(1, 28, 28), 1 / 8),
        64,
        lambda: ConvNet(1, **arguments),  # type: ignore[arg-type]
        lambda: UsualConvNet(1, **arguments),  # type: ignore[arg-type]
    )


def cnn32() -> Work:
    arguments = {"widths": (32, 32, 64, 64, 128), "hidden": 128, "classes": 10, "pool_after": (2, 4, 5)}
    return Work(
        "CNN 32",
        made_up([320] * 5, 10, _pictures(3, 32, 32), 1 / 8),
        64,
        lambda: ConvNet(3, **arguments),  # type: ignore[arg-type]
        lambda: UsualConvNet(3, **arguments),  # type: ignore[arg-type]
    )


def text() -> Work:
    sizes = {"vocabulary": 2000, "length": 64, "width": 64, "hidden": 256, "classes": 2}
    return Work(
        "text transformer",
        made_up([192] * 6, 2, _tokens, 1 / 8),
        32,
        lambda: TextTransformer(**sizes),
        lambda: UsualTransformer(**sizes),
    )


def mlp(rows: Sequence[int] = (303, 294, 123, 200)) -> Work:
    """As many rows as the four hospitals of UCI heart disease have, by default."""

    def build() -> nn.Module:
        return MLP((13, 64, 64, 64, 5))

    return Work("MLP", made_up(rows, 5, _pictures(13), 1 / 5), 32, build, build)


def bare_loop(work: Work, rounds: int, *, tuned: bool = False) -> None:
    """FedAvg as one would write it in a notebook; `tuned`: our model, fused AdamW and channels-last convolutions."""
    model = work.ours() if tuned else work.usual()
    if tuned and any(isinstance(m, nn.Conv2d) for m in model.modules()):
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    common = {name: w.clone() for name, w in model.state_dict().items()}
    states: list[dict[str, object] | None] = [None] * len(work.sites)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=tuned)
    for _ in range(rounds):
        collected = []
        for i, site in enumerate(work.sites.values()):
            train = site.train
            assert isinstance(train, TensorExamples)
            assert isinstance(train.inputs, Tensor)
            model.load_state_dict(common)
            optimizer.state.clear()
            if states[i]:
                optimizer.state.update(states[i])  # type: ignore[arg-type]
            model.train()
            for chosen in torch.randperm(len(train)).split(work.batch):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(train.inputs[chosen]), train.targets[chosen])
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            states[i] = dict(optimizer.state)  # type: ignore[arg-type]
            collected.append({name: w.clone() for name, w in model.state_dict().items()})
        common = {name: torch.stack([w[name] for w in collected]).mean(0) for name in common}
        model.load_state_dict(common)
        model.eval()
        with torch.inference_mode():
            for site in work.sites.values():
                for held in (site.validation, site.test):
                    assert isinstance(held, TensorExamples)
                    output = model(held.inputs)
                    F.cross_entropy(output, held.targets).item()
                    (output.argmax(1) == held.targets).float().mean().item()
