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
    "loads_failed": "loads from Tessera that failed; their tokens were computed",
    "tokens_saved": "tokens saved to Tessera",
    "bytes_saved": "bytes saved to Tessera",
    "saves_failed": "saves to Tessera that failed",
    "saves_given_up": "saves to Tessera that were given up for preempted requests",
    "saves_skipped": "saves to Tessera not begun because too many were in flight",
    "blend_requests": "requests whose documents were marked and are blended",
    "blend_runs": "contexts that were blended; more than requests when some were preempted",
    "blend_failed": "contexts that could not be blended and were computed",
    "blend_seconds": "seconds that workers spent on blending",
    "blend_tokens_exact": "tokens of blended contexts that were loaded and are exact",
    "blend_tokens_reused": "tokens of blended contexts that were loaded and used as they are",
    "blend_tokens_recomputed": "tokens of blended contexts that were loaded and computed anew",
    "blend_tokens_filled": "tokens of documents that were not known: computed alone and stored",
    "blend_tokens_new": "tokens of blended contexts that were not known: computed in the prompt",
    "blend_tokens_failed": "tokens of blended contexts that were known and could not be loaded",
    "blend_malformed": "requests with a malformed mark, which ran as plain ones",
    "blend_short": "marked requests that are too short to be worth it, which ran as plain ones",
    "blend_unseen": "requests without a separator while one is configured and was never seen",
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
