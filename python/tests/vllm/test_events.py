"""KV events: what a router hears of the cache, through vLLM's real scheduler."""

import unittest

import engines  # sets the environment first
from rig import BLOCK, Rig
from vllm.config import KVEventsConfig
from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import (
    get_request_block_hasher,
    init_none_hash,
    maybe_convert_block_hash,
)

import tessera.vllm.events

ON = KVEventsConfig(enable_kv_cache_events=True, publisher="null")
HASH = get_hash_fn_by_name("sha256")
init_none_hash(HASH)


class Followed:
    """An engine, and a router that believes its events."""

    def __init__(self, test, options, ranks=1, on=ON, asynchronous=False):
        self.rig = Rig(options, asynchronous, ranks=ranks, events=on)
        test.addCleanup(self.rig.close)
        self.events = []
        self.known = {}  # block hash -> event
        self.rig.scheduler.kv_event_publisher.publish = self.hear
        self.count = 0

    def hear(self, batch):
        for event in batch.events:
            self.events.append(event)
            if isinstance(event, BlockStored):
                self.known.update(dict.fromkeys(event.block_hashes, event))
            elif isinstance(event, BlockRemoved):
                for one in event.block_hashes:
                    del self.known[one]
            else:
                self.known.clear()

    def run(self, tokens, n_prompt, n_output, **more):
        self.count += 1
        hasher = get_request_block_hasher(BLOCK, HASH)
        name = f"e{self.count}"
        request = self.rig.add(name, tokens, n_prompt, n_output, block_hasher=hasher, **more)
        self.rig.drain()
        self.step()  # what has happened meanwhile is published with a step
        return request

    def step(self):
        output, sampling = self.rig.schedule()
        self.rig.update(output, self.rig.execute(output, sampling))

    def kinds(self):
        kinds, self.events = [type(event).__name__ for event in self.events], []
        return kinds


class TestEvents(unittest.TestCase):
    tokens = list(range(10, 10 + 8 * BLOCK))

    def test_what_is_stored_is_announced_with_its_tokens_and_hashes(self):
        one = Followed(self, dict(chunk_size=2 * BLOCK))
        request = one.run(self.tokens, 5 * BLOCK + 3, 4, cache_salt="tenant")
        stored = [event for event in one.events if isinstance(event, BlockStored)]
        self.assertEqual(len(stored), 2)  # whole chunks of the prompt
        hashes = [maybe_convert_block_hash(one) for one in request.block_hashes]
        for i, event in enumerate(stored):
            first = 2 * i
            self.assertEqual(event.block_hashes, hashes[first : first + 2])
            parent = hashes[first - 1] if first else None
            self.assertEqual(event.parent_block_hash, parent)
            self.assertEqual(event.token_ids, self.tokens[first * BLOCK : (first + 2) * BLOCK])
            self.assertEqual((event.block_size, event.medium), (BLOCK, "CPU"))
        self.assertEqual(stored[0].extra_keys, [("tenant",), None])

    def test_what_is_generated_too_where_it_is_saved(self):
        for save_decode, blocks in ((False, 2), (True, 6)):
            one = Followed(self, dict(save_decode=save_decode), asynchronous=True)
            one.run(self.tokens, 2 * BLOCK + 3, 4 * BLOCK)
            self.assertEqual(len(one.known), blocks)

    def test_a_hit_announces_nothing_again(self):
        one = Followed(self, {})
        one.run(self.tokens, 4 * BLOCK + 1, 2)
        self.assertEqual(one.kinds(), ["BlockStored"] * 4)
        one.run(self.tokens, 4 * BLOCK + 1, 2)
        self.assertEqual(one.kinds(), [])

    def test_only_what_every_rank_has_is_there(self):
        one = Followed(self, {}, ranks=2)
        one.run(self.tokens, 3 * BLOCK + 1, 2)
        self.assertEqual(one.kinds(), ["BlockStored"] * 3)
        self.assertEqual(one.rig.evict(1), 3)
        one.step()
        self.assertEqual(one.kinds(), ["BlockRemoved"] * 3)
        one.run(self.tokens, 3 * BLOCK + 1, 2)
        self.assertEqual(one.kinds(), ["BlockStored"] * 3)
        self.assertEqual(len(one.known), 3)

    def test_what_is_evicted_is_taken_back(self):
        # So little memory that every request pushes out older ones.
        one = Followed(self, dict(host_size="1M"))
        for i in range(60):
            one.run([5000 + 17 * i, *self.tokens], 6 * BLOCK, 2)
        kinds = one.kinds()
        self.assertGreater(kinds.count("BlockRemoved"), 0)
        self.assertEqual(kinds.count("BlockStored") - kinds.count("BlockRemoved"), len(one.known))
        events = one.rig.scheduler.connector._events
        announced = sum(chunk.announced for chunk in events._chunks.values())
        self.assertEqual(announced, len(one.known))

    def test_what_an_older_engine_left_on_disk_is_announced_when_found(self):
        with engines.scratch() as folder:
            disk = dict(disk_path=folder, disk_size="64M", disk_segment_size="4M")
            first = Followed(self, disk)
            first.run(self.tokens, 4 * BLOCK + 1, 2)
            first.rig.close()
            second = Followed(self, disk)
            second.run(self.tokens, 4 * BLOCK + 1, 2)
            self.assertEqual(second.kinds(), ["BlockStored"] * 4)

    def test_a_reset_clears(self):
        one = Followed(self, {})
        one.run(self.tokens, 4 * BLOCK + 1, 2)
        one.kinds()
        self.assertTrue(one.rig.scheduler.reset_prefix_cache(reset_connector=True))
        one.step()
        self.assertIn(AllBlocksCleared.__name__, one.kinds())
        one.run(self.tokens, 4 * BLOCK + 1, 2)
        self.assertEqual(len(one.known), 4)

    def test_what_is_remembered_is_bounded_and_what_is_forgotten_taken_back(self):
        limit = tessera.vllm.events._CHUNKS_MAX
        self.addCleanup(setattr, tessera.vllm.events, "_CHUNKS_MAX", limit)
        tessera.vllm.events._CHUNKS_MAX = 8
        one = Followed(self, {})
        for i in range(5):
            one.run([6000 + i, *self.tokens], 4 * BLOCK, 2)
        self.assertEqual(len(one.known), 8)
        self.assertEqual(len(one.rig.scheduler.connector._events._keys), 8)

    def test_none_unless_wanted_and_none_from_a_daemon(self):
        one = Followed(self, {}, on=None)
        one.run(self.tokens, 4 * BLOCK + 1, 2)
        self.assertEqual(one.kinds(), [])
        with engines.scratch() as folder:
            nobody = dict(owner="daemon", server_socket=f"{folder}/nobody.sock")
            with self.assertLogs("vllm.tessera", "WARNING") as log:
                Followed(self, nobody)
            self.assertTrue(any("no KV events" in line for line in log.output), log.output)


if __name__ == "__main__":
    unittest.main(verbosity=2)
