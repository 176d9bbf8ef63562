"""A loaded SGLang model taken apart for compute/executor.py. Models that its order of calls is not
true for are refused by name."""

from __future__ import annotations

from typing import Any

import torch

from ..compute.parts import (
    ModelParts,
    Refused,
    architecture_of,
    check_layer_class,
    has_dtype,
    rope_of,
)

__all__ = ["take_apart"]


def take_apart(model: torch.nn.Module, config: Any) -> ModelParts:
    """`config`: SGLang's ModelConfig."""
    architecture = architecture_of(model)
    if config.quantization is not None:
        raise Refused(f"models quantised with {config.quantization}")
    if not has_dtype(config.dtype):
        raise Refused(f"models of {config.dtype}")
    inner: Any = model.model
    layers = tuple(inner.layers)
    for layer in layers:
        _check_layer(layer)
    first = layers[0].self_attn
    return ModelParts(
        architecture=architecture,
        embed=inner.embed_tokens,
        norm=inner.norm,
        logits=_no_logits,
        layers=layers,
        n_heads=first.num_heads,
        n_kv_heads=first.num_kv_heads,
        head_dim=first.head_dim,
        scale=first.scaling,
        dtype=config.dtype,
        device=first.qkv_proj.weight.device,
        n_vocab=config.vocab_size,
        context=config.context_len,
        rope=rope_of(first.rotary_emb, config.hf_text_config),
    )


def _no_logits(hidden: torch.Tensor) -> torch.Tensor | None:
    raise RuntimeError("SGLang computes questions itself")


def _check_layer(layer: Any) -> None:
    check_layer_class(layer)
    attn = layer.self_attn.attn
    unusual = {
        "sliding windows": attn.sliding_window_size != -1,
        "soft-capped attention": bool(attn.logit_cap),
        "cross attention": attn.is_cross_attention,
        "layers without positions": attn.use_irope,
        f"attention of type {attn.attn_type}": "DECODER" not in str(attn.attn_type).upper(),
        "attention with a temperature": attn.xai_temperature_len != -1,
    }
    for name, wrong in unusual.items():
        if wrong:
            raise Refused(name)
