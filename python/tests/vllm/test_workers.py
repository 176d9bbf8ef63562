"""Exact reuse in whole engines with several workers, which are processes of their own: tensor-
parallel ranks and pipeline stages. What a worker loads is compared with what it computed, byte by
byte, and answers with those of an engine without a connector."""

import hashlib
import multiprocessing
import random
import unittest
from unittest import mock

import engines  # sets the environment first
import small_models
from vllm import SamplingParams, TokensPrompt

TOLERANCE = 1e-4
PROMPT_TOKENS = 500
CHUNK = 128


def page_digests(_worker, blocks):
    """Runs in a worker: of each layer, the digests of these blocks."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    caches = get_kv_transfer_group()._kv_caches
    return {
        name: [hashlib.sha256(cache[block].numpy().tobytes()).hexdigest() for block in blocks]
        for name, cache in caches.items()
    }


def head_digests(_worker, blocks):
    """Runs in a worker: of each layer, the digests of its heads in these blocks. Pages on a CPU are
    [head][K and V of all tokens]."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    caches = get_kv_transfer_group()._kv_caches
    return {
        name: [
            hashlib.sha256(head.contiguous().numpy().tobytes()).hexdigest()
            for head in cache[blocks].movedim(1, 0)
        ]
        for name, cache in caches.items()
    }


def make_room(worker):
    """Runs in a worker: memory for what the stage before it sends. vLLM takes it when it warms up,
    which it does not do on a CPU in eager mode."""
    from vllm.distributed import get_pp_group

    runner = worker.model_runner
    if runner.intermediate_tensors is None and not get_pp_group().is_first_rank:
        runner.intermediate_tensors = runner.model.make_empty_intermediate_tensors(
            runner.max_num_tokens, runner.model_config.dtype, runner.device
        )


