"""The probe in loops that accumulate, clip and scale gradients: measured correctly, or refused with a reason."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from playerfl.errors import LayerError
from playerfl.layers.probe import SensitivityProbe
from playerfl.seeding import generator_for, seeded_rng
from playerfl.weights import digest

X = torch.randn(24, 5, generator=generator_for(0, "x"))
Y = torch.randint(3, (24,), generator=generator_for(0, "y"))
Rows = tuple[tuple[float, ...], ...]


def net() -> nn.Module:
    with seeded_rng(2):
        return nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))


def measured(
    *,
    accumulate: int = 1,
    clip: float | None = None,
    scale: float | None = None,
    fused: bool = False,
    before_clipping: bool = False,
    autocast: bool = False,
) -> Rows:
    """Three steps of eight rows; weights do not move, so that rows can be compared between loops."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=scale is not None)
    options: dict[str, Any] = {"before_clipping": True, "scaler": scaler} if before_clipping else {}
    with SensitivityProbe(model).attach(optimizer, **options) as probe:
        for x, y in zip(X.split(8), Y.split(8), strict=True):
            optimizer.zero_grad()
            for some_x, some_y in zip(x.chunk(accumulate), y.chunk(accumulate), strict=True):
                with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                    loss = F.cross_entropy(model(some_x), some_y) / accumulate
                scaler.scale(loss).backward()
            if clip is not None:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            scaler.step(optimizer)
            scaler.update()
    return probe.profile().batches


def close(rows: Rows, expected: Rows, rel: float = 1e-4) -> bool:
    return all(row == pytest.approx(other, rel=rel) for row, other in zip(rows, expected, strict=True))


@pytest.mark.parametrize("before_clipping", [False, True])
def test_accumulated_gradients_score_as_the_whole_batch(before_clipping: bool) -> None:
    assert close(measured(accumulate=4, before_clipping=before_clipping), measured())


def test_clipping_scales_a_batch_unless_gradients_are_taken_before_it() -> None:
    plain, clipped = measured(), measured(clip=0.05)
    for row, other in zip(clipped, plain, strict=True):
        shrunk = [a / b for a, b in zip(row, other, strict=True)]
        assert shrunk[0] < 0.5
        # Clipping by norm shrinks all layers alike, so even then a batch's own ratios are right.
        assert shrunk == pytest.approx([shrunk[0]] * 2, rel=1e-4)
    assert close(measured(clip=0.05, before_clipping=True), plain)
    assert close(measured(clip=0.05, accumulate=4, before_clipping=True), plain)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("before_clipping", [False, True])
def test_scaled_gradients_score_unscaled(fused: bool, before_clipping: bool) -> None:
    assert close(measured(scale=1024.0, fused=fused, before_clipping=before_clipping), measured())


def test_scaled_and_clipped_gradients_score_as_plain_ones() -> None:
    assert close(measured(scale=1024.0, clip=0.05, before_clipping=True), measured())


def test_mixed_precision_scores_nearly_as_full_precision() -> None:
    assert close(measured(autocast=True), measured(), rel=0.1)


@pytest.mark.parametrize("fused", [False, True])
def test_steps_that_overflow_are_not_measured(fused: bool) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=3e38)
    with SensitivityProbe(model).attach(optimizer) as probe:
        scaler.scale(1e6 * F.cross_entropy(model(X), Y)).backward()
        scaler.step(optimizer)
    with pytest.raises(LayerError, match="nothing was measured"):
        probe.profile()


@pytest.mark.parametrize("options", [{}, {"before_clipping": True}], ids=["at the step", "before clipping"])
def test_measuring_does_not_change_a_clipped_training_by_a_bit(options: dict[str, bool]) -> None:
    def trained(*, probed: bool) -> str:
        model = net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        probe = SensitivityProbe(model)
        if probed:
            probe.attach(optimizer, **options)  # type: ignore[arg-type]
        for x, y in zip(X.split(8), Y.split(8), strict=True):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
        probe.detach()
        return digest(model.state_dict())

    assert trained(probed=True) == trained(probed=False)


def test_recording_manually_before_clipping_gives_the_same_scores() -> None:
    model = net()
    probe = SensitivityProbe(model)
    for x, y in zip(X.split(8), Y.split(8), strict=True):
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        probe.record()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
    assert close(probe.profile().batches, measured())


@pytest.mark.parametrize("kind", [torch.optim.LBFGS, torch.optim.SGD])
def test_a_step_with_a_closure_hides_its_gradients_and_is_refused(kind: Any) -> None:
    model = net()
    optimizer = kind(model.parameters(), lr=0.1)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(X), Y)
        loss.backward()
        return loss

    with SensitivityProbe(model).attach(optimizer), pytest.raises(LayerError, match=r"inside step\(closure\)"):
        optimizer.step(closure)


def test_parameters_without_values_are_refused() -> None:
    with torch.device("meta"):
        elsewhere = nn.Linear(3, 2)
    with pytest.raises(LayerError, match="sharded over processes or has no values here"):
        SensitivityProbe(elsewhere)
