"""The steps of a blend with a loaded model: rows at any positions, over keys that others have
put there (tessera.blend.Executor).

An engine runs a model as a whole, over sequences that it knows. A blend needs single layers over
chosen rows, so the model's own modules are called here one after the other: norms, projections, q
and k norms, rotary embedding, output, MLP. Only the attention is ours (attention.py). What computes
is the engine's in every other respect: its weights, its kernels, its all-reduces. They are the
modules themselves, so that vLLM's compiled forward and its graphs are not touched.

On a GPU everything is queued on the engine's stream. Attention that the library asks for is summed
there and read once, when the pass ends; that also waits for the pass, because the library reads K
and V by streams of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
from dataclasses import dataclass
from typing import Any

import torch

from .. import _c as c
from ..blend import pass_table, pass_visible
from .attention import Asked, Attention, Bias
from .parts import ModelParts
from .places import Place, Rows

__all__ = ["BlendExecutor"]

# Rows that are projected at once: enough for full speed, little enough to stay in caches, or to
# take little memory beside the engine's.
_ROWS = {"cpu": 1024}
_ROWS_GPU = 8192


@dataclass
class _Projected:
    """q, k and v of the current rows at one layer, and the residual that goes with them."""

    layer: int
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor


class BlendExecutor:
    def __init__(self, parts: ModelParts, place: Place, attention: Attention | None = None) -> None:
        self._parts = parts
        self._place = place
        self._attention = attention or Attention(parts.n_kv_heads, parts.scale)
        # Where the question begins, if its logits will be asked for; None: they are not.
        self.question: int | None = None
        self.needs_logits = True  # False: a rank that gets those of another
        self._n_cut = 0  # rows in front that the last layer has left out
        self._piece = _ROWS.get(parts.device.type, _ROWS_GPU)
        self._groups: list[tuple[int, list[tuple[int, int]]]] = []
        self._span = 0, 0
        self._n_mass = self._n_bias_rows = 0
        self._rows = Rows(torch.zeros(1, dtype=torch.int64), torch.device("cpu"))
        self._hidden = self._positions = torch.empty(0)
        self._residual: torch.Tensor | None = None
        self._projected: _Projected | None = None
        self._bias: torch.Tensor | None = None
        self._hides = False  # the bias hides keys altogether
        self._mass: torch.Tensor | None = None
        self._mass_to: Any = None

    # ---- steps --------------------------------------------------------------------------------

    def begin(self, rows: c.ModelPass) -> None:
        device = self._parts.device
        self._forget()
        table = (
            torch.frombuffer(pass_table(rows), dtype=torch.int32)
            .view(-1, 3)
            .t()
            .contiguous()
            .long()
        )
        tokens, positions, slots = table.to(device)  # one copy: each waits for the stream
        self._rows = Rows(table[2], device, slots)
        self._positions = positions
        self._see(pass_visible(rows))
        self._n_mass = rows.n_mass_rows
        if rows.bias:
            address = ctypes.addressof(rows.bias.contents)
            given = (ctypes.c_float * rows.n_bias).from_address(address)
            added = torch.frombuffer(given, dtype=torch.float32)
            self._hides = bool(added.min() == float("-inf"))
            self._bias = added.to(device, copy=True)
            self._n_bias_rows = rows.n_bias_rows
        self._hidden = self._parts.embed(tokens)

    def layer(self, layer: int, mass: Any) -> None:
        row = self._project(layer)
        self._projected = None
        self._place.put(layer, self._rows, row.k, row.v)
        asked = None
        if mass is not None:
            if self._mass is None:
                self._mass = torch.zeros(len(mass), device=self._parts.device)
                self._mass_to = mass
            asked = Asked(self._n_mass, self._mass)
        if layer == len(self._parts.layers) - 1:
            row = self._last_rows(row, asked)
            if not len(row.q):
                return
        bias = None
        if self._bias is not None:
            bias = Bias(self._bias, len(self._rows) - self._n_bias_rows, self._hides)
        kv = self._place.seen(layer, *self._span)
        seen = self._attention.attend(row.q, kv, self._rows, self._groups, asked, bias)
        if layer == len(self._parts.layers) - 1 and self.question is None:
            return  # nobody asks for what comes behind it
        self._finish(self._parts.layers[layer], seen)

    def _last_rows(self, row: _Projected, asked: Asked | None) -> _Projected:
        """Of the last layer, K and V are all that is wanted of most rows: goes on with those that
        are asked for their attention or their logits, all of them at the end."""
        first = self._rows.last + 1 if self.question is None else self.question
        n = len(self._rows) - int(torch.searchsorted(self._rows.host, first))
        n = max(n, asked.n_rows if asked is not None else 0)
        self._n_cut = cut = len(self._rows) - n
        if cut == 0 or n == 0:
            return row if n else _Projected(row.layer, row.q[:0], row.k, row.v)
        assert self._residual is not None
        self._residual = self._residual[cut:].contiguous()
        self._rows = self._rows.behind(cut)
        groups = []
        for n_rows, sees in reversed(self._groups):
            groups.append((min(n_rows, n), sees))
            n -= groups[-1][0]
        self._see([group for group in reversed(groups) if group[0]])
        return _Projected(row.layer, row.q[cut:], row.k, row.v)

    def _see(self, groups: list[tuple[int, list[tuple[int, int]]]]) -> None:
        """What the rows see, and the slots from the first of it to the last."""
        self._groups = groups
        ranges = [one for _n, sees in groups for one in sees]
        self._span = min(a for a, _b in ranges), max(b for _a, b in ranges)

    def logits(self, keep: Any, out: Any) -> None:
        chosen = torch.frombuffer(keep, dtype=torch.int32).long() - self._n_cut
        rows = chosen.to(self._parts.device)
        assert self._residual is not None
        hidden = self._hidden[rows]
        hidden, _ = self._parts.norm(hidden, self._residual[rows])
        found = self._parts.logits(hidden)
        if found is None:
            if self.needs_logits:
                raise RuntimeError("this rank has no logits")
            return
        target = torch.frombuffer(out, dtype=torch.float32).view(len(rows), -1)
        target.fill_(float("-inf"))  # of tokens that nobody can say
        n = min(found.shape[-1], target.shape[-1])
        target[:, :n].copy_(found[:, :n])

    def deviation(self, layer: int, k: Any, v: Any) -> None:
        row = self._project(layer)
        for fresh, stands, out in zip((row.k, row.v), self._place.take(layer, self._rows), (k, v)):
            if not out:
                continue
            apart = (fresh.float() - stands.float()).square_().sum((1, 2))
            address = ctypes.addressof(out.contents)
            target = (ctypes.c_float * len(apart)).from_address(address)
            torch.frombuffer(target, dtype=torch.float32).copy_(apart)

    def narrow(self, keep: Any) -> None:
        kept = torch.frombuffer(keep, dtype=torch.int32).long()
        n_rows = len(self._rows)
        borders = [0]
        for n, _sees in self._groups:
            borders.append(borders[-1] + n)
        ends = torch.searchsorted(kept, torch.tensor(borders)).tolist()
        groups = [(b - a, sees) for a, b, (_n, sees) in zip(ends, ends[1:], self._groups)]
        self._see([group for group in groups if group[0]])
        self._n_mass = int((kept >= n_rows - self._n_mass).sum())
        self._n_bias_rows = int((kept >= n_rows - self._n_bias_rows).sum())
        chosen = kept.to(self._parts.device)
        self._rows = self._rows.chosen(kept, chosen)
        self._positions, self._hidden = self._positions[chosen], self._hidden[chosen]
        if self._residual is not None:
            self._residual = self._residual[chosen]
        if self._projected is not None:
            row = self._projected
            self._projected = _Projected(row.layer, row.q[chosen], row.k[chosen], row.v[chosen])

    def end(self) -> None:
        """Everything is in place when it returns."""
        if self._mass is not None:
            found = self._mass.cpu()
            torch.frombuffer(self._mass_to, dtype=torch.float32).add_(found)
        self._wait()
        self._forget()

    def abandon(self) -> None:
        """Nothing of an open pass is wanted, and nothing of it is written any more."""
        with contextlib.suppress(Exception):  # of a device that is lost: nothing runs there
            self._wait()
        self._forget()

    def _wait(self) -> None:
        if self._parts.device.type == "cuda":
            torch.cuda.current_stream(self._parts.device).synchronize()

    def _forget(self) -> None:
        self._hidden = self._positions = torch.empty(0)
        self._residual = self._projected = None
        self._bias = self._mass = self._mass_to = None
        self._n_bias_rows = self._n_cut = 0

    # ---- one layer ----------------------------------------------------------------------------

    def _project(self, layer: int) -> _Projected:
        """Norm, q, k and v of all current rows; once for a layer that is compared and then run."""
        if self._projected is not None and self._projected.layer == layer:
            return self._projected
        module = self._parts.layers[layer]
        attention: Any = module.self_attn
        n, dim = len(self._rows), self._parts.head_dim
        if self._residual is None:
            self._residual = torch.empty_like(self._hidden).copy_(self._hidden)
            normal = module.input_layernorm(self._hidden)
        else:
            normal, self._residual = module.input_layernorm(self._hidden, self._residual)
        parts = []
        for first in range(0, n, self._piece):
            rows = slice(first, first + self._piece)
            qkv, _ = attention.qkv_proj(normal[rows])
            q, k, v = qkv.split([attention.q_size, attention.kv_size, attention.kv_size], dim=-1)
            if hasattr(attention, "q_norm"):
                q = attention.q_norm(q.reshape(-1, dim)).view(q.shape)
                k = attention.k_norm(k.reshape(-1, dim)).view(k.shape)
            q, k = attention.rotary_emb(self._positions[rows], q, k)
            parts.append((q, k, v))
        q, k, v = (one[0] if len(parts) == 1 else torch.cat(one) for one in zip(*parts))
        self._projected = _Projected(
            layer, q.view(n, -1, dim), k.view(n, -1, dim), v.reshape(n, -1, dim)
        )
        return self._projected

    def _finish(self, module: Any, seen: torch.Tensor) -> None:
        """Output projection, norm and MLP."""
        assert self._residual is not None
        if len(seen) <= self._piece:
            out, _ = module.self_attn.o_proj(seen)
            out, self._residual = module.post_attention_layernorm(out, self._residual)
            self._hidden = module.mlp(out)
            return
        hidden = torch.empty_like(self._residual)
        for first in range(0, len(seen), self._piece):
            rows = slice(first, first + self._piece)
            out, _ = module.self_attn.o_proj(seen[rows])
            out, rest = module.post_attention_layernorm(out, self._residual[rows])
            if rest.data_ptr() != self._residual[rows].data_ptr():
                self._residual[rows] = rest
            hidden[rows] = module.mlp(out)
        self._hidden = hidden
