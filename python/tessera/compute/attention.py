"""Attention of rows at chosen positions, for executor.py: each row sees the first so many of the
keys that its group sees. vLLM's kernels know rows at the end of a sequence only.

On a GPU a kernel of ours does it (fused.py); torch does it everywhere else, in pieces, and wherever
the weights themselves are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from .places import Rows

__all__ = ["Asked", "Attention", "Bias", "Fused"]

# Rows that share an end of their keys: a mask of so many rows is small, and its keys few too many.
_PIECE = {"cpu": 32}
_PIECE_GPU = 512

# rows, keys and values, how many keys each row sees, bias, scale, and where the result goes: [rows,
# heads, dim]
Fused = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, "Bias | None", float, torch.Tensor],
    None,
]


@dataclass(frozen=True)
class Bias:
    """Added to the logits of each key, for rows from `first` on."""

    by_key: torch.Tensor  # float
    first: int
    hides: bool = True  # some of it may be minus infinity


@dataclass(frozen=True)
class Asked:
    """The last n_rows rows add what they look at, the mean over heads, to mass[slot]."""

    n_rows: int
    mass: torch.Tensor


@dataclass
class _Counts:
    """How many keys each of some rows sees."""

    host: torch.Tensor
    most: int
    device: torch.Tensor  # int32
    _hidden: torch.Tensor | None = None

    def hidden(self) -> torch.Tensor:
        """Which of the first `most` keys each row does not see."""
        if self._hidden is None:
            keys = torch.arange(self.most, device=self.device.device)
            self._hidden = keys >= self.device[:, None]
        return self._hidden


@dataclass(frozen=True)
class _Keys:
    """What a group of rows sees: keys and values, and which slots those are. A row at `slot` sees
    the first count(slot) of them: ranges but the last whole, the last up to its own slot."""

    keys: torch.Tensor
    values: torch.Tensor
    ranges: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, keys: torch.Tensor, values: torch.Tensor, sees: Sequence[tuple[int, int]]) -> _Keys:
        if len(sees) == 1:
            a, b = sees[0]
            return cls(keys[a:b], values[a:b], tuple(sees))
        return cls(
            torch.cat([keys[a:b] for a, b in sees]),
            torch.cat([values[a:b] for a, b in sees]),
            tuple(sees),
        )

    def without(self, hidden: torch.Tensor) -> _Keys:
        """Keys that no row sees may hold anything, and no number times anything is none."""
        out = hidden[:, None, None]
        return _Keys(self.keys.masked_fill(out, 0), self.values.masked_fill(out, 0), self.ranges)

    def counts(self, rows: Rows, part: slice) -> _Counts:
        """Of these rows, in every layer of a pass the same."""
        key = part.start, part.stop, self.ranges
        found: _Counts | None = rows.counts.get(key)
        if found is None:
            host = self._count(rows.host[part])
            there = self._count(rows.device[part]).to(torch.int32)
            found = rows.counts[key] = _Counts(host, int(host[-1]), there)
        return found

    def _count(self, slots: torch.Tensor) -> torch.Tensor:
        whole = sum(b - a for a, b in self.ranges[:-1])
        first, end = self.ranges[-1]
        return (slots + 1).clamp(max=end) - first + whole

    def pick(self, by_slot: torch.Tensor) -> torch.Tensor:
        """Of a vector by slot, the part of these keys; zeros beyond its end."""
        parts = []
        for a, b in self.ranges:
            part = by_slot[a:b]
            missing = b - a - len(part)
            parts.append(torch.nn.functional.pad(part, (0, missing)) if missing else part)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def add_to(self, mass: torch.Tensor, looked: torch.Tensor) -> None:
        """Adds weights on the first keys to what is known by slot, as far as that goes."""
        at = 0
        for a, b in self.ranges:
            n = min(b - a, len(looked) - at)
            here = mass[a : a + max(n, 0)]
            here += looked[at : at + len(here)]
            at += max(n, 0)


class Attention:
    def __init__(self, n_kv_heads: int, scale: float, fused: Fused | None = None) -> None:
        self._n_kv = n_kv_heads
        self._scale = scale
        self.fused = fused

    def attend(
        self,
        q: torch.Tensor,
        kv: tuple[torch.Tensor, torch.Tensor],
        rows: Rows,
        groups: Sequence[tuple[int, Sequence[tuple[int, int]]]],
        asked: Asked | None = None,
        bias: Bias | None = None,
    ) -> torch.Tensor:
        """q: [rows, heads, dim]; kv: by slot; groups: how many rows, and the ranges (first, end)
        that they see. Returns [rows, heads x dim]."""
        n = len(q)
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        border = n - asked.n_rows if asked is not None else n
        first = 0
        for n_rows, sees in groups:
            end = first + n_rows
            at = _Keys.of(kv[0], kv[1], sees)
            for a, b in ((first, min(end, border)), (max(first, border), end)):
                if a >= b:
                    continue
                here = None
                if bias is not None and b > bias.first:
                    here = Bias(at.pick(bias.by_key), max(bias.first - a, 0))
                    if bias.hides:
                        at = at.without(here.by_key == float("-inf"))
                if a >= border:
                    assert asked is not None
                    self._weigh(q[a:b], at, rows, slice(a, b), here, asked.mass, out[a:b])
                elif self.fused is not None:
                    counts = at.counts(rows, slice(a, b)).device
                    whole = a == 0 and b == n
                    mine, into = (q, out) if whole else (q[a:b], out[a:b])
                    self.fused(mine, at.keys, at.values, counts, here, self._scale, into)
                else:
                    self._in_pieces(q, at, rows, slice(a, b), here, out)
            first = end
        return out.view(n, -1)

    def _in_pieces(
        self,
        q: torch.Tensor,
        at: _Keys,
        rows: Rows,
        part: slice,
        bias: Bias | None,
        out: torch.Tensor,
    ) -> None:
        all_counts = at.counts(rows, part)
        counts, on_device = all_counts.host, all_counts.device
        size = _PIECE.get(q.device.type, _PIECE_GPU)
        n = part.stop - part.start
        for a in range(0, n, size):
            b = min(a + size, n)
            n_all, n_keys = int(counts[a]), int(counts[b - 1])
            mask = None
            if n_all < n_keys or (bias is not None and b > bias.first):
                mask = self._mask(on_device[a:b], n_keys)
                if bias is not None and b > bias.first:
                    mask = _biased(mask, bias, a, q.dtype)
            heads = self._by_kv_head(q[part][a:b])
            keys, values = (
                plane[:n_keys].transpose(0, 1).unsqueeze(1).expand(-1, heads.shape[1], -1, -1)
                for plane in (at.keys, at.values)
            )
            seen = torch.nn.functional.scaled_dot_product_attention(
                heads, keys, values, attn_mask=mask, scale=self._scale
            )
            seen = seen.permute(2, 0, 1, 3).reshape(b - a, *q.shape[1:])
            out[part.start + a : part.start + b] = seen

    @staticmethod
    def _mask(counts: torch.Tensor, n_keys: int) -> torch.Tensor:
        return torch.arange(n_keys, device=counts.device) < counts[:, None]

    def _weigh(
        self,
        q: torch.Tensor,
        at: _Keys,
        rows: Rows,
        part: slice,
        bias: Bias | None,
        mass: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        """The same with the weights in hand."""
        counts = at.counts(rows, part)
        n_keys = counts.most
        heads = self._by_kv_head(q)
        n_kv, n_group, n_rows, dim = heads.shape
        folded = (heads * self._scale).reshape(n_kv, n_group * n_rows, dim)
        weights = torch.bmm(folded, at.keys[:n_keys].permute(1, 2, 0)).float()
        weights = weights.view(n_kv, n_group, n_rows, n_keys)
        if bias is not None:
            weights[:, :, bias.first :] += bias.by_key[:n_keys]
        weights = torch.softmax(weights.masked_fill_(counts.hidden(), float("-inf")), -1)
        at.add_to(mass, weights.sum((0, 1, 2)) / (n_kv * n_group))
        folded = weights.to(q.dtype).view(n_kv, n_group * n_rows, n_keys)
        seen = torch.bmm(folded, at.values[:n_keys].transpose(0, 1))
        out.copy_(seen.view(n_kv, n_group, n_rows, dim).permute(2, 0, 1, 3).reshape(q.shape))

    def _by_kv_head(self, q: torch.Tensor) -> torch.Tensor:
        """[KV heads, query heads of each, rows, dim]"""
        n, n_heads, dim = q.shape
        return q.view(n, self._n_kv, n_heads // self._n_kv, dim).permute(1, 2, 0, 3)


def _biased(mask: torch.Tensor, bias: Bias, first: int, dtype: torch.dtype) -> torch.Tensor:
    """As numbers to add: the bias of rows from bias.first on, nothing for those before."""
    added = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
    added[max(bias.first - first, 0) :] = bias.by_key[: mask.shape[1]].to(dtype)
    return added.masked_fill_(~mask, float("-inf"))
