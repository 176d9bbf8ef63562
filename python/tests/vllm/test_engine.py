"""Tessera inside the real vLLM on a CPU: what it must not change, and what it must find.

Equality is claimed in float32 and one request at a time: the same tokens, and log-probabilities
within TOLERANCE. (A hit computes the rest of a prompt in other shapes than a whole prefill does,
and float32 sums depend on the shape.) Engines are started as seldom as possible; tests run in their
order and share them.
"""

import json
import os
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path

from engines import BLOCK, Engine, Remote, full_disk, scratch, story
from transformers import AutoTokenizer
from vllm import TokensPrompt

TOLERANCE = 1e-4
PROMPTS = [story(i, 5 + i % 6) for i in range(int(os.environ.get("TESSERA_TEST_PROMPTS", "64")))]
TOKENS = 6
FEW = PROMPTS[:8]
BINARIES = Path(os.environ["TESSERA_LIBRARY"]).resolve().parents[1] / "bin"
# So little KV memory that requests which run at once push each other out.
TIGHT = dict(num_gpu_blocks_override=65, max_num_batched_tokens=256, max_model_len=1024)


def options(**more):
    return {"chunk_size": BLOCK, "host_size": "512M", **more}


class Shared:
    """What later tests compare with."""

    plain = None
    plain_chat = None
    folder = None


def chat(tokenizer, first_answer):
    """Turn 2 of a conversation: everything so far, and a new question."""
    return TokensPrompt(
        prompt_token_ids=tokenizer.encode(PROMPTS[0])
        + first_answer
        + tokenizer.encode(" And then somebody asked: who was there first? It was")
    )


