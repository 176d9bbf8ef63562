"""Structs, functions and constants of include/tessera as ctypes needs them.

Written by tools/gen-python from the headers; never edited.
"""

# fmt: off
# ruff: noqa: I001
from __future__ import annotations

from ctypes import (
    CFUNCTYPE, POINTER, c_char, c_char_p, c_double, c_float, c_int, c_int32, c_int8, c_size_t,
    c_uint32, c_uint64, c_uint8, c_void_p,
)
from typing import Any

from ._checked import Struct, Text

ASK_ANY = 2
ASK_CONTEXT = 64
ASK_FILL = 1
ASK_GATE = 8
ASK_LEARN = 256
ASK_LOADED = 4096
ASK_RATIO = 16
BASE_UNKNOWN = 4294967295
BOUNDARY_IN_FLIGHT = 0
BOUNDARY_PLACEHOLDERS = 1
CLEAR_ALL = -1
CLEAR_OWN = -2
CONNECTOR_LOAD_ASYNC = 16
CONNECTOR_LOAD_SURE = 32
CONNECTOR_LOAD_SYNC = 8
CONNECTOR_NO_LOAD = 1
CONNECTOR_NO_SAVE = 2
CONNECTOR_SAVE_DECODE = 4
CONNECTOR_SHARED_SPACES = 128
CONTEXT_OTHER = 3
CONTEXT_PRIMER = 4
CONTEXT_PURE = 2
CONTEXT_SAME = 1
COVERAGE_FULL = 1
COVERAGE_PARTIAL = 2
COVERAGE_RUN = 3
DTYPE_BF16 = 2
DTYPE_F16 = 1
DTYPE_F32 = 3
DTYPE_INT8 = 4
DTYPE_OPAQUE = 5
EAGAIN = -4
EVENT_DROPPED = 3
EVENT_EVICTED = 2
EVENT_STORED = 1
EXTRA_ADAPTER = 1
EXTRA_MEDIA = 3
EXTRA_SALT = 2
GROUP_STATE = 1
KIND_BLENDED = 3
KIND_PREFIX = 1
KIND_SEGMENT = 2
LAYOUT_MLA = 1
LAYOUT_OPAQUE = 2
LAYOUT_STANDARD = 0
MEMORY_DEVICE = 2
MEMORY_HOST = 0
MODEL_BIAS = 4
MODEL_DEVIATION = 2
MODEL_MASS = 1
PROMPT_ANY = 16
PROMPT_BLENDED = 8
PROMPT_CONTEXT = 4
PROMPT_OTHER = 32
PROMPT_PREFIX = 1
PROMPT_SEGMENTS = 2
REQUEST_NO_LOAD = 1
ROPE_DYNAMIC = 2
ROPE_GPTJ = 2
ROPE_LINEAR = 1
ROPE_LLAMA3 = 4
ROPE_NEOX = 1
ROPE_PLAIN = 0
ROPE_YARN = 3
ROW_RESET_BLOCKS = 1
SELECT_FULL = 5
SELECT_HKVD = 2
SELECT_LINK = 3
SELECT_NONE = 4
SELECT_QUERY = 1
STEP_BEGIN = 1
STEP_DEVIATION = 3
STEP_END = 6
STEP_LAYER = 2
STEP_LOGITS = 5
STEP_NARROW = 4


class Gate(Struct):
    _fields_ = [
        ("moved", c_double), ("changed", c_double), ("mass", c_double), ("fresh", c_double),
        ("entropy", c_double), ("top", c_double), ("margin", c_double), ("chunk_tokens", c_double),
        ("n_chunks", c_double), ("ratio", c_double), ("agree", c_double), ("worst", c_double),
        ("doubt", c_double), ("low", c_double), ("draft", c_double),
    ]


