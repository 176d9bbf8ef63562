"""Checkpoints with random weights, a few hundred kilobytes each, one for every architecture that
can be taken apart: what a test needs to know is whether two ways of computing agree."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Lfm2Config,
    LlamaConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

VOCAB = 256
BLOCK = 32
# Of engines that are compared with vLLM's own prefix cache.
SETTINGS = dict(
    max_model_len=2048,
    max_num_seqs=8,
    max_num_batched_tokens=256,
    block_size=BLOCK,
    enable_prefix_caching=True,
    skip_tokenizer_init=True,
)
_CONFIGS: dict[str, type[PreTrainedConfig]] = {
    "llama": LlamaConfig,
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
}
# Rotary embeddings that the library knows how to turn.
ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 256,
    },
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 512,
    },
}


def text(seed: int, n: int) -> list[int]:
    """Tokens of no meaning; the same for the same numbers."""
    rng = random.Random(seed)
    return [rng.randrange(3, VOCAB) for _ in range(n)]


def make(
    folder: str,
    architecture: str,
    rope: str = "default",
    tokenizer: str | None = None,
    width: int = 128,
) -> str:
    """Writes a checkpoint and returns its folder. With the tokenizer of another one it has as many
    tokens as that."""
    vocab = VOCAB
    if tokenizer is not None:
        vocab = len(AutoTokenizer.from_pretrained(tokenizer))
    torch.manual_seed(7)
    config = _CONFIGS[architecture](
        vocab_size=vocab,
        hidden_size=width,
        intermediate_size=width * 3 // 2,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        rope_parameters=dict(ROPES[rope]),
        tie_word_embeddings=False,
        initializer_range=0.2,
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("bias"):
                weight.normal_(0, 0.5)
            elif "norm" in name:
                weight.normal_(1, 0.2)
    path = Path(folder) / f"{architecture}-{rope}"
    model.save_pretrained(path)
    if tokenizer is not None:
        AutoTokenizer.from_pretrained(tokenizer).save_pretrained(path)
    return str(path)


def make_hybrid(folder: str) -> str:
    """Short convolutions, whose layers have a state, between layers of attention (LFM2)."""
    torch.manual_seed(11)
    config = Lfm2Config(
        vocab_size=VOCAB,
        hidden_size=128,
        intermediate_size=192,
        num_hidden_layers=5,
        num_attention_heads=4,
        num_key_value_heads=2,
        conv_L_cache=4,
        block_auto_adjust_ff_dim=False,
        layer_types=["conv", "full_attention", "conv", "conv", "full_attention"],
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        initializer_range=0.2,
    )
    # vLLM reads these, which the class does not have any more.
    config.conv_dim = config.conv_dim_out = config.block_dim = config.hidden_size
    config.block_ff_dim = config.intermediate_size
    config.block_multiple_of, config.block_ffn_dim_multiplier = 32, 1.0
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    path = Path(folder) / "lfm2"
    model.save_pretrained(path)
    return str(path)


def make_draft(folder: str, target: str, method: str) -> str:
    """A draft model for a llama of this file, of method eagle: one layer over the target's last
    hidden states; or eagle3: over those of three of its layers, with fewer tokens than it knows.
    Its weights are random, so what it proposes depends on every row of its KV."""
    torch.manual_seed(13)
    config = LlamaConfig.from_pretrained(target, num_hidden_layers=1)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    width = config.hidden_size
    weights = {
        name.removeprefix("model."): weight.detach().clone().contiguous()
        for name, weight in model.named_parameters()
        if name.startswith(("model.layers.", "model.embed_tokens."))
        and "layers.0.input_layernorm" not in name
    }
    if method == "eagle":
        weights["fc.weight"] = torch.randn(width, 2 * width) / width**0.5
        config.architectures = ["EagleLlamaForCausalLM"]
    else:
        _widen(weights, width)
        weights["lm_head.weight"] = 0.2 * torch.randn(VOCAB // 2, width)
        weights["d2t"] = torch.arange(VOCAB // 2)  # token i is 2 * i of the target
        config.draft_vocab_size = VOCAB // 2
        config.architectures = ["LlamaForCausalLMEagle3"]
    path = Path(folder) / method
    path.mkdir()
    save_file(weights, path / "model.safetensors")
    config.save_pretrained(path)
    return str(path)


def _widen(weights: dict[str, torch.Tensor], width: int) -> None:
    """Makes a layer one of eagle3: it sees embeddings beside hidden states."""
    for name in ("q_proj", "k_proj", "v_proj"):
        full = f"layers.0.self_attn.{name}.weight"
        weights[full] = 0.2 * torch.randn(weights[full].shape[0], 2 * width)
    weights["layers.0.input_layernorm.weight"] = torch.ones(width)
    weights["layers.0.hidden_norm.weight"] = torch.ones(width)
    weights["norm.weight"] = torch.ones(width)
    weights["fc.weight"] = torch.randn(width, 3 * width) / width**0.5


def make_mtp(folder: str) -> str:
    """A model with a layer that predicts one token more (MiMo)."""
    torch.manual_seed(17)
    path = Path(make(folder, "qwen2"))
    weights = load_file(path / "model.safetensors")
    config = Qwen2Config.from_pretrained(path)
    width = config.hidden_size
    for name, weight in list(weights.items()):
        if name.startswith("model.layers.0."):
            own = name.replace("model.layers.", "model.mtp_layers.")
            weights[own] = weight + 0.1 * torch.randn_like(weight)
    for name in ("token_layernorm", "hidden_layernorm", "final_layernorm"):
        weights[f"model.mtp_layers.0.{name}.weight"] = torch.ones(width)
    weights["model.mtp_layers.0.input_proj.weight"] = torch.randn(width, 2 * width) / width**0.5
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    config.architectures = ["MiMoForCausalLM"]
    config.num_nextn_predict_layers = 1
    config.save_pretrained(path)
    return str(path)
