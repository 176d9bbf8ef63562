"""The steps of a blend with a loaded model: rows at any positions, over keys that others have
put there (tessera.blend.Executor).

An engine runs a model as a whole, over sequences that it knows. A blend needs single layers over
chosen rows, so the model's own modules are called here one after the other: norms, projections, q
and k norms, rotary embedding, output, MLP. Only the attention is ours (attention.py). What computes
is the engine's in every other respect: its weights, its kernels, its all-reduces. They are the
modules themselves, so that vLLM's compiled forward and its graphs are not touched.

Layers of a pass with few rows can be recorded (Recorded): the kernels take less time there than it
takes to queue them.

On a GPU everything is queued on the engine's stream. Attention that the library asks for is summed
there and read once, when the pass ends; that also waits for the pass, because the library reads K
and V by streams of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from .. import _c as c
from ..blend import pass_table, pass_visible
from .attention import Asked, Attention, Bias
from .parts import ModelParts
from .places import Place, Rows, sent

__all__ = ["BlendExecutor", "Recorded", "finish", "project"]

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


class Recorded(Protocol):
    """Layers that were recorded, for rows that see all keys up to their own."""

    n_layers: int  # the first ones

    def begin(self, rows: Rows, positions: torch.Tensor, hidden: torch.Tensor) -> bool:
        """A pass with these rows. False: it cannot do that."""

    def mass(self, n: int) -> torch.Tensor:
        """Zeros, by slot, to which layers add what rows look at."""

    def layer(self, layer: int, n_weighed: int) -> None:
        """The next layer of the pass; the last n_weighed rows add what they look at."""

    def state(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows and their residuals after the last layer that was replayed, to keep."""

    def leave(self) -> None:
        """Nothing more of the pass is replayed."""


def project(
    attention: Any, head_dim: int, normal: torch.Tensor, positions: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k and v of rows, turned to their positions: [rows, heads x dim]"""
    qkv, _ = attention.qkv_proj(normal)
    q, k, v = qkv.split([attention.q_size, attention.kv_size, attention.kv_size], dim=-1)
    if hasattr(attention, "q_norm"):
        q = attention.q_norm(q.reshape(-1, head_dim)).view(q.shape)
        k = attention.k_norm(k.reshape(-1, head_dim)).view(k.shape)
    q, k = attention.rotary_emb(positions, q, k)
    return q, k, v


def finish(
    module: Any, seen: torch.Tensor, residual: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output projection, norm and MLP; and the residual."""
    out, _ = module.self_attn.o_proj(seen)
    out, residual = module.post_attention_layernorm(out, residual)
    return module.mlp(out), residual


class BlendExecutor:
    def __init__(self, parts: ModelParts, place: Place, attention: Attention | None = None) -> None:
        self._parts = parts
        self.place = place
        self.attention = attention or Attention(parts.n_kv_heads, parts.scale)
        # Where the question begins, if its logits will be asked for; None: they are not.
        self.question: int | None = None
        self.needs_logits = True  # False: a rank that gets those of another
        self.recorded: Recorded | None = None
        self._replay: Recorded | None = None  # does the next layer, unless it comes behind its own
        self._n_replayed = 0
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
        tokens, positions, slots = sent(table, device)
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
        if self.recorded is not None and self._sees_all_before():
            if self.recorded.begin(self._rows, positions, self._hidden):
                self._replay = self.recorded

    def _sees_all_before(self) -> bool:
        """Whether every row sees all keys up to its own, as they are."""
        ranges = [sees for _n, sees in self._groups]
        first, end = self._span
        return (
            self._bias is None and ranges == [[(first, end)]] and first == 0 < end > self._rows.last
        )

    def layer(self, layer: int, mass: Any) -> None:
        if self._replay is not None and layer < self._replay.n_layers:
            n_weighed = 0
            if mass is not None:
                n_weighed = self._n_mass
                if self._mass is None:
                    self._mass, self._mass_to = self._replay.mass(len(mass)), mass
            self._replay.layer(layer, n_weighed)
            self._n_replayed += 1
            return
        self._go_on_alone()
        row = self._project(layer)
        self._projected = None
        self.place.put(layer, self._rows, row.k, row.v)
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
        kv = self.place.seen(layer, *self._span)
        seen = self.attention.attend(row.q, kv, self._rows, self._groups, asked, bias)
        if layer == len(self._parts.layers) - 1 and self.question is None:
            return  # nobody asks for what comes behind it
        self._finish(self._parts.layers[layer], seen)

    def _go_on_alone(self) -> None:
        """With what was replayed so far."""
        if self._replay is None:
            return
        if self._n_replayed:
            self._hidden, self._residual = self._replay.state()
        self._replay.leave()
        self._replay = None

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
        self._go_on_alone()
        row = self._project(layer)
        for fresh, stands, out in zip((row.k, row.v), self.place.take(layer, self._rows), (k, v)):
            if not out:
                continue
            apart = (fresh.float() - stands.float()).square_().sum((1, 2))
            address = ctypes.addressof(out.contents)
            target = (ctypes.c_float * len(apart)).from_address(address)
            torch.frombuffer(target, dtype=torch.float32).copy_(apart)

    def narrow(self, keep: Any) -> None:
        self._go_on_alone()
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
        self._n_bias_rows = self._n_cut = self._n_replayed = 0
        if self._replay is not None:
            self._replay.leave()
        self._replay = None

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
            parts.append(project(attention, dim, normal[rows], self._positions[rows]))
        q, k, v = (one[0] if len(parts) == 1 else torch.cat(one) for one in zip(*parts))
        self._projected = _Projected(
            layer, q.view(n, -1, dim), k.view(n, -1, dim), v.reshape(n, -1, dim)
        )
        return self._projected

    def _finish(self, module: Any, seen: torch.Tensor) -> None:
        """Output projection, norm and MLP."""
        assert self._residual is not None
        if len(seen) <= self._piece:
            self._hidden, self._residual = finish(module, seen, self._residual)
            return
        hidden = torch.empty_like(self._residual)
        for first in range(0, len(seen), self._piece):
            rows = slice(first, first + self._piece)
            hidden[rows], rest = finish(module, seen[rows], self._residual[rows])
            if rest.data_ptr() != self._residual[rows].data_ptr():
                self._residual[rows] = rest
        self._hidden = hidden