class Workers:
    """An engine with several workers, and where its requests have their KV."""

    def __init__(self, model, options, **parallel):
        # On a CPU vLLM starts workers anew, which takes a minute; here nothing is in their way.
        fork = mock.patch(
            "vllm.v1.executor.multiproc_executor.get_mp_context",
            lambda: multiprocessing.get_context("fork"),
        )
        with fork:
            self.engine = engines.Engine(
                options,
                model=model,
                max_model_len=1024,
                max_num_seqs=4,
                max_num_batched_tokens=192,
                skip_tokenizer_init=True,
                distributed_executor_backend="mp",
                **parallel,
            )
        self.engine.core.model_executor.collective_rpc(make_room)
        self._blocks = []
        if options is not None:
            connector = self.engine.connector
            finished = connector.request_finished_all_groups

            def noted(request, block_ids):
                self._blocks = list(block_ids[0])
                return finished(request, block_ids)

            connector.request_finished_all_groups = noted

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        self.engine.close()

    def ask(self, tokens):
        """(tokens, log-probabilities, prompt tokens that were loaded)"""
        params = SamplingParams(
            temperature=0, max_tokens=6, logprobs=0, ignore_eos=True, detokenize=False
        )
        prompt = TokensPrompt(prompt_token_ids=tokens)
        (output,) = self.engine.llm.generate([prompt], params, use_tqdm=False)
        one = output.outputs[0]
        weights = [step[token].logprob for token, step in zip(one.token_ids, one.logprobs)]
        if self._blocks:
            self.engine.settle()
        return list(one.token_ids), weights, output.num_cached_tokens or 0

    def heads(self, n_tokens):
        """Of each layer and head of the model, the digest of K and V of the last request."""
        blocks = self._blocks[: n_tokens // engines.BLOCK]
        found = {}
        workers = self.engine.core.model_executor.collective_rpc(head_digests, args=(blocks,))
        for rank, layers in enumerate(workers):
            for name, heads in layers.items():
                for i, digest in enumerate(heads):
                    found[name, rank * len(heads) + i] = digest
        return found

    def pages(self, n_tokens):
        """Of each worker and layer, those of the last request's first tokens."""
        blocks = self._blocks[: n_tokens // engines.BLOCK]
        executor = self.engine.core.model_executor
        return executor.collective_rpc(page_digests, args=(blocks,))


class TestEngines(unittest.TestCase):
    def check(self, n_workers, **parallel):
        source = random.Random(3)
        prompts = [
            [source.randrange(small_models.VOCAB) for _ in range(PROMPT_TOKENS)] for _ in range(2)
        ]
        whole = PROMPT_TOKENS // CHUNK * CHUNK
        with engines.scratch() as folder:
            model = small_models.make(folder, "llama")
            with Workers(model, None, **parallel) as plain:
                right = [plain.ask(tokens) for tokens in prompts]
            options = dict(host_size="64M", disk_path=f"{folder}/store", chunk_size=CHUNK)
            computed = []
            with Workers(model, options, **parallel) as one:
                for i, tokens in enumerate(prompts):
                    self.same(one.ask(tokens), right[i], 0)
                    computed.append(one.pages(whole))
                    self.assertEqual(len(computed[i]), n_workers)
                self.loads(one, prompts, right, computed, whole)
                self.loses_one(one, prompts, right, n_workers, whole)
            with Workers(model, options, **parallel) as again:  # from the disk
                self.loads(again, prompts, right, computed, whole)

    def same(self, got, want, n_loaded):
        self.assertEqual(got[0], want[0])
        self.assertLess(max(abs(a - b) for a, b in zip(got[1], want[1])), TOLERANCE)
        self.assertEqual(got[2], n_loaded)

    def loads(self, engine, prompts, right, computed, whole):
        for i, tokens in enumerate(prompts):
            self.same(engine.ask(tokens), right[i], whole)
            self.assertEqual(engine.pages(whole), computed[i])

    def loses_one(self, engine, prompts, right, n_workers, whole):
        """What one worker lacks is a miss for all of them, computed and saved again."""
        for rank in range(n_workers):
            self.assertGreater(engines.evict(engine.engine.connector, rank), 0)
            for n_loaded in (0, whole):
                for i, tokens in enumerate(prompts):
                    self.same(engine.ask(tokens), right[i], n_loaded)

    def test_two_tensor_parallel_ranks(self):
        self.check(2, tensor_parallel_size=2)

    def test_an_engine_finds_its_heads_in_what_another_size_has_stored(self):
        """One rank, then two, then one: each loads what the others have saved, and nothing else."""
        source = random.Random(4)
        prompts = [
            [source.randrange(small_models.VOCAB) for _ in range(PROMPT_TOKENS)] for _ in range(2)
        ]
        whole = PROMPT_TOKENS // CHUNK * CHUNK
        with engines.scratch() as folder:
            model = small_models.make(folder, "llama")
            options = dict(
                host_size="64M", disk_path=f"{folder}/store", chunk_size=CHUNK, head_shards=2
            )
            with Workers(model, options, tensor_parallel_size=1) as one:
                right = one.ask(prompts[0])
                heads = one.heads(whole)
            with Workers(model, options, tensor_parallel_size=2) as two:
                self.same(two.ask(prompts[0]), right, whole)
                self.assertEqual(two.heads(whole), heads)
                right_too = two.ask(prompts[1])
                self.assertEqual(right_too[2], 0)
                heads_too = two.heads(whole)
            with Workers(model, options, tensor_parallel_size=1) as again:
                for tokens, wanted, rows in zip(prompts, (right, right_too), (heads, heads_too)):
                    self.same(again.ask(tokens), wanted, whole)
                    self.assertEqual(again.heads(whole), rows)
            with Workers(model, dict(options, head_shards=0), tensor_parallel_size=2) as by_rank:
                self.same(by_rank.ask(prompts[0]), right, 0)

    def test_two_pipeline_stages(self):
        self.check(2, pipeline_parallel_size=2)


if __name__ == "__main__":
    unittest.main()
