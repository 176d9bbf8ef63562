"""Messages between the two halves of a blending engine.

The scheduler half knows the requests and decides which are blended and where their documents are;
the worker half has the model and blends. A BlendJob goes with a step, and a BlendOutcome comes
back. Neither needs an engine or torch, so both sides and their tests can import them.
BlendSettings is the part of the engine's configuration that both read, each from its own copy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

FIRST = ("exact", "fill")  # what is done for a prompt of unknown documents
SELECTORS = ("query", "hkvd", "link", "none", "full")
AT_ONCE_MAX = 8


class BadBlend(Exception):
    """Invalid settings or marks."""


@dataclass(frozen=True)
class BlendJob:
    """A request whose context the worker fills before the step that computes its question."""

    number: int  # of the request in the connector
    tokens: bytes  # uint32 little endian, the whole prompt
    segments: tuple[tuple[int, int], ...]  # (first, n), ascending: documents
    system: bool  # segments[0] is a system prompt, from token 0 on
    n_context: int  # tokens up to the question
    blocks: tuple[
        int, ...
    ]  # of the engine's cache, in order, at least as many as the context needs
    selector: str | None  # None: the profile's
    ratio: float | None  # None: the profile's
    salt: bytes  # enters the key of everything that is loaded and stored; empty: none
    any_offset: bool = False  # also runs of stored text that no segment names
    # Tokens that count as computed when the step begins: the context, or all but the last one, if
    # the worker computes the question too; 0: the context.
    n_given: int = 0
    plain_salt: str = ""  # under which its plain requests are kept; see from_traffic
    # Its request has its answer and has left its blocks: the documents are computed alone there,
    # and stored.
    learn: bool = False

    def context_blocks(self, block_tokens: int) -> tuple[int, ...]:
        """The blocks that the worker fills; the last one may hold what follows, too."""
        return self.blocks[: -(-self.given // block_tokens)]

    @property
    def given(self) -> int:
        return self.n_given or self.n_context


def space_salt(engine: str | None, request: bytes, rank: int = 0, world: int = 1) -> bytes | None:
    """The salt of the space for these blends, the same in both halves; None: no salt. Ranks have
    different heads of the same shape, so each has its own space."""
    if not engine and not request and world == 1:
        return None
    digest = hashlib.sha256()
    for part in ((engine or "").encode(), request, b"%d/%d" % (rank, world)):
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest().encode()


@dataclass(frozen=True)
class BlendOutcome:
    """The outcome. If not ok, every block of the context is reported as invalid."""

    number: int
    ok: bool
    report: dict[str, float | int | str] = field(default_factory=dict)  # of tsr_blend_report
    seconds: float = 0.0
    stopped: bool = False  # its request had ended: nothing of it counts
    busy_s: float = 0.0  # that was computed for it, besides what took others; 0: not known


@dataclass(frozen=True)
class BlendSettings:
    """`"blend": true`, or an object with some of these."""

    ratio: float | None = None
    selector: str | None = None
    separators: tuple[str, ...] = ()
    any_offset: bool = False
    from_traffic: bool = False  # any_offset also finds what plain requests have computed
    any_system: bool = False  # documents are stored for every system prompt (option chunked)
    min_tokens: int = 256  # fewer reused tokens are not worth it
    profile: str | None = None  # a file, see tsr_profile_load()
    # A prompt whose documents are mostly unknown: "exact", the engine computes it like any other,
    # and they are stored after its answer; "fill", they are computed alone first, and blended.
    first: str | None = None  # None: as the engine does by default
    # Blends under way together, where layers are CUDA graphs; their layers are computed at once.
    at_once: int = 1
    weigh: bool = True  # a prompt that is computed faster than blended is computed


def blend_settings(extra: Mapping[str, Any]) -> BlendSettings | None:
    """The blend settings in kv_connector_extra_config; None: missing or off."""
    given = extra.get("blend", False)
    if isinstance(given, bool):
        return BlendSettings() if given else None
    if not isinstance(given, Mapping):
        raise BadBlend(f"blend: {given!r} is neither true, false nor an object")
    known = BlendSettings.__dataclass_fields__
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise BadBlend(f"blend: unknown key '{unknown[0]}'; known keys: {', '.join(sorted(known))}")
    separators = given.get("separators", ())
    if isinstance(separators, str):
        separators = (separators,)
    if not all(isinstance(one, str) and one for one in separators):
        raise BadBlend("blend: separators must be strings of at least one character")
    min_tokens = given.get("min_tokens", 256)
    if isinstance(min_tokens, bool) or not isinstance(min_tokens, int) or min_tokens < 0:
        raise BadBlend(f"blend: min_tokens {min_tokens!r} is not a count")
    return BlendSettings(
        ratio=checked_ratio(given.get("ratio")),
        selector=checked_selector(given.get("selector")),
        separators=tuple(separators),
        any_offset=_flag(given, "any_offset"),
        from_traffic=_flag(given, "from_traffic"),
        any_system=_flag(given, "any_system"),
        min_tokens=min_tokens,
        profile=given.get("profile"),
        first=_checked_first(given.get("first")),
        at_once=_checked_at_once(given.get("at_once", 1)),
        weigh=_flag(given, "weigh", True),
    )


def _checked_at_once(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= AT_ONCE_MAX:
        raise BadBlend(f"blend: at_once {value!r} is not a number from 1 to {AT_ONCE_MAX}")
    return value


def _checked_first(value: Any) -> str | None:
    if value is not None and value not in FIRST:
        raise BadBlend(f"blend: first {value!r} is not one of {', '.join(FIRST)}")
    return value  # type: ignore[no-any-return]


def _flag(given: Mapping[str, Any], name: str, usual: bool = False) -> bool:
    value = given.get(name, usual)
    if not isinstance(value, bool):
        raise BadBlend(f"blend: {name} {value!r} is neither true nor false")
    return value


def checked_ratio(value: Any) -> float | None:
    """A share from 0 to 1, or None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise BadBlend(f"ratio {value!r} is not a number")
    if not 0 <= value <= 1:  # nor is NaN
        raise BadBlend(f"ratio {value!r} is not between 0 and 1")
    return float(value)


def checked_selector(value: Any) -> str | None:
    """The name of a selector, or None."""
    if value is not None and value not in SELECTORS:
        raise BadBlend(f"selector {value!r} is not one of {', '.join(SELECTORS)}")
    return value  # type: ignore[no-any-return]
