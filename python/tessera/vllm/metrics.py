"""The connector's counters in vLLM's log lines and on its /metrics page."""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
)

_SHOWN = {
    "tokens_asked": "prompt tokens looked up in Tessera",
    "tokens_hit": "prompt tokens found in Tessera",
    "tokens_loaded": "tokens loaded from Tessera",
    "bytes_loaded": "bytes loaded from Tessera",
    "bytes_staged": "bytes loaded through staging memory instead of straight into KV blocks",
    "loads_failed": "failed loads from Tessera; their tokens were computed",
    "tokens_saved": "tokens saved to Tessera",
    "bytes_saved": "bytes saved to Tessera",
    "saves_failed": "failed saves to Tessera",
    "saves_given_up": "saves to Tessera abandoned because their request was preempted",
    "saves_skipped": "saves to Tessera skipped because too many were in flight",
    "discovered": "chunks of prompts found in tiers that other machines fill",
    "discoveries_skipped": "prompts for which such a tier was too slow or failed",
    "hints": "pins, times to live and prefetches that requests asked for",
    "hints_refused": "hints that were malformed, not allowed or beyond a limit",
    "hints_dropped": "entries dropped at the end of their time to live",
    "blend_requests": "marked requests that are blended",
    "blend_runs": "blended contexts; more than requests if some were preempted",
    "blend_failed": "contexts whose blend failed and that were computed",
    "blend_seconds": "time that workers spent blending, in seconds",
    "blend_tokens_exact": "tokens of blended contexts loaded exactly",
    "blend_tokens_reused": "tokens of blended contexts reused without recomputing",
    "blend_tokens_other": "of those, tokens of plain requests, computed after other text",
    "blend_tokens_recomputed": "tokens of blended contexts loaded and recomputed",
    "blend_tokens_filled": "tokens of unknown documents, computed alone and stored",
    "blend_tokens_new": "tokens of blended contexts not cached, computed in the prompt",
    "blend_tokens_failed": "tokens of blended contexts that failed to load",
    "blend_first": "marked requests of mostly unknown documents, computed like plain ones",
    "blend_tokens_learned": "tokens of documents computed alone and stored after an answer",
    "blend_malformed": "requests with a malformed mark, handled as plain ones",
    "blend_short": "marked requests that were too short, handled as plain ones",
    "blend_costly": "marked requests that vLLM computes faster than they would be blended",
    "blend_unseen": "requests without a separator while the configured one was never seen",
}


class TesseraStats(KVConnectorStats):
    """How much the counters of struct tsr_connector_stats, and those of blending, grew."""

    def reset(self) -> None:
        self.data: dict[str, Any] = {}

    def aggregate(self, other: KVConnectorStats) -> TesseraStats:
        for name, value in other.data.items():
            self.data[name] = self.data.get(name, 0) + value
        return self

    def reduce(self) -> dict[str, int | float]:
        return {f"tessera {name}": self.data[name] for name in _SHOWN if self.data.get(name)}

    def is_empty(self) -> bool:
        return not any(self.data.get(name) for name in _SHOWN)


class TesseraPromMetrics(KVConnectorPromMetrics):
    """vllm:tessera_<name>_total for each of them, by engine."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._counters = {}
        for name, text in _SHOWN.items():
            counter = self._counter_cls(
                name=f"vllm:tessera_{name}", documentation=text, labelnames=labelnames
            )
            self._counters[name] = {
                engine: counter.labels(*values) for engine, values in per_engine_labelvalues.items()
            }

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for name, counters in self._counters.items():
            value = transfer_stats_data.get(name)
            if value:
                counters[engine_idx].inc(value)
