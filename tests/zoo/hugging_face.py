"""Hugging Face's models from small configurations, without weights."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf
from torch import nn

_SMALL = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
_WORDS = {"vocab_size": 9, "max_position_embeddings": 8}


def ids() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.arange(10).reshape(2, 5) % 9}


def picture() -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.linspace(-1, 1, 256).reshape(2, 2, 8, 8)}


def models() -> dict[str, tuple[nn.Module, Any]]:
    whisper = hf.WhisperConfig(
        vocab_size=9, d_model=8, encoder_layers=1, encoder_attention_heads=2, encoder_ffn_dim=16, num_mel_bins=4,
        max_source_positions=6, pad_token_id=0, bos_token_id=0, eos_token_id=0, decoder_start_token_id=0,
    )  # fmt: skip
    distilled = hf.DistilBertConfig(dim=8, n_layers=1, n_heads=2, hidden_dim=16, **_WORDS)
    gpt2 = hf.GPT2Config(vocab_size=9, n_embd=8, n_layer=1, n_head=2, n_positions=8, bos_token_id=0, eos_token_id=0)
    llama = hf.LlamaConfig(pad_token_id=0, num_key_value_heads=1, **_WORDS, **_SMALL)
    t5 = hf.T5Config(vocab_size=9, d_model=8, d_kv=4, d_ff=16, num_layers=2, num_heads=2, pad_token_id=0)
    beit = {**_SMALL, "num_hidden_layers": 2, "use_shared_relative_position_bias": True}
    speech = hf.Wav2Vec2ConformerConfig(
        vocab_size=9, conv_dim=(4,), conv_stride=(2,), conv_kernel=(3,), num_feat_extract_layers=1,
        num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, classifier_proj_size=4,
        conv_depthwise_kernel_size=3, **{**_SMALL, "num_hidden_layers": 2},
    )  # fmt: skip
    sizes = {"d_model": 8, "encoder_layers": 1, "encoder_ffn_dim": 16, "decoder_layers": 2, "decoder_ffn_dim": 16}
    detr = hf.DetrConfig(
        use_timm_backbone=False, backbone=None, use_pretrained_backbone=False, num_queries=3, num_labels=2, **sizes,
        backbone_config=hf.ResNetConfig(
            embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], layer_type="basic", out_features=["stage2"]
        ),
        encoder_attention_heads=2, decoder_attention_heads=2,
    )  # fmt: skip
    mpnet = hf.MPNetConfig(**{**_SMALL, **_WORDS, "num_hidden_layers": 2})
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    mixtral = hf.MixtralConfig(num_key_value_heads=1, num_local_experts=4, **special, **_WORDS, **_SMALL)
    opt = hf.OPTConfig(
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        ffn_dim=16,
        word_embed_proj_dim=4,
        **_WORDS,
        **special,
    )
    deepseek = hf.DeepseekV3Config(
        moe_intermediate_size=8, n_routed_experts=4, num_experts_per_tok=2, n_group=2, topk_group=1,
        first_k_dense_replace=0, kv_lora_rank=4, q_lora_rank=4, qk_rope_head_dim=2, qk_nope_head_dim=4, v_head_dim=4,
        num_key_value_heads=2, **special, **_WORDS, **_SMALL,
    )  # fmt: skip
    funnel = hf.FunnelConfig(
        vocab_size=9, block_sizes=[1], num_decoder_layers=0, d_model=8, n_head=2, d_head=4, d_inner=16
    )
    levit = hf.LevitConfig(
        image_size=64, num_channels=2, hidden_sizes=[16, 16, 16], num_attention_heads=[2, 2, 2], depths=[1, 1, 1],
        key_dim=[4, 4, 4],
    )  # fmt: skip
    mobile = hf.MobileBertConfig(
        embedding_size=4, intra_bottleneck_size=4, true_hidden_size=4, num_feedforward_networks=2, **_WORDS, **_SMALL
    )
    return {
        "BERT": (hf.BertForSequenceClassification(hf.BertConfig(**_WORDS, **_SMALL)), ids()),
        "DistilBERT": (hf.DistilBertForSequenceClassification(distilled), ids()),
        "GPT-2": (hf.GPT2LMHeadModel(gpt2), ids()),
        "ViT": (
            hf.ViTForImageClassification(hf.ViTConfig(image_size=8, patch_size=4, num_channels=2, **_SMALL)),
            picture(),
        ),
        "Llama": (hf.LlamaForSequenceClassification(llama), ids()),
        "Whisper's encoder": (
            hf.models.whisper.modeling_whisper.WhisperEncoder(whisper),
            {"input_features": torch.ones(2, 4, 12)},
        ),
        "T5": (hf.T5ForConditionalGeneration(t5), {**ids(), "decoder_input_ids": ids()["input_ids"]}),
        "ALBERT": (hf.AlbertForSequenceClassification(hf.AlbertConfig(embedding_size=4, **_WORDS, **_SMALL)), ids()),
        "BEiT": (
            hf.BeitForImageClassification(hf.BeitConfig(image_size=8, patch_size=4, num_channels=2, **beit)),
            picture(),
        ),
        "Conformer": (
            hf.Wav2Vec2ConformerForSequenceClassification(speech),
            {"input_values": torch.linspace(-1, 1, 60).reshape(2, 30)},
        ),
        "MPNet": (hf.MPNetForSequenceClassification(mpnet), ids()),
        "RoFormer": (
            hf.RoFormerForSequenceClassification(hf.RoFormerConfig(embedding_size=8, **_WORDS, **_SMALL)),
            ids(),
        ),
        "DETR": (
            hf.DetrForObjectDetection(detr),
            {"pixel_values": torch.linspace(-1, 1, 6144).reshape(2, 3, 32, 32)},
        ),
        "DeiT": (
            hf.DeiTForImageClassificationWithTeacher(
                hf.DeiTConfig(image_size=8, patch_size=4, num_channels=2, **_SMALL)
            ),
            picture(),
        ),
        "GPT-NeoX": (hf.GPTNeoXForSequenceClassification(hf.GPTNeoXConfig(**special, **_WORDS, **_SMALL)), ids()),
        "Mixtral": (hf.MixtralForCausalLM(mixtral), ids()),
        "OPT": (hf.OPTForSequenceClassification(opt), ids()),
        "DeepSeek-V3": (hf.DeepseekV3ForCausalLM(deepseek), ids()),
        "Funnel": (hf.FunnelForSequenceClassification(funnel), ids()),
        "OLMo 2": (hf.Olmo2ForCausalLM(hf.Olmo2Config(num_key_value_heads=1, **special, **_WORDS, **_SMALL)), ids()),
        "MobileBERT": (hf.MobileBertForSequenceClassification(mobile), ids()),
        "LeViT": (
            hf.LevitForImageClassification(levit),
            {"pixel_values": torch.linspace(-1, 1, 16384).reshape(2, 2, 64, 64)},
        ),
    }
