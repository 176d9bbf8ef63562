"""Whole SGLang engines on a CPU with Tessera below their radix tree: schedulers, model, tokenizer
and answers are SGLang's own; only its HTTP server is not started.

    engine.sh sglang/test_engine.py [TestBlending|TestRanks]
"""

import os
import random
import sys
import tempfile
import unittest
from pathlib import Path

from sglang.srt.entrypoints.engine import Engine

MODEL = os.environ["TESSERA_TEST_VLLM_MODEL"]
FIXTURES = Path(__file__).resolve().parents[3] / "tests" / "config" / "fixtures"
TINY = """{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 128,
"intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 32,
"num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 2048, "hidden_act": "silu",
"rms_norm_eps": 1e-5, "tie_word_embeddings": false, "torch_dtype": "float32", "bos_token_id": 1,
"eos_token_id": 2, "rope_theta": 10000.0}"""
# SGLang makes an NCCL communicator for several ranks of any device, unless its own CPU kernels are
# installed. They are not on the package index.
NO_NCCL = """
def register():
    from sglang.srt.distributed.device_communicators import pynccl

    class Off:
        available, disabled = False, True

        def __init__(self, *args, **kwargs):
            pass

    pynccl.PyNcclCommunicator = Off
"""


def install(folder, name, target):
    """An entry point, as pip would install it, for all processes of an engine."""
    info = Path(folder) / f"{name}-0.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.0\n")
    (info / "entry_points.txt").write_text(f"[sglang.srt.plugins]\n{name} = {target}\n")


class EngineCase(unittest.TestCase):
    environment: dict[str, str] = {}

    @classmethod
    def setUpClass(cls):
        folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        install(folder, "tessera", "tessera.sglang.plugin:register")
        install(folder, "nonccl", "nonccl:register")
        (Path(folder) / "nonccl.py").write_text(NO_NCCL)
        (Path(folder) / "tiny").mkdir()
        (Path(folder) / "tiny" / "config.json").write_text(TINY)
        cls.tiny = str(Path(folder) / "tiny")
        sys.path.append(folder)
        os.environ["PYTHONPATH"] += ":" + folder
        settings = dict(cls.environment, TESSERA_HOST_SIZE="256M")
        os.environ.update(settings, HF_HUB_OFFLINE="1", GLOO_SOCKET_IFNAME="lo")
        cls.addClassCleanup(lambda: [os.environ.pop(name) for name in settings])
        cls.engine = Engine(
            device="cpu",
            dtype="float32",
            attention_backend="torch_native",
            sampling_backend="pytorch",
            grammar_backend="none",
            disable_overlap_schedule=True,
            radix_cache_backend="tessera",
            **cls.more(),
        )
        cls.addClassCleanup(cls.engine.shutdown)

    def ask(self, tokens, n_answer=8, **params):
        params = dict(temperature=0, max_new_tokens=n_answer, **params)
        out = self.engine.generate(input_ids=list(tokens), sampling_params=params)
        return out["output_ids"], out["meta_info"]["cached_tokens"]


class TestBlending(EngineCase):
    """Documents in any order, between separators."""

    environment = dict(
        TESSERA_CHUNK_SIZE="64",
        TESSERA_CHUNKED="true",
        TESSERA_SEPARATOR=" ## ",
        TESSERA_BLEND_MIN_TOKENS="64",
    )

    @classmethod
    def more(cls):
        os.environ["SGLANG_CPU_OMP_THREADS_BIND"] = "all"
        return dict(model_path=MODEL, max_total_tokens=4096, context_length=1024)

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        from transformers import AutoTokenizer

        cls.tokenizer = AutoTokenizer.from_pretrained(MODEL)

    documents = [
        f"The train to {town} leaves at {hour} from platform {platform}. " * 5
        for town, hour, platform in (("Ulm", "7:15", 3), ("Graz", "9:40", 8), ("Bern", "11:05", 2))
    ]

    def prompt(self, order, system="You answer questions about trains."):
        parts = [system, *(self.documents[i] for i in order), "When does the train to Graz leave?"]
        return self.tokenizer.encode(" ## ".join(parts))

    def test_documents_in_any_order(self):
        same = 0
        for order in ((0, 1, 2), (2, 0, 1), (1, 2, 0)):
            tokens = self.prompt(order)
            plain, found = self.ask(tokens, custom_params={"tessera": {"blend": False}})
            self.assertLess(found, 20)  # a system prompt at most: no exact request finds a blend
            full, found = self.ask(tokens, custom_params={"tessera": {"ratio": 1.0}})
            self.assertGreater(found, len(tokens) - 20)  # up to the question
            self.assertEqual(full, plain)
            few, found = self.ask(tokens)
            self.assertGreater(found, len(tokens) - 20)
            same += few == plain
            again, found = self.ask(tokens, custom_params={"tessera": {"blend": False}})
            self.assertEqual(again, plain)
        print(f"    15 %: {same} of 3 answers as plain SGLang's")

    def test_marks_of_a_client(self):
        tokens = self.prompt((0, 1, 2), system="Another one.")[:150]
        given = {"tessera": {"system": False, "ratio": 1.0}, "tessera_segments": [0, 70, 70, 60]}
        full, found = self.ask(tokens, custom_params=given)
        self.assertEqual(found, 130)
        plain, _found = self.ask(tokens, custom_params={"tessera": {"blend": False}})
        self.assertEqual(full, plain)
        wrong = {"tessera": {"system": False}, "tessera_segments": [0, 70, 10, 60]}
        answer, _found = self.ask(tokens, custom_params=wrong)  # a plain request
        self.assertEqual(answer, plain)


class TestRanks(EngineCase):
    """Tensor parallelism, as in --tp 2 --page-size 32, with the file that users of LMCache have:
    its chunk_size of 64 decides how much is found, and of its 60 GB a test needs less."""

    environment = dict(
        LMCACHE_USE_EXPERIMENTAL="True",
        LMCACHE_CONFIG_FILE=str(FIXTURES / "lmcache_config.yaml"),
    )

    @classmethod
    def more(cls):
        os.environ["SGLANG_CPU_OMP_THREADS_BIND"] = "0|1"
        return dict(
            model_path=cls.tiny,
            load_format="dummy",
            skip_tokenizer_init=True,
            tp_size=2,
            page_size=32,
            max_total_tokens=608,
            context_length=512,
            disable_custom_all_reduce=True,
        )

    def test_what_the_trees_have_lost_is_loaded(self):
        chance = random.Random(1)
        prompts = [[chance.randrange(3, 500) for _ in range(400)] for _ in range(2)]
        first = [self.ask(prompt) for prompt in prompts]  # the second one evicts the first
        self.assertEqual([found for _answer, found in first], [0, 0])
        for prompt, (answer, _found) in zip(prompts, first):
            self.assertEqual(self.ask(prompt), (answer, 384))


if __name__ == "__main__":
    unittest.main(verbosity=2)
