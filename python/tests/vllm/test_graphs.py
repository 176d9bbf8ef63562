"""Layers that are replayed give what the executor gives. The kernels are interpreted on the CPU,
and "recorded" work is called again; on a GPU python/tests/gpu does the same with real graphs."""

import os
import tempfile
import unittest
from types import SimpleNamespace
from unittest import mock

os.environ["TRITON_INTERPRET"] = "1"  # before it is imported

import torch  # noqa: E402
from test_pieces import APART, job_of, kept_kv, open_worker  # noqa: E402
from test_places import (  # noqa: E402
    BLOCK,
    BLOCKS,
    CONTEXT,
    CPU,
    KV_HEADS,
    LAYERS,
    Cache,
    Impl,
    answered,
    blended,
    caches_of,
    pages_of,
    parts_of,
)

from tessera.blend_job import BlendSettings  # noqa: E402
from tessera.compute.executor import BlendExecutor  # noqa: E402
from tessera.vllm import graphs, paged  # noqa: E402
from tessera.vllm.graphs import LayerGraphs  # noqa: E402

SIZES = 16, 128
BEHIND, LANES = 64, 2
paged.PROGRAMS = 8  # the interpreter is slow
PROFILE = "gate: {constant: -5}\ngate_limit: 0.5\nrounds: [0.1, 0.3]\ndraft: 5\n"


class Writer(Impl):
    """Rows whose slot is -1 are not written, as by vLLM's kernel."""

    def do_kv_cache_update(self, attn, keys, values, cache, slots):
        real = slots >= 0
        super().do_kv_cache_update(attn, keys[real], values[real], cache, slots[real])


