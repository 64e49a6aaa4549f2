"""The callback inside the real Trainer, on a tiny model."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import playerfl
from playerfl.errors import ConfigError
from playerfl.seeding import generator_for, seeded_rng

# Imported inside functions: `make test` collects this file too.
pytestmark = [
    pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed"),
    pytest.mark.system,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

WORDS = torch.randint(1, 30, (24, 6), generator=generator_for(0, "words"))
LABELS = torch.randint(2, (24,), generator=generator_for(0, "labels"))
ROWS = [{"input_ids": words, "labels": label} for words, label in zip(WORDS, LABELS, strict=True)]


def bert() -> nn.Module:
    import transformers

    config = transformers.BertConfig(
        vocab_size=30, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=8, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    with seeded_rng(1):
        model: nn.Module = transformers.BertForSequenceClassification(config)
    return model


def trained(tmp_path: Path, *, measure: bool = True, **changes: Any) -> tuple[nn.Module, Any]:
    import transformers

    from playerfl.integrations.hugging_face import SensitivityCallback

    model, callback = bert(), SensitivityCallback()
    arguments = transformers.TrainingArguments(
        **{
            "output_dir": str(tmp_path), "use_cpu": True, "report_to": [], "save_strategy": "no", "seed": 3,
            "num_train_epochs": 2, "per_device_train_batch_size": 8, "max_grad_norm": 0.0, "learning_rate": 1e-3,
            "disable_tqdm": True, "dataloader_pin_memory": False, **changes,
        }
    )  # fmt: skip
    transformers.Trainer(model, arguments, train_dataset=ROWS, callbacks=[callback] if measure else []).train()
    return model, callback


def test_the_first_epoch_is_measured_and_recommends_a_cut(tmp_path: Path) -> None:
    model, callback = trained(tmp_path)
    assert len(callback.profile().batches) == 3  # 24 rows, batches of 8, the second epoch left out
    recommendation = playerfl.recommend({"north": callback.profile()}, model, layers=callback.layers)
    assert recommendation.cut.layers[0] == "bert.embeddings"
    assert recommendation.summary is not None


def first_scores(model: nn.Module, rows: list[int]) -> Tensor:
    """The first batch's scores from a gradient computed here."""
    from playerfl.layers.layer_map import LayerMap
    from playerfl.layers.sensitivity import layer_importance

    model(input_ids=WORDS[rows], labels=LABELS[rows]).loss.backward()
    named = dict(model.named_parameters())
    gradients = {name: p.grad for name, p in named.items()}
    return torch.tensor(list(layer_importance(named, gradients, LayerMap.of(model)).values()))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"max_grad_norm": 1e-3},
        {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 12},
        {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 12, "max_grad_norm": 1e-3},
    ],
    ids=["plain", "clipped", "accumulated", "accumulated and clipped"],
)
def test_clipping_and_accumulation_leave_the_scores_of_the_whole_batch(tmp_path: Path, changes: dict[str, Any]) -> None:
    options = {"per_device_train_batch_size": 24, "num_train_epochs": 1, **changes}
    _, callback = trained(tmp_path, **options)
    (row,) = callback.profile().batches
    # All 24 rows make one step, so their order does not matter. This Trainer sums the losses of some models over
    # accumulated batches instead of averaging them, which scales every layer alike and moves no cut.
    expected = first_scores(bert(), list(range(24)))
    scale = changes.get("gradient_accumulation_steps", 1) ** 2
    assert any(torch.tensor(row) / k == pytest.approx(expected, rel=1e-3) for k in (1, scale))


def test_mixed_precision_is_measured_unscaled(tmp_path: Path) -> None:
    _, callback = trained(tmp_path, bf16=True, per_device_train_batch_size=24, num_train_epochs=1)
    (row,) = callback.profile().batches
    assert torch.tensor(row) == pytest.approx(first_scores(bert(), list(range(24))), rel=0.1)


def test_measuring_does_not_change_training_by_a_bit(tmp_path: Path) -> None:
    from playerfl.weights import digest

    (measured, _), (plain, _) = trained(tmp_path), trained(tmp_path, measure=False)
    assert digest(measured.state_dict()) == digest(plain.state_dict())


def test_sharded_parameters_are_refused() -> None:
    from types import SimpleNamespace

    from playerfl.integrations.hugging_face import SensitivityCallback

    callback = SensitivityCallback()
    with pytest.raises(ConfigError, match="the Trainer uses fsdp, which shards parameters"):
        callback.on_train_begin(SimpleNamespace(fsdp="full_shard"), None, None, model=bert())
    with pytest.raises(ConfigError, match="nothing has been measured yet"):
        callback.profile()
