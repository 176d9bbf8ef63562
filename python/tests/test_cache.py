"""Cache and Space against the real library, with plain buffers and, if there is numpy, arrays."""

import array
import ctypes
import os
import tempfile
import threading
import unittest

from sandbox import needs_shared_memory

import tessera

SHAPE = dict(model="unit", dtype="f32", n_layers=2, n_heads=2, k_dim=4, block_tokens=16)
ROW = 2 * 4  # floats of one token's K or V in one layer
LAYERS = 2
DISK = dict(disk_size="64M", disk_segment_size="4M")

try:
    import numpy
except ImportError:
    numpy = None


class Growing(array.array):
    """Shows its memory as numpy's arrays do."""

    def __new__(cls, tokens):
        return super().__new__(cls, "I", tokens)

    @property
    def __array_interface__(self):
        address, count = self.buffer_info()
        return {"data": (address, False), "shape": (count,), "typestr": "<u4", "strides": None}


def kv_of(tokens, start=0, salt=0):
    """KV as a function of token, place, layer and plane, packed: [layer][plane][token]."""
    values = array.array("f")
    for layer in range(LAYERS):
        for plane in range(2):
            for i, token in enumerate(tokens[start:], start):
                values.extend(
                    token * 1000 + i + layer * 0.25 + plane * 0.5 + salt for _ in range(ROW)
                )
    return values


def shaped(values, n):
    return memoryview(values).cast("B").cast("f", (LAYERS, 2, n, ROW))


class WithCache(unittest.TestCase):
    def setUp(self):
        self.cache = tessera.Cache(host_size="64M")  # 256 pages: nothing is evicted
        self.space = self.cache.space(**SHAPE)
        self.addCleanup(self.cache.close)


class TestOrder(unittest.TestCase):
    def test_evict_gives_the_keys_in_the_order_of_the_list(self):
        with tessera.Cache(host_size="64M", policy="lru") as cache:
            space = cache.space(**SHAPE)
            texts = [list(range(100 * i, 100 * i + 16)) for i in range(4)]
            for text in texts:
                space.store(text, kv_of(text))
            space.touch(texts[0])
            listed = cache.lru_list()
            self.assertEqual([one.n_tokens for one in listed], [16] * 4)
            self.assertEqual({one.kind for one in listed}, {"prefix"})
            self.assertEqual(listed[-1].key, space.keys(texts[0])[0])
            self.assertEqual(listed[0].key, space.keys(texts[1])[0])
            space.pin(texts[1])
            gone = cache.evict_keys(1 << 40)
            self.assertEqual(gone, [listed[2 - 1].key, listed[2].key, listed[3].key])
            self.assertEqual([one.key for one in cache.lru_list()], [listed[0].key])
            self.assertEqual(cache.lru_list()[0].pins, 1)

    def test_keys_are_found_by_tier_and_tiers_have_totals(self):
        with tempfile.TemporaryDirectory() as folder:
            with tessera.Cache(host_size="8M", disk_path=folder, **DISK) as cache:
                space = cache.space(**SHAPE)
                texts = [list(range(100 * i, 100 * i + 16)) for i in range(3)]
                for text in texts:
                    space.store(text, kv_of(text))
                cache.flush()
                keys = [space.keys(text)[0] for text in texts]
                space.clear(texts[0], tier=0)
                count, where = cache.batched_contains([*keys, bytes(16)])
                self.assertEqual(count, 3)
                self.assertEqual(where, {"host": keys[1:], "disk": keys[:1]})
                host, disk = cache.stats()["tiers"]
                self.assertEqual((host["name"], disk["name"]), ("host", "disk"))
                self.assertEqual((host["bytes_max"], disk["bytes_max"]), (8 << 20, 64 << 20))
                self.assertEqual((host["entries"], disk["entries"]), (2, 3))
                self.assertEqual((host["tokens"], disk["tokens"]), (32, 48))
                self.assertEqual(cache.stats()["tokens_cached"], 48)
                self.assertGreater(disk["bytes"], 0)


