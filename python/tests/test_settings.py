"""Settings as users of other caches have them, and what the connectors make of them."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import tessera
from tessera.blend_job import BlendSettings, blend_settings
from tessera.settings import option_texts, own_settings, without_effect

LMCACHE_BLEND = {
    "LMCACHE_CHUNK_SIZE": "256",
    "LMCACHE_USE_LAYERWISE": "True",
    "LMCACHE_ENABLE_BLENDING": "True",
    "LMCACHE_BLEND_SPECIAL_STR": " # # ",
    "LMCACHE_BLEND_CHECK_LAYERS": "1",
    "LMCACHE_BLEND_RECOMPUTE_RATIOS": "0.15",
    "LMCACHE_BLEND_MIN_TOKENS": "128",
    "LMCACHE_LOCAL_CPU": "True",
    "LMCACHE_MAX_LOCAL_CPU_SIZE": "5",
    "LMCACHE_SAVE_DECODE_CACHE": "True",
    "LMCACHE_EXTRA_CONFIG": '{"enable_sparse": true}',
}


def settle(own=None, options=None, env=None):
    with mock.patch.dict(os.environ, env or {}):
        return own_settings(own or {}, options or {})


class TestOwnSettings(unittest.TestCase):
    def test_nothing_is_blended_unless_somebody_asks(self):
        settled = settle()
        self.assertIs(settled["blend"], False)
        self.assertIs(settled["save_decode"], False)
        self.assertIsNone(blend_settings(settled))

    def test_the_chunk_cache_is_turned_on_by_its_own_key(self):
        settings = blend_settings(settle(options={"enable_chunk_cache": True}))
        self.assertEqual(settings.separators, ("##",))
        self.assertFalse(settings.any_offset)
        self.assertTrue(settings.any_system)
        chunks = {"enable_chunk_cache": "true", "chunk_separator": "@@"}
        self.assertEqual(blend_settings(settle(options=chunks)).separators, ("@@",))
        self.assertIsNone(blend_settings(settle(options={"chunk_separator": "@@"})))

    def test_the_environment_of_lmcache_turns_blending_on(self):
        settled = settle(env=LMCACHE_BLEND)
        self.assertTrue(settled["save_decode"])
        self.assertEqual(
            blend_settings(settled), BlendSettings(separators=(" # # ",), min_tokens=128)
        )

    def test_lmcaches_keys_of_an_engines_configuration_act(self):
        options = {"lmcache.enable_blending": True, "lmcache.blend_special_str": "@@"}
        extra = {"lmcache.extra_config": {"blend_min_tokens": 9}, "lmcache.of_next_year": 1}
        settings = blend_settings(settle(options={**options, **extra}))
        self.assertEqual(settings, BlendSettings(separators=("@@",), min_tokens=9))

    def test_the_file_of_ucm_blends_at_any_offset(self):
        wrapped = {"ucm_connector_config": {"blend_chunk_size": 64, "position_correction": True}}
        settings = blend_settings(settle(options=wrapped))
        self.assertTrue(settings.any_offset and settings.from_traffic)
        self.assertEqual(settings.separators, ())

    def test_the_configuration_of_ucms_connector_blends_at_any_offset(self):
        layer = {"model.layers.1.self_attn.attn": {"ratio": 0.2}}
        connector = {
            "ucm_connector_name": "UcmNfsStore",
            "ucm_connector_config": {"storage_backends": "/mnt/test", "use_direct": False},
        }
        options = {
            "ucm_connectors": [connector],
            "ucm_sparse_config": {"Blend": {"chunk_end_token_id": 29871, "compute_meta": layer}},
            "load_only_first_rank": False,
        }
        settings = blend_settings(settle(options=options))
        self.assertTrue(settings.any_offset and settings.from_traffic)
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            json.dump({**options, "of_next_year": 1}, file)
            file.flush()
            named = blend_settings(settle(options={"UCM_CONFIG_FILE": file.name}))
            self.assertEqual(named, settings)

    def test_the_engines_own_keys_win(self):
        options = {"enable_chunk_cache": True, "blend_min_tokens": 32, "save_decode_cache": True}
        self.assertIsNone(blend_settings(settle({"blend": False}, options)))
        given = {"separators": "%%", "ratio": 0.5}
        settings = blend_settings(settle({"blend": given, "save_decode": False}, options))
        self.assertEqual((settings.separators, settings.ratio), (("%%",), 0.5))
        self.assertEqual(settings.min_tokens, 32)
        self.assertFalse(settle({"save_decode": False}, options)["save_decode"])
        self.assertEqual(blend_settings(settle({"blend": True}, options)).separators, ("##",))

    def test_a_malformed_blend_is_left_for_its_own_check(self):
        self.assertEqual(settle({"blend": "yes"})["blend"], "yes")

    def test_what_is_wrong_is_refused_by_name(self):
        for options, name in (
            ({"position_correction": False}, "position_correction"),
            ({"engine_type": "other"}, "engine_type"),
            ({"chunk_hash_algo": "md5"}, "chunk_hash_algo"),
            ({"blend_check_layers": [1.5]}, "blend_check_layers"),
        ):
            with self.assertRaisesRegex(tessera.TesseraError, name):
                option_texts(options)

    def test_what_a_connector_cannot_follow_is_named_with_the_reason(self):
        (line,) = without_effect({"enable_chunk_cache": True}, "SGLang's hierarchical cache")
        self.assertIn("chunked: no effect in SGLang's hierarchical cache: exact prefixes", line)
        self.assertEqual(without_effect({"enable_chunk_cache": True}, "SGLang"), [])
        self.assertEqual(without_effect({"enable_chunk_cache": True}, "vLLM"), [])
        (line,) = without_effect({"save_unfull_chunk": True}, "vLLM")
        self.assertIn("save_partial: no effect in vLLM: whole chunks are saved", line)
        self.assertEqual(without_effect({}, "SGLang"), [])


class TestConfigure(unittest.TestCase):
    def test_lists_nested_keys_and_none_are_what_a_file_would_say(self):
        with tessera.Cache(
            host_size="8M",
            blend_check_layers=[1, 4],
            blend_recompute_ratios=(0.3, 0.15),
            extra_config={"enable_sparse": True},
            disk={"path": None},
            policy=None,
        ) as cache:
            self.assertEqual(cache.stats()["entries"], 0)
        with self.assertRaisesRegex(tessera.TesseraError, "3 numbers for 2 blend_check_layers"):
            tessera.Cache(blend_check_layers=[1, 4], blend_recompute_ratios=[0.3, 0.2, 0.1])


WARNS = """
import os, sys, tessera
for _ in range(2):
    with tessera.Cache(env=True, host_size="8M"):
        pass
