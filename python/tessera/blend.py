"""blend.h for Python, for engines that run the model themselves.

    blend = Blend(cache.handle, info, profile=None, min_tokens=256, salt=None, primer=())
    report = blend.run(Ask(tokens, segments, ...), layout, executor)

The library decides what is looked up, loaded, rotated, selected and stored. It says which rows to
compute next, and an Executor computes them, in the memory that `layout` describes. This module
needs only the standard library: arrays are passed on without a copy.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_float, c_uint8, c_uint32, c_void_p
from dataclasses import dataclass
from typing import Any, Protocol

from . import _c as c
from ._lib import check, library
from .cache import _extras

__all__ = [
    "Ask",
    "Blend",
    "BlendRun",
    "Executor",
    "Paged",
    "corrects",
    "pass_table",
    "pass_visible",
    "primer_text",
]

SELECTORS = {
    "query": c.SELECT_QUERY,
    "hkvd": c.SELECT_HKVD,
    "link": c.SELECT_LINK,
    "none": c.SELECT_NONE,
    "full": c.SELECT_FULL,
}
REASONS = ("few", "fault", "freq", "refused", "raised", "full", "unable", "first", "room")
_ALWAYS_WORTH_IT = 0xFFFFFFFF


def _profile(path: str | None) -> c.Profile:
    measured = c.Profile(size=ctypes.sizeof(c.Profile))
    library().tsr_profile_init(ctypes.byref(measured))
    if path is not None:
        check(library().tsr_profile_load(ctypes.byref(measured), path.encode()))
    return measured


def primer_text(profile: str | None, any_system: bool = False) -> str | None:
    """The text that documents are computed after; None: the profile wants none. A blend needs its
    tokens, with the model's begin token if there is one. `any_system`: as option chunked has it,
    which has a primer where the profile has the system prompt."""
    measured = _profile(profile)
    primed = measured.context == c.CONTEXT_PRIMER
    primed |= any_system and measured.context == c.CONTEXT_SAME
    return bytes(measured.primer).decode() if primed else None


def corrects(profile: str | None) -> bool:
    """Whether a profile has a bias or a gate, which act if the question is computed too."""
    measured = _profile(profile)
    return measured.bias.n > 0 or any(measured.gate)


def pass_table(rows: c.ModelPass) -> Any:
    """The rows of a pass as one array of uint32: token, position, slot, token, ..."""
    address = ctypes.addressof(rows.rows.contents)
    return (c_uint32 * (3 * rows.n_rows)).from_address(address)


def pass_visible(rows: c.ModelPass) -> list[tuple[int, list[tuple[int, int]]]]:
    """For each group: its number of rows, and ranges (first, end) of slots that they see. Of
    the last range each row sees up to its own slot, of one before it everything."""
    groups = [rows.groups[i] for i in range(rows.n_groups)]
    return [
        (g.n_rows, [(s.offset, s.offset + s.n_tokens) for s in g.sees[: g.n_ranges]])
        for g in groups
    ]


class Executor(Protocol):
    """Computes rows, as in struct tsr_executor_ops; raises an exception on failure."""

    def begin(self, rows: c.ModelPass) -> None: ...
    def layer(self, layer: int, mass: Any) -> None:
        """Runs a layer; adds attention to `mass`, a ctypes array of floats, unless it is None. That
        may wait for end(): all layers of a pass have the same array."""

    def deviation(self, layer: int, k: Any, v: Any) -> None: ...
    def narrow(self, keep: Any) -> None: ...
    def logits(self, keep: Any, out: Any) -> None:
        """Logits of these rows, after the last layer, into `out`, a ctypes array of floats. Only
        for asks with `question`."""

    def end(self) -> None:
        """Everything that the pass writes is in place, and `mass` of its layers complete."""

    def abandon(self) -> None:
        """Gives up an open pass; nothing of it is written any more."""


@dataclass(frozen=True)
class Paged:
    """Memory in pages (struct tsr_ask_desc.slots)."""

    slots: bytes  # int64, of the context's tokens
    rest: c.KvLayout  # for the question and the primer
    compute: int = 0  # the engine's stream; 1: the default one


@dataclass(frozen=True)
class Ask:
    """A prompt whose context is to be filled in (struct tsr_ask_desc with TSR_ASK_CONTEXT); with
    `question`, its question is computed too, with the profile's bias, and `gate` lets its gate
    decide how much is recomputed."""

    tokens: bytes  # uint32
    segments: Sequence[tuple[int, int]] = ()  # (first, n)
    system: bool = False
    n_context: int = 0  # 0: up to the end of the last segment
    selector: str | None = None  # None: the profile's
    ratio: float | None = None
    fill: bool = True
    any_offset: bool = False
    timeout_ms: int = 0
    question: bool = False
    gate: bool = False
    plain_salt: str = ""  # of the request, as the connector keeps its plain requests under it
    learn: bool = False  # only computes and stores what is not cached (TSR_ASK_LEARN)
    loaded: bool = False  # no pass begins before everything is loaded


class Blend:
    """A model and a cache together. One run at a time. `primer`: the tokens of primer_text().
    `traffic`: the space in which a connector keeps plain requests, to find their text too.
    `any_system`: as in primer_text(); without tokens for it, documents are computed alone."""

    def __init__(
        self,
        cache: c_void_p | None,
        info: c.ModelInfo,
        profile: str | None = None,
        min_tokens: int = 256,
        salt: bytes | None = None,
        primer: Sequence[int] = (),
        traffic: c.SpaceDesc | None = None,
        any_system: bool = False,
    ) -> None:
        self._lib = library()
        self._handle = c_void_p()
        self._cache = cache
        self._info = info  # its rope may point to memory of ours
        self._primer = (c_uint32 * len(primer))(*primer)
        measured = _profile(profile)
        if any_system and measured.context == c.CONTEXT_SAME:
            measured.context = c.CONTEXT_PRIMER if primer else c.CONTEXT_PURE
        self._config = c.BlendDesc(
            size=ctypes.sizeof(c.BlendDesc),
            cache=cache,
            profile=ctypes.pointer(measured),
            blend_min_tokens=min_tokens or _ALWAYS_WORTH_IT,
            salt=salt or None,
            info=ctypes.pointer(info),
            primer=ctypes.addressof(self._primer) if primer else None,
            n_primer=len(primer),
            traffic=ctypes.pointer(traffic) if traffic is not None else None,
        )
        self._open()

    def _open(self) -> None:
        check(self._lib.tsr_blend_open(ctypes.byref(self._handle), ctypes.byref(self._config)))

    @property
    def n_primer(self) -> int:
        """Slots that the layout of a run has after the prompt, for the primer."""
        return int(self._lib.tsr_blend_primer(self._handle))

    @property
    def n_draft(self) -> int:
        """Slots after the prompt that a gate uses, the same as the primer's."""
        return int(self._config.profile.contents.draft)

    def close(self) -> None:
        """May be called twice."""
        self._lib.tsr_blend_close(self._handle)
        self._handle = c_void_p()

    def run(
        self, ask: Ask, layout: c.KvLayout, executor: Executor, paged: Paged | None = None
    ) -> dict[str, float | int | str]:
        """Fills in the context of a prompt: token i in slot i of `layout`, which has n_primer slots
        more, or in the slots of `paged`. Returns the report.
        After an exception the contents of these slots are undefined."""
        run = self.start(ask, layout, executor, paged)
        try:
            while run.step():
                pass
        finally:
            report = run.end()
        return report

    def start(
        self, ask: Ask, layout: c.KvLayout, executor: Executor, paged: Paged | None = None
    ) -> BlendRun:
        """The same step by step."""
        return BlendRun(self._handle, self._info.n_vocab, ask, layout, executor, paged)

    def forget(self, ask: Ask) -> int:
        """Drops the stored segments of a prompt and the primer, also the copy that the blend keeps
        in memory. What other machines have in tiers that they share stays. Returns the number of
        entries dropped."""
        if self._cache is None:
            return 0
        tokens, segments = _packed(ask)
        prompt = c.Prompt(
            size=ctypes.sizeof(c.Prompt),
            tokens=ctypes.addressof(tokens),
            n_tokens=len(ask.tokens) // 4,
            flags=c.PROMPT_SEGMENTS,
            segments=segments,
            n_segments=len(segments),
        )
        dropped = self._drop(prompt)
        n_primer = self.n_primer
        if ask.system or n_primer:
            prompt.flags |= c.PROMPT_CONTEXT if ask.system else 0
            prompt.context, prompt.n_context = self._config.primer, n_primer
            dropped += self._drop(prompt)
        if n_primer:
            whole = (c.Range * 1)(c.Range(0, n_primer))
            prompt = c.Prompt(
                size=ctypes.sizeof(c.Prompt),
                tokens=self._config.primer,
                n_tokens=n_primer,
                flags=c.PROMPT_SEGMENTS,
                segments=whole,
                n_segments=1,
            )
            dropped += self._drop(prompt)
            self.close()
            self._open()
        return dropped

    def _drop(self, prompt: c.Prompt) -> int:
        order = c.ClearDesc(
            size=ctypes.sizeof(c.ClearDesc),
            space=self._lib.tsr_blend_space(self._handle),
            prompt=ctypes.pointer(prompt),
            tier=c.CLEAR_OWN,
        )
        return check(self._lib.tsr_cache_clear(self._cache, ctypes.byref(order)))

    def clear(self) -> None:
        """Drops everything stored in its space; what other machines have in tiers that they share
        stays."""
        if self._cache is None:
            return
        order = c.ClearDesc(
            size=ctypes.sizeof(c.ClearDesc),
            space=self._lib.tsr_blend_space(self._handle),
            tier=c.CLEAR_OWN,
        )
        check(self._lib.tsr_cache_clear(self._cache, ctypes.byref(order)))


