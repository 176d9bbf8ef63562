"""blend.h as ctypes sees it, for engines with a compute of their own.

    blend = Blend(cache.handle, info, profile=None, min_tokens=256, salt=None)
    report = blend.run(Ask(tokens, segments, ...), layout, executor)

What is looked up, loaded, turned, selected and stored is the library's to decide; it says which
rows to compute next, and an Executor computes them, in the memory that `layout` describes. Nothing
here needs more than the standard library: the library's arrays are handed on where they are.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import (
    POINTER,
    c_char,
    c_char_p,
    c_double,
    c_float,
    c_int,
    c_size_t,
    c_uint8,
    c_uint32,
    c_uint64,
    c_void_p,
)
from dataclasses import dataclass
from typing import Any, Protocol

from ._checked import Struct, Text
from ._connector import Layout
from ._lib import Clear, Prompt, Range, check, declare, library

__all__ = ["Ask", "Blend", "Executor", "ModelInfo", "Pass", "Rope"]

SELECTORS = {"query": 1, "hkvd": 2, "link": 3, "none": 4, "full": 5}
REASONS = ("few", "fault", "freq", "refused", "raised", "full", "unable")
CAP_MASS, CAP_DEVIATION = 1, 2
_FILL, _ANY, _RATIO, _CONTEXT = 1, 2, 16, 64
_PROMPT_SEGMENTS, _PROMPT_CONTEXT = 2, 4
_BEGIN, _LAYER, _DEVIATION, _NARROW, _LOGITS, _END = 1, 2, 3, 4, 5, 6
_ALWAYS_WORTH_IT = 0xFFFFFFFF


class Rope(Struct):
    _fields_ = [
        ("size", c_size_t),
        ("pairing", c_uint32),
        ("scaling", c_uint32),
        ("dims", c_uint32),
        ("trained", c_uint32),
        ("theta", c_double),
        ("factor", c_double),
        ("attention_factor", c_double),
        ("beta_fast", c_double),
        ("beta_slow", c_double),
        ("mscale", c_double),
        ("mscale_all_dim", c_double),
        ("yarn_exact", c_uint32),
        ("n_factors", c_uint32),
        ("low_freq_factor", c_double),
        ("high_freq_factor", c_double),
        ("short_factors", POINTER(c_double)),
        ("long_factors", POINTER(c_double)),
    ]


class ModelInfo(Struct):
    _fields_ = [
        ("size", c_size_t),
        ("architecture", c_char * 32),
        ("name", c_char * 128),
        ("device", c_char * 96),
        ("caps", c_uint32),
        ("n_layers", c_uint32),
        ("n_heads", c_uint32),
        ("n_kv_heads", c_uint32),
        ("head_dim", c_uint32),
        ("n_embd", c_uint32),
        ("n_vocab", c_uint32),
        ("context", c_uint32),
        ("kv_dtype", c_uint32),
        ("rows_max", c_uint32),
        ("token_bos", c_uint32),
        ("weight_bytes", c_uint64),
        ("weights", c_uint8 * 32),
        ("tokenizer", c_uint8 * 16),
        ("rope", Rope),
    ]


class Row(Struct):
    _fields_ = [("token", c_uint32), ("position", c_uint32), ("slot", c_uint32)]


class Group(Struct):
    _fields_ = [("n_rows", c_uint32), ("n_ranges", c_uint32), ("sees", Range * 2)]


class Pass(Struct):
    """Rows to compute, and what each group of them sees (struct tsr_model_pass)."""

    _fields_ = [
        ("size", c_size_t),
        ("rows", POINTER(Row)),
        ("n_rows", c_uint32),
        ("n_groups", c_uint32),
        ("groups", POINTER(Group)),
        ("bias", POINTER(c_float)),
        ("n_bias", c_uint32),
        ("n_bias_rows", c_uint32),
        ("n_mass_rows", c_uint32),
        ("freq_set", c_uint32),
        ("flags", c_uint32),
        ("reserved", c_uint32),
    ]

    def table(self) -> Any:
        """The rows as one array of uint32: token, position, slot, token, ..."""
        address = ctypes.addressof(self.rows.contents)
        return (c_uint32 * (3 * self.n_rows)).from_address(address)

    def visible(self) -> list[tuple[int, list[tuple[int, int]]]]:
        """For each group: its number of rows, and ranges (first, end) of slots that they see."""
        groups = [self.groups[i] for i in range(self.n_groups)]
        return [
            (g.n_rows, [(s.offset, s.offset + s.n_tokens) for s in g.sees[: g.n_ranges]])
            for g in groups
        ]


class LayerStep(Struct):
    _fields_ = [
        ("size", c_size_t),
        ("layer", c_uint32),
        ("n_mass", c_uint32),
        ("mass", POINTER(c_float)),
    ]


class DeviationStep(Struct):
    _fields_ = [
        ("size", c_size_t),
        ("layer", c_uint32),
        ("reserved", c_uint32),
        ("k", POINTER(c_float)),
        ("v", POINTER(c_float)),
    ]


class Step(Struct):
    _fields_ = [
        ("kind", c_uint32),
        ("n_keep", c_uint32),
        ("keep", POINTER(c_uint32)),
        ("logits", POINTER(c_float)),
        ("pass_", Pass),
        ("layer", LayerStep),
        ("deviation", DeviationStep),
    ]


class Gate(Struct):
    _fields_ = [
        (name, c_double) for name in "moved mass fresh entropy chunk_tokens n_chunks".split()
    ]


_COUNTS = (
    "n_tokens n_exact n_reused n_recomputed n_new n_filled n_filled_reused "
    "n_stored n_failed n_chunks"
).split()
_SECONDS = "lookup_s wait_s total_s".split()


class Report(Struct):
    _fields_ = [
        ("size", c_size_t),
        *((name, c_uint32) for name in _COUNTS),
        ("selector", c_uint32),
        ("reasons", c_uint32),
        ("tier_tokens", c_uint32 * 8),
        ("ratio", c_double),
        ("bias", c_double),
        ("predicted_kl", c_double),
        ("gate", Gate),
        *((name, c_double) for name in _SECONDS),
    ]


class AskDesc(Struct):
    _fields_ = [
        ("size", c_size_t),
        ("session", c_void_p),
        ("tokens", c_void_p),
        ("n_tokens", c_uint32),
        ("n_segments", c_uint32),
        ("segments", POINTER(Range)),
        ("flags", c_uint32),
        ("system", c_uint32),
        ("selector", c_uint32),
        ("timeout_ms", c_uint32),
        ("ratio", c_double),
        ("bias", c_double),
        ("n_context", c_uint32),
        ("reserved", c_uint32),
    ]


class BlendConfig(Struct):
    _fields_ = [
        ("size", c_size_t),
        ("model", c_void_p),
        ("cache", c_void_p),
        ("profile", c_void_p),
        ("flags", c_uint32),
        ("blend_min_tokens", c_uint32),
        ("salt", c_char_p),
        ("info", POINTER(ModelInfo)),
    ]


class _Points(Struct):
    _fields_ = [("n", c_uint32), ("reserved", c_uint32), ("points", c_double * 16)]


class _Check(Struct):
    _fields_ = [
        ("layer", c_uint32),
        ("reserved", c_uint32),
        ("ratio", c_double),
        ("threshold", c_double),
    ]


class _Frontier(Struct):
    _fields_ = [("settings", c_uint32 * 4), ("numbers", c_double * 5)]


class Profile(Struct):
    """struct tsr_profile; filled by the library, looked at by nobody here."""

    _fields_ = [
        ("size", c_size_t),
        ("space", c_char * 33),
        ("model", c_char * 128),
        ("selector", c_uint32),
        ("context", c_uint32),
        ("boundary", c_uint32),
        ("first_tokens", c_uint32),
        ("query_rows", c_uint32),
        ("n_checks", c_uint32),
        ("n_frontier", c_uint32),
        ("bias_reused", c_uint32),
        ("bias_answer", c_uint32),
        ("ratio", c_double),
        ("checks", _Check * 4),
        ("bias", _Points),
        ("bias_chunks", _Points),
        ("gate_limit", c_double),
        ("gate_ratio_max", c_double),
        ("gate_full", c_double),
        ("gate", c_double * 7),
        ("gate_plain", c_double * 7),
        ("frontier", _Frontier * 64),
    ]


_out = POINTER(c_void_p)
_PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {
    "tsr_profile_init": (None, [POINTER(Profile)]),
    "tsr_profile_load": (c_int, [POINTER(Profile), Text]),
    "tsr_blend_open": (c_int, [_out, POINTER(BlendConfig)]),
    "tsr_blend_close": (None, [c_void_p]),
    "tsr_blend_space": (c_void_p, [c_void_p]),
    "tsr_blend_start": (c_int, [_out, c_void_p, POINTER(AskDesc), POINTER(Layout)]),
    "tsr_blend_next": (c_int, [c_void_p, c_int, POINTER(Step)]),
    "tsr_blend_end": (None, [c_void_p, POINTER(c_float), POINTER(Report)]),
}


class Executor(Protocol):
    """Who computes rows, as struct tsr_executor_ops says it; failing is an exception."""

    def begin(self, rows: Pass) -> None: ...
    def layer(self, layer: int, mass: Any) -> None:
        """Runs a layer; adds attention to `mass`, a ctypes array of floats, unless it is None."""

    def deviation(self, layer: int, k: Any, v: Any) -> None: ...
    def narrow(self, keep: Any) -> None: ...
    def end(self) -> None: ...


@dataclass(frozen=True)
class Ask:
    """One prompt whose context shall be put in place (struct tsr_ask with TSR_ASK_CONTEXT)."""

    tokens: bytes  # uint32
    segments: Sequence[tuple[int, int]] = ()  # (first, n)
    system: bool = False
    n_context: int = 0  # 0: up to the end of the last segment
    selector: str | None = None  # None: the profile's
    ratio: float | None = None
    fill: bool = True
    any_offset: bool = False
    timeout_ms: int = 0


class Blend:
    """A model and a cache together. One run at a time."""

    def __init__(
        self,
        cache: c_void_p | None,
        info: ModelInfo,
        profile: str | None = None,
        min_tokens: int = 256,
        salt: bytes | None = None,
    ) -> None:
        self._lib = library()
        declare(self._lib, _PROTOTYPES)
        self._handle = c_void_p()
        self._cache = cache
        measured = Profile(size=ctypes.sizeof(Profile))
        self._lib.tsr_profile_init(ctypes.byref(measured))
        if profile is not None:
            check(self._lib.tsr_profile_load(ctypes.byref(measured), profile.encode()))
        self._info = info  # its rope may point to memory of ours
        config = BlendConfig(
            size=ctypes.sizeof(BlendConfig),
            cache=cache,
            profile=ctypes.addressof(measured),
            blend_min_tokens=min_tokens or _ALWAYS_WORTH_IT,
            salt=salt or None,
            info=ctypes.pointer(info),
        )
        check(self._lib.tsr_blend_open(ctypes.byref(self._handle), ctypes.byref(config)))

    def close(self) -> None:
        """May be called twice."""
        self._lib.tsr_blend_close(self._handle)
        self._handle = c_void_p()

    def run(self, ask: Ask, layout: Layout, executor: Executor) -> dict[str, float | int | str]:
        """Puts the context of a prompt in place: token i in slot i of `layout`. The report of it;
        an exception: what stands in those slots is of no use."""
        tokens, segments = _packed(ask)
        desc = AskDesc(
            size=ctypes.sizeof(AskDesc),
            tokens=ctypes.addressof(tokens),
            n_tokens=len(ask.tokens) // 4,
            n_segments=len(segments),
            segments=segments,
            flags=_CONTEXT
            | (_FILL if ask.fill else 0)
            | (_ANY if ask.any_offset else 0)
            | (_RATIO if ask.ratio is not None else 0),
            system=int(ask.system),
            selector=SELECTORS[ask.selector] if ask.selector is not None else 0,
            timeout_ms=ask.timeout_ms,
            ratio=ask.ratio or 0.0,
            n_context=ask.n_context,
        )
        run = c_void_p()
        report = Report(size=ctypes.sizeof(Report))
        start = self._lib.tsr_blend_start
        check(start(ctypes.byref(run), self._handle, ctypes.byref(desc), ctypes.byref(layout)))
        try:
            self._take_steps(run, executor)
        finally:
            self._lib.tsr_blend_end(run, None, ctypes.byref(report))
        return _told(report)

    def forget(self, ask: Ask) -> int:
        """Drops what is stored of a prompt's segments, and returns how many entries that were."""
        if self._cache is None:
            return 0
        tokens, segments = _packed(ask)
        dropped = 0
        for flags in (_PROMPT_SEGMENTS, _PROMPT_SEGMENTS | _PROMPT_CONTEXT)[: 1 + ask.system]:
            prompt = Prompt(
                size=ctypes.sizeof(Prompt),
                tokens=ctypes.addressof(tokens),
                n_tokens=len(ask.tokens) // 4,
                flags=flags,
                segments=segments,
                n_segments=len(segments),
            )
            order = Clear(
                size=ctypes.sizeof(Clear),
                space=self._lib.tsr_blend_space(self._handle),
                prompt=ctypes.pointer(prompt),
                tier=-1,
            )
            dropped += check(self._lib.tsr_clear(self._cache, ctypes.byref(order)))
        return dropped

    def clear(self) -> None:
        """Drops all that is stored in its space."""
        if self._cache is None:
            return
        order = Clear(
            size=ctypes.sizeof(Clear), space=self._lib.tsr_blend_space(self._handle), tier=-1
        )
        check(self._lib.tsr_clear(self._cache, ctypes.byref(order)))

    def _take_steps(self, run: c_void_p, executor: Executor) -> None:
        step = Step()
        following = ctypes.byref(step)
        open_ = False
        try:
            while check(self._lib.tsr_blend_next(run, 0, following)) > 0:
                open_ = step.kind != _END
                _take(step, executor)
        finally:
            if open_:
                executor.end()


