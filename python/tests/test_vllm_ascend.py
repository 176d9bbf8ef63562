"""What the connector takes for granted of vllm-ascend is in its own Python sources.

They are those that tools/setup-ascend gets; nothing is downloaded here and nothing of them is
imported. vLLM's side of the same version is in test_vllm_versions.py.
"""

import ast
import functools
import subprocess
import unittest
from pathlib import Path

from test_vllm_versions import Version, parameters

TREE = Path(__file__).resolve().parents[2]
VERSION = "0.23.0.post1"
RUNNER = "vllm_ascend.worker.model_runner_v1"


@functools.cache
def folder():
    tool = TREE / "tools/setup-ascend"
    found = subprocess.check_output([tool, "--print-dir"], text=True).strip()
    return Path(found) / f"vllm_ascend-{VERSION}"


class TestVllmAscend(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not (folder() / "vllm_ascend").is_dir():
            raise unittest.SkipTest(f"no sources of vllm-ascend {VERSION}: tools/setup-ascend")
        cls.sources = Version(folder())

    def text(self, module):
        return ast.unparse(self.sources.module(module))

    def members(self, module, kind):
        return self.sources.members(module, self.sources.names(module)[kind])

    def test_the_platform_is_npu(self):
        found = self.members("vllm_ascend.platform", "NPUPlatform")
        for name in ("device_type", "device_name"):
            self.assertEqual(ast.literal_eval(found[name].value), "npu")
        self.assertIn("get_device_name", found)

    def test_a_connector_gets_two_tensors_for_each_layer(self):
        text = self.text(RUNNER)
        self.assertIn("get_kv_transfer_group().register_kv_caches(kv_caches)", text)
        self.assertIn("kv_caches[layer_name] = (k_cache, v_cache)", text)
        # More tensors only with sparse attention, which is refused by its spec.
        more = [line.strip() for line in text.splitlines() if "(k_cache, v_cache, " in line]
        self.assertTrue(more and all("dsa_k" in line for line in more), more)

    def test_parts_of_a_page_are_as_the_spec_says(self):
        found = self.members(RUNNER, "NPUModelRunner")["_get_attention_kv_cache_dims"]
        self.assertEqual(parameters(found), ("layer_name", "kv_cache_spec"))
        text = ast.unparse(found)
        self.assertIn("return (attn_layer.kv_lora_rank, attn_layer.qk_rope_head_dim)", text)
        self.assertIn("return (kv_cache_spec.head_size, head_size_v)", text)

    def test_the_spec_of_mla_has_what_is_read(self):
        module = "vllm_ascend.core.kv_cache_interface"
        found = self.members(module, "AscendMLAAttentionSpec")
        bases = [one.id for one in self.sources.names(module)["AscendMLAAttentionSpec"].bases]
        self.assertEqual(bases, ["MLAAttentionSpec"])
        for name in ("sparse_head_dim", "scale_dim", "page_size_bytes"):
            self.assertIn(name, found)

    def test_nz_order_is_asked_for_by_name(self):
        found = self.members("vllm_ascend.ascend_config", "AscendConfig")["enable_kv_nz"]
        self.assertIn("additional_config.get('enable_kv_nz', False)", ast.unparse(found))
        # Quantised KV is written through views in that order.
        self.assertIn("_nz_5d_view", self.text("vllm_ascend.attention.attention_v1"))


if __name__ == "__main__":
    unittest.main()