class TestSegments(WithCache):
    """What was stored as a segment is managed by the same calls as a prefix."""

    CHUNK = list(range(100, 140))

    def setUp(self):
        super().setUp()
        self.space.store(self.CHUNK, kv_of(self.CHUNK), kind="segment")
        self.part = {"segments": [(0, len(self.CHUNK))]}

    def test_its_key_is_that_of_the_list(self):
        (listed,) = self.cache.lru_list()
        keys = self.space.keys(self.CHUNK, **self.part)
        self.assertEqual(keys[-1], listed.key)
        self.assertEqual(keys[:-1], self.space.keys(self.CHUNK))
        self.assertEqual(self.cache.contains(keys), [-1, -1, 0])

    def test_it_is_pinned_touched_and_cleared(self):
        self.assertEqual(self.space.pin(self.CHUNK), 0)  # the prefix alone
        self.assertEqual(self.space.pin(self.CHUNK, **self.part), 1)
        self.assertEqual(self.cache.lru_list()[0].pins, 1)
        self.assertEqual(self.cache.evict_keys(1 << 40), [])
        self.assertEqual(self.space.unpin(self.CHUNK, **self.part), 1)
        self.assertEqual(self.space.touch(self.CHUNK, **self.part), 1)
        self.assertEqual(self.space.clear(self.CHUNK, **self.part, salt="other"), 0)
        self.assertEqual(self.space.clear(self.CHUNK, **self.part), 1)
        self.assertEqual(self.cache.lru_list(), [])

    def test_it_is_named_by_the_context_it_was_computed_after(self):
        system = [1, 2, 3]
        self.space.store(self.CHUNK, kv_of(self.CHUNK), kind="segment", context=system)
        both = self.space.keys([*system, *self.CHUNK], segments=[(3, 40)], context=system)
        alone = self.space.keys(self.CHUNK, **self.part)
        self.assertNotEqual(both[-1], alone[-1])
        self.assertEqual(self.cache.contains([both[-1], alone[-1]]), [0, 0])

    def test_one_in_a_lower_tier_is_fetched(self):
        with tempfile.TemporaryDirectory() as folder:
            with tessera.Cache(host_size="8M", disk_path=folder, **DISK) as cache:
                space = cache.space(**SHAPE)
                space.store(self.CHUNK, kv_of(self.CHUNK), kind="segment")
                cache.flush()
                space.clear(self.CHUNK, tier=0, **self.part)
                self.assertEqual(cache.stats()["tiers"][0]["entries"], 0)
                self.assertEqual(space.prefetch(self.CHUNK), 0)
                self.assertEqual(space.prefetch(self.CHUNK, **self.part), 1)


class TestSeparators(unittest.TestCase):
    """SYSTEM sep DOCUMENT sep QUESTION, in tokens and as text."""

    SEPARATOR = (7, 8)

    def setUp(self):
        self.cache = tessera.Cache(host_size="64M", enable_chunk_cache=True)
        self.addCleanup(self.cache.close)
        self.space = self.cache.space(**SHAPE)
        self.space.set_separators(self.SEPARATOR, (9,))

    def test_a_prompt_is_cut_at_each_spelling(self):
        prompt = [1, 2, 7, 8, 20, 21, 22, 9, 30]
        self.assertEqual(self.space.split(prompt), [(0, 4), (4, 4), (8, 1)])
        with self.assertRaisesRegex(tessera.TesseraError, "at token 2"):
            self.space.split([1, 9, 9, 3])
        self.space.set_separators()
        with self.assertRaisesRegex(tessera.TesseraError, "no separators are set"):
            self.space.split(prompt)

    def test_option_chunked_finds_and_pins_what_stands_between_them(self):
        document = [*range(100, 130), *self.SEPARATOR]
        self.space.store(document, kv_of(document), kind="segment")
        for system in ([1, 2, 3], [4, 5]):
            prompt = [*system, *self.SEPARATOR, *document, 40]
            found = self.space.lookup(prompt)
            self.assertEqual(found.tokens, 32)
            self.assertEqual([one.offset for one in found.matches], [len(system) + 2])
            self.assertEqual(self.space.pin(prompt), 1)
            self.assertEqual(self.space.unpin(prompt), 1)
        self.assertEqual(self.space.lookup(prompt, segments=[]).tokens, 0)
        self.assertEqual(self.space.lookup([1, 2, 3, 40]).tokens, 0)

    def test_text_is_cut_and_its_faults_are_named(self):
        text = "You help.##Erste\u00e4 ## Zweite##Why?"
        parts = ["You help.", "Erste\u00e4 ", " Zweite", "Why?"]
        self.assertEqual(tessera.split_text(text, "##"), parts)
        for wrong, why in (
            ("no separator", 'no separator "##"'),
            ("\u00e4## ##b", "nothing before the separator at byte 5"),
            ("a##", "nothing after the separator at byte 1"),
        ):
            with self.assertRaisesRegex(tessera.TesseraError, why):
                tessera.split_text(wrong, "##")


