"""Tessera below SGLang's radix tree, on the CPU: real requests, tree, allocators and KV pool
(radix_kit.py). python/tests/gpu/test_sglang.py does the same on a GPU."""

import tempfile
import unittest
from pathlib import Path

from radix_kit import CHUNK, Engine, expected_kv

from tessera.sglang import radix


class TestRadix(unittest.TestCase):
    tokens = list(range(100, 100 + 5 * CHUNK + 3))

    def engine(self, **more):
        engine = Engine(**more)
        self.addCleanup(engine.close)
        self.assertIsInstance(engine.tree, radix.TesseraRadixCache)
        return engine

    def disk(self):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        self.options = dict(disk_path=folder, disk_size="64M", disk_segment_size="4M")
        return self.options

    def test_what_the_tree_has_lost_is_loaded(self):
        for page in (1, 4, 16):
            with self.subTest(page=page):
                engine = self.engine(page=page)
                self.assertEqual(engine.run(self.tokens), 0)
                self.assertGreaterEqual(engine.run(self.tokens), 5 * CHUNK)  # of the tree itself
                engine.lose()
                self.assertEqual(engine.run(self.tokens), 5 * CHUNK)
                engine.written()
                self.assertEqual(engine.slots.available_size() + engine.tree.evictable_size(), 512)

    def test_the_tree_has_a_part_and_tessera_the_rest(self):
        engine = self.engine()
        engine.run(self.tokens)
        engine.lose()
        engine.run(self.tokens[: 2 * CHUNK + 5])
        req = engine.begin(self.tokens)
        self.assertGreater(req.prefix_len, 2 * CHUNK)
        self.assertEqual(req.prefix_len + req.host_hit_length, 5 * CHUNK)
        self.assertEqual(engine.admit(req), 5 * CHUNK)
        engine.finish(req, 5 * CHUNK)

    def test_two_requests_of_one_batch_load_the_same_and_lose_no_slot(self):
        engine = self.engine()
        engine.run(self.tokens)
        engine.lose()
        two = [engine.begin(self.tokens), engine.begin(self.tokens)]
        found = [engine.admit(req) for req in two]
        self.assertEqual(found, [5 * CHUNK] * 2)
        for req in two:
            engine.finish(req, 5 * CHUNK)
        engine.lose()
        self.assertEqual(engine.slots.available_size(), 512)

    def test_hits_survive_a_restart_through_the_disk(self):
        first = Engine(**self.disk())
        first.run(self.tokens)
        first.close()
        second = Engine(**self.options)
        self.assertEqual(second.run(self.tokens), 5 * CHUNK)
        second.close()
        other = self.engine(model="another", **self.options)
        self.assertEqual(other.run(self.tokens), 0)

    def test_latent_rows_of_mla(self):
        for page in (1, 16):
            with self.subTest(page=page):
                engine = self.engine(page=page, mla=True)
                self.assertEqual(engine.run(self.tokens), 0)
                engine.lose()
                self.assertEqual(engine.run(self.tokens), 5 * CHUNK)
                engine.lose()
                self.assertEqual(engine.slots.available_size(), 512)
        self.assertGreater(engine.run_under_pressure(60), 1000)

    def test_adapters_and_salts_share_nothing(self):
        engine = self.engine()
        for more in ({}, dict(extra_key="poems"), dict(cache_salt="a"), dict(cache_salt="b")):
            self.assertEqual(engine.run(self.tokens, **more), 0, more)
            engine.lose()
        for more in ({}, dict(extra_key="poems"), dict(cache_salt="a"), dict(cache_salt="b")):
            self.assertEqual(engine.run(self.tokens, **more), 5 * CHUNK, more)

    def test_images_are_left_to_the_tree(self):
        """Their places in a prompt are numbers of 62 bits, which are no tokens."""
        engine = self.engine()
        image = self.tokens[:CHUNK] + [10**6 + (1 << 61)] * CHUNK + self.tokens[CHUNK:]
        for _ in range(2):
            self.assertEqual(engine.run(image), 0)
            engine.lose()
        engine.run(self.tokens)
        engine.lose()
        self.assertEqual(engine.run(self.tokens), 5 * CHUNK)

    def test_under_pressure(self):
        for page in (1, 4):
            engine = self.engine(size=256, page=page)
            found = engine.run_under_pressure(150)
            print(f"    pages of {page}: {found} tokens found, {engine.checked} compared")
            self.assertGreater(found, 3000)
            self.assertEqual(engine.slots.available_size(), 256)
            self.assertEqual(engine.tree._writes, {})
            self.assertEqual(engine.tree._offers, {})
            self.assertFalse(engine.tree._complained)

    def test_slots_that_are_being_read_are_not_given_away(self):
        engine = self.engine()
        started = []
        store = engine.tree._pool.store_start

        def watched(*args):
            started.append(store(*args))
            return started[-1]

        engine.tree._pool.store_start = watched
        engine.tree._pool.written = lambda: []
        engine.run(self.tokens)
        self.assertEqual(started, [True])
        self.assertGreater(engine.tree.protected_size(), 0)
        del engine.tree._pool.written
        engine.lose()
        self.assertEqual(engine.tree.protected_size(), 0)

    def test_a_request_that_is_aborted_lets_go(self):
        engine = self.engine()
        engine.run(self.tokens)
        engine.lose()
        req = engine.begin(self.tokens)
        self.assertEqual(len(engine.tree._offers), 1)
        engine.tree.release_aborted_request(req.cache_request_handle)
        self.assertEqual(engine.tree._offers, {})

    def test_a_flush_forgets_and_what_comes_then_is_not_for_others(self):
        first = Engine(**self.disk())
        first.run(self.tokens)
        first.tree.reset()
        first.slots.clear()
        self.assertEqual(first.run(self.tokens), 0)
        first.lose()
        self.assertEqual(first.run(self.tokens), 5 * CHUNK)
        first.close()
        second = self.engine(**self.options)
        self.assertEqual(second.run(self.tokens), 0)


