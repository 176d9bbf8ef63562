"""Nothing that Python is given is cut on its way into C: not a text at a NUL, not an integer."""

import ctypes
import unittest
from array import array

import test_structs

import tessera
from tessera import _c as c
from tessera import _checked, _connector, _kvpool, blend, pages

SHAPE = dict(model="unit", dtype="f32", n_layers=2, n_heads=2, k_dim=4, block_tokens=16)


def is_text(kind):
    return kind is ctypes.c_char_p or getattr(kind, "_type_", None) is ctypes.c_char


class TestFields(unittest.TestCase):
    def fields(self, wanted):
        for struct in test_structs.STRUCTS:
            for field in struct._fields_:
                if wanted(field[1]) and field[0] not in struct._sized_:
                    yield struct, field[0], field[1]

    def test_every_integer_is_within_its_field(self):
        count = 0
        for struct, name, kind in self.fields(lambda kind: kind in _checked.LIMITS):
            low, high = _checked.LIMITS[kind]
            for value in (low, high):
                row = struct(**{name: value})
                self.assertEqual(getattr(row, name) or 0, value)
            for value in (low - 1, high + 1, 1 << 70):
                with self.assertRaises(OverflowError, msg=f"{struct}.{name}"):
                    struct(**{name: value})
                with self.assertRaises(OverflowError, msg=f"{struct}.{name}"):
                    setattr(struct(), name, value)
            count += 1
        self.assertGreater(count, 200)

    def test_no_text_has_a_nul(self):
        count = 0
        for struct, name, _kind in self.fields(is_text):
            self.assertEqual(getattr(struct(**{name: b"text"}), name), b"text")
            for value in (b"\0", b"a\0", b"a\0b"):
                with self.assertRaises(ValueError, msg=f"{struct}.{name}"):
                    struct(**{name: value})
            count += 1
        self.assertGreater(count, 10)

    def test_a_text_in_a_struct_keeps_its_end(self):
        self.assertEqual(c.ModelInfo(architecture=b"x" * 31).architecture, b"x" * 31)
        with self.assertRaises(ValueError):
            c.ModelInfo(architecture=b"x" * 32)

    def test_fields_by_place_and_rows_of_arrays_are_checked_too(self):
        with self.assertRaises(OverflowError):
            c.Range(0, 1 << 32)
        with self.assertRaises((OverflowError, RuntimeError)):
            (c.Range * 1)((0, 1 << 32))
        with self.assertRaises(OverflowError):
            _checked.packed_rows(c.StepRow, _connector._STEP_ROW, [(1, 1 << 32, 0, 0, 0, 0, 0)])

    def test_rows_packed_at_once_are_those_of_the_struct(self):
        fields = (1 << 60, 2, 3, 4, 5, 6, 7)
        table = _checked.packed_rows(c.StepRow, _connector._STEP_ROW, [fields, fields])
        self.assertEqual(bytes(table), 2 * bytes(c.StepRow(*fields)))


class TestArguments(unittest.TestCase):
    def test_every_number_is_within_its_argument(self):
        for name, (_result, kinds) in c.FUNCTIONS.items():
            for kind, checked in zip(kinds, _checked.arguments(kinds)):
                if kind is ctypes.c_void_p or kind not in _checked.LIMITS:
                    continue
                low, high = _checked.LIMITS[kind]
                for value in (low - 1, high + 1):
                    with self.assertRaises(OverflowError, msg=name):
                        checked.from_param(value)
                checked.from_param(low), checked.from_param(high)

    def test_bytes_without_a_length_are_texts(self):
        for name, (_result, kinds) in c.FUNCTIONS.items():
            for kind, behind in zip(kinds, [*kinds[1:], None]):
                if kind is ctypes.c_char_p:
                    self.assertIs(behind, ctypes.c_size_t, name)

    def test_a_text_has_no_nul(self):
        with self.assertRaises(ValueError):
            _checked.Text.from_param(b"a\0b")
        _checked.Text.from_param(b"ab"), _checked.Text.from_param(None)