class BlendReport(Struct):
    _fields_ = [
        ("size", c_size_t), ("n_tokens", c_uint32), ("n_exact", c_uint32), ("n_reused", c_uint32),
        ("n_recomputed", c_uint32), ("n_new", c_uint32), ("n_filled", c_uint32),
        ("n_filled_reused", c_uint32), ("n_stored", c_uint32), ("n_failed", c_uint32),
        ("n_chunks", c_uint32), ("selector", c_uint32), ("reasons", c_uint32),
        ("tier_tokens", c_uint32 * 8), ("n_rounds", c_uint32), ("n_other", c_uint32),
        ("ratio", c_double), ("bias", c_double), ("sure", c_double), ("gate", Gate),
        ("lookup_s", c_double), ("wait_s", c_double), ("total_s", c_double), ("fill_s", c_double),
        ("query_s", c_double), ("draft_s", c_double), ("blend_s", c_double), ("select_s", c_double),
        ("judge_s", c_double),
    ]


class ModelRow(Struct):
    _fields_ = [
        ("token", c_uint32), ("position", c_uint32), ("slot", c_uint32),
    ]


class Range(Struct):
    _fields_ = [
        ("offset", c_uint32), ("n_tokens", c_uint32),
    ]


class ModelGroup(Struct):
    _fields_ = [
        ("n_rows", c_uint32), ("n_ranges", c_uint32), ("sees", Range * 2),
    ]


class ModelPass(Struct):
    _fields_ = [
        ("size", c_size_t), ("rows", POINTER(ModelRow)), ("n_rows", c_uint32),
        ("n_groups", c_uint32), ("groups", POINTER(ModelGroup)), ("bias", POINTER(c_float)),
        ("n_bias", c_uint32), ("n_bias_rows", c_uint32), ("n_mass_rows", c_uint32),
        ("freq_set", c_uint32), ("flags", c_uint32), ("reserved", c_uint32),
    ]


class ModelLayer(Struct):
    _fields_ = [
        ("size", c_size_t), ("layer", c_uint32), ("n_mass", c_uint32), ("mass", POINTER(c_float)),
    ]


class ModelDeviation(Struct):
    _fields_ = [
        ("size", c_size_t), ("layer", c_uint32), ("reserved", c_uint32), ("k", POINTER(c_float)),
        ("v", POINTER(c_float)),
    ]


class BlendStep(Struct):
    _fields_ = [
        ("kind", c_uint32), ("n_keep", c_uint32), ("keep", c_void_p), ("logits", POINTER(c_float)),
        ("pass_", ModelPass), ("layer", ModelLayer), ("deviation", ModelDeviation),
    ]


class Check(Struct):
    _fields_ = [
        ("layer", c_uint32), ("reserved", c_uint32), ("ratio", c_double), ("threshold", c_double),
    ]


class CurvePoint(Struct):
    _fields_ = [
        ("at", c_double), ("value", c_double),
    ]


class Curve(Struct):
    _fields_ = [
        ("n", c_uint32), ("reserved", c_uint32), ("points", CurvePoint * 8),
    ]


class Frontier(Struct):
    _fields_ = [
        ("selector", c_uint32), ("context", c_uint32), ("n_prompts", c_uint32),
        ("n_rounds", c_uint32), ("ratio", c_double), ("bias", c_double), ("layers_from", c_double),
        ("layers_to", c_double), ("kl", c_double), ("agreement", c_double), ("speedup", c_double),
    ]


class LeadProfile(Struct):
    _fields_ = [
        ("n_rounds", c_uint32), ("reserved", c_uint32), ("rounds", c_double * 8),
        ("draft_floor", c_double), ("gate_limit", c_double), ("draft_passes", c_double),
        ("gate_accepts", c_double), ("gate", c_double * 16),
    ]


class Profile(Struct):
    _fields_ = [
        ("size", c_size_t), ("space", c_char * 33), ("model", c_char * 128), ("selector", c_uint32),
        ("context", c_uint32), ("boundary", c_uint32), ("first_tokens", c_uint32),
        ("query_rows", c_uint32), ("n_checks", c_uint32), ("n_frontier", c_uint32),
        ("bias_reused", c_uint32), ("n_rounds", c_uint32), ("draft", c_uint32),
        ("bias_answer", c_uint32), ("draft_selects", c_uint32), ("ratio", c_double),
        ("draft_floor", c_double), ("query_layers", c_double * 2), ("primer", c_char * 4096),
        ("checks", Check * 4), ("bias", Curve), ("bias_chunks", Curve), ("rounds", c_double * 8),
        ("gate_limit", c_double), ("gate", c_double * 16), ("frontier", Frontier * 64),
        ("lead", LeadProfile), ("draft_passes", c_double), ("gate_accepts", c_double),
    ]


