"""A KV connector that does nothing: what vLLM itself does differently because there is one.

A bench compares an engine with this one, an engine without a connector and an engine with Tessera:
the first difference is vLLM's, the second is ours. It answers every hook that TesseraConnector
answers, with constants. With this folder on PYTHONPATH:

    {"kv_connector": "NoopConnector", "kv_connector_module_path": "noop_connector",
     "kv_role": "kv_both", "kv_load_failure_policy": "recompute"}
"""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    SupportsHMA,
)


class NoopMetadata(KVConnectorMetadata):
    """Nothing. One instance is enough for a scheduler."""


class NoopConnector(KVConnectorBase_V1, SupportsHMA):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._nothing = NoopMetadata()

    @property
    def requires_kv_delivery(self) -> bool:
        return False

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        return

    def wait_for_layer_load(self, layer_name: str) -> None:
        return

    def save_kv_layer(
        self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any
    ) -> None:
        return

    def wait_for_save(self) -> None:
        return

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        return 0, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        return

    def build_connector_meta(self, scheduler_output: Any) -> NoopMetadata:
        return self._nothing

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        return False, None
