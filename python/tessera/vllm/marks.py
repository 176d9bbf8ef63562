"""Which of vLLM's requests are blended, and everything the scheduler's side does for them.

A request is blended when its documents are marked: by kv_transfer_params, by separators in its
tokens, or because stored text was found anywhere in it. It then goes its own way: it is no request
of the connector's other half, so no prefix of it is looked up or saved, and vLLM's own prefix cache
knows it under a salt that nobody else has. Approximate KV can so never be taken for exact KV, and
exact blocks of others are never written to. Everything that is wrong with a mark makes a plain
request and a counter, never an error.
"""

from __future__ import annotations

import functools
import secrets
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vllm.logger import init_logger
from vllm.tokenizers import cached_tokenizer_from_config

from .. import _c as c
from .._lib import TesseraError
from ..blend import corrects
from ..blend_job import (
    BadBlend,
    BlendJob,
    BlendOutcome,
    BlendSettings,
    checked_ratio,
    checked_selector,
)
from ..discovery import Asked, Closer, Discovery
from ..known_text import KnownText
from ..marks import checked_segments, read_wishes
from ..owner import EngineCache
from ..separators import Separators, spellings
from .learning import Learning
from .messages import TesseraMetadata, TesseraWorkerMetadata
from .primer import primer_tokens
from .shape import undoes_steps
from .worth import Worth, prompt_tokens

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.request import Request

logger = init_logger("vllm.tessera")
_REASON_MAX = 300  # characters: it may quote what a client has sent, whatever that is
_QUESTION_MAX = (
    2048  # tokens that a worker computes with corrections; vLLM has chunks for longer ones
)
_BESIDE_MIN = 512  # that a blend computes beside a full step, so that it ends some day
_UNSEEN_WARNING = 64  # requests without a separator before somebody is told
# Fields of tsr_blend_report that are counters of their own.
_REPORTED = {
    "n_exact": "blend_tokens_exact",
    "n_reused": "blend_tokens_reused",
    "n_other": "blend_tokens_other",
    "n_recomputed": "blend_tokens_recomputed",
    "n_filled": "blend_tokens_filled",
    "n_new": "blend_tokens_new",
    "n_failed": "blend_tokens_failed",
}
# (tokens, salt, salt of plain requests): how many tokens are known, and where the last one ends.
Matcher = Callable[["array[int]", bytes, str], tuple[int, int]]
# (tokens, segments, whether the first one is a system prompt, salt): how many tokens are stored.
SegmentMatcher = Callable[["array[int]", Sequence[tuple[int, int]], bool, bytes], int]


@dataclass(frozen=True)
class Mark:
    """What to blend in a request."""

    segments: tuple[tuple[int, int], ...]
    system: bool
    n_context: int
    n_given: int  # by the worker: the context, or all but the last token
    selector: str | None
    ratio: float | None
    any_offset: bool
    wished: bool = False  # the client says how to blend it


@dataclass
class _Blended:
    """A blended request between on_new_request and its end."""

    number: int
    request: Request
    mark: Mark
    tokens: bytes
    salt: bytes
    cache_salt: str = ""  # its own, before it was isolated
    failed: bool = False
    first: bool = False  # vLLM computes it, and its documents are stored afterwards
    sent: bool = False  # a worker has it, or will
    asked: Asked | None = None  # other machines, for its documents, while it is in the queue
    decided: bool = False  # whether it is `first`
    counted: bool = False
    outcome: BlendOutcome | None = None

    def forget_asked(self) -> None:
        """It has left the queue."""
        if self.asked is not None:
            self.asked.forget()
            self.asked = None


@dataclass
class BlendCounters:
    """Everything since the start, by the names of metrics.py."""

    values: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, value: float = 1) -> None:
        self.values[name] = self.values.get(name, 0) + value


