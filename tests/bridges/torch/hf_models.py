# SPDX-License-Identifier: Apache-2.0
"""Small models of 30 architectures of Hugging Face, without dropout, each with a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf

Case = tuple[Any, dict[str, Any]]
MODELS: dict[str, Callable[..., Case]] = {}
"""One function per architecture, which makes the model and its arguments."""

TEXT = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 37,
    "max_position_embeddings": 64,
}
IMAGE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 37,
    "image_size": 32,
    "patch_size": 8,
}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def text(
    name: str, model: str, config: str, *, is_classifier: bool = False, **options: Any
) -> None:
    """Add a model of tokens; its labels are the tokens, or classes."""

    def make() -> Case:
        made = getattr(hf, model)(getattr(hf, config)(**options))
        tokens = torch.randint(3, 90, (2, 9))
        batch = {"input_ids": tokens, "labels": torch.tensor([0, 1]) if is_classifier else tokens}
        if is_classifier:
            batch["attention_mask"] = torch.tensor([[1] * 9, [1] * 5 + [0] * 4])
        return made, batch

    MODELS[name] = make


def image(name: str, model: str, config: str, **options: Any) -> None:
    """Add a classifier of images."""

    def make() -> Case:
        made = getattr(hf, model)(getattr(hf, config)(**options))
        return made, {"pixel_values": torch.randn(4, 3, 32, 32), "labels": torch.tensor([0, 1] * 2)}

    MODELS[name] = make


def other(function: Callable[..., Case]) -> Callable[..., Case]:
    """Add a model with other arguments."""
    MODELS[function.__name__] = function
    return function


GROUPED = TEXT | {"num_key_value_heads": 2}
text(
    "gpt2",
    "GPT2LMHeadModel",
    "GPT2Config",
    vocab_size=99,
    n_embd=32,
    n_layer=2,
    n_head=4,
    n_positions=64,
    resid_pdrop=0,
    embd_pdrop=0,
    attn_pdrop=0,
)
text("llama", "LlamaForCausalLM", "LlamaConfig", **GROUPED)
text("qwen3", "Qwen3ForCausalLM", "Qwen3Config", **GROUPED, head_dim=8)
text("mistral", "MistralForCausalLM", "MistralConfig", **GROUPED)
text("gemma3", "Gemma3ForCausalLM", "Gemma3TextConfig", **GROUPED, head_dim=8, sliding_window=4)
text(
    "phi3",
    "Phi3ForCausalLM",
    "Phi3Config",
    **GROUPED,
    pad_token_id=0,
    eos_token_id=1,
    bos_token_id=2,
)
text(
    "mixtral",
    "MixtralForCausalLM",
    "MixtralConfig",
    **GROUPED,
    num_local_experts=4,
    num_experts_per_tok=2,
)
text("olmoe", "OlmoeForCausalLM", "OlmoeConfig", **GROUPED, num_experts=4, num_experts_per_tok=2)
for name, prefix in (("bert", "Bert"), ("roberta", "Roberta")):
    text(
        name,
        f"{prefix}ForSequenceClassification",
        f"{prefix}Config",
        is_classifier=True,
        **TEXT,
        **NO_DROPOUT,
    )
text(
    "distilbert",
    "DistilBertForSequenceClassification",
    "DistilBertConfig",
    is_classifier=True,
    vocab_size=99,
    dim=32,
    n_layers=2,
    n_heads=4,
    hidden_dim=37,
    max_position_embeddings=64,
    dropout=0,
    attention_dropout=0,
    seq_classif_dropout=0,
)
text(
    "albert",
    "AlbertForSequenceClassification",
    "AlbertConfig",
    is_classifier=True,
    **TEXT,
    **NO_DROPOUT,
    embedding_size=16,
    classifier_dropout_prob=0,
)
text(
    "electra",
    "ElectraForSequenceClassification",
    "ElectraConfig",
    is_classifier=True,
    **TEXT,
    **NO_DROPOUT,
    embedding_size=16,
)
text(
    "deberta-v2",
    "DebertaV2ForSequenceClassification",
    "DebertaV2Config",
    is_classifier=True,
    **TEXT,
    **NO_DROPOUT,
    pooler_dropout=0,
    relative_attention=True,
    pos_att_type=["p2c", "c2p"],
    position_buckets=8,
    problem_type="single_label_classification",  # otherwise the head branches on values
)
text(
    "t5",
    "T5ForConditionalGeneration",
    "T5Config",
    vocab_size=99,
    d_model=32,
    d_kv=8,
    d_ff=37,
    num_layers=2,
    num_heads=4,
    dropout_rate=0,
    decoder_start_token_id=0,
)
LAYERS = {
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 37,
    "decoder_ffn_dim": 37,
    "vocab_size": 99,
    "d_model": 32,
    "dropout": 0,
}
text(
    "bart",
    "BartForConditionalGeneration",
    "BartConfig",
    **LAYERS,
    max_position_embeddings=64,
    attention_dropout=0,
    activation_dropout=0,
    pad_token_id=1,
    decoder_start_token_id=2,
)
text(
    "mamba",
    "MambaForCausalLM",
    "MambaConfig",
    vocab_size=99,
    hidden_size=32,
    num_hidden_layers=2,
    state_size=4,
)
text(
    "opt",
    "OPTForCausalLM",
    "OPTConfig",
    vocab_size=99,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    ffn_dim=37,
    max_position_embeddings=64,
    dropout=0,
    attention_dropout=0,
    word_embed_proj_dim=32,
)
image("vit", "ViTForImageClassification", "ViTConfig", **IMAGE, **NO_DROPOUT)
image(
    "swin",
    "SwinForImageClassification",
    "SwinConfig",
    image_size=32,
    patch_size=2,
    embed_dim=16,
    depths=[1, 2],
    num_heads=[2, 4],
    window_size=4,
    drop_path_rate=0,
    **NO_DROPOUT,
)
image("beit", "BeitForImageClassification", "BeitConfig", **IMAGE, **NO_DROPOUT, drop_path_rate=0)
image(
    "dinov2",
    "Dinov2ForImageClassification",
    "Dinov2Config",
    **{key: value for key, value in IMAGE.items() if key != "intermediate_size"},
    **NO_DROPOUT,
    drop_path_rate=0,
)
image(
    "resnet",
    "ResNetForImageClassification",
    "ResNetConfig",
    embedding_size=8,
    hidden_sizes=[8, 16],
    depths=[1, 2],
    layer_type="basic",
)
image(
    "convnext",
    "ConvNextForImageClassification",
    "ConvNextConfig",
    hidden_sizes=[8, 16],
    depths=[1, 2],
    num_stages=2,
    drop_path_rate=0,
)
image(
    "mobilenet_v2",
    "MobileNetV2ForImageClassification",
    "MobileNetV2Config",
    depth_multiplier=0.25,
    image_size=32,
    classifier_dropout_prob=0,
)
image(
    "regnet",
    "RegNetForImageClassification",
    "RegNetConfig",
    embedding_size=8,
    hidden_sizes=[8, 16],
    depths=[1, 2],
    groups_width=4,
)


@other
def clip() -> Case:
    """Return a model of images and texts with its contrastive loss."""
    tokens = {**TEXT, "attention_dropout": 0.0, "eos_token_id": 98, "bos_token_id": 97}
    pixels = {**IMAGE, "attention_dropout": 0.0}
    config = hf.CLIPConfig(text_config=tokens, vision_config=pixels, projection_dim=16)
    batch = {"input_ids": torch.randint(3, 90, (4, 9)), "pixel_values": torch.randn(4, 3, 32, 32)}
    return hf.CLIPModel(config), {**batch, "return_loss": True}


@other
def whisper() -> Case:
    """Return a model of speech that writes text."""
    config = hf.WhisperConfig(
        **LAYERS,
        num_mel_bins=8,
        max_source_positions=20,
        max_target_positions=20,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=3,
    )
    batch = {"input_features": torch.randn(2, 8, 40), "labels": torch.randint(3, 90, (2, 7))}
    return hf.WhisperForConditionalGeneration(config), batch


@other
def wav2vec2(layerdrop: float = 0.0) -> Case:
    """Return a classifier of sound, which branches on random numbers if it drops layers."""
    config = hf.Wav2Vec2Config(
        vocab_size=32,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=37,
        conv_dim=(16, 16),
        conv_stride=(5, 2),
        conv_kernel=(10, 3),
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=2,
        hidden_dropout=0,
        attention_dropout=0,
        feat_proj_dropout=0,
        final_dropout=0,
        activation_dropout=0,
        layerdrop=layerdrop,
        apply_spec_augment=False,
        classifier_proj_size=16,
    )
    batch = {"input_values": torch.randn(2, 400), "labels": torch.tensor([0, 1])}
    return hf.Wav2Vec2ForSequenceClassification(config), batch


@other
def segformer() -> Case:
    """Return a model that gives each pixel a class."""
    config = hf.SegformerConfig(
        hidden_sizes=[8, 16, 16, 16],
        depths=[1, 1, 1, 1],
        num_attention_heads=[1, 2, 2, 2],
        decoder_hidden_size=16,
        num_labels=3,
        classifier_dropout_prob=0,
        drop_path_rate=0,
        **NO_DROPOUT,
    )
    batch = {"pixel_values": torch.randn(2, 3, 64, 64), "labels": torch.randint(0, 3, (2, 64, 64))}
    return hf.SegformerForSemanticSegmentation(config), batch