class Rope(Struct):
    _fields_ = [
        ("size", c_size_t), ("pairing", c_uint32), ("scaling", c_uint32), ("dims", c_uint32),
        ("trained", c_uint32), ("theta", c_double), ("factor", c_double),
        ("attention_factor", c_double), ("beta_fast", c_double), ("beta_slow", c_double),
        ("mscale", c_double), ("mscale_all_dim", c_double), ("yarn_exact", c_uint32),
        ("n_factors", c_uint32), ("low_freq_factor", c_double), ("high_freq_factor", c_double),
        ("short_factors", POINTER(c_double)), ("long_factors", POINTER(c_double)),
    ]


class ModelInfo(Struct):
    _fields_ = [
        ("size", c_size_t), ("architecture", c_char * 32), ("name", c_char * 128),
        ("device", c_char * 96), ("caps", c_uint32), ("n_layers", c_uint32), ("n_heads", c_uint32),
        ("n_kv_heads", c_uint32), ("head_dim", c_uint32), ("n_embd", c_uint32),
        ("n_vocab", c_uint32), ("context", c_uint32), ("kv_dtype", c_uint32),
        ("rows_max", c_uint32), ("token_bos", c_uint32), ("weight_bytes", c_uint64),
        ("weights", c_uint8 * 32), ("tokenizer", c_uint8 * 16), ("rope", Rope),
        ("arithmetic", c_char * 16), ("rows_best", c_uint32),
    ]


class SpaceDesc(Struct):
    _fields_ = [
        ("size", c_size_t), ("model", c_char_p), ("weights", c_void_p), ("weights_bytes", c_size_t),
        ("tokenizer", c_char_p), ("adapter", c_char_p), ("salt", c_char_p), ("rope", c_char_p),
        ("dtype", c_uint32), ("layout", c_uint32), ("n_layers", c_uint32),
        ("layer_first", c_uint32), ("n_heads", c_uint32), ("k_dim", c_uint32), ("v_dim", c_uint32),
        ("rank", c_uint32), ("world", c_uint32), ("group", c_uint32), ("block_tokens", c_uint32),
    ]


class BlendDesc(Struct):
    _fields_ = [
        ("size", c_size_t), ("model", c_void_p), ("cache", c_void_p), ("profile", POINTER(Profile)),
        ("flags", c_uint32), ("blend_min_tokens", c_uint32), ("salt", c_char_p),
        ("info", POINTER(ModelInfo)), ("primer", c_void_p), ("n_primer", c_uint32),
        ("prefix_block_tokens", c_uint32), ("traffic", POINTER(SpaceDesc)),
    ]


class Extra(Struct):
    _sized_ = ("data",)
    _fields_ = [
        ("kind", c_uint32), ("offset", c_uint32), ("n_tokens", c_uint32), ("bytes", c_uint32),
        ("data", c_char_p),
    ]


class KvPlane(Struct):
    _fields_ = [
        ("base", c_void_p), ("layers", POINTER(c_void_p)), ("layer_bytes", c_uint64),
        ("layer_stride", c_uint64), ("block_stride", c_uint64), ("token_stride", c_uint64),
        ("head_stride", c_uint64), ("element_stride", c_uint64), ("dtype", c_uint32),
        ("n_heads", c_uint32), ("dim", c_uint32), ("rope_first", c_uint32), ("rope_dims", c_uint32),
    ]


class KvLayout(Struct):
    _fields_ = [
        ("size", c_size_t), ("memory", c_uint32), ("n_layers", c_uint32), ("n_planes", c_uint32),
        ("block_tokens", c_uint32), ("n_slots", c_uint64), ("planes", KvPlane * 4),
    ]