class VllmTest(unittest.TestCase):
    maxDiff = None

    def assert_same(self, answers, expected):
        worst = 0.0
        for i, (got, want) in enumerate(zip(answers, expected, strict=True)):
            self.assertEqual(got.tokens, want.tokens, f"prompt {i}")
            worst = max(worst, *(abs(a - b) for a, b in zip(got.logprobs, want.logprobs)))
        self.assertLess(worst, TOLERANCE)
        return worst

    def hits(self, encode, prompts):
        """Whole chunks of each prompt, a token being left to compute: for the first token."""
        lengths = [len(encode(prompt)) for prompt in prompts]
        return [min(n // BLOCK * BLOCK, n - 1) for n in lengths]


class Test1Alone(VllmTest):
    def test_vllm_without_a_connector(self):
        with Engine(None, **TIGHT) as engine:
            Shared.plain = engine.ask(PROMPTS, TOKENS)
            Shared.plain_chat = engine.ask([chat(engine.tokenizer, Shared.plain[0].tokens)], TOKENS)
        self.assertEqual(len(Shared.plain), len(PROMPTS))
        self.assertEqual({answer.cached for answer in Shared.plain}, {0})


class Test2Embedded(VllmTest):
    """The cache in the scheduler's process, with a disk below it."""

    @classmethod
    def setUpClass(cls):
        cls.folder = scratch()
        Shared.folder = cls.folder.name
        disk = dict(disk_path=Shared.folder, disk_size="1G", disk_segment_size="16M")
        cls.engine = Engine(options(save_decode=True, **disk), **TIGHT)

    @classmethod
    def tearDownClass(cls):
        cls.engine.close()

    def test_1_the_first_run_gives_the_same(self):
        worst = self.assert_same(self.engine.ask(PROMPTS, TOKENS), Shared.plain)
        self.engine.settle()
        counters = self.engine.counters()
        print(f"    cold: largest difference of a log-probability {worst:.2e}; {counters}")
        self.assertGreater(counters["requests"], 0)

    def test_2_the_second_run_hits_and_gives_the_same(self):
        answers = self.engine.ask(PROMPTS, TOKENS)
        worst = self.assert_same(answers, Shared.plain)
        print(f"    hits: largest difference of a log-probability {worst:.2e}")
        wanted = self.hits(self.engine.tokens_of, PROMPTS)
        for i, (answer, want) in enumerate(zip(answers, wanted)):
            self.assertEqual(answer.cached, want, f"prompt {i}")

    def test_3_turn_two_hits_turn_one(self):
        prompt = chat(self.engine.tokenizer, Shared.plain[0].tokens)
        answers = self.engine.ask([prompt], TOKENS)
        self.assert_same(answers, Shared.plain_chat)
        self.assertGreaterEqual(answers[0].cached, self.hits(self.engine.tokens_of, PROMPTS[:1])[0])

    def test_4_salts_share_nothing(self):
        tokens = self.engine.tokenizer.encode(PROMPTS[1])
        salted = [TokensPrompt(prompt_token_ids=tokens, cache_salt=salt) for salt in "aab"]
        cached = [answer.cached for answer in self.engine.ask(salted, TOKENS)]
        self.assertEqual(cached[0], 0)
        self.assertGreater(cached[1], 0)
        self.assertEqual(cached[2], 0)

    def test_5_many_at_once_with_chunks_and_preemption(self):
        # New stories, old ones and beginnings of old ones; more than the KV memory holds.
        prompts = []
        for i in range(14):
            old = PROMPTS[i % len(PROMPTS)]
            prompts += [story(1000 + i, 8), old, old + " end of it all was a"]
        scheduler = self.engine.core.scheduler
        preempted = []
        original = scheduler._preempt_request

        def watched(request, *args, **kwargs):
            preempted.append(request.request_id)
            return original(request, *args, **kwargs)

        scheduler._preempt_request = watched
        answers = self.engine.ask(prompts, 40, together=True)
        self.assertEqual([len(answer.tokens) for answer in answers], [40] * len(prompts))
        self.assertGreater(len(preempted), 0, "nothing was preempted")
        plain = Shared.plain
        same = sum(
            a.tokens[:TOKENS] == plain[i % len(plain)].tokens for i, a in enumerate(answers[1::3])
        )
        print(f"    {len(preempted)} preemptions; {same} of 14 begin as they do alone")
        self.assertGreaterEqual(same, 13)
        self.engine.settle()
        self.assertEqual(self.engine.core.scheduler.has_requests(), False)
        counters = self.engine.counters()
        print(f"    {counters}")
        self.assertEqual(counters["jobs_in_flight"], 0)


class Test3Restart(VllmTest):
    """Another engine, in processes of its own as an operator has it, over the same disk."""

    def test_1_hits_survive_a_restart(self):
        result = run_apart(options(disk_path=Shared.folder, disk_size="1G"), FEW)
        self.assertEqual([row["tokens"] for row in result], [a.tokens for a in Shared.plain[:8]])
        tokenizer = AutoTokenizer.from_pretrained(os.environ["TESSERA_TEST_VLLM_MODEL"])
        # Loaded between steps: vLLM then counts whole prompts, and computes a token all the same.
        wanted = [len(tokenizer.encode(prompt)) // BLOCK * BLOCK for prompt in FEW]
        self.assertEqual([row["cached"] for row in result], wanted)

    def test_2_a_disk_that_lies_changes_nothing(self):
        for file in Path(Shared.folder).rglob("*"):
            if file.is_file() and file.stat().st_size > 1 << 20:
                spoil(file)
        with Remote(options(disk_path=Shared.folder, disk_size="1G"), **TIGHT) as engine:
            self.assert_same(engine.ask(FEW, TOKENS), Shared.plain[:8])


def spoil(file):
    """Changes a byte of every 4096, behind the first page."""
    with open(file, "r+b") as stream:
        size = os.fstat(stream.fileno()).st_size
        for offset in range(4096 + 100, size, 4096):
            stream.seek(offset)
            byte = stream.read(1)
            stream.seek(offset)
            stream.write(bytes([byte[0] ^ 0x55]))


def run_apart(extra, prompts, **env):
    """What apart.py prints: an engine with separate scheduler and worker processes."""
    return start_apart(extra, prompts, **env)[0]


def start_apart(extra, prompts, **env):
    """(what apart.py prints, what it says on standard error)."""
    order = json.dumps({"options": extra, "prompts": prompts, "max_tokens": TOKENS})
    script = Path(__file__).with_name("apart.py")
    done = subprocess.run(
        [sys.executable, str(script)],
        input=order,
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, **env},
    )
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            return json.loads(line[7:]), done.stdout + done.stderr
    raise AssertionError(f"no result:\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}")


class Test4Daemon(VllmTest):
    """Two engines and one tesserad."""

    def test_two_engines_share_and_outlive_it(self):
        with scratch() as folder:
            socket = os.path.join(folder, "tesserad.sock")
            command = [str(BINARIES / "tesserad"), f"--server-socket={socket}", "--host-size=256M"]
            daemon = subprocess.Popen(command)
            try:
                self.share(socket, daemon)
            finally:
                daemon.kill()
                daemon.wait()

    def share(self, socket, daemon):
        extra = options(owner="daemon", server_socket=socket)
        local = dict(TIGHT, enable_prefix_caching=True)  # vLLM's own, beside ours
        with Remote(extra, **TIGHT) as first, Remote(extra, **local) as second:
            self.assert_same(first.ask(FEW, TOKENS), Shared.plain[:8])
            first.settle()
            answers = second.ask(FEW, TOKENS)
            self.assert_same(answers, Shared.plain[:8])
            wanted = self.hits(first.tokens_of, FEW)
            self.assertEqual([answer.cached for answer in answers], wanted)
            daemon.send_signal(signal.SIGKILL)
            daemon.wait()
            start = time.monotonic()
            answers = first.ask(FEW, TOKENS)
            print(f"    8 prompts without the daemon: {time.monotonic() - start:.1f} s")
            self.assert_same(answers, Shared.plain[:8])
            self.assertEqual([answer.cached for answer in answers], [0] * len(answers))
            self.assert_same(second.ask(FEW, TOKENS), Shared.plain[:8])


class Test5Broken(VllmTest):
    """An engine whose cache cannot be opened, or not be written, starts and answers."""

    def off(self, extra, why):
        """One line says why it is off, and the answers are the same."""
        with self.assertLogs("vllm.tessera", "WARNING") as log:
            with Engine(options(**extra), **TIGHT) as engine:
                self.assert_same(engine.ask(FEW, TOKENS), Shared.plain[:8])
        self.assertEqual(len([line for line in log.output if "off" in line]), 1, log.output)
        self.assertIn(why, log.output[0])

    def test_1_an_option_that_does_not_exist(self):
        self.off(dict(host_sise="1G"), "host_size")

    def test_2_a_store_that_another_process_has(self):
        with scratch() as folder:
            disk = dict(disk_path=folder, disk_size="64M", disk_segment_size="4M")
            owner = subprocess.Popen(
                [sys.executable, "-c", OWNER, json.dumps(disk)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            try:
                self.assertEqual(owner.stdout.readline(), b"open\n")
                self.off(disk, folder)
            finally:
                owner.communicate()

    def test_3_a_library_that_is_not_there(self):
        nowhere = "/nonexistent/libtessera.so"
        answers, said = start_apart(options(), FEW, TESSERA_LIBRARY=nowhere)
        self.assertEqual([row["tokens"] for row in answers], [a.tokens for a in Shared.plain[:8]])
        lines = [line for line in said.splitlines() if "tessera: off" in line]
        self.assertEqual(len(lines), 1, said)
        self.assertIn(nowhere, lines[0])

    def test_4_a_disk_that_is_full(self):
        with full_disk() as folder:
            disk = dict(disk_path=folder, disk_size="1G", disk_segment_size="4M")
            with Engine(options(**disk), **TIGHT) as engine:
                with self.assertLogs("vllm.tessera", "WARNING") as log:
                    self.assert_same(engine.ask(FEW, TOKENS), Shared.plain[:8])
                    engine.settle()
                answers = engine.ask(FEW, TOKENS)  # host memory works all the same
                self.assert_same(answers, Shared.plain[:8])
                cached = [answer.cached for answer in answers]
                self.assertEqual(cached, self.hits(engine.tokens_of, FEW))
            self.assertEqual(len(log.output), 1, log.output)
            self.assertRegex(log.output[0], "tier disk: .*No space left on device")


# Has a store until its standard input ends.
OWNER = """
import json, sys, tessera
with tessera.Cache(**json.loads(sys.argv[1])):
    print("open", flush=True)
    sys.stdin.read()
"""


if __name__ == "__main__":
    unittest.main(verbosity=2, failfast=True)