"""


class TestWarnings(unittest.TestCase):
    def run_with(self, **env):
        return subprocess.run(
            [sys.executable, "-c", WARNS],
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stderr

    def test_a_program_that_sets_no_logger_sees_warnings(self):
        said = self.run_with(LMCACHE_ENABLE_P2P="True", LMCACHE_NEW_THING="1")
        self.assertEqual(said.count("LMCACHE_ENABLE_P2P: enable_p2p (LMCache): ignored: "), 2)
        self.assertIn("engines share KV through tesserad", said)
        self.assertIn("LMCACHE_NEW_THING: ignored: unknown", said)
        self.assertEqual(self.run_with(LMCACHE_CHUNK_SIZE="64"), "")

    def test_what_has_no_counterpart_is_named_with_what_to_write_instead(self):
        said = self.run_with(LMCACHE_USE_LAYERWISE="True", LMCACHE_EXTRA_CONFIG='{"rope_theta": 1}')
        self.assertEqual(said.count("use_layerwise (LMCache): ignored: "), 2)  # two caches
        self.assertIn("layerwise: true in kv_connector_extra_config", said)
        self.assertIn("rope_theta (UCM): ignored: remove it", said)

    def test_each_key_is_named_once_however_often_it_is_given(self):
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            json.dump({"enable_p2p": True}, file)
            file.flush()
            said = self.run_with(LMCACHE_ENABLE_P2P="True", LMCACHE_CONFIG_FILE=file.name)
        self.assertEqual(said.count("enable_p2p"), 2)  # two caches


if __name__ == "__main__":
    unittest.main()