class AskDesc(Struct):
    _fields_ = [
        ("size", c_size_t), ("session", c_void_p), ("tokens", c_void_p), ("n_tokens", c_uint32),
        ("n_segments", c_uint32), ("segments", POINTER(Range)), ("flags", c_uint32),
        ("system", c_uint32), ("selector", c_uint32), ("timeout_ms", c_uint32), ("ratio", c_double),
        ("bias", c_double), ("n_context", c_uint32), ("n_extra", c_uint32),
        ("extra", POINTER(Extra)), ("slots", c_void_p), ("rest", POINTER(KvLayout)),
        ("compute", c_void_p), ("row_s", c_double), ("token_s", c_double),
    ]


class Prompt(Struct):
    _fields_ = [
        ("size", c_size_t), ("tokens", c_void_p), ("n_tokens", c_uint32), ("flags", c_uint32),
        ("segments", POINTER(Range)), ("n_segments", c_uint32), ("n_extra", c_uint32),
        ("extra", POINTER(Extra)), ("recipe", c_void_p), ("recipe_bytes", c_size_t),
        ("context", c_void_p), ("n_context", c_uint32), ("reserved", c_uint32),
    ]


class ClearDesc(Struct):
    _fields_ = [
        ("size", c_size_t), ("space", c_void_p), ("prompt", POINTER(Prompt)), ("tier", c_int32),
        ("from_", c_uint32),
    ]


class Key(Struct):
    _fields_ = [
        ("bytes", c_uint8 * 16),
    ]


class Event(Struct):
    _fields_ = [
        ("key", Key), ("space", c_uint8 * 16), ("n_tokens", c_uint32), ("kind", c_uint8),
        ("entry_kind", c_uint8), ("tier", c_uint8), ("reserved", c_uint8),
    ]


class Listed(Struct):
    _fields_ = [
        ("key", Key), ("space", c_uint8 * 16), ("n_tokens", c_uint32), ("pins", c_uint32),
        ("kind", c_uint8), ("reserved", c_uint8 * 7),
    ]


class TierName(Struct):
    _fields_ = [
        ("text", c_char * 16),
    ]


class Stats(Struct):
    _fields_ = [
        ("size", c_size_t), ("lookups", c_uint64), ("tokens_asked", c_uint64),
        ("tokens_reused", c_uint64), ("loads", c_uint64), ("load_misses", c_uint64),
        ("load_bytes", c_uint64), ("stores", c_uint64), ("stores_new", c_uint64),
        ("stores_refused", c_uint64), ("store_bytes", c_uint64), ("evicted", c_uint64),
        ("dropped", c_uint64), ("collisions", c_uint64), ("corrupt", c_uint64),
        ("entries", c_uint64), ("pinned", c_uint64), ("host_bytes", c_uint64),
        ("host_bytes_used", c_uint64), ("tier_entries", c_uint64 * 8), ("tier_bytes", c_uint64 * 8),
        ("tier_bytes_max", c_uint64 * 8), ("tier_names", TierName * 8), ("lookup_hits", c_uint64),
        ("lookup_misses", c_uint64), ("tokens_cached", c_uint64), ("tier_tokens", c_uint64 * 8),
    ]


class Match(Struct):
    _fields_ = [
        ("entry", c_uint64), ("epoch", c_uint64), ("prompt_offset", c_uint32),
        ("entry_offset", c_uint32), ("n_tokens", c_uint32), ("kind", c_uint8), ("context", c_uint8),
        ("tier", c_uint8), ("verified", c_uint8), ("base", c_uint32), ("freq_set", c_uint32),
        ("entry_tokens", c_uint32), ("coverage", c_uint8), ("edits", c_uint8),
        ("reserved", c_uint8 * 2),
    ]


class View(Struct):
    _fields_ = [
        ("data", c_void_p), ("bytes", c_size_t), ("layer_stride", c_size_t),
        ("plane_stride", c_size_t), ("token_stride", c_size_t),
    ]


class LoadDesc(Struct):
    _fields_ = [
        ("size", c_size_t), ("space", c_void_p), ("match", POINTER(Match)),
        ("prompt", POINTER(Prompt)), ("offset", c_uint32), ("n_tokens", c_uint32),
        ("layer_first", c_uint32), ("n_layers", c_uint32), ("view", View), ("result", c_int),
        ("base", c_uint32), ("freq_set", c_uint32),
    ]


