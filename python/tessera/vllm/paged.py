"""Attention in Triton over K and V where they are: the first keys in the pages of a request, those
behind them in memory of ours. Nothing is gathered, and every number that differs from pass to pass
is read on the device, so that it can be recorded in a graph once and replayed (graphs.py).

Rows may be of several prompts, each in a lane of its own. Every row sees all keys of its prompt up
to its own. The query heads that share a KV head are rows of one tile, so that its keys are read
once for all of them; a tile with rows of several prompts goes over the keys of each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from .fused import LOG2E, PROGRAMS, SPLITS_MAX, triton

if triton is not None:
    import triton.language as tl

    from .fused import fold, logits_of, merge

__all__ = ["Facts", "Keys", "attend", "look"]

_TILE = 64  # keys


class Facts(NamedTuple):
    """The numbers of a prompt's pass, int32 on the device in this order, a line for each lane."""

    n_context: int  # keys in the pages
    n_keys: int  # of all
    end: int  # behind its last row
    n_weighed: int = 0  # of its rows, the last ones, whose weights are asked for
    n_mass: int = 0  # of the keys, the first ones, whose weights are asked for


@dataclass(frozen=True)
class Keys:
    """Of one layer: [blocks, tokens of a block, heads, dim]; behind them [slots, heads, dim], the
    slots of all lanes, as many of each."""

    keys: torch.Tensor
    values: torch.Tensor
    keys_behind: torch.Tensor
    values_behind: torch.Tensor
    table: torch.Tensor  # [lanes, blocks], of their requests

    @property
    def n_slots(self) -> int:
        """Behind a context, in each lane."""
        return len(self.keys_behind) // len(self.table)

    @property
    def why_not(self) -> str | None:
        """None: the kernels can read them."""
        planes = self.keys, self.values
        if any(plane.stride(-1) != 1 for plane in (*planes, self.keys_behind, self.values_behind)):
            return "elements that are not side by side"
        if self.keys.stride() != self.values.stride():
            return "keys and values in different orders"
        if self.keys_behind.stride() != self.values_behind.stride():
            return "keys and values behind the context in different orders"
        return None