class TestStoreAndLoad(WithCache):
    def test_what_was_stored_comes_back_byte_for_byte(self):
        tokens = list(range(100, 164))
        kv = kv_of(tokens)
        self.assertEqual(self.space.store(tokens, kv), 64)
        found = self.space.lookup(tokens)
        self.assertTrue(found)
        self.assertEqual(found.prefix_tokens, 64)
        out = array.array("f", bytes(4 * len(kv)))
        self.assertEqual(self.space.load(found, shaped(out, 64)), 64)
        self.assertEqual(out, kv)

    def test_only_the_common_prefix_is_a_hit(self):
        tokens = list(range(64))
        self.space.store(tokens, kv_of(tokens))
        other = tokens[:40] + [9999] * 24
        found = self.space.lookup(other)
        self.assertEqual(found.prefix_tokens, 32)
        self.assertEqual([m.offset for m in found.matches], [0, 16])

    def test_a_second_store_is_not_new(self):
        tokens = list(range(32))
        self.assertEqual(self.space.store(tokens, kv_of(tokens)), 32)
        self.assertEqual(self.space.store(tokens, kv_of(tokens)), 0)

    def test_a_store_may_begin_behind_what_is_there(self):
        tokens = list(range(48))
        self.space.store(tokens[:32], kv_of(tokens[:32]))
        self.assertEqual(self.space.store(tokens, kv_of(tokens, 32), start=32), 16)
        out = array.array("f", bytes(4 * 48 * 2 * LAYERS * ROW))
        self.assertEqual(self.space.load(self.space.lookup(tokens), shaped(out, 48)), 48)
        self.assertEqual(out, kv_of(tokens))

    def test_adapter_salt_and_media_are_part_of_the_key(self):
        tokens = list(range(32))
        image = (4, 8, b"first image")
        self.space.store(tokens, kv_of(tokens), adapter="a", salt="s", media=[image])
        same = self.space.lookup(tokens, adapter="a", salt="s", media=[image])
        self.assertEqual(same.prefix_tokens, 32)
        for other in (
            dict(adapter="b", salt="s", media=[image]),
            dict(adapter="a", salt="t", media=[image]),
            dict(adapter="a", salt="s", media=[(4, 8, b"other image")]),
            dict(),
        ):
            self.assertFalse(self.space.lookup(tokens, **other), other)

    def test_a_segment_is_found_elsewhere(self):
        text = list(range(500, 600))
        self.space.store(text, kv_of(text), kind="segment")
        prompt = [1, 2, 3] + text + [7]
        found = self.space.lookup(prompt, segments=[(3, 100)])
        self.assertEqual(
            [(m.kind, m.offset, m.n_tokens) for m in found.matches], [("segment", 3, 100)]
        )
        self.assertEqual(self.space.lookup(prompt + [8], any_offset=True).tokens, 100)
        out = array.array("f", bytes(4 * 104 * 2 * LAYERS * ROW))
        self.assertEqual(self.space.load(found, shaped(out, 104), prefix_only=False), 100)
        self.assertEqual(shaped(out, 104)[0, 0, 3, 0], 500 * 1000)

    def test_a_segment_is_found_around_edits(self):
        text = list(range(500, 660))
        self.space.store(text, kv_of(text), kind="segment")
        edited = [7 if i % 20 == 10 else token for i, token in enumerate(text)]
        found = self.space.lookup([1, 2, 3, *edited, 8], any_offset=True)
        self.assertEqual(found.tokens, 152)
        self.assertEqual({(m.coverage, m.edits) for m in found.matches}, {("partial", True)})
        for m in found.matches:
            at = m.offset - 3
            self.assertEqual(
                edited[at : at + m.n_tokens], text[m.entry_offset : m.entry_offset + m.n_tokens]
            )

    def test_a_segment_is_found_by_the_context_it_was_computed_after(self):
        primer, text = list(range(300, 340)), list(range(500, 600))
        self.space.store(text, kv_of(text), kind="segment", context=primer, base=len(primer))
        for other in ((), primer[:-1], text):
            self.assertFalse(self.space.lookup(text, segments=[(0, 100)], context=other))
        found = self.space.lookup(text, segments=[(0, 100)], context=primer)
        self.assertEqual([(m.context, m.base) for m in found.matches], [("same", 40)])
        out = array.array("f", bytes(4 * 100 * 2 * LAYERS * ROW))
        self.assertEqual(self.space.load(found, shaped(out, 100), prefix_only=False), 100)
        self.assertEqual(out, kv_of(text))

    def test_spaces_share_nothing(self):
        tokens = list(range(32))
        self.space.store(tokens, kv_of(tokens))
        other = self.cache.space(**{**SHAPE, "model": "another"})
        self.assertFalse(other.lookup(tokens))
        self.assertNotEqual(other.fingerprint, self.space.fingerprint)

    def test_what_is_gone_is_not_loaded(self):
        tokens = list(range(32))
        self.space.store(tokens, kv_of(tokens))
        found = self.space.lookup(tokens)
        self.assertEqual(self.space.clear(tokens), 2)
        out = array.array("f", bytes(4 * 32 * 2 * LAYERS * ROW))
        self.assertEqual(self.space.load(found, shaped(out, 32)), 0)

    def test_an_array_of_tokens_may_grow_between_lookup_and_load(self):
        wanted = kv_of(list(range(32)))
        self.space.store(list(range(32)), wanted)
        given = [list(range(32)), array.array("I", range(32))]
        given += [Growing(range(32))]
        for tokens in given:
            found = self.space.lookup(tokens)
            tokens.extend(range(100000))
            tokens[0] = 77
            there = (ctypes.c_uint32 * 32).from_address(found._prompt.c.tokens)
            self.assertEqual(list(there), list(range(32)), type(tokens))
            out = array.array("f", bytes(4 * 32 * 2 * LAYERS * ROW))
            self.assertEqual(self.space.load(found, shaped(out, 32)), 32)
            self.assertEqual(out, wanted)

    def test_a_lease_keeps_entries_until_it_is_released(self):
        tokens = list(range(32))
        self.space.store(tokens, kv_of(tokens))
        self.space.lookup(tokens, request=7)
        self.assertEqual(self.cache.clear(), 0)
        self.assertEqual(self.cache.release(7), 2)
        self.assertEqual(self.cache.clear(), 2)

    def test_threads_may_store_and_look_up_at_once(self):
        failures = []

        def work(first):
            for n in range(20):
                tokens = [first * 1000 + n * 40 + i for i in range(32)]
                self.space.store(tokens, kv_of(tokens))
                if self.space.lookup(tokens).prefix_tokens != 32:
                    failures.append((first, n))

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])


