"""The transformer's shape, and that computing only one token gives the same outputs and gradients."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from playerfl.layers.layer_map import LayerMap
from playerfl.models.transformer import TextTransformer

VOCABULARY, LENGTH, WIDTH, HIDDEN, CLASSES = 30, 9, 8, 20, 3


def small(seed: int = 0) -> TextTransformer:
    torch.manual_seed(seed)
    return TextTransformer(VOCABULARY, LENGTH, WIDTH, HIDDEN, CLASSES).double()


def token_ids(rows: int = 7) -> Tensor:
    """Rows of 1 to LENGTH tokens: the summary token first, padding last."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(2, VOCABULARY, (rows, LENGTH), generator=generator)
    ids[:, 0] = 1
    for row, count in enumerate(range(1, rows + 1)):
        ids[row, min(count, LENGTH) :] = 0
    return ids


def every_token(model: TextTransformer, ids: Tensor) -> Tensor:
    """The same block written plainly: all tokens through every layer, then the first one's logits."""
    x = model.tokens(ids) + model.positions(torch.arange(ids.shape[1]))
    query, key, value = model.query(x), model.key(x), model.value(x)
    scores = query @ key.transpose(1, 2) / math.sqrt(x.shape[2])
    shares = scores.masked_fill((ids == 0)[:, None, :], -math.inf).softmax(2)
    x = x + model.projection(shares @ value)
    x = x + model.fc2(model.fc1(x).relu())
    logits: Tensor = model.head(x)[:, 0]
    return logits


def gradients(model: TextTransformer, logits: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    F.cross_entropy(logits, torch.arange(len(logits)) % CLASSES).backward()  # type: ignore[no-untyped-call]
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def test_outputs_and_gradients_equal_those_of_computing_every_token() -> None:
    model, ids = small(), token_ids()
    quick, plain = model(ids), every_token(model, ids)
    torch.testing.assert_close(quick, plain, rtol=0, atol=1e-12)
    from_quick, from_plain = gradients(model, quick), gradients(model, plain)
    assert set(from_quick) == set(from_plain) == {name for name, _ in model.named_parameters()}
    for name, gradient in from_plain.items():
        torch.testing.assert_close(from_quick[name], gradient, rtol=0, atol=1e-12, msg=name)


def test_padding_changes_nothing_and_learns_nothing() -> None:
    model, ids = small(), token_ids(4)
    before = model(ids)
    with torch.no_grad():
        model.tokens.weight[0] = 1e3 * torch.randn(WIDTH, dtype=torch.double)
    torch.testing.assert_close(model(ids), before, rtol=0, atol=1e-12)
    torch.testing.assert_close(model(ids[:, :4]), before, rtol=0, atol=1e-12)
    by_name = gradients(model, model(ids))
    assert float(by_name["tokens.weight"][0].abs().max()) == 0
    assert float(by_name["positions.weight"][4:].abs().max()) == 0


def test_every_real_token_counts() -> None:
    model, ids = small(), token_ids(5)
    changed = ids.clone()
    changed[4, 4] = 2 + (int(ids[4, 4]) - 1) % (VOCABULARY - 2)
    difference = (model(changed) - model(ids)).detach().abs().amax(1)
    assert bool(difference[4] > 1e-6)
    assert float(difference[:4].max()) == 0


def test_gradients_have_the_strides_of_their_parameters() -> None:
    """Fused optimisers ignore strides, so a transposed gradient would be applied to the wrong entries."""
    model = small().float()
    gradients(model, model(token_ids()))
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        assert parameter.grad.stride() == parameter.stride(), name


def test_layers_are_the_papers_four_groups() -> None:
    layers = LayerMap.of(small())
    assert layers.names == ("embeddings", "attention", "feed_forward", "head")
    attention = ("query.weight", "key.weight", "value.weight", "projection.weight", "projection.bias")
    assert layers.entries["attention"] == attention
    biases = [name for name, _ in small().named_parameters() if name.endswith("bias")]
    assert biases == ["projection.bias", "fc1.bias", "fc2.bias", "head.bias"]