if triton is not None:

    @triton.jit
    def _inside(  # type: ignore[no-untyped-def]
        table_at, keys, there, head, block_step, token_step, head_step, BLOCK: tl.constexpr
    ):
        """Where keys are in the pages."""
        block = tl.load(table_at + keys // BLOCK, mask=there, other=0).to(tl.int64)
        return block * block_step + (keys % BLOCK) * token_step + head * head_step

    @triton.jit
    def _attend(  # type: ignore[no-untyped-def]  # Triton reads the types of arguments otherwise
        q_at, k_at, v_at, table_at, k_behind, v_behind, lanes_at, counts_at, facts_at, parts_at,
        sums_at, n_lines, scale, q_row, q_head, block_step, token_step, head_step, slot_step,
        behind_head, table_lane, lane_slots, parts_split, parts_row, parts_head, sums_split,
        sums_row,
        GROUP: tl.constexpr, DIM: tl.constexpr, LINES: tl.constexpr, KEYS: tl.constexpr,
        BLOCK: tl.constexpr, SPLITS: tl.constexpr, FACTS: tl.constexpr, EXACT: tl.constexpr,
    ):  # fmt: skip
        head = tl.program_id(1)  # of K and V
        split = tl.program_id(2)
        lines = tl.program_id(0) * LINES + tl.arange(0, LINES)
        rows = (lines // GROUP).to(tl.int64)
        heads = head * GROUP + lines % GROUP
        dims = tl.arange(0, DIM)
        here = lines < n_lines
        lanes = tl.load(lanes_at + rows, mask=here, other=0)
        first_lane = tl.min(tl.where(here, lanes, 2147483647), 0)
        last_lane = tl.max(lanes, 0)
        all_counts = tl.load(counts_at + rows, mask=here, other=0)
        q = tl.load(
            q_at + rows[:, None] * q_row + heads[:, None] * q_head + dims[None, :],
            mask=here[:, None],
            other=0.0,
        )
        most = tl.full([LINES], float("-inf"), tl.float32)
        total = tl.zeros([LINES], tl.float32)
        acc = tl.zeros([LINES, DIM], tl.float32)
        for lane in range(first_lane, last_lane + 1):
            counts = tl.where(lanes == lane, all_counts, 0)
            n_context = tl.load(facts_at + lane * FACTS)
            n_keys = tl.load(facts_at + lane * FACTS + 1)
            share = (n_keys + SPLITS * KEYS - 1) // (SPLITS * KEYS) * KEYS
            begin = split * share
            end = tl.minimum(tl.max(counts, 0), begin + share)
            border = tl.minimum(end, n_context)
            table = table_at + lane * table_lane
            for first in range(begin, border, KEYS):
                keys = first + tl.arange(0, KEYS)
                there = keys < border
                at = _inside(table, keys, there, head, block_step, token_step, head_step, BLOCK)
                at = at[:, None] + dims[None, :]
                k = tl.load(k_at + at, mask=there[:, None], other=0.0)
                seen = (keys[None, :] < counts[:, None]) & there[None, :]
                logits = tl.where(seen, logits_of(q, k, scale, EXACT), float("-inf"))
                v = tl.load(v_at + at, mask=there[:, None], other=0.0)
                most, total, acc = fold(logits, v, most, total, acc, EXACT)
            for first in range(tl.maximum(begin, n_context), end, KEYS):
                keys = first + tl.arange(0, KEYS)
                there = keys < end
                slots = (lane * lane_slots + keys - n_context).to(tl.int64)
                at = (slots * slot_step + head * behind_head)[:, None] + dims[None, :]
                k = tl.load(k_behind + at, mask=there[:, None], other=0.0)
                seen = (keys[None, :] < counts[:, None]) & there[None, :]
                logits = tl.where(seen, logits_of(q, k, scale, EXACT), float("-inf"))
                v = tl.load(v_behind + at, mask=there[:, None], other=0.0)
                most, total, acc = fold(logits, v, most, total, acc, EXACT)
        safe = tl.where(total > 0, total, 1.0)
        to = split * parts_split + rows * parts_row + heads * parts_head
        tl.store(parts_at + to[:, None] + dims[None, :], acc / safe[:, None], mask=here[:, None])
        sums = tl.where(total > 0, most + tl.log2(safe), float("-inf"))
        tl.store(sums_at + split * sums_split + rows * sums_row + heads, sums, mask=here)

    @triton.jit
    def _look(  # type: ignore[no-untyped-def]
        q_at, k_at, table_at, k_behind, counts_at, facts_at, whole_at, mass_at,
        scale, q_row, q_head, block_step, token_step, head_step, slot_step, behind_head,
        table_lane, lane_slots, whole_row, mass_lane,
        HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, LINES: tl.constexpr,
        KEYS: tl.constexpr, BLOCK: tl.constexpr, FACTS: tl.constexpr, EXACT: tl.constexpr,
    ):  # fmt: skip
        lane = tl.program_id(1)
        facts_at += lane * FACTS
        n_context = tl.load(facts_at)
        end = tl.load(facts_at + 2)
        n_weighed = tl.load(facts_at + 3)
        n_mass = tl.minimum(tl.load(facts_at + 4), tl.load(facts_at + 1))
        if (n_weighed > 0) & (tl.program_id(0) * KEYS < n_mass):
            keys = tl.program_id(0) * KEYS + tl.arange(0, KEYS)
            dims = tl.arange(0, DIM)
            mine = keys < n_mass
            there = mine & (keys < n_context)
            after = mine & (keys >= n_context)
            table = table_at + lane * table_lane
            slots = (lane * lane_slots + keys - n_context).to(tl.int64)
            looked = tl.zeros([KEYS], tl.float32)
            for head in range(HEADS):
                at = _inside(table, keys, there, head, block_step, token_step, head_step, BLOCK)
                k = tl.load(k_at + at[:, None] + dims[None, :], mask=there[:, None], other=0.0)
                at = slots * slot_step + head * behind_head
                k += tl.load(k_behind + at[:, None] + dims[None, :], mask=after[:, None], other=0.0)
                for first in range((end - n_weighed) * GROUP, end * GROUP, LINES):
                    lines = first + tl.arange(0, LINES)
                    here = lines < end * GROUP
                    rows = (lines // GROUP).to(tl.int64)
                    heads = head * GROUP + lines % GROUP
                    q = tl.load(
                        q_at + rows[:, None] * q_row + heads[:, None] * q_head + dims[None, :],
                        mask=here[:, None],
                        other=0.0,
                    )
                    counts = tl.load(counts_at + rows, mask=here, other=0)
                    whole = tl.load(whole_at + rows * whole_row + heads, mask=here, other=0.0)
                    seen = (keys[None, :] < counts[:, None]) & mine[None, :]
                    logits = logits_of(q, k, scale, EXACT) - whole[:, None]
                    looked += tl.sum(tl.exp2(tl.where(seen, logits, float("-inf"))), 0)
            to = mass_at + lane * mass_lane + keys
            before = tl.load(to, mask=mine, other=0.0)
            tl.store(to, before + looked / (HEADS * GROUP), mask=mine)


def _tile_lines(n_lines: int) -> int:
    return 64 if n_lines <= 64 else 128


def attend(
    q: torch.Tensor,
    at: Keys,
    lanes: torch.Tensor,
    counts: torch.Tensor,
    facts: torch.Tensor,
    scale: float,
    out: torch.Tensor,
) -> torch.Tensor:
    """q and out [rows, heads, dim]; lanes and counts [rows]: whose rows they are, and how many keys
    each sees, none of rows that only fill up a size; facts [lanes, Facts]. Returns the log-sum-exp
    of each row and head, for look()."""
    n, n_heads, dim = q.shape
    n_kv, block = at.keys.shape[2], at.keys.shape[1]
    n_lines = n * (n_heads // n_kv)
    tile = _tile_lines(n_lines)
    n_tiles = -(-n_lines // tile)
    n_splits = min(-(-PROGRAMS // (n_tiles * n_kv)), SPLITS_MAX)
    parts = torch.empty((n_splits, n, n_heads, dim), dtype=torch.float32, device=q.device)
    sums = torch.empty((n_splits, n, n_heads), dtype=torch.float32, device=q.device)
    whole = torch.empty((n, n_heads), dtype=torch.float32, device=q.device)
    _attend[(n_tiles, n_kv, n_splits)](
        q, at.keys, at.values, at.table, at.keys_behind, at.values_behind, lanes, counts, facts,
        parts, sums, n_lines, scale * LOG2E, q.stride(0), q.stride(1), *at.keys.stride()[:3],
        *at.keys_behind.stride()[:2], at.table.stride(0), at.n_slots, *parts.stride()[:3],
        *sums.stride()[:2],
        GROUP=n_heads // n_kv, DIM=dim, LINES=tile, KEYS=_TILE, BLOCK=block, SPLITS=n_splits,
        FACTS=len(Facts._fields), EXACT=q.dtype == torch.float32,
        num_warps=8 if tile == 128 else 4, num_stages=2,
    )  # fmt: skip
    merge[(n, n_heads)](
        parts, sums, out, whole, n_splits, *parts.stride()[:3], *sums.stride()[:2],
        out.stride(0), out.stride(1), DIM=dim, SPLITS=SPLITS_MAX, KEEPS=True, num_warps=1,
    )  # fmt: skip
    return whole


def look(
    q: torch.Tensor,
    at: Keys,
    counts: torch.Tensor,
    facts: torch.Tensor,
    scale: float,
    whole: torch.Tensor,
    mass: torch.Tensor,
) -> None:
    """Adds what the last rows of each lane look at, the mean over heads, to mass [lanes, keys];
    nothing where the facts say that nobody asks."""
    n, n_heads, dim = q.shape
    n_kv, block = at.keys.shape[2], at.keys.shape[1]
    _look[(-(-mass.shape[1] // _TILE), len(mass))](
        q, at.keys, at.table, at.keys_behind, counts, facts, whole, mass, scale * LOG2E,
        q.stride(0), q.stride(1), *at.keys.stride()[:3], *at.keys_behind.stride()[:2],
        at.table.stride(0), at.n_slots, whole.stride(0), mass.stride(0),
        HEADS=n_kv, GROUP=n_heads // n_kv, DIM=dim, LINES=_tile_lines(n * (n_heads // n_kv)),
        KEYS=_TILE, BLOCK=block, FACTS=len(Facts._fields), EXACT=q.dtype == torch.float32,
        num_warps=4, num_stages=2,
    )  # fmt: skip