def _packed(ask: Ask) -> tuple[Any, Any]:
    if len(ask.tokens) % 4:
        raise ValueError(f"tokens of {len(ask.tokens)} bytes, no multiple of 4")
    tokens = (c_uint8 * len(ask.tokens)).from_buffer_copy(ask.tokens)
    return tokens, (Range * len(ask.segments))(*[Range(*pair) for pair in ask.segments])


def _take(step: Step, executor: Executor) -> None:
    if step.kind == _BEGIN:
        executor.begin(step.pass_)
    elif step.kind == _LAYER:
        mass = _array(c_float, step.layer.mass, step.layer.n_mass) if step.layer.mass else None
        executor.layer(step.layer.layer, mass)
    elif step.kind == _DEVIATION:
        # As many as the pass has rows; the executor knows how many that are.
        executor.deviation(step.deviation.layer, step.deviation.k, step.deviation.v)
    elif step.kind == _NARROW:
        executor.narrow(_array(c_uint32, step.keep, step.n_keep))
    elif step.kind == _END:
        executor.end()
    else:
        raise RuntimeError(f"a step of kind {step.kind}")  # logits are not asked for


def _array(kind: Any, pointer: Any, n: int) -> Any:
    return (kind * n).from_address(ctypes.addressof(pointer.contents))


def _told(report: Report) -> dict[str, float | int | str]:
    """A report in words and numbers that travel anywhere."""
    names = {number: name for name, number in SELECTORS.items()}
    told: dict[str, float | int | str] = {name: getattr(report, name) for name in _COUNTS}
    told.update((name, getattr(report, name)) for name in _SECONDS)
    told["selector"] = names.get(report.selector, "")
    told["reasons"] = " ".join(
        reason for i, reason in enumerate(REASONS) if report.reasons >> i & 1
    )
    told["ratio"] = report.ratio
    told["bias"] = report.bias
    told["tiers"] = " ".join(str(n) for n in report.tier_tokens)
    return told