class Blending:
    """The scheduler's side of blending. Used by one thread at a time."""

    def __init__(self, settings: BlendSettings, n_blocks: int = 0) -> None:
        """`n_blocks`: of vLLM's KV memory."""
        self.settings = settings
        self.learning = Learning(n_blocks)
        self.worth = Worth()
        self.counters = BlendCounters()
        self.ready = False  # every worker has said that it can
        # Within a step only where vLLM can undo one whose blend failed.
        self.between_steps = False
        self.matcher: Matcher | None = None
        self.segment_matcher: SegmentMatcher | None = None
        self._separators: Separators | None = None
        self._known_text: KnownText | None = None
        self._discovery: Discovery | None = None
        self._others: KnownText | None = None  # for the thread of discovery
        self._primer: tuple[int, ...] = ()
        self._corrects = False  # the profile has a bias or a gate
        self._seen = False
        self._complained = False
        self._blended: dict[str, _Blended] = {}
        self._by_number: dict[int, _Blended] = {}
        self._refused: dict[str, str] = {}
        self._jobs: list[BlendJob] = []
        self._aborted: list[int] = []
        self._era = b""  # enters every salt
        self.since = ""  # begins the salts of plain requests (SchedulerSide)

    def open(self, cache: EngineCache, vllm_config: VllmConfig) -> None:
        """Finds the spellings of the configured separators, and the primer's tokens. BadBlend: a
        separator has none, or there is no tokenizer."""
        self.between_steps = not undoes_steps(vllm_config)
        model = vllm_config.model_config
        self._primer = primer_tokens(self.settings.profile, model, self.settings.any_system)
        self._corrects = corrects(self.settings.profile)
        if not self.settings.separators:
            return
        if model.skip_tokenizer_init:
            raise BadBlend("separators need the tokenizer, but skip_tokenizer_init is set")
        tokenizer = cached_tokenizer_from_config(model)
        lists = []
        for text in self.settings.separators:
            found = spellings(tokenizer, text)
            if not found:
                raise BadBlend(
                    f"separator {text!r}: the tokenizer always merges it with other text"
                )
            lists.append(found)
        wanted: list[tuple[int, ...]] = []
        for i in range(max(map(len, lists))):  # the most usual ones of each first
            wanted += [found[i] for found in lists if i < len(found)]
        self._separators = Separators(cache.handle, wanted)

    def start(
        self,
        cache: EngineCache,
        model: bytes,
        salt: str | None,
        ranks: int,
        traffic: Sequence[c.SpaceDesc] = (),
        discovery: Discovery | None = None,
    ) -> None:
        """Every worker has said that it can; the first one's model. `traffic`: where each rank
        keeps plain requests, if blends are to find them. `discovery`: if there may be a tier that
        other machines fill."""
        if model:
            self._known_text = KnownText(cache.handle, model, salt, ranks, self._primer, traffic)
            if discovery is not None:
                self._others = KnownText(cache.handle, model, salt, ranks, self._primer)
                self._discovery = discovery
            self.matcher = self._known_text.find
            self.segment_matcher = self._known_text.find_segments
        elif self.settings.any_offset:
            logger.warning("tessera: any-offset lookup is not possible with this model")
        self.ready = True

    def close(self) -> list[Closer]:
        """What is to be closed when no question is under way."""
        if self._separators is not None:
            self._separators.close()
            self._separators = None
        if self._known_text is not None:
            self._known_text.close()
            self._known_text = self.matcher = self.segment_matcher = None
        others, self._others = self._others, None
        self._discovery = None
        for row in self._blended.values():
            row.forget_asked()
        return [others.close] if others is not None else []

    def reset(self) -> None:
        """Forgets all text, perhaps because weights have changed: nobody knows whose spaces there
        are, so from now on they are others, of this process alone. What is in the old ones ages."""
        self._era = secrets.token_hex(16).encode()
        self.learning.stop()  # it would store under the old ones what is computed from now on

    # ---- marks --------------------------------------------------------------------------------

    def _mark(self, request: Request, tokens: array[int]) -> Mark | None:
        """BadBlend or TesseraError: an invalid mark."""
        wishes = read_wishes(request.kv_transfer_params) or {}
        if not wishes.get("blend", True):
            return None
        ratio, selector = (
            checked_ratio(wishes.get("ratio")),
            checked_selector(wishes.get("selector")),
        )
        segments: tuple[tuple[int, int], ...] = ()
        if "segments" in wishes:
            system = wishes.get("system", False)
            segments = checked_segments(wishes["segments"], system, len(tokens))
        else:
            system = wishes.get("system", True)
            segments = self._split(tokens)
        any_offset = wishes.get("any_offset", self.settings.any_offset)
        if not segments:
            salts = request_salt(request), request.cache_salt or ""
            known, end = self._known(tokens, *salts) if any_offset else (0, 0)
            if not known or known < self.settings.min_tokens:
                return None
        elif sum(n for _first, n in segments) < self.settings.min_tokens:
            self.counters.add("blend_short")
            return None
        n_context = sum(segments[-1]) if segments else min(end, len(tokens) - 1)
        return Mark(
            segments=segments,
            system=bool(system and segments),
            n_context=n_context,
            n_given=self._given(n_context, len(tokens)),
            selector=selector or self.settings.selector,
            ratio=self.settings.ratio if ratio is None else ratio,
            any_offset=any_offset,
            wished=ratio is not None or selector is not None,
        )

    def _given(self, n_context: int, n_tokens: int) -> int:
        """A question that the worker computes, too, with the profile's corrections. vLLM always
        computes the last token itself."""
        short = n_tokens - n_context <= _QUESTION_MAX
        return n_tokens - 1 if self._corrects and short else n_context

    def _split(self, tokens: array[int]) -> tuple[tuple[int, int], ...]:
        """The chunks between separators, without the question."""
        if self._separators is None:
            return ()
        chunks = self._separators.split(tokens)
        if chunks is None:
            if not self._seen:
                self.counters.add("blend_unseen")
                if self.counters.values["blend_unseen"] == _UNSEEN_WARNING:
                    logger.warning(
                        "tessera: none of the first %d requests has a separator (%s)",
                        _UNSEEN_WARNING,
                        ", ".join(map(repr, self.settings.separators)),
                    )
            return ()
        self._seen = True
        return tuple(chunks[:-1])

    def _known(self, tokens: array[int], salt: bytes, cache_salt: str) -> tuple[int, int]:
        if self.matcher is None:
            return 0, 0
        return self.matcher(tokens, self._salt(salt), self._plain_salt(cache_salt))

    def _ask_others(self, row: _Blended, tokens: array[int]) -> Asked | None:
        """Asks for documents that other machines have stored; None: there is nothing to wait for.
        Text at any offset cannot be asked for."""
        if self._discovery is None or self._others is None or not row.mark.segments:
            return None
        if not self._discovery.is_ready():
            return None
        mark, salt = row.mark, self._salt(row.salt)
        return self._discovery.ask(
            functools.partial(self._others.discover, tokens, mark.segments, mark.system, salt)
        )

    def _is_first(self, row: _Blended, tokens: array[int]) -> bool:
        """Most of its documents are unknown: computing them alone takes as long as computing the
        prompt, whose answer is exact then."""
        mark = row.mark
        fills = self.settings.first == "fill" or mark.wished
        if fills or self.segment_matcher is None or not mark.segments:
            return False
        documents = mark.segments[1 if mark.system else 0 :]
        n_all = sum(n for _first, n in documents)
        known = self.segment_matcher(tokens, mark.segments, mark.system, self._salt(row.salt))
        if mark.any_offset and 2 * known < n_all:
            known = max(known, self._known(tokens, row.salt, row.cache_salt)[0])
        return 2 * known < n_all

    def _plain_salt(self, cache_salt: str) -> str:
        """As the other half of the connector has it in the keys of plain requests, now."""
        return self.since + cache_salt

    def _salt(self, request: bytes) -> bytes:
        return self._era + b"/" + request if self._era else request

    # ---- requests -----------------------------------------------------------------------------

    def new_request(self, request: Request, number: int) -> bool:
        """True: the request is blended, and nothing else may be done for it."""
        if not self.ready:
            return False
        why = _unsuitable(request)
        if why is not None:
            if (request.kv_transfer_params or {}).get("tessera"):
                self._refused[request.request_id] = why
            return False
        tokens = array("I", request.all_token_ids[:])
        try:
            mark = self._mark(request, tokens)
        except (BadBlend, TesseraError) as error:
            self._refuse(request, str(error)[:_REASON_MAX])
            return False
        if mark is None:
            return False
        salt, own = request_salt(request), request.cache_salt or ""
        row = _Blended(number, request, mark, tokens.tobytes(), salt, own)
        self._decide(row, tokens)
        if not self._is_worth_it(row):
            self.counters.add("blend_costly")
            self._refused[request.request_id] = "computing it is faster"
            return False
        isolate(request)
        self._blended[request.request_id] = self._by_number[number] = row
        row.asked = self._ask_others(row, tokens)
        if row.asked is not None:  # decided anew when they have answered
            row.first = row.decided = False
        return True

    def _is_worth_it(self, row: _Blended) -> bool:
        """One that is computed in any case is not asked for its worth: its documents are learned,
        perhaps for longer prompts."""
        if not self.settings.weigh or row.mark.wished or row.first:
            return True
        return self.worth.pays(row.mark.n_given)

    def _decide(self, row: _Blended, tokens: array[int]) -> None:
        """Whether it is blended now, by what is known now. Of a request that waits on, the last
        time counts."""
        row.first = self._is_first(row, tokens)
        row.decided = True

    def _refuse(self, request: Request, why: str) -> None:
        self.counters.add("blend_malformed")
        self._refused[request.request_id] = why
        if not self._complained:
            self._complained = True
            logger.warning(
                "tessera: malformed chunked prompt, handled as a plain request (further ones are "
                "only counted): %s",
                why,
            )

    def has(self, name: str) -> bool:
        return name in self._blended

    def matched(self, name: str, n_computed: int) -> tuple[int | None, bool]:
        """Tokens that a blend would add, and whether between steps; None: unknown yet. A resumed
        request is blended again, unless vLLM still has its blocks, or its blend failed: then it is
        computed."""
        row = self._blended[name]
        if row.asked is not None:
            if row.asked.pending:
                return None, False
            answered = row.asked.answered
            if answered or not row.decided:
                self._decide(row, array("I", row.tokens))
            if answered:
                row.asked = None
        more = 0 if row.failed or row.first else max(row.mark.n_given - n_computed, 0)
        return more, self.between_steps and more > 0

    def allocated(self, name: str, blocks: Sequence[int], n_external: int) -> BlendJob | None:
        """The job that goes with the next step, if any."""
        row = self._blended[name]
        row.forget_asked()
        if not row.counted:
            row.counted = True
            self.counters.add("blend_first" if row.first else "blend_requests")
        if n_external == 0:
            return None
        job = self._job(row, blocks, row.mark.n_given)
        self._jobs.append(job)
        row.sent = True
        return job

    def learn(self, name: str, blocks: Sequence[int]) -> BlendJob | None:
        """A request has its answer: the job that stores its documents, if any. Until it has ended,
        the blocks are the worker's."""
        row = self._blended.get(name)
        if row is None or not row.first or not self.ready:
            return None
        job = self._job(row, blocks, row.mark.n_context, learn=True)
        if not self.learning.has_room(len(job.blocks)):
            return None
        self.learning.begin(job)
        self._jobs.append(job)
        return job

    def _job(
        self, row: _Blended, blocks: Sequence[int], n_given: int, learn: bool = False
    ) -> BlendJob:
        mark = row.mark
        return BlendJob(
            number=row.number,
            tokens=row.tokens,
            segments=mark.segments,
            system=mark.system,
            n_context=mark.n_context,
            n_given=n_given,
            blocks=tuple(blocks),
            selector=mark.selector,
            ratio=mark.ratio,
            salt=self._salt(row.salt),
            any_offset=mark.any_offset and not learn,
            plain_salt=self._plain_salt(row.cache_salt),
            learn=learn,
        )

    def tell(self, meta: TesseraMetadata, n_tokens: int, n_requests: int, n_left: int) -> None:
        """What goes to the workers with a step of so many tokens, which may compute more."""
        meta.blends += self.take_jobs()
        meta.aborted = self.take_aborted()
        meta.budget = max(n_left, _BESIDE_MIN)
        meta.alone = n_tokens == 0
        meta.n_tokens = prompt_tokens(n_tokens, n_requests)

    def take_jobs(self) -> list[BlendJob]:
        jobs, self._jobs = self._jobs, []
        return jobs

    def take_aborted(self) -> list[int]:
        """Blends of requests that have ended before them. vLLM keeps their blocks until a worker
        says that it is done."""
        aborted, self._aborted = self._aborted, []
        return aborted + self.learning.take_stops()

    def told(self, meta: TesseraWorkerMetadata) -> None:
        """What workers have said after a step."""
        self.worth.row_s = meta.row_s or self.worth.row_s
        if meta.outcomes:
            self.outcomes(meta.outcomes)

    def outcomes(self, rows: Iterable[BlendOutcome]) -> None:
        """Of all ranks: good is what is good on each of them; the first report counts."""
        merged: dict[int, BlendOutcome] = {}
        for one in rows:
            first = merged.setdefault(one.number, one)
            if first.ok and not one.ok:
                merged[one.number] = one
        for number, one in merged.items():
            if self.learning.ended(one):
                self.counters.add("blend_tokens_learned", float(one.report.get("n_stored", 0)))
                continue
            self.counters.add("blend_runs" if one.ok else "blend_failed")
            self.counters.add("blend_seconds", one.seconds)
            for name, counter in _REPORTED.items():
                value = one.report.get(name, 0)
                if one.ok and isinstance(value, (int, float)) and value:
                    self.counters.add(counter, value)
            row = self._by_number.get(number)
            if row is not None:
                # How clients wish it may take longer, or less; and storing is not weighed.
                if not row.mark.wished and not one.report.get("n_filled"):
                    self.worth.note(row.mark.n_given, one)
                row.outcome = one
                if not one.ok:
                    row.failed = True
                    isolate(row.request)  # it shall not find what an earlier blend has left

    def finished(self, name: str) -> dict[str, Any] | None:
        """The report to the client, for blended requests and those with a malformed mark."""
        why = self._refused.pop(name, None)
        if why is not None:
            return {"tessera": {"blended": False, "reason": why}}
        row = self._blended.pop(name, None)
        if row is None:
            return None
        row.forget_asked()
        self._by_number.pop(row.number, None)
        if self.between_steps and row.sent and row.outcome is None:
            self._aborted.append(row.number)
        told: dict[str, Any] = {"blended": not row.failed, "n_context": row.mark.n_context}
        told["n_segments"] = len(row.mark.segments)
        if row.first:
            told.update(blended=False, first=True)
        if row.outcome is not None:  # not yet, when a request ends with its first step
            told.update(row.outcome.report, seconds=row.outcome.seconds)
        return {"tessera": told}


def isolate(request: Request) -> None:
    """Gives a request's blocks hashes that no other request has, before any of them is looked up or
    written: vLLM chains a request's salt into all of its block hashes."""
    request.cache_salt = f"tessera-blend-{secrets.token_hex(16)}"
    request.block_hashes.clear()
    request.update_block_hashes()


def request_salt(request: Request) -> bytes:
    """What must be part of every key of a blended request, besides its text."""
    return request.cache_salt.encode().hex().encode() if request.cache_salt else b""


def _unsuitable(request: Request) -> str | None:
    """Requests that are more, or other, than a prompt to go on with are left alone."""
    if request.mm_features:
        return "requests with media are not blended"
    if request.lora_request is not None:
        return "requests with an adapter are not blended"
    if request.skip_reading_prefix_cache:
        return "requests that bypass the cache are not blended"  # as those for a prompt's logits
    if request.pooling_params is not None or request.abort_immediately:
        return "only requests that generate are blended"
    return None