class TestWatching(WithCache):
    def test_counters_tell_what_happened(self):
        tokens = list(range(32))
        self.space.store(tokens, kv_of(tokens))
        self.space.lookup(tokens)
        stats = self.cache.stats()
        self.assertEqual((stats["lookups"], stats["tokens_reused"], stats["entries"]), (1, 32, 2))
        self.assertEqual((stats["lookup_hits"], stats["lookup_misses"]), (1, 0))
        self.assertEqual(stats["tokens_cached"], 32)
        self.assertIn("tessera_", self.cache.stats_text())
        self.assertEqual([e["event"] for e in self.cache.events()], ["stored", "stored"])

    def test_keys_can_be_asked_for(self):
        tokens = list(range(40))
        keys = self.space.keys(tokens)
        self.assertEqual(self.cache.contains(keys), [-1, -1])
        self.space.store(tokens, kv_of(tokens))
        self.assertEqual(self.cache.contains(keys), [0, 0])

    def test_frozen_refuses_stores_and_goes_on_finding(self):
        tokens = list(range(32))
        self.space.store(tokens, kv_of(tokens))
        self.cache.freeze()
        with self.assertRaises(tessera.TesseraError) as caught:
            self.space.store([5] * 32, kv_of([5] * 32))
        self.assertEqual(caught.exception.code, -14)
        self.assertTrue(self.space.lookup(tokens))

    def test_log_lines_arrive(self):
        lines = []
        tessera.set_logger(lambda level, text: lines.append((level, text)), 3)
        self.addCleanup(tessera.set_logger, None)
        with tempfile.TemporaryDirectory() as folder:
            tessera.Cache(host_size="4M", disk_path=folder, **DISK).close()
        self.assertTrue(lines)


