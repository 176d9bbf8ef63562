"""Documents in any order in SGLang: contexts put into its pool from documents computed once.

A request is blended when its documents are marked, by separators in its tokens or by a client
(custom_params). It then goes its own way: its salt is one that nobody else has, so that the tree
has its approximate KV under keys of its own, and nothing of it is stored as exact KV. The model is
in the scheduler's process, and so is the tree: when such a request is admitted, the library plans
and loads (tessera.blend), the model's own modules compute what must be computed (compute/), and
the result is copied into the request's slots. SGLang computes the question.

Whatever goes wrong costs the blend, never the request: SGLang then computes the whole prompt.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import secrets
from array import array
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch

from .._kvpool import PoolShape
from ..blend import Ask, Blend
from ..blend_job import (
    BadBlend,
    BlendSettings,
    checked_ratio,
    checked_selector,
    space_salt,
)
from ..compute.executor import BlendExecutor
from ..compute.parts import Refused, model_info
from ..compute.places import Contiguous
from ..discovery import Asked, Closer, Discovery
from ..known_text import KnownText
from ..marks import checked_segments, read_wishes
from ..primer import primer_of
from ..separators import Separators, spellings
from .model import take_apart
from .ranks import Ranks

__all__ = ["Blended", "Blends"]

logger = logging.getLogger(__name__)
_SALTS_MAX = 16  # tenants whose spaces are kept open
_TIMEOUT_MS = 30000


@dataclass
class Blended:
    """A request that is blended."""

    segments: tuple[tuple[int, int], ...]
    system: bool
    n_context: int
    ratio: float | None
    selector: str | None
    salt: bytes  # of the tenant; the request has another one now
    failed: bool = False
    asked: Asked | None = None  # other machines, for its documents

    def forget_asked(self) -> None:
        if self.asked is not None:
            self.asked.forget()
            self.asked = None


class Blends:
    """Refused or BadBlend: this engine cannot blend, and why."""

    def __init__(
        self, context: Any, settings: BlendSettings, cache: Any, shape: PoolShape, ranks: Ranks
    ) -> None:
        if ranks.processes > 1:
            raise Refused("tensor parallelism")
        if shape.device != "cpu":
            raise Refused(f"models on {shape.device}, which was never tested")
        if shape.mla:
            raise Refused("MLA")
        if settings.any_offset or settings.from_traffic:
            raise Refused("any_offset and from_traffic")
        config = context.model_config
        self._pool = context.params.token_to_kv_pool_allocator.get_kvcache()
        self._parts = take_apart(context.tp_worker.model_runner.model, config)
        if self._pool.store_dtype != self._parts.dtype:
            raise Refused(f"KV of {self._pool.store_dtype} in a model of {self._parts.dtype}")
        self._settings = settings
        self._cache = cache
        self._info = model_info(
            self._parts,
            shape.model,
            hashlib.sha256(shape.weights).digest(),
            hashlib.sha256(shape.identity.encode()).digest()[:16],
        )
        tokenizer = _tokenizer(context)
        self._primer = primer_of(tokenizer, settings.profile, settings.any_system)
        self._place = Contiguous(self._parts)
        self._executor = BlendExecutor(self._parts, self._place)
        self._blends: OrderedDict[bytes, Blend] = OrderedDict()
        self._era = b""
        self._complaints: set[str] = set()
        self._separators = self._open_separators(tokenizer)
        self._others: KnownText | None = None  # for the thread of discovery

    def _open_separators(self, tokenizer: Any) -> Separators | None:
        if not self._settings.separators:
            return None
        if tokenizer is None:
            raise BadBlend("separators need the tokenizer, but skip_tokenizer_init is set")
        wanted: list[tuple[int, ...]] = []
        for text in self._settings.separators:
            found = spellings(tokenizer, text)
            if not found:
                raise BadBlend(
                    f"separator {text!r}: the tokenizer always merges it with other text"
                )
            wanted += found
        return Separators(self._cache, wanted)

    def close(self) -> None:
        """Before the cache is closed. May be called twice."""
        while self._blends:
            self._blends.popitem()[1].close()
        if self._separators is not None:
            self._separators.close()
            self._separators = None
        for closer in self.take_askers():
            closer()

    def take_askers(self) -> list[Closer]:
        """What is to be closed when no question is under way."""
        others, self._others = self._others, None
        return [others.close] if others is not None else []

    def reset(self) -> None:
        """Forgets all text, perhaps because weights have changed."""
        self._era = secrets.token_hex(16).encode()
        while self._blends:
            _salt, old = self._blends.popitem()
            old.clear()
            old.close()

    # ---- marks --------------------------------------------------------------------------------

    def mark(self, req: Any) -> Blended | None:
        """None: a plain request. Never raises."""
        if req.input_embeds is not None or req.positional_embed_overrides is not None:
            return None
        if req.multimodal_inputs is not None or req.lora_id is not None or req.return_logprob:
            return None
        if req.session is not None:
            return None  # its next turn finds this one by its own keys
        try:
            return self._mark(req)
        except Exception as error:  # the scheduler would end with it
            self._complain(f"malformed chunked prompt, handled as a plain request: {error}")
            return None

    def _mark(self, req: Any) -> Blended | None:
        given = req.sampling_params.custom_params or {}
        wishes = read_wishes(given) or {}
        if not wishes.get("blend", True):
            return None
        tokens = array("I", req.origin_input_ids)
        flat = given.get("tessera_segments")
        if flat is not None:
            system = wishes.get("system", False)
            segments = checked_segments(_pairs(flat), system, len(tokens))
        else:
            system = wishes.get("system", True)
            segments = self._split(tokens)
        if not segments or sum(n for _first, n in segments) < self._settings.min_tokens:
            return None
        ratio = checked_ratio(wishes.get("ratio"))
        tenant = [req.extra_key, req.cache_salt]
        return Blended(
            segments=segments,
            system=bool(system),
            n_context=sum(segments[-1]),
            ratio=self._settings.ratio if ratio is None else ratio,
            selector=checked_selector(wishes.get("selector")) or self._settings.selector,
            salt=json.dumps(tenant).encode() if any(tenant) else b"",
        )

    def _split(self, tokens: array[int]) -> tuple[tuple[int, int], ...]:
        """The chunks between separators, without the question."""
        chunks = self._separators.split(tokens) if self._separators is not None else None
        return tuple(chunks[:-1]) if chunks is not None else ()

    def ask_others(self, discovery: Discovery, req: Any, mark: Blended) -> Asked | None:
        """Asks for documents that other machines have stored; None: there is nothing to ask."""
        if self._others is None:
            self._others = KnownText(self._cache, bytes(self._info), None, 1, self._primer)
        tokens = array("I", req.origin_input_ids)
        salt = self._salt(mark.salt)
        return discovery.ask(
            functools.partial(self._others.discover, tokens, mark.segments, mark.system, salt)
        )

    # ---- blends -------------------------------------------------------------------------------

    def run(self, req: Any, mark: Blended, slots: torch.Tensor, first: int) -> bool:
        """Fills the slots of tokens `first` and on. False: it failed, and what is in the slots is
        undefined. Never raises."""
        try:
            with torch.inference_mode():
                report = self._run(req, mark)
                end = first + len(slots)
                for layer, (keys, values) in enumerate(self._place.kv):
                    self._pool.k_buffer[layer][slots] = keys[first:end]
                    self._pool.v_buffer[layer][slots] = values[first:end]
        except Exception as error:
            self._complain(f"a blend failed, SGLang computes the prompt: {error}")
            return False
        finally:
            self._place.rest()
        logger.debug("tessera: blended %s: %s", req.rid, report)
        return True

    def _run(self, req: Any, mark: Blended) -> dict[str, float | int | str]:
        blend = self._opened(mark.salt)
        tokens = array("I", req.origin_input_ids)
        self._place.fit(len(tokens) + blend.n_primer)
        ask = Ask(
            tokens.tobytes(),
            mark.segments,
            system=mark.system,
            n_context=mark.n_context,
            selector=mark.selector,
            ratio=mark.ratio,
            timeout_ms=_TIMEOUT_MS,
        )
        return blend.run(ask, self._place.layout(), self._executor)

    def _opened(self, tenant: bytes) -> Blend:
        salt = self._salt(tenant)
        blend = self._blends.get(salt)
        if blend is None:
            if len(self._blends) >= _SALTS_MAX:
                self._blends.popitem(last=False)[1].close()
            blend = Blend(
                self._cache,
                self._info,
                self._settings.profile,
                self._settings.min_tokens,
                space_salt(None, salt),
                self._primer,
                any_system=self._settings.any_system,
            )
            self._blends[salt] = blend
        self._blends.move_to_end(salt)
        return blend

    def _salt(self, tenant: bytes) -> bytes:
        return self._era + b"/" + tenant if self._era else tenant

    def _complain(self, what: str) -> None:
        if len(self._complaints) < 16 and what not in self._complaints:
            self._complaints.add(what)
            logger.warning("tessera: %s", what[:400])


def isolate(req: Any) -> None:
    """Gives a request keys in the tree that no other request has."""
    req.cache_salt = f"tessera-blend-{secrets.token_hex(16)}"


def _pairs(flat: Any) -> list[list[Any]]:
    """SGLang carries lists of numbers, and no lists of lists."""
    if not isinstance(flat, list) or len(flat) % 2:
        raise BadBlend("tessera_segments must be a list of first, n, first, n, ...")
    return [flat[i : i + 2] for i in range(0, len(flat), 2)]


def _tokenizer(context: Any) -> Any:
    args = context.server_args
    if getattr(args, "skip_tokenizer_init", False):
        return None
    from sglang.srt.utils.hf_transformers import get_tokenizer

    return get_tokenizer(
        args.tokenizer_path or args.model_path,
        trust_remote_code=args.trust_remote_code,
        tokenizer_revision=args.revision,
    )
