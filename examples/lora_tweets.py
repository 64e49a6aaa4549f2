"""A small BERT with LoRA adapters for texts: playerfl run tweets --model examples/lora_tweets.py:make_model

The BERT is built from a configuration, so its frozen weights are random, which shows how everything works but learns
little. docs/adapters.md shows the same with a pretrained model from the Hugging Face hub.
"""

from __future__ import annotations

from typing import Any

from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification

WORDS = 10_000
"""The size of the task's vocabulary (`data.vocabulary`)."""


class Adapted(nn.Module):
    """A pretrained classifier whose adapters and head train, and whose other weights are frozen."""

    def __init__(self, pretrained: Any, config: LoraConfig) -> None:
        super().__init__()
        self.net = get_peft_model(pretrained, config)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.net(tokens, attention_mask=(tokens != 0).long()).logits  # 0 is padding
        return logits


def make_model(inputs: int = 64, outputs: int = 3) -> nn.Module:
    return Adapted(bert(inputs, outputs), LoraConfig(task_type="SEQ_CLS", r=4, lora_alpha=8))


def bert(length: int, classes: int) -> Any:
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=WORDS,
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=128,
            max_position_embeddings=length,
            num_labels=classes,
        )
    )