class TestCalls(unittest.TestCase):
    def setUp(self):
        self.cache = tessera.Cache(host_size="4M")
        self.addCleanup(self.cache.close)

    def test_two_names_never_become_one_space(self):
        for name in ("model", "tokenizer", "adapter", "salt", "rope"):
            desc = {**SHAPE, name: "tenant"}
            self.cache.space(**desc)
            for text in ("tenant\0", "tenant\0a", "\0"):
                with self.assertRaises(ValueError, msg=name) as caught:
                    self.cache.space(**{**desc, name: text})
                self.assertIn(name, str(caught.exception))
                self.assertNotIn("tenant", str(caught.exception))

    def test_an_integer_is_never_another_one(self):
        for (
            name
        ) in "n_layers n_heads k_dim v_dim layer_first rank world group block_tokens".split():
            for value in (-1, 1 << 32, (1 << 32) + SHAPE.get(name, 0)):
                with self.assertRaises(OverflowError, msg=name):
                    self.cache.space(**{**SHAPE, name: value})
        space = self.cache.space(**SHAPE)
        for bad in (-1, 1 << 32):
            with self.assertRaises(OverflowError):
                space.lookup([1, 2, bad])
            with self.assertRaises(OverflowError):
                space.lookup([1, 2, 3], segments=[(0, bad)])
            with self.assertRaises(OverflowError):
                space.lookup([1, 2, 3], media=[(bad, 1, b"x")])
        for call in (
            lambda: space.lookup([1], request=1 << 64),
            lambda: self.cache.clear(tier=1 << 32),
            lambda: space.clear(tier=-(1 << 32)),
        ):
            self.assertRaises(OverflowError, call)
        for call in (
            lambda: self.cache.release(-1),
            lambda: self.cache.evict(1 << 64),
            lambda: self.cache.connected(1 << 31),
        ):
            self.assertRaises(ctypes.ArgumentError, call)

    def test_options_have_no_nul(self):
        with self.assertRaisesRegex(ValueError, "host_size"):
            tessera.Cache(host_size="4M\0G")
        for options in ({"owner\0": "process"}, {"file": "a\0b"}):
            with self.assertRaises(ctypes.ArgumentError):
                tessera.Cache(**options)

    def test_keys_are_whole(self):
        for key in (b"", b"x" * 15, b"x" * 17):
            with self.assertRaises(ValueError):
                self.cache.contains([key])

    def test_salts_of_requests_may_be_any_bytes_and_are_told_apart(self):
        space = self.cache.space(**SHAPE)
        tokens = list(range(16))
        kv = array("f", bytes(4 * 2 * 2 * 16 * 8))
        self.assertEqual(space.store(tokens, kv, salt="a\0b"), 16)
        self.assertEqual(space.lookup(tokens, salt="a\0b").tokens, 16)
        self.assertEqual(space.lookup(tokens, salt="a\0c").tokens, 0)
        self.assertEqual(space.lookup(tokens, salt="a").tokens, 0)


class TestLengths(unittest.TestCase):
    """What C is told the length of is that long."""

    def test_names_of_pages_that_differ_are_other_pages(self):
        key = "ab" * 32
        names = [key, key.upper(), " " + key[:-1], key[:-2] + "  ", "é" * 64]
        digests = {pages._digest(name) for name in names}
        self.assertEqual(len(digests), len(names))
        self.assertEqual({len(digest) for digest in digests}, {32})

    def test_pages_have_a_key_each(self):
        for call in (pages.Pages.load, pages.Pages.store):
            with self.assertRaises(ValueError):
                call(None, ["a"], [1, 2])

    def test_slots_are_as_many_as_tokens(self):
        tokens, slots = array("I", range(8)), array("q", range(8))
        extra = (c.Extra * 0)()
        self.assertEqual(_kvpool.slots_desc(tokens, 8, 0, slots, extra).n_tokens, 8)
        for bad in (
            (tokens, 9, 0, None),
            (tokens, 4, 5, None),
            (tokens, 8, -1, None),
            (tokens, 8, 0, slots[:7]),
            (tokens, 8, 0, array("i", range(8))),
            (array("Q", range(8)), 8, 0, None),
        ):
            with self.assertRaises(ValueError):
                _kvpool.slots_desc(*bad, extra)

    def test_tokens_of_a_question_are_whole(self):
        with self.assertRaises(ValueError):
            blend._packed(blend.Ask(b"12345"))


if __name__ == "__main__":
    unittest.main()