class LookupDesc(Struct):
    _fields_ = [
        ("size", c_size_t), ("spaces", POINTER(c_void_p)), ("n_spaces", c_uint32),
        ("matches_max", c_uint32), ("matches", POINTER(Match)), ("request_id", c_uint64),
        ("n_matches", c_uint32), ("n_prefix_tokens", c_uint32),
    ]


class StoreDesc(Struct):
    _fields_ = [
        ("size", c_size_t), ("space", c_void_p), ("kind", c_uint32), ("n_tokens", c_uint32),
        ("tokens", c_void_p), ("from_", c_uint32), ("n_context", c_uint32), ("context", c_void_p),
        ("n_extra", c_uint32), ("base", c_uint32), ("extra", POINTER(Extra)), ("recipe", c_void_p),
        ("recipe_bytes", c_size_t), ("freq_set", c_uint32), ("cost_s", c_float), ("view", View),
    ]


class DeliveryDesc(Struct):
    _fields_ = [
        ("size", c_size_t), ("space", c_void_p), ("layout", POINTER(KvLayout)),
        ("rope", POINTER(Rope)), ("stream", c_void_p), ("compute", c_void_p),
        ("ranges_max", c_uint32), ("tokens_max", c_uint32), ("flags", c_uint32),
    ]


class DeliveryRange(Struct):
    _fields_ = [
        ("size", c_size_t), ("match", POINTER(Match)), ("prompt", POINTER(Prompt)),
        ("offset", c_uint32), ("n_tokens", c_uint32), ("slots", c_void_p), ("result", c_int),
        ("position_offset", c_uint32),
    ]


class SlotsDesc(Struct):
    _fields_ = [
        ("size", c_size_t), ("tokens", c_void_p), ("n_tokens", c_uint32), ("offset", c_uint32),
        ("slots", c_void_p), ("extra", POINTER(Extra)), ("n_extra", c_uint32),
        ("reserved", c_uint32),
    ]


class KvpoolDesc(Struct):
    _fields_ = [
        ("size", c_size_t), ("space", POINTER(SpaceDesc)), ("layout", POINTER(KvLayout)),
        ("device", c_char_p), ("device_number", c_uint32), ("n_threads", c_uint32),
        ("stream", c_void_p), ("staging_bytes", c_uint64), ("writes_max", c_uint32),
    ]


class StepRow(Struct):
    _fields_ = [
        ("id", c_uint64), ("n_computed", c_uint32), ("n_placeholders", c_uint32),
        ("n_in_flight", c_uint32), ("n_tokens", c_uint32), ("n_new_tokens", c_uint32),
        ("flags", c_uint32),
    ]


class StepDesc(Struct):
    _fields_ = [
        ("size", c_size_t), ("rows", POINTER(StepRow)), ("n_rows", c_uint32),
        ("reserved", c_uint32), ("new_tokens", c_void_p), ("n_new_blocks", c_void_p),
        ("new_blocks", c_void_p),
    ]


class RequestDesc(Struct):
    _fields_ = [
        ("size", c_size_t), ("id", c_uint64), ("tokens", c_void_p), ("n_tokens", c_uint32),
        ("n_prompt_tokens", c_uint32), ("extra", POINTER(Extra)), ("n_extra", c_uint32),
        ("flags", c_uint32),
    ]


class Group(Struct):
    _fields_ = [
        ("size", c_size_t), ("block_tokens", c_uint32), ("window_tokens", c_uint32),
        ("draft_tokens", c_uint32), ("flags", c_uint32),
    ]


class ConnectorDesc(Struct):
    _fields_ = [
        ("size", c_size_t), ("n_ranks", c_uint32), ("n_groups", c_uint32),
        ("spaces", POINTER(SpaceDesc)), ("groups", POINTER(Group)), ("chunk_tokens", c_uint32),
        ("boundary", c_uint32), ("flags", c_uint32), ("load_timeout_ms", c_uint32),
        ("save_timeout_ms", c_uint32), ("jobs_max", c_uint32), ("save_wait_ms", c_uint32),
    ]


class Blocks(Struct):
    _fields_ = [
        ("blocks", c_void_p), ("n_blocks", c_void_p),
    ]


