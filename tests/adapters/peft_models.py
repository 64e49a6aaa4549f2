"""Hugging Face's models from small configurations, with every kind of adapter that peft has for them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import peft
import torch
import transformers as hf
from torch import Tensor, nn

WORDS, LENGTH, CLASSES = 40, 6, 3
_SMALL = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
_HEAD = {"num_labels": CLASSES, "pad_token_id": 0}


def bert(words: int = WORDS, length: int = 16) -> Any:
    return hf.BertForSequenceClassification(
        hf.BertConfig(vocab_size=words, max_position_embeddings=length, **_SMALL, **_HEAD)
    )


def gpt2() -> Any:
    return hf.GPT2ForSequenceClassification(
        hf.GPT2Config(
            vocab_size=WORDS, n_embd=8, n_layer=2, n_head=2, n_positions=16, bos_token_id=0, eos_token_id=0, **_HEAD
        )
    )


def llama() -> Any:
    return hf.LlamaForSequenceClassification(hf.LlamaConfig(vocab_size=WORDS, **_SMALL, **_HEAD))


def distilbert() -> Any:
    return hf.DistilBertForSequenceClassification(
        hf.DistilBertConfig(vocab_size=WORDS, dim=8, n_layers=2, n_heads=2, hidden_dim=16, **_HEAD)
    )


def vit() -> Any:
    return hf.ViTForImageClassification(
        hf.ViTConfig(image_size=8, patch_size=4, num_channels=2, num_labels=CLASSES, **_SMALL)
    )


class TorchAttention(nn.Module):
    """A model of a user's own around torch's attention, whose weights peft registers anew in every forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(WORDS, 8)
        self.attention = nn.ModuleList(nn.MultiheadAttention(8, 2, batch_first=True) for _ in range(2))
        self.norm = nn.ModuleList(nn.LayerNorm(8) for _ in range(2))
        self.classifier = nn.Linear(8, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.emb(ids)
        for attention, norm in zip(self.attention, self.norm, strict=True):
            h = norm(x)
            x = x + attention(h, h, h, need_weights=False)[0]
        logits: Tensor = self.classifier(x.mean(1))
        return logits


def adapted(model: Any, config: Any) -> Any:
    with warnings.catch_warnings():  # transformers warns about names that peft still uses
        warnings.simplefilter("ignore")
        return peft.get_peft_model(model, config)


def lora(model: Any = None, **options: Any) -> Any:
    return adapted(model or bert(), peft.LoraConfig(task_type="SEQ_CLS", r=2, lora_alpha=4, **options))


def with_another(model: Any) -> Any:
    """The same model with a second LoRA, which is not active."""
    model.add_adapter("another", peft.LoraConfig(task_type="SEQ_CLS", r=3))
    return model


def tokens(rows: int = 2) -> Tensor:
    return torch.arange(rows * LENGTH).reshape(rows, LENGTH) % (WORDS - 1) + 1


class Masked(nn.Module):
    """A model of a user's own, with a peft model inside."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.net(ids, attention_mask=(ids != 0).long()).logits
        return logits


KINDS: Mapping[str, Callable[[], Any]] = {
    "LoRA": lora,
    "rsLoRA": lambda: lora(use_rslora=True),
    "DoRA": lambda: lora(use_dora=True),
    "LoRA of all linear layers, with biases": lambda: lora(target_modules="all-linear", bias="lora_only"),
    "LoRA of embeddings": lambda: lora(target_modules=["word_embeddings", "query"]),
    "VeRA": lambda: adapted(bert(), peft.VeraConfig(task_type="SEQ_CLS", r=4)),
    "LoHa": lambda: adapted(bert(), peft.LoHaConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"])),
    "LoKr": lambda: adapted(bert(), peft.LoKrConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"])),
    "IA3": lambda: adapted(bert(), peft.IA3Config(task_type="SEQ_CLS")),
    "prefix tuning": lambda: adapted(bert(), peft.PrefixTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=2)),
    "prompt tuning": lambda: adapted(bert(), peft.PromptTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=2)),
    "LoRA of torch's attention": lambda: adapted(
        TorchAttention(),
        peft.LoraConfig(r=2, target_modules=["attention.0", "attention.1"], modules_to_save=["classifier"]),
    ),
    "LoRA of some tokens": lambda: adapted(
        TorchAttention(),
        peft.LoraConfig(
            r=2,
            target_modules=["attention.0", "attention.1"],
            trainable_token_indices={"emb": [1, 2]},
            modules_to_save=["classifier"],
        ),
    ),
    "VB-LoRA": lambda: adapted(
        bert(), peft.VBLoRAConfig(task_type="SEQ_CLS", r=2, num_vectors=4, vector_length=4, target_modules=["query"])
    ),
    "RandLoRA": lambda: adapted(bert(), peft.RandLoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query"])),
    "LoRA, another beside it": lambda: with_another(lora()),
    "LoRA inside a model of one's own": lambda: Masked(lora(use_dora=True)),
}


def sites(count: int = 4) -> dict[str, tuple[Tensor, Tensor]]:
    """Sites in which the first word decides the class, in each in its own way."""
    generator = torch.Generator().manual_seed(3)
    found = {}
    for i in range(count):
        ids = torch.randint(1, WORDS, (36 + 4 * i, LENGTH), generator=generator)
        found[f"site-{i}"] = (ids, (ids[:, 0] + i) % CLASSES)
    return found