class TestErrors(WithCache):
    def test_an_unknown_option_says_which_one_was_meant(self):
        with self.assertRaisesRegex(tessera.TesseraError, "host_size"):
            tessera.Cache(host_sise="1G")

    def test_a_wrong_value_is_refused(self):
        with self.assertRaisesRegex(tessera.TesseraError, "host_size"):
            tessera.Cache(host_size="much")

    def test_a_locked_store_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            with tessera.Cache(host_size="4M", disk_path=folder, **DISK):
                with self.assertRaises(tessera.TesseraError):
                    tessera.Cache(host_size="4M", disk_path=folder, **DISK)

    def test_buffers_that_do_not_fit_are_refused(self):
        with self.assertRaises((ValueError, tessera.TesseraError)):
            self.space.store(list(range(32)), kv_of(list(range(16))))
        with self.assertRaisesRegex(ValueError, "row"):
            self.space.store(
                [1] * 16, memoryview(bytearray(2 * 2 * 16 * 3 * 4)).cast("f", (2, 2, 16, 3))
            )
        with self.assertRaisesRegex(TypeError, "read-only"):
            tokens = list(range(16))
            self.space.store(tokens, kv_of(tokens))
            self.space.load(self.space.lookup(tokens), bytes(4096))

    def test_a_closed_cache_says_so(self):
        cache = tessera.Cache(host_size="4M")
        cache.close()
        cache.close()
        with self.assertRaisesRegex(ValueError, "closed"):
            cache.stats()

    def test_a_dtype_that_does_not_exist(self):
        with self.assertRaisesRegex(ValueError, "f16"):
            self.cache.space(**{**SHAPE, "dtype": "fp7"})


class TestDisk(unittest.TestCase):
    def test_entries_survive_a_restart(self):
        tokens = list(range(64))
        with tempfile.TemporaryDirectory() as folder:
            options = dict(host_size="8M", disk_path=folder, **DISK)
            with tessera.Cache(**options) as cache:
                cache.space(**SHAPE).store(tokens, kv_of(tokens))
                cache.flush()
            with tessera.Cache(**options) as cache:
                space = cache.space(**SHAPE)
                out = array.array("f", bytes(4 * 64 * 2 * LAYERS * ROW))
                self.assertEqual(space.load(space.lookup(tokens), shaped(out, 64)), 64)
                self.assertEqual(out, kv_of(tokens))

    def test_where_a_segment_on_disk_was_computed_is_known_when_it_is_loaded(self):
        text = list(range(100, 132))
        with tempfile.TemporaryDirectory() as folder:
            options = dict(host_size="8M", disk_path=folder, **DISK)
            with tessera.Cache(**options) as cache:
                cache.space(**SHAPE).store(text, kv_of(text), kind="segment", base=77)
                cache.flush()
            with tessera.Cache(**options) as cache:
                space = cache.space(**SHAPE)
                found = space.lookup(text, segments=[(0, 32)])
                self.assertIsNone(found.matches[0].base)
                out = array.array("f", bytes(4 * 32 * 2 * LAYERS * ROW))
                self.assertEqual(space.load(found, shaped(out, 32), prefix_only=False), 32)
                self.assertEqual(found.matches[0].base, 77)


@needs_shared_memory
class TestDaemon(unittest.TestCase):
    def test_a_server_that_is_away_is_a_miss(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "nobody.sock")
            with tessera.Cache(owner="daemon", server_socket=path) as cache:
                self.assertFalse(cache.connected())
                self.assertFalse(cache.space(**SHAPE).lookup(list(range(32))))


@unittest.skipIf(numpy is None, "numpy is not installed")
class TestNumpy(WithCache):
    def test_arrays_of_any_strides(self):
        tokens = numpy.arange(64, dtype=numpy.uint32)
        kv = numpy.random.default_rng(1).random((64, 2, 2, 2, 4), dtype=numpy.float32)
        kv = kv.transpose(1, 2, 0, 3, 4)  # engines keep the token first
        self.assertEqual(self.space.store(tokens, kv), 64)
        out = numpy.zeros((2, 2, 64, 2, 4), dtype=numpy.float32)
        self.assertEqual(self.space.load(self.space.lookup(tokens), out), 64)
        self.assertTrue(numpy.array_equal(out, kv))


if __name__ == "__main__":
    unittest.main()