class BlendRun:
    """A run under way. end() must be called, once; it waits for what is being loaded."""

    def __init__(
        self,
        blend: c_void_p,
        n_vocab: int,
        ask: Ask,
        layout: c.KvLayout,
        executor: Executor,
        paged: Paged | None = None,
    ) -> None:
        self._lib = library()
        self._executor = executor
        self._n_vocab = n_vocab
        self._open = False  # a pass
        self._n_rows = 0
        self._step = c.BlendStep()
        self._run = c_void_p()
        tokens, segments = _packed(ask)
        extra = _extras(None, ask.plain_salt, ())
        desc = c.AskDesc(
            size=ctypes.sizeof(c.AskDesc),
            tokens=ctypes.addressof(tokens),
            n_tokens=len(ask.tokens) // 4,
            n_segments=len(segments),
            segments=segments,
            flags=(0 if ask.question else c.ASK_CONTEXT)
            | (c.ASK_GATE if ask.gate else 0)
            | (c.ASK_FILL if ask.fill else 0)
            | (c.ASK_ANY if ask.any_offset else 0)
            | (c.ASK_LEARN if ask.learn else 0)
            | (c.ASK_LOADED if ask.loaded else 0)
            | (c.ASK_RATIO if ask.ratio is not None else 0),
            system=int(ask.system),
            selector=SELECTORS[ask.selector] if ask.selector is not None else 0,
            timeout_ms=ask.timeout_ms,
            ratio=ask.ratio or 0.0,
            n_context=ask.n_context,
            n_extra=len(extra),
            extra=extra,
        )
        slots = None
        if paged is not None:
            if len(paged.slots) != 8 * ask.n_context:
                raise ValueError(f"{len(paged.slots)} bytes of slots for {ask.n_context} tokens")
            slots = (c_uint8 * len(paged.slots)).from_buffer_copy(paged.slots)
            desc.slots = ctypes.addressof(slots)
            desc.rest = ctypes.pointer(paged.rest)
            desc.compute = paged.compute
        self._kept = tokens, segments, extra, slots, paged, layout  # the run reads them
        run, what = ctypes.byref(self._run), ctypes.byref(desc)
        check(self._lib.tsr_blend_start(run, blend, what, ctypes.byref(layout)))

    def step(self) -> bool:
        """Has the executor take the next step. False: there is none."""
        more = self.next()
        if more:
            self.take()
        return more

    def next(self) -> bool:
        """Waits for the next step and does not take it; from any thread. What it waits for: before
        a layer, until it is loaded; after a pass, until what it computed is stored; and where
        nothing is computed, until everything is loaded."""
        return check(self._lib.tsr_blend_next(self._run, 0, ctypes.byref(self._step))) > 0

    def take(self) -> int:
        """Takes the step, and returns how many rows went through a layer."""
        step = self._step
        self._open = step.kind != c.STEP_END
        if step.kind == c.STEP_BEGIN:
            self._n_rows = step.pass_.n_rows
        elif step.kind == c.STEP_NARROW:
            self._n_rows = step.n_keep
        n = self._n_rows if step.kind == c.STEP_LAYER else 0
        _take(step, self._executor, self._n_vocab)
        return n

    @property
    def in_pass(self) -> bool:
        """Between the begin and the end of a pass."""
        return self._open

    def end(self) -> dict[str, float | int | str]:
        """The report, which is empty if there are steps left."""
        report = c.BlendReport(size=ctypes.sizeof(c.BlendReport))
        try:
            if self._open:
                self._executor.abandon()
        finally:
            self._lib.tsr_blend_end(self._run, None, ctypes.byref(report))
            self._run = c_void_p()
        return _told(report)