def shortened(load):
    """The first three chunks are there, and no more."""
    return lambda tokens, count, *more: load(tokens, min(count, 3 * CHUNK), *more)


def damage(folder, row):
    """Turns one bit of every copy of these bytes; returns how many there were."""
    count = 0
    for path in Path(folder).rglob("*"):
        data = path.read_bytes() if path.is_file() else b""
        at = data.find(row)
        while at >= 0:
            with open(path, "r+b") as file:
                file.seek(at)
                file.write(bytes([row[0] ^ 1]))
            count += 1
            at = data.find(row, at + 1)
    return count


class TestBroken(unittest.TestCase):
    tokens = TestRadix.tokens

    def test_a_load_that_fails_is_computed(self):
        engine = Engine()
        self.addCleanup(engine.close)
        engine.run(self.tokens)
        engine.lose()
        engine.tree._pool.load = lambda *args: 0
        self.assertEqual(engine.run(self.tokens), 0)
        engine.lose()
        self.assertEqual(engine.slots.available_size(), 512)

    def test_a_part_that_was_loaded_is_used_and_the_rest_computed(self):
        for page in (1, 4, 16):
            with self.subTest(page=page):
                engine = Engine(page=page)
                self.addCleanup(engine.close)
                engine.run(self.tokens)
                engine.lose()
                engine.tree._pool.load = shortened(engine.tree._pool.load)
                self.assertEqual(engine.run(self.tokens), 3 * CHUNK)
                del engine.tree._pool.load
                engine.lose()
                self.assertEqual(engine.slots.available_size(), 512)
                self.assertEqual(engine.run(self.tokens), 5 * CHUNK)
                self.assertFalse(engine.tree._complained)

    def test_a_damaged_entry_on_disk_costs_what_follows_it(self):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        disk = dict(disk_path=folder, disk_size="64M", disk_segment_size="4M")
        first = Engine(**disk)
        first.run(self.tokens)
        first.close()
        row = bytes(expected_kv(self.tokens)[1, 1, 3 * CHUNK + 5].numpy())
        self.assertEqual(damage(folder, row), 1)
        second = Engine(**disk)
        self.addCleanup(second.close)
        req = second.begin(self.tokens)
        self.assertEqual(req.host_hit_length, 5 * CHUNK)  # not known before it is read
        found = second.admit(req)
        self.assertEqual(found, 3 * CHUNK)
        second.finish(req, found)
        second.lose()
        self.assertEqual(second.slots.available_size(), 512)
        self.assertEqual(second.run(self.tokens), 5 * CHUNK)  # stored again

    def test_calls_that_fail_cost_a_line(self):
        engine = Engine()
        self.addCleanup(engine.close)

        def broken(*args):
            raise OSError("gone")

        for name in ("match", "load", "store_start", "written"):
            setattr(engine.tree._pool, name, broken)
        with self.assertLogs("tessera.sglang.radix", "WARNING") as log:
            self.assertEqual(engine.run(self.tokens), 0)
            self.assertGreater(engine.run(self.tokens), 5 * CHUNK - 1)  # the tree's own
        self.assertEqual(len(log.output), 1, log.output)

    def test_a_store_of_another_process_and_what_is_refused_give_sglangs_own_tree(self):
        from sglang.srt.mem_cache.radix_cache import RadixCache

        plain = radix.default_radix_cache_factory
        radix.default_radix_cache_factory = lambda context: RadixCache(context.params)
        self.addCleanup(setattr, radix, "default_radix_cache_factory", plain)
        with tempfile.TemporaryDirectory() as folder:
            disk = dict(disk_path=folder, disk_size="64M", disk_segment_size="4M")
            first = Engine(**disk)
            for options, change in (
                (disk, {}),
                (dict(host_sise="1G"), {}),
                ({}, dict(tp_size=2)),  # without a process group
                ({}, dict(is_hybrid_swa=True)),
            ):
                with self.assertLogs("tessera.sglang.radix", "WARNING") as log:
                    engine = Engine(**({} if change else options))
                    if change:
                        engine.close()
                        engine.context.__dict__.update(change)
                        engine.open({})
                self.assertEqual(len(log.output), 1)
                self.assertIn("off, SGLang runs without it", log.output[0])
                self.assertIs(type(engine.tree), RadixCache)
            first.close()


if __name__ == "__main__":
    unittest.main(verbosity=2)
