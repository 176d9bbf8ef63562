"""A loaded vLLM model taken apart: rows at any positions, over keys that somebody else put there.

vLLM runs a model as a whole, over sequences that it knows. A blend needs single layers over chosen
rows (blend.h), so the model's own modules are called here one after the other: norms, projections,
q and k norms, rotary embedding, output, MLP. Only the attention is torch's, over contiguous K and V
of the prompt instead of vLLM's pages. What computes is vLLM's in every other respect: its weights,
its kernels, its all-reduces. Models that this order of calls is not true for are refused by name.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import torch

from .. import _c as c
from ..blend import pass_table, pass_visible
from .shape import Refused

__all__ = ["BlendExecutor", "ModelParts", "Staging", "take_apart"]

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
_ROWS = 1024  # that are projected at once: enough for full speed, little enough to stay in caches
_KEPT_BYTES = 1 << 30  # of staging memory, between prompts
_ATTENDING = 32  # rows that share an end of their keys


@dataclass(frozen=True)
class ModelParts:
    """What the executor calls."""

    architecture: str
    embed: torch.nn.Module
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


def kv_dtype(parts: ModelParts) -> int:
    """enum tsr_dtype of K and V."""
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
        caps=c.MODEL_MASS | c.MODEL_DEVIATION,
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


class Staging:
    """Contiguous K and V of one prompt: token i of it in row i of every layer. Grows, and is kept
    for the next prompt unless it is large."""

    def __init__(self, parts: ModelParts) -> None:
        self._parts = parts
        self.n_slots = 0
        self.kv = torch.empty(0)

    def fit(self, n_slots: int) -> None:
        if n_slots <= self.n_slots:
            return
        parts = self._parts
        self.n_slots = min(-(-n_slots // 1024) * 1024, max(parts.context, n_slots))
        self.kv = torch.empty(0)  # the old one goes before the new one comes
        shape = (len(parts.layers), 2, self.n_slots, parts.n_kv_heads, parts.head_dim)
        self.kv = torch.empty(shape, dtype=parts.dtype)

    def rest(self) -> None:
        """No prompt is in work: memory that is worth having back is given back."""
        if self.kv.numel() * self.kv.element_size() > _KEPT_BYTES:
            self.n_slots = 0
            self.kv = torch.empty(0)

    def layout(self) -> c.KvLayout:
        """Where it stands, for the library."""
        parts = self._parts
        item = self.kv.element_size()
        layout = c.KvLayout(
            size=ctypes.sizeof(c.KvLayout),
            n_layers=len(parts.layers),
            n_planes=2,
            n_slots=self.n_slots,
        )
        for i in range(2):
            plane = layout.planes[i]
            plane.base = self.kv[:, i].data_ptr()
            plane.layer_bytes = (self.kv.numel() - i * self.kv.stride(1)) * item
            plane.layer_stride = self.kv.stride(0) * item
            plane.token_stride = self.kv.stride(2) * item
            plane.head_stride = self.kv.stride(3) * item
            plane.element_stride = item
            plane.dtype = _DTYPES[parts.dtype]
            plane.n_heads = parts.n_kv_heads
            plane.dim = parts.head_dim
            plane.rope_dims = parts.rope.dims if i == 0 else 0
        return layout


@dataclass
class _Projected:
    """q, k and v of the current rows at one layer, and the residual that goes with them."""

    layer: int
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor


class BlendExecutor:
    """Takes the steps of a blend (tessera.blend.Executor) over a staging memory."""

    def __init__(self, parts: ModelParts, staging: Staging) -> None:
        self._parts = parts
        self._staging = staging
        self._groups: list[tuple[int, list[tuple[int, int]]]] = []
        self._n_mass = 0
        self._hidden = self._slots = self._positions = torch.empty(0)
        self._residual: torch.Tensor | None = None
        self._projected: _Projected | None = None

    # ---- steps --------------------------------------------------------------------------------

    def begin(self, rows: c.ModelPass) -> None:
        if rows.bias:
            raise RuntimeError("vLLM's attention supports no bias")
        table = torch.frombuffer(pass_table(rows), dtype=torch.int32).view(-1, 3).long()
        tokens, self._positions, self._slots = table.unbind(1)
        self._positions = self._positions.contiguous()
        self._groups = pass_visible(rows)
        self._n_mass = rows.n_mass_rows
        self._hidden = self._parts.embed(tokens.contiguous())
        self._residual = None
        self._projected = None

    def layer(self, layer: int, mass: Any) -> None:
        row = self._project(layer)
        self._projected = None
        keys, values = self._staging.kv[layer]
        _put(keys, self._slots, row.k)
        _put(values, self._slots, row.v)
        heavy = torch.frombuffer(mass, dtype=torch.float32) if mass is not None else None
        if layer == len(self._parts.layers) - 1 and heavy is None:
            return  # nobody asks for what comes behind the last layer's K and V
        seen = self._attend(row.q, keys, values, heavy)
        self._finish(self._parts.layers[layer], seen)

    def deviation(self, layer: int, k: Any, v: Any) -> None:
        row = self._project(layer)
        for plane, fresh, out in ((0, row.k, k), (1, row.v, v)):
            if not out:
                continue
            stands = self._staging.kv[layer, plane].index_select(0, self._slots)
            apart = (fresh.float() - stands.float()).square_().sum((1, 2))
            address = ctypes.addressof(out.contents)
            target = (ctypes.c_float * len(apart)).from_address(address)
            torch.frombuffer(target, dtype=torch.float32).copy_(apart)

    def narrow(self, keep: Any) -> None:
        kept = torch.frombuffer(keep, dtype=torch.int32).long()
        n_rows = len(self._slots)
        borders = [0]
        for n, _sees in self._groups:
            borders.append(borders[-1] + n)
        ends = torch.searchsorted(kept, torch.tensor(borders)).tolist()
        groups = [(b - a, sees) for a, b, (_n, sees) in zip(ends, ends[1:], self._groups)]
        self._groups = [group for group in groups if group[0]]
        self._n_mass = int((kept >= n_rows - self._n_mass).sum())
        self._slots, self._positions = self._slots[kept], self._positions[kept]
        self._hidden = self._hidden[kept]
        if self._residual is not None:
            self._residual = self._residual[kept]
        if self._projected is not None:
            row = self._projected
            self._projected = _Projected(row.layer, row.q[kept], row.k[kept], row.v[kept])

    def end(self) -> None:
        self._hidden = self._slots = self._positions = torch.empty(0)
        self._residual = self._projected = None

    # ---- one layer ----------------------------------------------------------------------------

    def _project(self, layer: int) -> _Projected:
        """Norm, q, k and v of all current rows; once for a layer that is compared and then run."""
        if self._projected is not None and self._projected.layer == layer:
            return self._projected
        module = self._parts.layers[layer]
        attention: Any = module.self_attn
        n, dim = len(self._slots), self._parts.head_dim
        if self._residual is None:
            self._residual = torch.empty_like(self._hidden).copy_(self._hidden)
            normal = module.input_layernorm(self._hidden)
        else:
            normal, self._residual = module.input_layernorm(self._hidden, self._residual)
        parts = []
        for first in range(0, n, _ROWS):
            rows = slice(first, first + _ROWS)
            qkv, _ = attention.qkv_proj(normal[rows])
            q, k, v = qkv.split([attention.q_size, attention.kv_size, attention.kv_size], dim=-1)
            if hasattr(attention, "q_norm"):
                q = attention.q_norm(q.reshape(-1, dim)).view(q.shape)
                k = attention.k_norm(k.reshape(-1, dim)).view(k.shape)
            q, k = attention.rotary_emb(self._positions[rows], q.contiguous(), k.contiguous())
            parts.append((q, k, v))
        q, k, v = (one[0] if len(parts) == 1 else torch.cat(one) for one in zip(*parts))
        self._projected = _Projected(
            layer, q.view(n, -1, dim), k.view(n, -1, dim), v.reshape(n, -1, dim)
        )
        return self._projected

    def _finish(self, module: Any, seen: torch.Tensor) -> None:
        """Output projection, norm and MLP."""
        assert self._residual is not None
        hidden = torch.empty_like(self._residual)
        for first in range(0, len(seen), _ROWS):
            rows = slice(first, first + _ROWS)
            out, _ = module.self_attn.o_proj(seen[rows])
            out, rest = module.post_attention_layernorm(out, self._residual[rows])
            if rest.data_ptr() != self._residual[rows].data_ptr():
                self._residual[rows] = rest
            hidden[rows] = module.mlp(out)
        self._hidden = hidden

    # ---- attention ----------------------------------------------------------------------------

    def _attend(
        self,
        q: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        mass: torch.Tensor | None,
    ) -> torch.Tensor:
        """Each row over the slots that its group sees: [rows, heads x dim]. Adds what the mass rows
        look at to `mass`."""
        n = len(q)
        out = torch.empty(n, q.shape[1] * q.shape[2], dtype=q.dtype)
        asked = n - self._n_mass if mass is not None else n
        slots = self._slots.tolist()
        first = 0
        for n_rows, sees in self._groups:
            end = first + n_rows
            at = _Seen(keys, values, sees)
            for a in range(first, min(end, asked), _ATTENDING):
                b = min(a + _ATTENDING, end, asked)
                self._plain(q, at, slots, slice(a, b), out)
            a = max(first, asked)
            if a < end:
                assert mass is not None
                self._weighed(q, at, slots, slice(a, end), out, mass)
            first = end
        return out

    def _plain(
        self, q: torch.Tensor, at: _Seen, slots: list[int], rows: slice, out: torch.Tensor
    ) -> None:
        n_keys = at.count(slots[rows.stop - 1])
        n_all = at.count(slots[rows.start])
        mask = None
        if n_all < n_keys:
            mask = at.seen_from[:n_keys] <= self._slots[rows, None]
        heads = self._by_kv_head(q[rows])
        keys, values = (
            plane[:n_keys].transpose(0, 1).unsqueeze(1).expand(-1, heads.shape[1], -1, -1)
            for plane in (at.keys, at.values)
        )
        seen = torch.nn.functional.scaled_dot_product_attention(
            heads, keys, values, attn_mask=mask, scale=self._parts.scale
        )
        out[rows] = seen.permute(2, 0, 1, 3).reshape(rows.stop - rows.start, -1)

    def _weighed(
        self,
        q: torch.Tensor,
        at: _Seen,
        slots: list[int],
        rows: slice,
        out: torch.Tensor,
        mass: torch.Tensor,
    ) -> None:
        """The same with the weights in hand."""
        n_keys = at.count(slots[rows.stop - 1])
        heads = self._by_kv_head(q[rows])
        n_kv, n_group, n_rows, dim = heads.shape
        folded = (heads * self._parts.scale).reshape(n_kv, n_group * n_rows, dim)
        weights = torch.bmm(folded, at.keys[:n_keys].permute(1, 2, 0)).float()
        weights = weights.view(n_kv, n_group, n_rows, n_keys)
        weights.masked_fill_(at.seen_from[:n_keys] > self._slots[rows, None], float("-inf"))
        weights = torch.softmax(weights, -1)
        looked = weights.sum((0, 1, 2)) / (n_kv * n_group)
        total = torch.zeros(max(len(mass), int(at.slots[:n_keys].max()) + 1))
        total[at.slots[:n_keys]] = looked
        mass += total[: len(mass)]
        folded = weights.to(q.dtype).view(n_kv, n_group * n_rows, n_keys)
        seen = torch.bmm(folded, at.values[:n_keys].transpose(0, 1))
        seen = seen.view(n_kv, n_group, n_rows, dim).permute(2, 0, 1, 3)
        out[rows] = seen.reshape(n_rows, -1)

    def _by_kv_head(self, q: torch.Tensor) -> torch.Tensor:
        """[KV heads, query heads of each, rows, dim]"""
        n, n_heads, dim = q.shape
        n_kv = self._parts.n_kv_heads
        return q.view(n, n_kv, n_heads // n_kv, dim).permute(1, 2, 0, 3)


class _Seen:
    """Keys and values of the ranges that a group of rows sees, which slots those are, and from
    which row's slot on each is seen: the last range by rows at its slot or after it, one before it
    by all rows."""

    def __init__(
        self, keys: torch.Tensor, values: torch.Tensor, sees: list[tuple[int, int]]
    ) -> None:
        whole = sum(b - a for a, b in sees[:-1])
        self._whole, self._last = whole, sees[-1]
        if not whole:
            a, b = sees[0]
            self.keys, self.values = keys[a:b], values[a:b]
            self.slots = self.seen_from = torch.arange(a, b)
        else:
            self.keys = torch.cat([keys[a:b] for a, b in sees])
            self.values = torch.cat([values[a:b] for a, b in sees])
            self.slots = torch.cat([torch.arange(a, b) for a, b in sees])
            self.seen_from = self.slots.clone()
            self.seen_from[:whole] = -1

    def count(self, slot: int) -> int:
        """How many of the keys a row at `slot` sees: these are the first so many."""
        first, end = self._last
        return self._whole + min(end, slot + 1) - first


def _put(plane: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor) -> None:
    first, last = int(slots[0]), int(slots[-1])
    if last - first + 1 == len(slots):
        plane[first : last + 1] = rows
    else:
        plane.index_copy_(0, slots, rows)
