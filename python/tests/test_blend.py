"""blend.h through its Python class: the library's plain executor computes the steps that Python is
given, and a prompt whose context was put in place that way is answered as one that was computed."""

import ctypes
import os
import tempfile
import unittest
from array import array
from ctypes import POINTER, Structure, byref, c_char_p, c_float, c_int, c_size_t, c_uint32, c_void_p

from sandbox import needs_shared_memory

from tessera import _c as c
from tessera._lib import TesseraError, declare, library
from tessera.blend import Ask, Blend, pass_table, pass_visible, primer_text
from tessera.owner import EngineCache

VOCAB = 128
SYSTEM, DOCUMENTS, QUESTION = 20, (70, 40, 66), 12
CONTEXT = SYSTEM + sum(DOCUMENTS)


class ModelConfig(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("path", c_char_p),
        ("n_threads", c_uint32),
        ("kv_dtype", c_uint32),
        ("weights", c_char_p),
        ("device", c_char_p),
        ("library", c_char_p),
        ("fail", c_void_p),
    ]


out = POINTER(c_void_p)
PROTOTYPES = {
    "tsr_executor_tiny": (c_void_p, []),
    "tsr_model_open": (c_int, [out, c_void_p, POINTER(ModelConfig)]),
    "tsr_model_close": (None, [c_void_p]),
    "tsr_model_info": (c_int, [c_void_p, POINTER(c.ModelInfo)]),
    "tsr_session_open": (c_int, [out, c_void_p, c_uint32]),
    "tsr_session_close": (None, [c_void_p]),
    "tsr_session_layout": (POINTER(c.KvLayout), [c_void_p]),
    "tsr_session_begin": (c_int, [c_void_p, POINTER(c.ModelPass)]),
    "tsr_session_layer": (c_int, [c_void_p, POINTER(c.ModelLayer)]),
    "tsr_session_deviation": (c_int, [c_void_p, POINTER(c.ModelDeviation)]),
    "tsr_session_narrow": (c_int, [c_void_p, POINTER(c_uint32), c_uint32]),
    "tsr_session_logits": (c_int, [c_void_p, POINTER(c_uint32), c_uint32, POINTER(c_float)]),
    "tsr_session_end": (None, [c_void_p]),
}


class Tiny:
    """A tiny model with one session; counts what it is asked to do, and may be told to fail."""

    def __init__(self):
        self.lib = library()
        declare(self.lib, PROTOTYPES)
        self.model, self.session = c_void_p(), c_void_p()
        config = ModelConfig(size=ctypes.sizeof(ModelConfig), path=b"qwen3 head_dim=8", kv_dtype=3)
        self.must(self.lib.tsr_model_open(byref(self.model), self.lib.tsr_executor_tiny(), config))
        self.info = c.ModelInfo(size=ctypes.sizeof(c.ModelInfo))
        self.must(self.lib.tsr_model_info(self.model, byref(self.info)))
        self.must(self.lib.tsr_session_open(byref(self.session), self.model, 512))
        self.layout = self.lib.tsr_session_layout(self.session).contents
        self.passes, self.layers, self.narrowed, self.masses = [], 0, 0, 0
        self.open, self.fails_at = False, -1

    def close(self):
        self.lib.tsr_session_close(self.session)
        self.lib.tsr_model_close(self.model)

    def must(self, result):
        assert result >= 0, result

    def begin(self, rows):
        self.passes.append((rows.n_rows, list(pass_table(rows)[:3]), pass_visible(rows)))
        self.must(self.lib.tsr_session_begin(self.session, byref(rows)))
        self.open = True

    def layer(self, layer, mass):
        if layer == self.fails_at:
            raise ArithmeticError("as told")
        step = c.ModelLayer(size=ctypes.sizeof(c.ModelLayer), layer=layer)
        if mass is not None:
            step.n_mass = len(mass)
            step.mass = ctypes.cast(mass, POINTER(c_float))
            self.masses += 1
        self.must(self.lib.tsr_session_layer(self.session, byref(step)))
        self.layers += 1

    def deviation(self, layer, k, v):
        step = c.ModelDeviation(size=ctypes.sizeof(c.ModelDeviation), layer=layer, k=k, v=v)
        self.must(self.lib.tsr_session_deviation(self.session, byref(step)))

    def narrow(self, keep):
        self.must(self.lib.tsr_session_narrow(self.session, keep, len(keep)))
        self.narrowed += 1

    def end(self):
        self.lib.tsr_session_end(self.session)
        self.open = False

    def abandon(self):
        self.end()

    def answer(self, tokens, first):
        """Logits of the last token, with rows computed from `first` on."""
        rows = (c.ModelRow * (len(tokens) - first))(
            *[c.ModelRow(tokens[i], i, i) for i in range(first, len(tokens))]
        )
        order = c.ModelPass(
            size=ctypes.sizeof(c.ModelPass), rows=rows, n_rows=len(rows), n_groups=1
        )
        group = order._fields_[4][1]._type_(n_rows=len(rows), n_ranges=1)
        group.sees[0].n_tokens = len(tokens)
        order.groups = ctypes.pointer(group)
        self.must(self.lib.tsr_session_begin(self.session, byref(order)))
        for layer in range(self.info.n_layers):
            step = c.ModelLayer(size=ctypes.sizeof(c.ModelLayer), layer=layer)
            self.must(self.lib.tsr_session_layer(self.session, byref(step)))
        logits = (c_float * VOCAB)()
        last = c_uint32(len(rows) - 1)
        self.must(self.lib.tsr_session_logits(self.session, byref(last), 1, logits))
        self.lib.tsr_session_end(self.session)
        return list(logits)


