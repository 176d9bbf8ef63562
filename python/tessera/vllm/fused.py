"""Attention on a GPU for rows that each see the first so many keys, in Triton (attention.py).

A program has a few rows of one head and goes over a share of their keys, as FlashAttention does.
Few rows would leave most of the GPU idle, so their keys are shared out among several programs,
whose results a second kernel merges by their log-sum-exp.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

try:
    import triton
    import triton.language as tl
except ImportError:  # torch does it then
    triton = None

if TYPE_CHECKING:
    from ..compute.attention import Attention, Bias

__all__ = ["LOG2E", "PROGRAMS", "SPLITS_MAX", "TOLERANCE", "attend", "triton", "usable"]

LOG2E = 1.4426950408889634
PROGRAMS = 512  # wanted: a few for each multiprocessor of a large GPU
SPLITS_MAX = 32
_KEYS_MIN = 512  # of a program
TOLERANCE = 0.02  # of the largest value, for bf16


if triton is not None:

    @triton.jit
    def logits_of(q, k, scale, EXACT: tl.constexpr):  # type: ignore[no-untyped-def]
        """[rows, keys], to the base 2"""
        if EXACT:
            products = tl.dot(q, tl.trans(k), input_precision="ieee")
        else:
            products = tl.dot(q, tl.trans(k))
        return products * scale

    @triton.jit
    def fold(logits, v, most, total, acc, EXACT: tl.constexpr):  # type: ignore[no-untyped-def]
        """What rows have seen so far, and one more tile of keys; logits of keys that a row does not
        see are minus infinity."""
        larger = tl.maximum(most, tl.max(logits, 1))
        base = tl.where(larger == float("-inf"), 0.0, larger)
        weights = tl.exp2(logits - base[:, None])
        shrink = tl.exp2(most - base)
        total = total * shrink + tl.sum(weights, 1)
        if EXACT:
            acc = acc * shrink[:, None] + tl.dot(weights, v, input_precision="ieee")
        else:
            acc = acc * shrink[:, None] + tl.dot(weights.to(v.dtype), v)
        return larger, total, acc

    # Numbers that differ from request to request: a kernel for each kind of them would be compiled.
    @triton.jit(do_not_specialize=["n_rows", "share", "bias_first"])
    def _kernel(  # type: ignore[no-untyped-def]  # Triton reads the types of arguments otherwise
        q_at, k_at, v_at, counts_at, bias_at, out_at, sums_at,
        n_rows, share, bias_first, scale,
        q_row, q_head, k_row, k_head, v_row, v_head, out_split, out_row, out_head,
        sums_split, sums_row,
        GROUP: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
        BIASED: tl.constexpr, EXACT: tl.constexpr,
    ):  # fmt: skip
        head = tl.program_id(1)
        split = tl.program_id(2)
        rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        dims = tl.arange(0, DIM)
        here = rows < n_rows
        counts = tl.load(counts_at + rows, mask=here, other=0)
        begin = split * share
        end = tl.minimum(tl.max(counts, 0), begin + share)
        wide = rows.to(tl.int64)
        q = tl.load(
            q_at + wide[:, None] * q_row + head * q_head + dims[None, :],
            mask=here[:, None],
            other=0.0,
        )
        k_at += (head // GROUP) * k_head
        v_at += (head // GROUP) * v_head
        most = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        acc = tl.zeros([ROWS, DIM], tl.float32)
        for first in range(begin, end, KEYS):
            keys = first + tl.arange(0, KEYS)
            there = keys < end
            at = keys.to(tl.int64)[:, None]
            k = tl.load(k_at + at * k_row + dims[None, :], mask=there[:, None], other=0.0)
            logits = logits_of(q, k, scale, EXACT)
            if BIASED:
                added = tl.load(bias_at + keys, mask=there, other=0.0) * 1.4426950408889634
                logits += tl.where(rows[:, None] >= bias_first, added[None, :], 0.0)
            seen = (keys[None, :] < counts[:, None]) & there[None, :]
            logits = tl.where(seen, logits, float("-inf"))
            v = tl.load(v_at + at * v_row + dims[None, :], mask=there[:, None], other=0.0)
            most, total, acc = fold(logits, v, most, total, acc, EXACT)
        safe = tl.where(total > 0, total, 1.0)
        tl.store(
            out_at + split * out_split + wide[:, None] * out_row + head * out_head + dims[None, :],
            (acc / safe[:, None]).to(out_at.dtype.element_ty),
            mask=here[:, None],
        )
        sums = tl.where(total > 0, most + tl.log2(safe), float("-inf"))
        tl.store(sums_at + split * sums_split + rows * sums_row + head, sums, mask=here)

    @triton.jit(do_not_specialize=["n_splits"])
    def merge(  # type: ignore[no-untyped-def]
        parts_at, sums_at, out_at, whole_at, n_splits,
        parts_split, parts_row, parts_head, sums_split, sums_row, out_row, out_head,
        DIM: tl.constexpr, SPLITS: tl.constexpr, KEEPS: tl.constexpr,
    ):  # fmt: skip
        """KEEPS: the log-sum-exp over all splits goes to whole_at, in the form of one split."""
        row = tl.program_id(0).to(tl.int64)
        head = tl.program_id(1)
        splits = tl.arange(0, SPLITS)
        dims = tl.arange(0, DIM)
        here = splits < n_splits
        sums = tl.load(
            sums_at + splits * sums_split + row * sums_row + head, mask=here, other=float("-inf")
        )
        most = tl.max(sums, 0)
        weights = tl.exp2(sums - tl.where(most == float("-inf"), 0.0, most))
        total = tl.sum(weights, 0)
        weights = weights / tl.where(total > 0, total, 1.0)
        wide = splits.to(tl.int64)[:, None]
        parts = tl.load(
            parts_at + wide * parts_split + row * parts_row + head * parts_head + dims[None, :],
            mask=here[:, None],
            other=0.0,
        )
        merged = tl.sum(parts * weights[:, None], 0)
        tl.store(
            out_at + row * out_row + head * out_head + dims, merged.to(out_at.dtype.element_ty)
        )
        if KEEPS:
            whole = tl.where(total > 0, most + tl.log2(tl.where(total > 0, total, 1.0)), most)
            tl.store(whole_at + row * sums_row + head, whole)


def attend(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    counts: torch.Tensor,
    bias: Bias | None,
    scale: float,
    out: torch.Tensor,
) -> None:
    """q and out [rows, heads, dim], keys and values [keys, KV heads, dim], counts [rows]
    ascending."""
    n, n_heads, dim = q.shape
    n_keys = len(keys)
    tile_rows = 128 if n >= 256 else 32
    n_tiles = -(-n // tile_rows)
    n_splits = min(-(-PROGRAMS // (n_tiles * n_heads)), -(-n_keys // _KEYS_MIN), SPLITS_MAX)
    n_splits = max(n_splits, 1)
    share = -(-n_keys // (n_splits * 64)) * 64
    n_splits = -(-n_keys // share)
    parts = out[None]
    if n_splits > 1:
        parts = torch.empty((n_splits, n, n_heads, dim), dtype=torch.float32, device=q.device)
    sums = torch.empty((n_splits, n, n_heads), dtype=torch.float32, device=q.device)
    _kernel[(n_tiles, n_heads, n_splits)](
        q, keys, values, counts, bias.by_key if bias is not None else counts, parts, sums,
        n, share, bias.first if bias is not None else 0, scale * LOG2E,
        q.stride(0), q.stride(1), keys.stride(0), keys.stride(1), values.stride(0),
        values.stride(1), parts.stride(0), parts.stride(1), parts.stride(2), sums.stride(0),
        sums.stride(1),
        GROUP=n_heads // keys.shape[1], DIM=dim, ROWS=tile_rows, KEYS=64,
        BIASED=bias is not None, EXACT=q.dtype == torch.float32,
        num_warps=8 if tile_rows == 128 else 4, num_stages=2,
    )  # fmt: skip
    if n_splits > 1:
        merge[(n, n_heads)](
            parts, sums, out, sums, n_splits,
            parts.stride(0), parts.stride(1), parts.stride(2), sums.stride(0), sums.stride(1),
            out.stride(0), out.stride(1), DIM=dim, SPLITS=SPLITS_MAX, KEEPS=False, num_warps=1,
        )  # fmt: skip


def usable(attention: Attention, q_like: torch.Tensor, n_kv_heads: int) -> str | None:
    """None: it gives what torch gives, on this GPU and for this shape. Otherwise why not. It also
    compiles the kernels before a request needs them."""
    if triton is None:
        return "triton is not installed"
    dim = q_like.shape[-1]
    if dim & (dim - 1) or dim < 16:
        return f"heads of {dim} elements"
    try:
        return _compared(attention, q_like, n_kv_heads)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _compared(attention: Attention, q_like: torch.Tensor, n_kv_heads: int) -> str | None:
    from ..compute.attention import Bias
    from .places import Rows

    device, (n_heads, dim) = q_like.device, q_like.shape
    generator = torch.Generator().manual_seed(7)

    def noise(*shape: int) -> Any:
        return torch.randn(shape, generator=generator).to(q_like.dtype).to(device)

    n_keys = 2000
    keys, values = noise(n_keys, n_kv_heads, 2 * dim).split(dim, -1)
    for n in (9, 300):
        slots = torch.arange(n) * ((n_keys - 1) // n) + (n_keys - 1) % n
        rows, q = Rows(slots, device), noise(n, n_heads, dim)
        groups = [(n, [(0, n_keys)])]
        added = torch.linspace(-1, 1, n_keys, device=device)
        for bias in (None, Bias(added, n // 2)):
            attention.fused = None
            want = attention.attend(q, (keys, values), rows, groups, None, bias).float()
            attention.fused = attend
            got = attention.attend(q, (keys, values), rows, groups, None, bias).float()
            attention.fused = None
            off = float((got - want).abs().max() / want.abs().max())
            if not off <= TOLERANCE:
                return f"{n} rows are {off:.3f} off"
    return None