def _packed(ask: Ask) -> tuple[Any, Any]:
    if len(ask.tokens) % 4:
        raise ValueError(f"tokens of {len(ask.tokens)} bytes, not a multiple of 4")
    tokens = (c_uint8 * len(ask.tokens)).from_buffer_copy(ask.tokens)
    return tokens, (c.Range * len(ask.segments))(*[c.Range(*pair) for pair in ask.segments])


def _take(step: c.BlendStep, executor: Executor, n_vocab: int) -> None:
    if step.kind == c.STEP_BEGIN:
        executor.begin(step.pass_)
    elif step.kind == c.STEP_LAYER:
        mass = _floats(step.layer.mass, step.layer.n_mass) if step.layer.mass else None
        executor.layer(step.layer.layer, mass)
    elif step.kind == c.STEP_DEVIATION:
        # As many as the pass has rows; the executor knows how many that are.
        executor.deviation(step.deviation.layer, step.deviation.k, step.deviation.v)
    elif step.kind == c.STEP_NARROW:
        executor.narrow((c_uint32 * step.n_keep).from_address(step.keep))
    elif step.kind == c.STEP_LOGITS:
        keep = (c_uint32 * step.n_keep).from_address(step.keep)
        executor.logits(keep, _floats(step.logits, step.n_keep * n_vocab))
    elif step.kind == c.STEP_END:
        executor.end()
    else:
        raise RuntimeError(f"unknown kind of step: {step.kind}")


def _floats(pointer: Any, n: int) -> Any:
    return (c_float * n).from_address(ctypes.addressof(pointer.contents))


def _told(report: c.BlendReport) -> dict[str, float | int | str]:
    """A report as plain strings and numbers."""
    names = {number: name for name, number in SELECTORS.items()}
    told: dict[str, float | int | str] = {}
    for name, *_ in report._fields_:
        if name.startswith("n_") or name.endswith("_s"):  # counts and seconds
            told[name] = getattr(report, name)
    told["selector"] = names.get(report.selector, "")
    told["reasons"] = " ".join(
        reason for i, reason in enumerate(REASONS) if report.reasons >> i & 1
    )
    told["ratio"] = report.ratio
    told["bias"] = report.bias
    if report.sure == report.sure:  # a gate has judged
        told["sure"] = report.sure
    told["tiers"] = " ".join(str(n) for n in report.tier_tokens)
    return told
