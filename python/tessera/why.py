"""Why nothing is found: one line in the engine's log for each cause, the first time it is seen.

A hit rate of zero has few causes, and an engine knows most of them when it looks a prompt up. None
of them is an error: what is not found is computed. docs/guides/troubleshooting.md has the list."""

from __future__ import annotations

from collections.abc import Callable, Sequence

PROMPTS = 100  # without a single hit, before that is worth a warning


class Why:
    """say takes a line, warn one that somebody should look at; one thread at a time."""

    def __init__(
        self, chunk_tokens: int, say: Callable[[str], None], warn: Callable[[str], None]
    ) -> None:
        self._chunk_tokens = chunk_tokens
        self._say = say
        self._warn = warn
        self._told: set[str] = set()
        # Of prompts that nothing was found of, until something is found or it was told.
        self._n_missed = 0
        self._beginnings: set[int] | None = set()

    def _once(self, cause: str, line: str, tell: Callable[[str], None]) -> None:
        if cause not in self._told:
            self._told.add(cause)
            tell(f"why no hit: {line} (told once)")

    def unnamed(self) -> None:
        self._once(
            "unnamed",
            "prompts of embeddings and streamed inputs are never cached, because their tokens do "
            "not say what they are",
            self._say,
        )

    def stores_only(self) -> None:
        self._once("stores only", "this engine only stores (kv_producer)", self._say)

    def unread(self) -> None:
        self._once(
            "unread",
            "the request asks for its prompt to be computed, as prompt_logprobs does",
            self._say,
        )

    def found(self) -> None:
        self._beginnings = None

    def missed(self, prompt: Sequence[int], n_engine: int) -> None:
        """Nothing was found of a prompt of which the engine itself had n_engine tokens."""
        chunk, n = self._chunk_tokens, len(prompt)
        if n <= chunk:
            self._once(
                "short",
                f"a prompt of {n} tokens has no whole chunk of {chunk} before its last token; a "
                "smaller chunk_size finds shorter ones",
                self._say,
            )
        elif n_engine >= (n - 1) // chunk * chunk:
            self._once("engine", "the engine's own prefix cache had the prompt", self._say)
        elif n_engine == 0 and self._beginnings is not None:
            self._count(prompt)

    def _count(self, prompt: Sequence[int]) -> None:
        assert self._beginnings is not None
        self._n_missed += 1
        self._beginnings.add(hash(tuple(prompt[: self._chunk_tokens])))
        if self._n_missed < PROMPTS:
            return
        again = PROMPTS - len(self._beginnings)
        self._beginnings = None
        if again == 0:
            line = (
                f"the first {PROMPTS} prompts all begin with other {self._chunk_tokens} tokens. "
                "Put what they share first, or mark documents and set blend"
            )
        else:
            line = (
                f"{again} of the first {PROMPTS} prompts begin like one before, and nothing was "
                "found. Look at the counters tokens_saved, saves_failed and saves_skipped, at "
                "host_size, and at cache_salt"
            )
        self._once("missed", line, self._warn)