def noise(*shape, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def opened():
    """A model, its pages by lane, and its layers recorded."""
    parts = parts_of()
    for layer in parts.layers:
        layer.self_attn.attn.impl = Writer()
    with torch.inference_mode():
        lanes = pages_of(parts, caches_of(True)).lanes(LANES, BEHIND)
        return parts, lanes, LayerGraphs(parts, lanes, lambda work: work, SIZES)


class Recording(BlendExecutor):
    """As the worker's."""

    made: LayerGraphs

    def __init__(self, parts, place, attention=None):
        super().__init__(parts, place, attention)
        self.recorded = self.made.lanes[place.lane]


class TestPaged(unittest.TestCase):
    """The attention over pages."""

    def setUp(self):
        self.n_kv, self.group, self.dim = 2, 3, 16
        shape = 9, 4, self.n_kv, self.dim
        keys, values = noise(*shape[:-1], 2 * self.dim).split(self.dim, -1)
        behind = noise(2, 40, self.n_kv, self.dim, seed=2)
        tables = torch.tensor([[5, 2, 8, 1, 7, 0, 0], [3, 4, 6, 1, 0, 0, 0]])
        self.at = paged.Keys(keys, values, behind[0], behind[1], tables)

    def all_of(self, lane, n_context, n_keys):
        slots = torch.arange(n_context)
        where = self.at.table[lane, slots // 4], slots % 4
        first, n = lane * self.at.n_slots, n_keys - n_context
        return [
            torch.cat([plane[where], after[first : first + n]])
            for plane, after in (
                (self.at.keys, self.at.keys_behind),
                (self.at.values, self.at.values_behind),
            )
        ]

    def check(self, prompts, n_all=16):
        """prompts: by lane, (n_context, slots, n_weighed, n_mass) of its rows, if it has some."""
        heads = self.n_kv * self.group
        q = noise(n_all, heads, self.dim, seed=3)
        counts, lanes = (torch.zeros(n_all, dtype=torch.int32) for _ in range(2))
        facts = torch.zeros((2, len(paged.Facts._fields)), dtype=torch.int32)
        out, mass = torch.full_like(q, 9.0), torch.full((2, 100), 0.5)
        want_mass, first, wanted = mass.clone(), 0, []
        for lane, told in enumerate(prompts):
            if told is None:
                continue
            n_context, slots, n_weighed, n_mass = told
            n_keys, end = max(slots) + 1, first + len(slots)
            counts[first:end], lanes[first:end] = torch.tensor(slots) + 1, lane
            of_lane = paged.Facts(n_context, n_keys, end, n_weighed, n_mass)
            facts[lane] = torch.tensor(of_lane, dtype=torch.int32)
            planes = self.all_of(lane, n_context, n_keys)
            for row, slot in enumerate(slots, first):
                k, v = (x[: slot + 1].repeat_interleave(self.group, 1) for x in planes)
                weights = (torch.einsum("hd,khd->hk", q[row], k) * 0.3).softmax(-1)
                wanted.append(torch.einsum("hk,khd->hd", weights, v))
                if row >= end - n_weighed:
                    looked = weights.mean(0)[:n_mass]
                    want_mass[lane, : len(looked)] += looked
            first = end
        whole = paged.attend(q, self.at, lanes, counts, facts, 0.3, out)
        paged.look(q, self.at, counts, facts, 0.3, whole, mass)
        torch.testing.assert_close(out[:first], torch.stack(wanted), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(mass, want_mass, rtol=1e-4, atol=1e-5)
        self.assertEqual(float(out[first:].abs().sum()), 0.0, "rows that fill up a size")

    def test_rows_see_pages_and_what_is_behind_them(self):
        for n_context, slots in (
            (18, [0, 3, 17, 18, 30]),
            (18, [2, 9]),
            (0, [5, 6, 19]),
            (20, [25]),
        ):
            for n_weighed, n_mass in ((0, 0), (1, 18), (len(slots), 25)):
                for lane in range(2):
                    prompts = [None, None]
                    prompts[lane] = min(n_context, 16 if lane else 20), slots, n_weighed, n_mass
                    with self.subTest(prompts=prompts):
                        self.check(prompts)

    def test_rows_of_two_prompts_see_their_own_keys(self):
        self.check([(18, [0, 3, 17, 18, 30], 2, 18), (11, [4, 10, 11, 20], 0, 0)])
        self.check([(0, [1, 4], 0, 0), (11, [1, 2, 25], 3, 26)])
        many = list(range(30))  # several tiles of rows, one of them with rows of both
        self.check([(18, many, 30, 30), (13, many, 1, 9)], 64)

    def test_forms_that_the_kernels_do_not_read_are_named(self):
        self.assertIsNone(self.at.why_not)
        keys, values = self.at.keys, self.at.values
        behind = self.at.keys_behind, self.at.values_behind, self.at.table
        turned = keys.transpose(1, 3).contiguous().transpose(1, 3)
        self.assertIn("side by side", paged.Keys(turned, turned, *behind).why_not)
        self.assertIn("orders", paged.Keys(keys, values.contiguous(), *behind).why_not)


class TestGraphs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.parts, cls.lanes, cls.made = opened()  # every layer is interpreted once
        cls.pages = cls.lanes[1]
        Recording.made = cls.made

    def setUp(self):
        self.cache = Cache()
        self.addCleanup(self.cache.close)
        self.made.n_replayed = self.made.n_shared = 0

    def both(self, ask, *how):
        """Of pages without graphs and with them."""
        plain = parts_of()
        without = ask(plain, pages_of(plain, caches_of(True)), *how, b"without")
        return without, ask(self.parts, self.pages, *how, b"replayed")

    def test_blends_with_every_selector(self):
        def ask(parts, pages, order, ratio, selector, salt):
            kind = Recording if pages is self.pages else BlendExecutor
            return blended(parts, pages, self.cache, order, ratio, selector, salt, executor=kind)

        for order in ((0, 1, 2), (2, 0, 1)):
            for ratio, selector in ((0.0, "none"), (0.3, "query"), (0.3, "hkvd"), (0.3, "link")):
                with self.subTest(order=order, selector=selector):
                    before = self.made.n_replayed
                    (want, also), (got, told) = self.both(ask, order, ratio, selector)
                    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
                    self.assertEqual(told["n_recomputed"], also["n_recomputed"])
                    replayed = self.made.n_replayed - before
                    if selector == "query":  # the question's pass, and that of what it chose
                        self.assertEqual(replayed, 2 * (LAYERS - 1))
                    elif selector == "none":
                        self.assertEqual(replayed, 0)

    def test_questions_with_drafts_and_rounds(self):
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as profile:
            profile.write(PROFILE)
            profile.flush()

            def ask(parts, pages, order, salt):
                kind = Recording if pages is self.pages else BlendExecutor
                return answered(parts, pages, self.cache, order, salt, profile.name, base=kind)

            for order in ((0, 1, 2), (2, 0, 1)):
                want, got = self.both(ask, order)
            torch.testing.assert_close(got[0], want[0], rtol=1e-3, atol=1e-4)
            torch.testing.assert_close(got[2], want[2], rtol=1e-3, atol=1e-4)
            self.assertEqual(got[1]["n_rounds"], want[1]["n_rounds"])
            self.assertGreater(self.made.n_replayed, 5 * (LAYERS - 1), "every token of a draft")

    @torch.inference_mode()
    def test_other_blocks_keep_their_bytes(self):
        caches = self.pages._caches
        for cache in caches:
            cache.fill_(7.0)
        for ratio in (0.0, 0.3):
            blended(self.parts, self.pages, self.cache, (0, 1, 2), ratio, "query" if ratio else
                    "none", b"other", executor=Recording)  # fmt: skip
        mine = set(self.pages.slots.tolist())
        for cache in caches:
            by_slot = cache.transpose(1, 2).reshape(BLOCKS * BLOCK, -1)
            for slot in range(BLOCKS * BLOCK):
                self.assertEqual(bool((by_slot[slot] == 7.0).all()), slot not in mine)

    @torch.inference_mode()
    def test_what_does_not_fit_is_left_to_the_executor(self):
        rows = graphs.Rows(torch.arange(SIZES[-1] + 1), CPU)
        blocks = list(range(-(-CONTEXT // BLOCK)))
        self.pages.prepare(blocks, BLOCK, CONTEXT, 30)
        some, lane = torch.zeros(len(rows), 64), self.made.lanes[1]
        self.assertFalse(lane.begin(rows, rows.device, some))
        few = graphs.Rows(torch.arange(9), CPU)
        self.assertTrue(lane.begin(few, few.device, some[:9]))
        lane.leave()
        self.pages.prepare(blocks, BLOCK, CONTEXT, 1024)
        self.assertFalse(lane.begin(few, few.device, some[:9]), "more behind than usual")
        self.assertIsNot(self.pages.behind, self.pages.usual)

    @torch.inference_mode()
    def test_who_comes_later_or_is_too_much_does_not_join(self):
        for pages in self.lanes:
            pages.prepare(list(range(-(-CONTEXT // BLOCK))), BLOCK, CONTEXT, 30)
        first, second = self.made.lanes
        some = torch.zeros(70, 64)

        def begins(lane, n):
            rows = graphs.Rows(torch.arange(n), CPU)
            return lane.begin(rows, rows.device, some[:n])

        self.assertEqual([begins(first, 60), begins(second, 70)], [True, False], "too many")
        self.assertTrue(begins(second, 60))
        first.layer(0, 0)
        self.assertEqual(self.made.n_replayed, 0, "it did not wait for the other one")
        with self.assertRaises(RuntimeError):
            first.layer(1, 0)
        second.layer(0, 0)
        self.assertEqual((self.made.n_replayed, self.made.n_shared), (1, 1))
        first.leave()
        self.assertFalse(begins(first, 9), "the other one has gone on")
        second.layer(1, 0)
        self.assertEqual((self.made.n_replayed, self.made.n_shared), (2, 1))
        second.leave()
        self.assertTrue(begins(first, 9))
        first.leave()

    @torch.inference_mode()
    def test_blends_at_once_share_their_layers(self):
        """Also with one that leaves in the middle of its pass, to be narrowed."""
        ways = ((2, 0, 1), 0.3, "query"), ((1, 0, 2), 0.3, "query"), ((0, 2, 1), 0.3, "hkvd")
        jobs = [
            job_of(i, order, ratio, at, selector=selector)
            for i, ((order, ratio, selector), at) in enumerate(zip(ways, APART))
        ]
        recording = [Recording(self.parts, place) for place in self.lanes]
        plain = parts_of()
        places = pages_of(plain, caches_of(True)).lanes(LANES, BEHIND)
        found = []
        for lanes, executors in (
            (places, [BlendExecutor(plain, place) for place in places]),
            (self.lanes, recording),
        ):
            worker, _lanes = open_worker(self, lanes, executors)
            self.assertTrue(worker.run(job_of(9, (0, 1, 2), 0.0)).ok)
            found.append([kept_kv(worker, jobs[i : i + 2], 10000) for i in range(2)])
            self.assertEqual(worker._complaints, set())
        for (want, also), (got, told) in zip(*found):
            self.assertEqual(want.keys(), got.keys())
            for number, kv in want.items():
                torch.testing.assert_close(got[number], kv, rtol=1e-4, atol=1e-5)
                n = also[number]["n_recomputed"]
                self.assertEqual(told[number]["n_recomputed"], n)
        self.assertGreaterEqual(self.made.n_shared, 2 * (LAYERS - 1))

    def test_the_check_before_use(self):
        executors = [BlendExecutor(self.parts, pages) for pages in self.lanes]
        with torch.inference_mode():
            self.assertIsNone(self.made.off(executors))
            self.assertGreater(self.made.n_replayed, 0)
            self.assertIsNone(executors[1].recorded)  # the caller decides
            right = self.made._replays[1, SIZES[0]]

            def wrong():
                right()
                self.made._residual.neg_()

            with mock.patch.dict(self.made._replays, {(1, SIZES[0]): wrong}):
                self.assertIn("off", self.made.off(executors))

    @torch.inference_mode()
    def test_every_layer_has_run_before_it_is_recorded(self):
        ran, recorded = [], []

        class Watched(LayerGraphs):
            def _work(self, layer, n):
                ran.append((layer, n))

        def record(work):
            recorded.append(work.args)
            self.assertIn(work.args, ran)
            return work

        Watched(self.parts, self.lanes, record, SIZES)
        self.assertEqual(sorted(recorded), sorted((i, n) for i in range(LAYERS - 1) for n in SIZES))

    def test_a_recording_that_fails_leaves_the_engine_its_stream(self):
        class Failing:
            def __init__(self, *_args, **_kwargs):
                pass

            def __enter__(self):
                streams.append("ours")

            def __exit__(self, *_args):  # as torch's, after a recording that CUDA has given up
                raise RuntimeError("capture invalidated")

        streams = ["the engine's"]
        cuda = SimpleNamespace(
            graph_pool_handle=mock.Mock(), Stream=mock.Mock(), CUDAGraph=mock.Mock(),
            graph=Failing, current_stream=lambda _device: streams[-1], set_stream=streams.append,
        )  # fmt: skip
        with mock.patch.object(torch, "cuda", cuda):
            record = graphs.cuda_graphs(CPU)
            with self.assertRaisesRegex(RuntimeError, "invalidated"):
                record(lambda: None)
        self.assertEqual(streams, ["the engine's", "ours", "the engine's"])

    def test_engines_that_can_sleep_have_no_graphs_or_no_room_record_none(self):
        from tessera.vllm import blend

        def opened_by(worker, sleeps, mode, free=8 << 30):
            config = SimpleNamespace(
                model_config=SimpleNamespace(enable_cumem_allocator=sleeps),
                compilation_config=SimpleNamespace(cudagraph_mode=SimpleNamespace(name=mode)),
            )
            with (
                mock.patch.object(blend, "cuda_graphs"),
                mock.patch.object(torch.cuda, "mem_get_info", lambda device: (free, 80 << 30)),
                mock.patch.object(blend, "LayerGraphs") as made,
            ):
                made.return_value.off.return_value = None
                made.return_value.seconds = 0.0
                made.return_value.lanes = [object() for _ in range(3)]
                lanes = worker._open_graphs(config, lane)
                recorded = [one.executor.recorded for one in lanes or ()]
                self.assertIn(recorded, ([], made.return_value.lanes))
                return lanes is not None

        worker = blend.BlendWorker.__new__(blend.BlendWorker)
        worker._world, worker._parts = 1, self.parts
        worker._settings = BlendSettings(at_once=3)
        worker._kernels = blend.OwnKernels(self.parts)
        pages = pages_of(self.parts, caches_of(True))
        lane = blend._Lane(pages, BlendExecutor(self.parts, pages))
        lane.executor.attention.fused = mock.Mock()
        self.assertTrue(opened_by(worker, False, "FULL"))
        self.assertFalse(opened_by(worker, True, "FULL"))
        self.assertFalse(opened_by(worker, False, "NONE"))
        self.assertFalse(opened_by(worker, False, "FULL", 1 << 30))

    @torch.inference_mode()
    def test_slots_behind_a_context_are_those_of_the_usual_place(self):
        self.assertEqual(self.pages.keys(1).keys_behind.shape[1], KV_HEADS)
        at = self.pages.usual.kv.data_ptr()
        self.pages.prepare([1], BLOCK, 5, 1024)
        self.pages.rest()
        self.pages.prepare([1], BLOCK, 5, 20)
        self.assertEqual(self.pages.usual.kv.data_ptr(), at)


if __name__ == "__main__":
    unittest.main()