class FinishDesc(Struct):
    _fields_ = [
        ("size", c_size_t), ("id", c_uint64), ("n_computed", c_uint32),
        ("n_placeholders", c_uint32), ("n_in_flight", c_uint32), ("n_tokens", c_uint32),
        ("new_tokens", c_void_p), ("n_new_tokens", c_uint32), ("aborted", c_uint32),
        ("blocks", POINTER(Blocks)), ("n_saved", POINTER(c_uint32)),
    ]


class ConnectorStats(Struct):
    _fields_ = [
        ("size", c_size_t), ("requests", c_uint64), ("steps", c_uint64), ("tokens_asked", c_uint64),
        ("tokens_hit", c_uint64), ("loads", c_uint64), ("loads_failed", c_uint64),
        ("tokens_loaded", c_uint64), ("bytes_loaded", c_uint64), ("saves", c_uint64),
        ("saves_failed", c_uint64), ("saves_given_up", c_uint64), ("saves_skipped", c_uint64),
        ("tokens_saved", c_uint64), ("bytes_saved", c_uint64), ("chunks_gathered", c_uint64),
        ("chunks_wasted", c_uint64), ("chunks_known", c_uint64), ("jobs_in_flight", c_uint64),
        ("bytes_staged", c_uint64), ("waits", c_uint64),
    ]


class TextPart(Struct):
    _fields_ = [
        ("offset", c_size_t), ("bytes", c_size_t),
    ]


class BadBlock(Struct):
    _fields_ = [
        ("group", c_uint32), ("block", c_int32),
    ]


class Finished(Struct):
    _fields_ = [
        ("size", c_size_t), ("sent", POINTER(c_uint64)), ("received", POINTER(c_uint64)),
        ("sent_max", c_uint32), ("received_max", c_uint32), ("n_sent", c_uint32),
        ("n_received", c_uint32),
    ]


class WorkerDesc(Struct):
    _fields_ = [
        ("size", c_size_t), ("rank", c_uint32), ("flags", c_uint32), ("device", c_char_p),
        ("device_number", c_uint32), ("n_threads", c_uint32), ("stream", c_void_p),
        ("staging_bytes", c_uint64),
    ]


LogFn = CFUNCTYPE(None, c_void_p, c_int, c_char_p)

