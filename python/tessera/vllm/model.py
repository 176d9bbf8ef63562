"""A loaded vLLM model taken apart: the modules that executor.py calls one after the other, and what
the library must know of the model. Models that this order of calls is not true for are refused by
name."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .. import _c as c
from .shape import Refused

__all__ = ["ModelParts", "kv_dtype", "model_info", "take_apart"]

_MODELS = {"LlamaForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3"}
_LAYERS = ("LlamaDecoderLayer", "Qwen2DecoderLayer", "Qwen3DecoderLayer")
_ROTARY = {
    "RotaryEmbedding": 0,
    "LinearScalingRotaryEmbedding": 1,
    "YaRNScalingRotaryEmbedding": 3,
    "Llama3RotaryEmbedding": 4,
}
_DTYPES = {torch.float16: 1, torch.bfloat16: 2, torch.float32: 3}
_NEOX, _GPTJ = 1, 2


@dataclass(frozen=True)
class ModelParts:
    """What the executor calls."""

    architecture: str
    embed: torch.nn.Module
    norm: torch.nn.Module  # after the last layer
    logits: Callable[[torch.Tensor], torch.Tensor | None]
    layers: tuple[torch.nn.Module, ...]
    n_heads: int
    n_kv_heads: int
    head_dim: int
    scale: float
    dtype: torch.dtype
    device: torch.device
    n_vocab: int
    context: int
    rope: c.Rope


def kv_dtype(parts: Any) -> int:
    """enum tsr_dtype of K and V."""
    if parts.dtype not in _DTYPES:
        raise Refused(f"KV of {parts.dtype}")
    return _DTYPES[parts.dtype]


def take_apart(model: torch.nn.Module, vllm_config: Any) -> ModelParts:
    """The parts of a model that vLLM has loaded. Refused, with the name of what is in the way."""
    architecture = _MODELS.get(type(model).__name__)
    if architecture is None:
        raise Refused(f"models of class {type(model).__name__}")
    if vllm_config.lora_config is not None:
        raise Refused("adapters (LoRA)")
    config = vllm_config.model_config
    inner: Any = model.model
    layers = tuple(inner.layers)
    for layer in layers:
        _check_layer(layer)
    first = layers[0].self_attn
    dtype = config.dtype
    if dtype not in _DTYPES or first.attn.kv_cache_torch_dtype != dtype:
        raise Refused(f"KV of {first.attn.kv_cache_torch_dtype} in a model of {dtype}")
    return ModelParts(
        architecture=architecture,
        embed=inner.embed_tokens,
        norm=inner.norm,
        logits=model.compute_logits,
        layers=layers,
        n_heads=first.num_heads,
        n_kv_heads=first.num_kv_heads,
        head_dim=first.head_dim,
        scale=first.scaling,
        dtype=dtype,
        device=first.qkv_proj.weight.device,
        n_vocab=config.get_vocab_size(),
        context=config.max_model_len,
        rope=_rope(first.rotary_emb, config.hf_text_config),
    )


def _check_layer(layer: Any) -> None:
    if type(layer).__name__ not in _LAYERS:
        raise Refused(f"layers of class {type(layer).__name__}")
    attn = layer.self_attn.attn
    impl = attn.impl
    if not hasattr(impl, "do_kv_cache_update"):
        raise Refused(f"attention of kind {type(impl).__name__}")
    if str(attn.attn_type) not in ("decoder", "AttentionType.DECODER"):
        raise Refused(f"attention of type {attn.attn_type}")
    unusual = {
        "sliding windows": getattr(attn, "sliding_window", None),
        "ALiBi": getattr(impl, "alibi_slopes", None),
        "attention sinks": getattr(impl, "sinks", None),
        "soft-capped attention": getattr(impl, "logits_soft_cap", None) or None,
        "layers that share KV": getattr(impl, "kv_sharing_target_layer_name", None),
        "dual chunk attention": getattr(layer.self_attn, "dual_chunk_attention_config", None),
    }
    for name, value in unusual.items():
        if value is not None:
            raise Refused(name)


def _rope(rotary: Any, config: Any) -> c.Rope:
    """vLLM's rotary embedding in the words of device.h."""
    scaling = _ROTARY.get(type(rotary).__name__)
    if scaling is None:
        raise Refused(f"rotary embeddings of class {type(rotary).__name__}")
    given = getattr(config, "rope_parameters", None) or {}
    trained = given.get("original_max_position_embeddings", rotary.max_position_embeddings)
    return c.Rope(
        size=ctypes.sizeof(c.Rope),
        pairing=_NEOX if rotary.is_neox_style else _GPTJ,
        scaling=scaling,
        dims=rotary.rotary_dim,
        trained=int(trained),
        theta=float(rotary.base),
        factor=float(given.get("factor") or 1.0) if scaling else 0.0,
        attention_factor=float(given.get("attention_factor") or 0.0),
        beta_fast=float(given.get("beta_fast") or 0.0),
        beta_slow=float(given.get("beta_slow") or 0.0),
        mscale=float(given.get("mscale") or 0.0),
        mscale_all_dim=float(given.get("mscale_all_dim") or 0.0),
        yarn_exact=int(given.get("truncate") is False),
        low_freq_factor=float(given.get("low_freq_factor") or 0.0),
        high_freq_factor=float(given.get("high_freq_factor") or 0.0),
    )


def model_info(parts: ModelParts, name: str, weights: bytes, identity: bytes) -> c.ModelInfo:
    """struct tsr_model_info; weights (32 bytes) and identity (16) say whose KV this is."""
    return c.ModelInfo(
        size=ctypes.sizeof(c.ModelInfo),
        architecture=parts.architecture.encode(),
        name=name.encode()[-127:],
        device=str(parts.device).encode()[:95],
        caps=c.MODEL_MASS | c.MODEL_DEVIATION | c.MODEL_BIAS,
        n_layers=len(parts.layers),
        n_heads=parts.n_heads,
        n_kv_heads=parts.n_kv_heads,
        head_dim=parts.head_dim,
        n_vocab=parts.n_vocab,
        context=parts.context,
        kv_dtype=_DTYPES[parts.dtype],
        token_bos=0xFFFFFFFF,
        weights=(ctypes.c_uint8 * 32).from_buffer_copy(weights),
        tokenizer=(ctypes.c_uint8 * 16).from_buffer_copy(identity),
        rope=parts.rope,
    )
