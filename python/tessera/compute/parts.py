"""A loaded model taken apart: the modules that executor.py calls one after the other, and what the
library must know of the model. Each engine takes its own models apart."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .. import _c as c

__all__ = [
    "ModelParts",
    "Refused",
    "architecture_of",
    "check_layer_class",
    "has_dtype",
    "kv_dtype",
    "model_info",
    "rope_of",
]

# Both engines name their classes alike.
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


class Refused(Exception):
    """A feature of an engine or of a model that is not supported."""


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


def architecture_of(model: torch.nn.Module) -> str:
    """The name of the model's order of calls."""
    name = type(model).__name__
    if name not in _MODELS:
        raise Refused(f"models of class {name}")
    return _MODELS[name]


def check_layer_class(layer: torch.nn.Module) -> None:
    """Refused: a layer of another kind in a model that is known."""
    if type(layer).__name__ not in _LAYERS:
        raise Refused(f"layers of class {type(layer).__name__}")


def kv_dtype(parts: Any) -> int:
    """enum tsr_dtype of K and V."""
    if parts.dtype not in _DTYPES:
        raise Refused(f"KV of {parts.dtype}")
    return _DTYPES[parts.dtype]


def has_dtype(dtype: torch.dtype) -> bool:
    """Whether K and V of this type can be rotated."""
    return dtype in _DTYPES


def rope_of(rotary: Any, config: Any) -> c.Rope:
    """A rotary embedding of vLLM, or of SGLang, in the words of device.h."""
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