# name: (result, arguments)
FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "tsr_blend_close": (None, [c_void_p]),
    "tsr_blend_end": (None, [c_void_p, POINTER(c_float), POINTER(BlendReport)]),
    "tsr_blend_next": (c_int, [c_void_p, c_int, POINTER(BlendStep)]),
    "tsr_blend_open": (c_int, [POINTER(c_void_p), POINTER(BlendDesc)]),
    "tsr_blend_primer": (c_uint32, [c_void_p]),
    "tsr_blend_space": (c_void_p, [c_void_p]),
    "tsr_blend_start": (c_int, [POINTER(c_void_p), c_void_p, POINTER(AskDesc), POINTER(KvLayout)]),
    "tsr_cache_clear": (c_int, [c_void_p, POINTER(ClearDesc)]),
    "tsr_cache_close": (None, [c_void_p]),
    "tsr_cache_connected": (c_int, [c_void_p, c_int]),
    "tsr_cache_contains": (c_int, [c_void_p, POINTER(Key), c_uint32, POINTER(c_int8)]),
    "tsr_cache_events": (c_int, [c_void_p, POINTER(Event), c_uint32]),
    "tsr_cache_evict": (c_int, [c_void_p, c_size_t]),
    "tsr_cache_evict_keys": (c_int, [c_void_p, c_size_t, POINTER(Key), c_uint32]),
    "tsr_cache_flush": (c_int, [c_void_p]),
    "tsr_cache_freeze": (None, [c_void_p, c_int]),
    "tsr_cache_list": (c_int, [c_void_p, POINTER(Listed), c_uint32]),
    "tsr_cache_open": (c_int, [POINTER(c_void_p), c_void_p]),
    "tsr_cache_stats": (c_int, [c_void_p, POINTER(Stats)]),
    "tsr_cache_stats_text": (c_int, [c_void_p, Text, c_char_p, c_size_t]),
    "tsr_client_close": (None, [c_void_p]),
    "tsr_client_discover": (c_int, [c_void_p, c_void_p, POINTER(Prompt)]),
    "tsr_client_load": (c_int, [c_void_p, POINTER(LoadDesc), c_uint32]),
    "tsr_client_lookup": (c_int, [c_void_p, POINTER(Prompt), POINTER(LookupDesc)]),
    "tsr_client_open": (c_int, [POINTER(c_void_p), c_void_p]),
    "tsr_client_prefetch": (c_int, [c_void_p, c_void_p, POINTER(Prompt)]),
    "tsr_client_release": (c_int, [c_void_p, c_uint64]),
    "tsr_client_store": (c_int, [c_void_p, POINTER(StoreDesc)]),
    "tsr_config_close": (None, [c_void_p]),
    "tsr_config_get": (c_char_p, [c_void_p, Text]),
    "tsr_config_load_env": (c_int, [c_void_p]),
    "tsr_config_load_file": (c_int, [c_void_p, Text]),
    "tsr_config_load_text": (c_int, [c_void_p, Text, c_size_t, Text]),
    "tsr_config_open": (c_int, [POINTER(c_void_p)]),
    "tsr_config_set": (c_int, [c_void_p, Text, Text]),
    "tsr_errmsg": (c_char_p, []),
    "tsr_kv_cache_lookup": (c_int, [c_void_p, POINTER(Prompt), POINTER(LookupDesc)]),
    "tsr_kv_cache_register": (c_int, [POINTER(c_void_p), c_void_p, POINTER(DeliveryDesc)]),
    "tsr_kv_cache_retrieve": (c_int, [c_void_p, POINTER(DeliveryRange), c_uint32, c_uint32]),
    "tsr_kv_cache_store": (c_int, [c_void_p, POINTER(StoreDesc), c_void_p]),
    "tsr_kv_cache_store_final": (c_int, [c_void_p, POINTER(StoreDesc), c_void_p]),
    "tsr_kv_cache_unregister": (None, [c_void_p]),
    "tsr_kvpool_chunk_size": (c_uint32, [c_void_p]),
    "tsr_kvpool_close": (None, [c_void_p]),
    "tsr_kvpool_drain": (c_int, [c_void_p, c_int]),
    "tsr_kvpool_load_kv": (c_int, [c_void_p, POINTER(SlotsDesc)]),
    "tsr_kvpool_match_prefix": (c_int, [c_void_p, POINTER(SlotsDesc), c_uint64]),
    "tsr_kvpool_open": (c_int, [POINTER(c_void_p), c_void_p, POINTER(KvpoolDesc)]),
    "tsr_kvpool_release": (c_int, [c_void_p, c_uint64]),
    "tsr_kvpool_reset": (c_int, [c_void_p]),
    "tsr_kvpool_store_kv": (c_int, [c_void_p, POINTER(SlotsDesc)]),
    "tsr_kvpool_store_kv_start": (c_int, [c_void_p, POINTER(SlotsDesc), c_uint64]),
    "tsr_kvpool_take_written": (c_int, [c_void_p, POINTER(c_uint64), c_uint32]),
    "tsr_log_set": (None, [LogFn, c_void_p, c_int]),
    "tsr_profile_init": (None, [POINTER(Profile)]),
    "tsr_profile_load": (c_int, [POINTER(Profile), Text]),
    "tsr_rope_choose": (c_int, [POINTER(Rope), c_uint64, POINTER(c_uint32)]),
    "tsr_rope_text": (c_int, [POINTER(Rope), c_char_p, c_size_t]),
    "tsr_scheduler_append_tokens": (c_int, [c_void_p, c_uint64, c_uint32, c_void_p, c_uint32]),
    "tsr_scheduler_build_connector_meta": (c_int, [c_void_p, POINTER(StepDesc), POINTER(c_void_p),
    POINTER(c_size_t)]),
    "tsr_scheduler_chunk_tokens": (c_uint32, [c_void_p]),
    "tsr_scheduler_close": (None, [c_void_p]),
    "tsr_scheduler_get_num_new_matched_tokens": (c_int, [c_void_p, c_uint64, c_uint32,
    POINTER(c_uint32)]),
    "tsr_scheduler_handle_preemptions": (c_int, [c_void_p, c_void_p, c_uint32]),
    "tsr_scheduler_has_pending_work": (c_int, [c_void_p]),
    "tsr_scheduler_keys": (c_int, [c_void_p, c_uint64, c_uint32, c_uint32, POINTER(Key)]),
    "tsr_scheduler_on_new_request": (c_int, [c_void_p, POINTER(RequestDesc)]),
    "tsr_scheduler_open": (c_int, [POINTER(c_void_p), c_void_p, POINTER(ConnectorDesc)]),
    "tsr_scheduler_request_finished": (c_int, [c_void_p, POINTER(FinishDesc)]),
    "tsr_scheduler_reset_cache": (c_int, [c_void_p]),
    "tsr_scheduler_stats": (c_int, [c_void_p, POINTER(ConnectorStats)]),
    "tsr_scheduler_take_events": (c_int, [c_void_p, POINTER(Event), c_uint32]),
    "tsr_scheduler_update_connector_output": (c_int, [c_void_p, c_void_p, c_size_t]),
    "tsr_scheduler_update_state_after_alloc": (c_int, [c_void_p, c_uint64, POINTER(Blocks),
    c_uint32]),
    "tsr_separators_set": (c_int, [c_void_p, c_void_p, c_void_p, c_uint32]),
    "tsr_server_close": (None, [c_void_p]),
    "tsr_server_open": (c_int, [POINTER(c_void_p), c_void_p, c_void_p]),
    "tsr_space_close": (None, [c_void_p]),
    "tsr_space_fingerprint": (None, [c_void_p, POINTER(c_uint8)]),
    "tsr_space_keys": (c_int, [c_void_p, POINTER(Prompt), POINTER(Key), c_uint32]),
    "tsr_space_open": (c_int, [POINTER(c_void_p), c_void_p, POINTER(SpaceDesc)]),
    "tsr_space_pin": (c_int, [c_void_p, POINTER(Prompt)]),
    "tsr_space_split": (c_int, [c_void_p, c_void_p, c_uint32, POINTER(Range), c_uint32]),
    "tsr_space_token_bytes": (c_size_t, [c_void_p]),
    "tsr_space_touch": (c_int, [c_void_p, POINTER(Prompt)]),
    "tsr_space_unpin": (c_int, [c_void_p, POINTER(Prompt)]),
    "tsr_strerror": (c_char_p, [c_int]),
    "tsr_text_split": (c_int, [Text, c_size_t, Text, POINTER(TextPart), c_uint32]),
    "tsr_version": (c_char_p, []),
    "tsr_worker_build_connector_worker_meta": (c_int, [c_void_p, POINTER(c_void_p),
    POINTER(c_size_t)]),
    "tsr_worker_chunk_tokens": (c_uint32, [c_void_p]),
    "tsr_worker_close": (None, [c_void_p]),
    "tsr_worker_drain": (c_int, [c_void_p, c_int]),
    "tsr_worker_get_block_ids_with_load_errors": (c_int, [c_void_p, POINTER(BadBlock), c_uint32]),
    "tsr_worker_get_finished": (c_int, [c_void_p, POINTER(Finished)]),
    "tsr_worker_handle_preemptions": (c_int, [c_void_p, c_void_p, c_size_t]),
    "tsr_worker_mark_queue": (c_int, [c_void_p, c_void_p, c_size_t]),
    "tsr_worker_open": (c_int, [POINTER(c_void_p), c_void_p, POINTER(ConnectorDesc),
    POINTER(WorkerDesc)]),
    "tsr_worker_register_kv_caches": (c_int, [c_void_p, POINTER(KvLayout), c_uint32]),
    "tsr_worker_save_kv_layer": (c_int, [c_void_p, c_uint32, c_uint32]),
    "tsr_worker_start_load_kv": (c_int, [c_void_p, c_void_p, c_size_t]),
    "tsr_worker_stats": (c_int, [c_void_p, POINTER(ConnectorStats)]),
    "tsr_worker_wait_for_layer_load": (c_int, [c_void_p, c_uint32, c_uint32]),
    "tsr_worker_wait_for_save": (c_int, [c_void_p]),
}
