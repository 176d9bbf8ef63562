"""A whole SGLang server on a CPU, asked over HTTP, with Tessera below its radix tree: the command
of docs/engines.md. SGLang's server imports soundfile, which the engine does not need and
tools/setup --engines does not install; without it the test is skipped."""

import importlib.util
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request
from pathlib import Path

START_S = 1800  # on a machine that does many other things


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@unittest.skipUnless(importlib.util.find_spec("soundfile"), "needs pip install soundfile")
class TestServer(unittest.TestCase):
    def setUp(self):
        from test_engine import TINY, install  # which imports all of SGLang

        folder = self.enterContext(tempfile.TemporaryDirectory())
        install(folder, "tessera", "tessera.sglang.plugin:register")
        (Path(folder) / "config.json").write_text(TINY)
        self.port = free_port()
        environment = dict(
            os.environ,
            PYTHONPATH=os.environ["PYTHONPATH"] + ":" + folder,
            TESSERA_HOST_SIZE="256M",
            TESSERA_CHUNK_SIZE="64",
            SGLANG_CPU_OMP_THREADS_BIND="all",
            HF_HUB_OFFLINE="1",
            GLOO_SOCKET_IFNAME="lo",
        )
        command = [sys.executable, "-W", "ignore", "-m", "sglang.launch_server"]
        command += ["--model-path", folder, "--load-format", "dummy", "--skip-tokenizer-init"]
        command += ["--device", "cpu", "--dtype", "float32", "--host", "127.0.0.1"]
        command += ["--port", str(self.port), "--radix-cache-backend", "tessera"]
        command += ["--attention-backend", "torch_native", "--sampling-backend", "pytorch"]
        command += ["--grammar-backend", "none", "--disable-overlap-schedule"]
        command += ["--max-total-tokens", "608", "--context-length", "512", "--page-size", "32"]
        self.log = Path(folder) / "log"
        with self.log.open("w") as log:
            self.server = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        self.addCleanup(self.stop)
        self.wait()

    def stop(self):
        self.server.terminate()  # it ends its children
        try:
            self.server.wait(120)
        except subprocess.TimeoutExpired:
            self.server.kill()
            self.server.wait()

    def wait(self):
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            if self.server.poll() is not None:
                self.fail(f"the server has ended: {self.log.read_text()[-3000:]}")
            try:
                with urllib.request.urlopen(self.url("health"), timeout=60):
                    return
            except OSError:
                time.sleep(1)
        self.fail(f"the server does not listen: {self.log.read_text()[-3000:]}")

    def url(self, path):
        return f"http://127.0.0.1:{self.port}/{path}"

    def ask(self, tokens):
        body = {
            "input_ids": tokens,
            "sampling_params": {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True},
        }
        request = urllib.request.Request(
            self.url("generate"), json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=START_S) as response:
            answer = json.load(response)
        return answer["output_ids"], answer["meta_info"]["cached_tokens"]

    def test_what_the_tree_has_lost_is_loaded(self):
        chance = random.Random(1)
        prompts = [[chance.randrange(3, 500) for _ in range(400)] for _ in range(2)]
        first = [self.ask(prompt) for prompt in prompts]  # the second one evicts the first
        self.assertEqual([found for _answer, found in first], [0, 0])
        for prompt, (answer, _found) in zip(prompts, first):
            self.assertEqual(self.ask(prompt), (answer, 384))


if __name__ == "__main__":
    unittest.main(verbosity=2)
