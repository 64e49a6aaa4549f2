"""The transformer for short texts: one attention block, read out at its first token."""

from __future__ import annotations

import math

from torch import Tensor, nn
from torch.nn import functional as F

PADDING = 0


class TextTransformer(nn.Module):
    """Embeddings, one single-head attention and one feed-forward block with residuals, then a linear head.

    Takes token ids (rows, at most `length`): a summary token first, `padding` where there is no token. Without layer
    norm, as in the paper's table.
    """

    def __init__(
        self, vocabulary: int, length: int, width: int, hidden: int, classes: int, padding: int = PADDING
    ) -> None:
        super().__init__()
        self.padding = padding
        self.tokens = nn.Embedding(vocabulary, width, padding_idx=padding)
        self.positions = nn.Embedding(length, width)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.projection = nn.Linear(width, width)
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)
        self.head = nn.Linear(width, classes)
        # The output of each layer, with its residual, for hooks that look at representations.
        self.embeddings, self.attention, self.feed_forward = nn.Identity(), nn.Identity(), nn.Identity()

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embeddings(self.tokens(ids) + self.positions.weight[: ids.shape[1]])
        # Only the first token is read out, so only it needs a query, a residual and the feed-forward block. With a
        # single query, q·(K x) = (Kᵀq)·x and Σ p·(V x) = V (Σ p·x): keys and values need not be computed by token.
        first = x[:, 0]
        asked = self.query(first) @ self.key.weight
        first = self.attention(first + self.projection(self.value(_attend(asked, x, ids == self.padding))))
        first = self.feed_forward(first + self.fc2(self.fc1(first).relu()))
        logits: Tensor = self.head(first)
        return logits

    def layer_groups(self) -> list[tuple[str, list[str]]]:
        return [
            ("embeddings", ["tokens.weight", "positions.weight"]),
            ("attention", ["query.weight", "key.weight", "value.weight", "projection.weight", "projection.bias"]),
            ("feed_forward", ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]),
            ("head", ["head.weight", "head.bias"]),
        ]


def _attend(asked: Tensor, x: Tensor, padded: Tensor) -> Tensor:
    """The attention-weighted mean of each row's tokens: (rows, width), padding left out."""
    mask = x.new_zeros(padded.shape).masked_fill(padded, -math.inf)
    # (rows, heads, tokens, width): with the head axis, torch uses its fused kernel.
    attended = F.scaled_dot_product_attention(asked[:, None, None], x[:, None], x[:, None], mask[:, None, None])
    return attended[:, 0, 0]
