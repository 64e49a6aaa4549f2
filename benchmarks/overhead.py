"""What playerfl costs over a bare PyTorch loop: the same steps, interleaved in one process, as ratios.

    python benchmarks/overhead.py [--repeats 5]

Every row is a ratio of wall times, the median over interleaved repeats, with the smallest and the largest.
The bare loops do what FedAvg does: load the common weights, one epoch at each site, average, evaluate each
site's validation and test part.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import playerfl
from playerfl.data.examples import SiteData, TensorExamples
from playerfl.models.mlp import MLP
from playerfl.tasks.task import Task, own_task

Sites = dict[str, SiteData]


class Convolutional(nn.Module):
    """Three convolutions (16, 32, 64) and two linear layers for 28x28 images, written the usual way."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.conv3 = nn.Conv2d(32, 64, 3, padding=1)
        self.fc1 = nn.Linear(576, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        for convolution in (self.conv1, self.conv2, self.conv3):
            x = F.max_pool2d(convolution(x).relu(), 2)
        out: Tensor = self.fc2(self.fc1(x.flatten(1)).relu())
        return out


def sites(count: int, rows: int, shape: tuple[int, ...], classes: int) -> Sites:
    generator = torch.Generator().manual_seed(0)

    def part(size: int) -> TensorExamples:
        return TensorExamples(
            torch.randn(size, *shape, generator=generator), torch.randint(classes, (size,), generator=generator)
        )

    return {f"site-{i}": SiteData(part(rows), part(rows // 8), part(rows // 8)) for i in range(count)}


def bare_loop(
    build: Callable[[], nn.Module], data: Sites, rounds: int, batch: int, *, fast: bool
) -> Callable[[], float]:
    """FedAvg as one would write it in a notebook; `fast`: fused AdamW and channels-last convolutions."""

    def run() -> float:
        torch.manual_seed(0)
        model = build()
        images = fast and any(isinstance(m, nn.Conv2d) for m in model.modules())
        if images:
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        common = {name: w.clone() for name, w in model.state_dict().items()}
        states: list[dict[str, object] | None] = [None] * len(data)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fast)
        start = time.perf_counter()
        for _ in range(rounds):
            collected = []
            for i, site in enumerate(data.values()):
                train = site.train
                assert isinstance(train, TensorExamples)
                model.load_state_dict(common)
                optimizer.state.clear()
                if states[i]:
                    optimizer.state.update(states[i])  # type: ignore[arg-type]
                model.train()
                for chosen in torch.randperm(len(train)).split(batch):
                    optimizer.zero_grad()
                    loss = F.cross_entropy(model(train.inputs[chosen]), train.targets[chosen])  # type: ignore[index]
                    loss.backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
                states[i] = dict(optimizer.state)  # type: ignore[arg-type]
                collected.append({name: w.clone() for name, w in model.state_dict().items()})
            common = {name: torch.stack([w[name] for w in collected]).mean(0) for name in common}
            model.load_state_dict(common)
            model.eval()
            with torch.inference_mode():
                for site in data.values():
                    for held in (site.validation, site.test):
                        assert isinstance(held, TensorExamples)
                        output = model(held.inputs)
                        F.cross_entropy(output, held.targets).item()
                        (output.argmax(1) == held.targets).float().mean().item()
        return time.perf_counter() - start

    return run


def playerfl_run(task: Task, algorithm: str, rounds: int, batch: int, *, keep: bool = False) -> Callable[[], float]:
    """The rounds of a run without its start: the start has its own row."""
    settings = {"training.batch_size": batch, "selection": "last"}

    def run() -> float:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "run" if keep else None
            result = playerfl.run(task, algorithm, rounds=rounds, settings=settings, out=out, device="cpu")
        return float(result.timing["wall_seconds"])

    return run


def ratio_row(title: str, ours: Callable[[], float], theirs: Callable[[], float], repeats: int, bound: float) -> bool:
    ratios = []
    for _ in range(repeats):
        reference = theirs()
        ratios.append(ours() / reference)
    middle = statistics.median(ratios)
    return row(title, f"{middle:6.3f}  ({min(ratios):.3f} to {max(ratios):.3f})", middle, bound)


def row(title: str, shown: str, value: float, bound: float) -> bool:
    print(f"{title:<74} {shown:<28} at most {bound:4.2f}  {'ok' if value <= bound else 'ABOVE'}", flush=True)
    return value <= bound


def probe_row(repeats: int) -> bool:
    """An epoch of FashionMNIST's network with and without the probe, batch by batch in turn."""
    from playerfl.layers.probe import SensitivityProbe
    from playerfl.models.cnn import ConvNet

    model = ConvNet(1, (64, 128, 256), 100, 10, kernel=5, padding=2, pool_after=(1, 2, 3))
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    probe = SensitivityProbe(model)
    inputs, targets = torch.randn(128, 1, 28, 28), torch.randint(10, (128,))

    def step() -> float:
        start = time.perf_counter()
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return time.perf_counter() - start

    step()
    plain, probed = [], []
    for _ in range(12 * repeats):
        plain.append(step())
        with probe.attach(optimizer):
            probed.append(step())
    # Neighbouring steps see the same machine, so the median of their ratios does not follow its drifts.
    ratio = statistics.median(b / a for a, b in zip(plain, probed, strict=True))
    title = "probe on, FashionMNIST's network, batch 128 (quickest steps in brackets)"
    return row(title, f"{ratio:6.3f}  ({min(probed) / min(plain):.3f})", ratio, 1.01)


def startup_rows(repeats: int) -> bool:
    """Seconds, not ratios: new processes."""

    def seconds(*arguments: str) -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
        return time.perf_counter() - start

    one_round = "import playerfl; playerfl.run('digits', 'fedavg', rounds=1)"
    version, torch_alone, run = (
        statistics.median(seconds(*arguments) for _ in range(repeats))
        for arguments in (["-m", "playerfl.cli", "--version"], ["-c", "import torch"], ["-c", one_round])
    )
    first = row("playerfl --version, seconds", f"{version:6.3f}", version, 0.5)
    title = f"a run of one round over `import torch` ({torch_alone:.2f} s), seconds"
    return row(title, f"{run - torch_alone:6.3f}", run - torch_alone, 1.0) and first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    repeats: int = parser.parse_args().repeats
    torch.set_num_threads(1)

    images = sites(5, 2000, (1, 28, 28), 10)
    rows = sites(4, 200, (13,), 5)
    conv_task = own_task(Convolutional, images)
    mlp_task = own_task(lambda: MLP((13, 64, 64, 64, 5)), rows)
    print(f"torch {torch.__version__}, 1 thread, {torch.backends.cpu.get_cpu_capability()}, {repeats} repeats\n")
    bare_loop(lambda: MLP((13, 64, 64, 64, 5)), rows, 1, 32, fast=True)()

    conv = playerfl_run(conv_task, "fedavg", 1, 64)
    mlp = bare_loop(lambda: MLP((13, 64, 64, 64, 5)), rows, 50, 32, fast=True)
    held = [
        ratio_row("(a) CNN 28, 5 x 2,000 rows: playerfl / bare loop, same optimiser and layout",
                  conv, bare_loop(Convolutional, images, 1, 64, fast=True), repeats, 1.05),
        ratio_row("(a) CNN 28: playerfl / naive loop (default AdamW, contiguous)",
                  conv, bare_loop(Convolutional, images, 1, 64, fast=False), repeats, 0.85),
        ratio_row("(b) MLP, 4 x 200 rows, 50 rounds: playerfl / bare loop, same optimiser",
                  playerfl_run(mlp_task, "fedavg", 50, 32), mlp, repeats, 1.15),
        probe_row(repeats),
        startup_rows(repeats),
    ]  # fmt: skip
    print("\nnot counted, since a bare loop keeps nothing:")
    ratio_row("(b) MLP with a durable checkpoint every round (each some 20 ms)",
              playerfl_run(mlp_task, "fedavg", 50, 32, keep=True), mlp, repeats, 1.15)  # fmt: skip
    sys.exit(0 if all(held) else 1)


if __name__ == "__main__":
    main()