def prompt(order):
    """(tokens, segments): a system prompt, documents in this order, a question."""
    lengths = [SYSTEM] + [DOCUMENTS[i] for i in order]
    seeds = [1] + [10 + i for i in order]
    tokens, segments = array("I"), []
    for seed, n in zip(seeds + [2], lengths + [QUESTION]):
        segments.append((len(tokens), n))
        tokens.extend((seed * 7919 + i * (i + seed)) % VOCAB for i in range(n))
    return tokens, segments[:-1]


@needs_shared_memory
class TestBlend(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        path = os.path.join(self.folder.name, "s.sock")
        self.options = dict(host_size="16M", server_socket=path)
        self.owner = EngineCache(self.options, "unit", True)
        self.client = EngineCache(self.options, "unit", False)
        self.assertTrue(self.client.connected(5000))
        self.tiny = Tiny()
        self.blend = Blend(self.client.handle, self.tiny.info, min_tokens=0)

    def tearDown(self):
        self.blend.close()
        self.tiny.close()
        self.client.close()
        self.owner.close()
        self.folder.cleanup()

    def ask(self, order, **more):
        tokens, segments = prompt(order)
        ask = Ask(tokens.tobytes(), segments, system=True, **more)
        return tokens, self.blend.run(ask, self.tiny.layout, self.tiny)

    def test_everything_computed_is_a_prefill(self):
        tokens, report = self.ask((2, 0, 1), ratio=1.0)
        mine = self.tiny.answer(tokens, CONTEXT)
        self.assertEqual(report["selector"], "full")
        self.assertEqual(report["n_filled"], CONTEXT)
        self.assertEqual(mine, self.tiny.answer(tokens, 0))

    def test_documents_are_found_in_another_order_without_a_pass(self):
        self.ask((0, 1, 2), ratio=0.0)
        n_passes = len(self.tiny.passes)
        tokens, report = self.ask((2, 0, 1), ratio=0.0)
        self.assertEqual(len(self.tiny.passes), n_passes)
        self.assertEqual(report["n_exact"] + report["n_reused"], CONTEXT)
        self.assertEqual(report["n_filled"], 0)
        self.assertEqual(report["tiers"].split()[0], str(CONTEXT))
        self.assertNotEqual(self.tiny.answer(tokens, CONTEXT), self.tiny.answer(tokens, 0))

    def test_passes_say_what_their_rows_see(self):
        self.ask((0, 1, 2), ratio=0.0)
        ((n_rows, first, visible),) = self.tiny.passes
        self.assertEqual((n_rows, first[1:]), (CONTEXT, [0, 0]))
        self.assertEqual(
            visible,
            [
                (20, [(0, 20)]),
                (70, [(0, 90)]),
                (40, [(0, 20), (90, 130)]),
                (66, [(0, 20), (130, 196)]),
            ],
        )

    def test_selectors_ask_for_what_they_need(self):
        self.ask((0, 1, 2), ratio=0.0)
        _tokens, report = self.ask((1, 2, 0), selector="query", ratio=0.2)
        self.assertEqual(report["selector"], "query")
        self.assertEqual(self.tiny.masses, 1)  # of three layers, the last third
        self.assertEqual(self.tiny.passes[-2][0], QUESTION)
        self.assertEqual(self.tiny.passes[-1][0], report["n_recomputed"])
        _tokens, report = self.ask((1, 2, 0), selector="hkvd", ratio=0.2)
        self.assertGreater(self.tiny.narrowed, 0)
        self.assertGreater(report["n_recomputed"], 10)
        self.assertEqual(report["bias"], 0)

    def test_an_executor_that_fails_ends_the_run_and_the_next_one_works(self):
        self.tiny.fails_at = 1
        with self.assertRaises(ArithmeticError):
            self.ask((0, 1, 2), ratio=1.0)
        self.assertFalse(self.tiny.open)
        self.tiny.fails_at = -1
        _tokens, report = self.ask((0, 1, 2), ratio=1.0)
        self.assertEqual(report["n_filled"], CONTEXT)

    def test_salts_share_nothing(self):
        self.ask((0, 1, 2), ratio=0.0)
        other = Blend(self.client.handle, self.tiny.info, min_tokens=0, salt=b"tenant")
        tokens, segments = prompt((0, 1, 2))
        report = other.run(
            Ask(tokens.tobytes(), segments, True, ratio=0.0), self.tiny.layout, self.tiny
        )
        self.assertEqual(report["n_filled"], CONTEXT)
        other.close()

    def test_what_is_forgotten_is_computed_again(self):
        self.ask((0, 1, 2), ratio=0.0)
        tokens, segments = prompt((0, 1))
        ask = Ask(tokens.tobytes(), segments, True)
        self.assertEqual(self.blend.forget(ask), 3)
        _tokens, report = self.ask((2, 1, 0), ratio=0.0)
        self.assertEqual(report["n_filled"], CONTEXT - DOCUMENTS[2])

    def test_behind_a_primer_documents_serve_every_system_prompt(self):
        profile = os.path.join(self.folder.name, "primer.yaml")
        with open(profile, "w") as file:
            file.write("context: primer\nprimer: A text.\n")
        self.assertEqual(primer_text(profile), "A text.")
        self.assertIsNone(primer_text(None))
        self.assertIn("\n", primer_text(None, any_system=True))  # the neutral text
        with self.assertRaisesRegex(TesseraError, "no tokens"):
            Blend(self.client.handle, self.tiny.info, profile)
        self.blend.close()
        self.blend = Blend(self.client.handle, self.tiny.info, profile, 0, primer=range(30))
        self.assertEqual(self.blend.n_primer, 30)
        tokens, report = self.ask((0, 1, 2), ratio=0.0)
        (n_rows, _first, alone), (_n_rows, _first, visible), *_more = self.tiny.passes
        behind = (len(tokens), len(tokens) + 30)
        self.assertEqual((n_rows, alone), (30, [(30, [behind])]))
        self.assertEqual(visible[1], (70, [behind, (20, 90)]))
        self.assertEqual(report["n_exact"], SYSTEM)
        passes = len(self.tiny.passes)
        tokens, segments = prompt((2, 0, 1))
        tokens[:SYSTEM] = array("I", range(SYSTEM))
        ask = Ask(tokens.tobytes(), segments, system=True, ratio=0.0)
        report = self.blend.run(ask, self.tiny.layout, self.tiny)
        self.assertEqual(report["n_filled"], SYSTEM)
        self.assertEqual(report["n_reused"], sum(DOCUMENTS))
        self.assertEqual([n for n, *_rest in self.tiny.passes[passes:]], [SYSTEM])
        # Three documents, the system prompt and the primer; then everything is computed again.
        self.assertEqual(self.blend.forget(ask), 5)
        passes = len(self.tiny.passes)
        self.blend.run(ask, self.tiny.layout, self.tiny)
        self.assertEqual([n for n, *_rest in self.tiny.passes[passes:]], [30, CONTEXT])

    def test_what_makes_no_sense_is_refused_in_the_librarys_words(self):
        with self.assertRaisesRegex(TesseraError, "context of 5 tokens"):
            self.ask((0, 1, 2), n_context=5)
        bad = c.ModelInfo.from_buffer_copy(self.tiny.info)
        bad.n_layers = 0
        with self.assertRaisesRegex(TesseraError, "0 layers"):
            Blend(self.client.handle, bad)
        with self.assertRaises(TesseraError):
            Blend(self.client.handle, self.tiny.info, profile="/nowhere/profile.yaml")


if __name__ == "__main__":
    unittest.main()
