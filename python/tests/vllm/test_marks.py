"""Which requests are blended, and that what is blended stays apart, under vLLM's real schedulers.

blend_rig.py has the fake model and the fake blender. vLLM's own prefix cache is on.
"""

import random
import unittest
import unittest.mock
from array import array
from collections import Counter, OrderedDict, deque

import numpy
from blend_rig import BlendRig, document
from rig import BLOCK, BLOCKS
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.tokenizers import cached_tokenizer_from_config
from vllm.v1.request import Request, RequestStatus

from tessera import TesseraError
from tessera.blend_job import BadBlend, blend_settings
from tessera.cache import Cache
from tessera.separators import Separators, spellings
from tessera.vllm import metrics
from tessera.vllm.blend import BlendWorker
from tessera.vllm.marks import checked_segments, read_wishes
from tessera.vllm.messages import TesseraHandshake


class MarksTest(unittest.TestCase):
    def rig(self, *args, **more):
        rig = BlendRig(*args, **more)
        self.addCleanup(rig.close)
        return rig


PROMPT = document(1, 50) + document(2, 45) + [5, 6, 7]
SEGMENTS = [[0, 50], [50, 45]]


class TestWishes(MarksTest):
    """What a client may write, and what is malformed."""

    def test_segments(self):
        self.assertEqual(checked_segments([[0, 4], [6, 2]], False, 9), ((0, 4), (6, 2)))
        for given, system in (
            ([], False),
            ("0,4", False),
            ([[0]], False),
            ([[0, 4, 1]], False),
            ([["0", 4]], False),
            ([[0, True]], False),
            ([[0, 0]], False),
            ([[-1, 4]], False),
            ([[0, 4], [3, 2]], False),
            ([[4, 2], [0, 2]], False),
            ([[0, 9]], False),
            ([[1, 4]], True),
            ([[0, 1]] * 5000, False),
        ):
            with self.subTest(given=str(given)[:40]), self.assertRaises(BadBlend):
                checked_segments(given, system, 9)

    def test_keys_and_types(self):
        self.assertIsNone(read_wishes(None))
        self.assertIsNone(read_wishes({"do_remote_prefill": True}))
        both = {"segments": [[0, 4]], "hints": [{"action": "pin", "seconds": 60}]}
        self.assertEqual(read_wishes({"tessera": both}), both)
        for given in (5, {"segment": []}, {"blend": 1}, {"system": "yes"}, {"any_offset": None}):
            with self.subTest(given=given), self.assertRaises(BadBlend):
                read_wishes({"tessera": given})

    def test_settings(self):
        self.assertIsNone(blend_settings({}))
        self.assertIsNone(blend_settings({"blend": False}))
        self.assertEqual(blend_settings({"blend": {"separators": "##"}}).separators, ("##",))
        self.assertEqual(blend_settings({"blend": True}).at_once, 1)
        self.assertEqual(blend_settings({"blend": {"at_once": 8}}).at_once, 8)
        for given in (
            "yes",
            {"ratios": 1},
            {"ratio": 1.5},
            {"ratio": 10**400},
            {"ratio": True},
            {"ratio": float("nan")},
            {"selector": "best"},
            {"separators": [""]},
            {"min_tokens": -1},
            {"from_traffic": "yes"},
            {"any_system": 1},
            {"first": "best"},
            {"at_once": 0},
            {"at_once": 9},
            {"at_once": True},
            {"at_once": 2.0},
        ):
            with self.subTest(given=given), self.assertRaises(BadBlend):
                blend_settings({"blend": given})


class TestSeparators(MarksTest):
    @classmethod
    def setUpClass(cls):
        rig = BlendRig()
        cls.tokenizer = cached_tokenizer_from_config(rig.config.model_config)
        rig.close()

    def tokens(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False)

    def test_every_context_is_found(self):
        with Cache(host_size="16M") as cache:
            for separator in ("##", "\n\n", " <|doc|> ", "<|im_end|>", "§§", "\n###\n"):
                found = spellings(self.tokenizer, separator)
                self.assertTrue(found, separator)
                cutter = Separators(cache._open(), found)
                for before in ("Be brief.", "A list:\n", "It ends "):
                    for behind in ("The sea is deep.", " and then", "\nNext", "42"):
                        text = f"{before}{separator}A first document.{separator}{behind}"
                        chunks = cutter.split(array("I", self.tokens(text)))
                        with self.subTest(text=text):
                            self.assertEqual(len(chunks), 3)
                cutter.close()

    def test_what_is_no_separator_is_none(self):
        with Cache(host_size="16M") as cache:
            cutter = Separators(cache._open(), spellings(self.tokenizer, "##"))
            self.assertIsNone(cutter.split(array("I", self.tokens("No mark here, # only one."))))
            for text in ("A##", "A####B", "##"):
                tokens = self.tokens("A") + self.tokens("##") * text.count("##")
                with self.subTest(text=text), self.assertRaises(TesseraError):
                    cutter.split(array("I", tokens))
            cutter.close()

    def test_requests_are_cut_and_counted(self):
        rig = self.rig(blend={"separators": ["##"], "min_tokens": 1})
        rig.ask("unmarked", self.tokens("A plain prompt without any mark in it."))
        rig.run_all()
        self.assertEqual(rig.counters, {"blend_unseen": 1})
        text = "You are helpful.##The first document.##The second one.##What is it?"
        tokens = self.tokens(text)
        rig.ask("marked", tokens)
        rig.ask("plain", self.tokens("Another plain prompt."))
        rig.run_all()
        (job,) = rig.blender.jobs
        self.assertEqual(len(job.segments), 3)
        self.assertTrue(job.system)
        self.assertEqual(self.tokenizer.decode(tokens[job.n_context :]), "What is it?")
        self.assertEqual(rig.counters["blend_unseen"], 1)  # seen by now
        self.assertEqual(rig.counters["blend_requests"], 1)

    def test_a_malformed_prompt_is_a_plain_request(self):
        rig = self.rig(blend={"separators": ["##"], "min_tokens": 1})
        with self.assertLogs("vllm.tessera", "WARNING") as log:
            for i in range(3):
                rig.ask(f"r{i}", self.tokens("Be brief.") + self.tokens("##") * 2 + [77, 78])
                told = rig.run_all()
                self.assertFalse(told[f"r{i}"]["tessera"]["blended"])
        self.assertEqual(len(log.output), 1)
        self.assertEqual(rig.counters, {"blend_malformed": 3})
        self.assertEqual(rig.blender.jobs, [])

    def test_what_a_client_sends_is_not_echoed_at_length(self):
        rig = self.rig()
        with self.assertLogs("vllm.tessera", "WARNING") as log:
            rig.ask("long", PROMPT, wishes="x" * 100000)
            rig.ask("lines", document(3, 60), wishes={"a\nb": 1})
        told = rig.run_all()
        self.assertLess(len(log.output[0]), 500)
        self.assertLess(len(told["long"]["tessera"]["reason"]), 400)
        self.assertNotIn("\n", told["lines"]["tessera"]["reason"])

    def test_bad_settings_cost_blending_and_nothing_else(self):
        with self.assertLogs("vllm.tessera", "WARNING") as log:
            rig = self.rig(blend={"separators": ["##"], "selector": "best"})
        self.assertIn("selector 'best'", log.output[0])
        self.assertIsNone(rig.blending)
        rig.ask("r", PROMPT, wishes={"segments": SEGMENTS})
        rig.run_all()


class TestRequests(MarksTest):
    def test_a_marked_request_is_blended(self):
        rig = self.rig()
        rig.ask("r", PROMPT, wishes={"segments": SEGMENTS, "ratio": 0.25, "selector": "link"})
        output, _ = rig.step()
        self.assertEqual(output.num_scheduled_tokens, {"r": 3})
        (job,) = rig.blender.jobs
        self.assertEqual(array("I", PROMPT).tobytes(), job.tokens)
        self.assertEqual(job.segments, ((0, 50), (50, 45)))
        self.assertEqual((job.n_context, job.system), (95, False))
        self.assertEqual((job.ratio, job.selector, job.salt), (0.25, "link", b""))
        self.assertEqual(len(job.context_blocks(BLOCK)), 6)
        told = rig.run_all()["r"]["tessera"]
        self.assertTrue(told["blended"])
        self.assertEqual(told["n_reused"], 94)
        self.assertEqual(rig.counters["blend_requests"], 1)
        self.assertEqual(rig.counters["blend_runs"], 1)
        self.assertEqual(rig.counters["blend_tokens_reused"], 94)
        self.assertEqual(rig.counters["blend_seconds"], 0.5)
        self.assertEqual((rig.blending._blended, rig.blending._by_number), ({}, {}))

    def test_defaults_and_off(self):
        rig = self.rig(blend={"ratio": 0.125, "selector": "hkvd", "min_tokens": 1})
        rig.ask("default", PROMPT, wishes={"segments": SEGMENTS, "system": True})
        rig.run_all()
        rig.ask("zero", PROMPT, wishes={"segments": SEGMENTS, "ratio": 0})
        rig.run_all()
        rig.ask("off", PROMPT, wishes={"segments": SEGMENTS, "blend": False})
        rig.ask("unmarked", PROMPT)
        rig.run_all()
        default, zero = rig.blender.jobs
        self.assertEqual((default.ratio, default.selector, default.system), (0.125, "hkvd", True))
        self.assertEqual(zero.ratio, 0)

    def test_short_ones_are_not_worth_it(self):
        rig = self.rig(blend={"min_tokens": 96})
        rig.ask("r", PROMPT, wishes={"segments": SEGMENTS})
        rig.run_all()
        self.assertEqual(rig.counters, {"blend_short": 1})
        self.assertEqual(rig.blender.jobs, [])

    def test_salts_are_part_of_every_key(self):
        rig = self.rig()
        for i, salt in enumerate(("a", "b", "a", None)):
            request = rig.ask(f"r{i}", PROMPT, wishes={"segments": SEGMENTS}, cache_salt=salt)
            self.assertNotEqual(request.cache_salt, salt)
            rig.run_all()
        salts = [job.salt for job in rig.blender.jobs]
        self.assertEqual(salts[0], salts[2])
        self.assertEqual(len(set(salts)), 3)
        self.assertEqual(salts[3], b"")

    def test_what_is_not_a_plain_prompt_is_never_blended(self):
        rig = self.rig()
        image = [
            MultiModalFeatureSpec(
                data=None,
                modality="image",
                identifier="cat",
                mm_position=PlaceholderRange(offset=0, length=8),
            )
        ]
        logprobs = SamplingParams(
            max_tokens=2,
            prompt_logprobs=1,
            extra_args={"kv_transfer_params": {"tessera": {"segments": SEGMENTS}}},
        )
        connector = rig.scheduler.connector
        for more in (
            dict(mm_features=image),
            dict(lora_request=LoRARequest("poems", 1, "/nonexistent/poems")),
            dict(sampling_params=logprobs),
        ):
            params = SamplingParams(max_tokens=2)
            params.extra_args = {"kv_transfer_params": {"tessera": {"segments": SEGMENTS}}}
            request = Request("r", list(PROMPT), more.pop("sampling_params", params), None, **more)
            connector.on_new_request(request)
            self.assertFalse(connector._blending.has("r"), more)
            request.status = RequestStatus.FINISHED_ABORTED
            _held, told = connector.request_finished_all_groups(request, ([],))
            self.assertFalse(told["tessera"]["blended"], more)

    def test_text_at_any_offset(self):
        rig = self.rig(blend={"any_offset": True, "min_tokens": 40})
        asked = []

        def known(tokens, salt, _plain):
            asked.append(salt)
            return (64, 80) if tokens[0] == PROMPT[0] else (39, 80)

        rig.blending.matcher = known
        rig.ask("known", PROMPT, cache_salt="tenant")  # the rest is the question
        rig.ask("unknown", list(reversed(PROMPT)))
        rig.run_all()
        (job,) = rig.blender.jobs
        self.assertTrue(job.any_offset)
        self.assertEqual((job.segments, job.n_context), ((), 80))
        self.assertEqual(asked, [job.salt, b""])

    def test_a_worker_that_cannot_is_one_line(self):
        rig = self.rig()
        connector = rig.scheduler.connector
        with self.assertLogs("vllm.tessera", "WARNING") as log:
            connector.set_xfer_handshake_metadata({0: TesseraHandshake(None, "model Gpt2")})
        self.assertEqual(len(log.output), 1)
        self.assertIn("exact reuse only", log.output[0])
        self.assertIn("model Gpt2", log.output[0])
        rig.ask("r", PROMPT, wishes={"segments": SEGMENTS})
        rig.run_all()
        self.assertEqual(rig.blender.jobs, [])

    def test_off_unless_switched_on(self):
        rig = self.rig(blend=False)
        self.assertIsNone(rig.blending)
        rig.ask("r", PROMPT, wishes={"segments": SEGMENTS})
        rig.run_all()
        self.assertEqual(rig.blender.jobs, [])


class TestMetrics(MarksTest):
    def test_every_counter_is_shown_and_grows_once(self):
        rig = self.rig(blend={"separators": ["##"], "min_tokens": 64})
        marks = {"blended": SEGMENTS, "short": [[0, 5]], "malformed": [[0, 500]], "unseen": None}
        for name, segments in marks.items():
            rig.ask(name, PROMPT, wishes={"segments": segments} if segments else None)
            rig.run_all()
        rig.blender.fail = lambda _job: True
        rig.ask("failed", PROMPT, wishes={"segments": SEGMENTS})
        rig.run_all()
        connector = rig.scheduler.connector
        connector._told_at, connector._told = 0.0, {}
        stats = connector.get_kv_connector_stats()
        shown = stats.reduce()
        for name, value in {**rig.counters}.items():
            self.assertIn(name, metrics._SHOWN)
            self.assertEqual(shown[f"tessera {name}"], value)
        self.assertEqual(shown["tessera blend_requests"], 2)
        self.assertEqual(shown["tessera blend_seconds"], 0.75)
        for name in ("short", "malformed", "unseen", "failed", "runs"):
            self.assertEqual(shown[f"tessera blend_{name}"], 1, name)
        connector._told_at = 0.0
        self.assertIsNone(connector.get_kv_connector_stats())


class TestApart(MarksTest):
    """Blended KV never enters an exact cache, and exact KV is not taken for blended."""

    def computed(self, rig, name, tokens, wishes=None):
        """Tokens of a prompt that its first step found in vLLM's cache, and in ours."""
        seen = {}
        connector = rig.scheduler.connector
        original = connector.get_num_new_matched_tokens

        def watched(request, n_computed):
            found = original(request, n_computed)
            seen.setdefault(request.request_id, (n_computed, found[0]))
            return found

        connector.get_num_new_matched_tokens = watched
        rig.ask(name, tokens, wishes=wishes)
        rig.run_all()
        connector.get_num_new_matched_tokens = original
        return seen[name]

    def test_a_plain_request_finds_nothing_of_a_blended_one(self):
        rig = self.rig(save_decode=True)
        self.assertEqual(self.computed(rig, "b", PROMPT, {"segments": SEGMENTS}), (0, 95))
        self.assertEqual(rig.worker._worker.stats()["tokens_saved"], 0)
        self.assertEqual(self.computed(rig, "p", PROMPT), (0, 0))

    def test_a_blended_request_finds_nothing_of_a_plain_one(self):
        rig = self.rig(save_decode=True)
        self.assertEqual(self.computed(rig, "p", PROMPT), (0, 0))
        self.assertEqual(self.computed(rig, "b", PROMPT, {"segments": SEGMENTS}), (0, 95))
        self.assertEqual(self.computed(rig, "b2", PROMPT, {"segments": SEGMENTS}), (0, 95))
        self.assertEqual(self.computed(rig, "p2", PROMPT), (96, 0))

    def test_a_failed_blend_is_computed_whole_and_stays_apart(self):
        for asynchronous in (False, True):
            for runner in (1, 2):
                with self.subTest(asynchronous=asynchronous, runner=runner):
                    rig = self.rig(asynchronous, save_decode=True, runner=runner)
                    rig.blender.fail = lambda _job: True
                    request = rig.ask("b", PROMPT, wishes={"segments": SEGMENTS})
                    rig.step()
                    self.assertEqual(request.num_computed_tokens, 0)
                    told = rig.run_all()["b"]["tessera"]
                    rig.check_answers()
                    self.assertFalse(told["blended"])
                    self.assertEqual(len(rig.blender.jobs), 1)
                    self.assertEqual(rig.counters["blend_failed"], 1)
                    self.assertNotIn("blend_runs", rig.counters)
                    self.assertEqual(self.computed(rig, "p", PROMPT), (0, 0))

    def test_a_blender_that_raises_is_a_failed_load(self):
        rig = self.rig()
        rig.blender.fail = lambda _job: 1 // 0
        rig.ranks[0].check_loads = lambda: None
        rig.ask("b", PROMPT, wishes={"segments": SEGMENTS})
        rig.run_all()
        self.assertEqual(self.computed(rig, "p", PROMPT), (0, 0))

    def test_a_preempted_request_is_blended_anew_or_finds_its_own_blocks(self):
        for lost in (False, True):
            with self.subTest(lost=lost):
                rig = self.rig()
                request = rig.ask("b", PROMPT, 30, wishes={"segments": SEGMENTS})
                for _ in range(4):
                    rig.step()
                rig.preempt(request)
                if lost:  # others needed the memory
                    rig.scheduler.kv_cache_manager.reset_prefix_cache()
                rig.run_all()
                self.assertEqual(len(rig.blender.jobs), 2 if lost else 1)
                self.assertEqual(rig.counters["blend_requests"], 1)

    def test_a_failed_request_that_is_preempted_is_not_blended_again(self):
        rig = self.rig()
        rig.blender.fail = lambda _job: True
        request = rig.ask("b", PROMPT, 30, wishes={"segments": SEGMENTS})
        for _ in range(6):
            rig.step()
        rig.preempt(request)
        rig.scheduler.kv_cache_manager.reset_prefix_cache()
        rig.run_all()
        self.assertEqual(len(rig.blender.jobs), 1)

    def test_what_is_blended_when_the_connector_gives_up_is_computed(self):
        for asynchronous in (False, True):
            with self.subTest(asynchronous=asynchronous):
                rig = self.rig(asynchronous)
                rig.ranks[0].may_fail = True
                rig.ranks[0].check_loads = lambda: None

                def broken(request, *args, allocated=rig.scheduler.connector._allocated):
                    if request.request_id == "p":
                        raise OSError("out of order")
                    allocated(request, *args)

                rig.scheduler.connector._allocated = broken
                blended = rig.ask("b", PROMPT, wishes={"segments": SEGMENTS})
                rig.ask("p", document(3, 60))
                with self.assertLogs("vllm.tessera", "WARNING"):
                    rig.step()
                self.assertEqual(blended.num_computed_tokens, 0)
                rig.run_all()
                self.assertEqual(rig.blender.jobs, [])

    def test_a_rank_that_has_given_up_lets_no_other_wait(self):
        rig = self.rig(ranks=2)
        for one in rig.ranks:
            one.may_fail = True
            one.check_loads = lambda: None

        rig.ranks[1].connector._abandon("out of order")
        request = rig.ask("b", PROMPT, wishes={"segments": SEGMENTS})
        with self.assertLogs("vllm.tessera", "WARNING"):
            rig.step()
        self.assertEqual([one.blender.n_declined for one in rig.ranks], [0, 1])
        self.assertEqual(request.num_computed_tokens, 0)

    def test_after_a_reset_nothing_old_is_found(self):
        rig = self.rig()
        asked = []
        rig.blending.matcher = lambda _tokens, salt, _plain: (asked.append(salt), (0, 0))[1]
        request = rig.ask("b", PROMPT, 30, wishes={"segments": SEGMENTS})
        rig.step()
        self.assertTrue(rig.scheduler.reset_prefix_cache(True, reset_connector=True))
        rig.run_all()
        self.assertEqual(request.status, RequestStatus.FINISHED_LENGTH_CAPPED)
        rig.ask("c", document(4, 40) + PROMPT, wishes={"segments": SEGMENTS}, cache_salt="tenant")
        rig.run_all()
        rig.ask("d", document(5, 40), wishes={"any_offset": True})
        rig.run_all()
        old, again, tenant = (job.salt for job in rig.blender.jobs)
        self.assertEqual(old, b"")
        self.assertEqual(len({old, again, tenant}), 3)
        self.assertEqual(asked, [again])
        plain = [job.plain_salt for job in rig.blender.jobs]
        since = rig.scheduler.connector._since
        self.assertEqual(plain, ["", since, since + "tenant"])  # also of one that lived before

    def test_a_worker_drops_what_was_before_a_reset(self):
        worker = BlendWorker.__new__(BlendWorker)
        old = [unittest.mock.Mock(), unittest.mock.Mock()]
        new = unittest.mock.Mock()
        worker._era, worker._used, worker._old = b"", Counter(), set()
        worker._blends = OrderedDict({b"": old[0], b"aa": old[1]})
        self.assertIs(worker._opened(b"aa"), old[1])
        old[1].clear.assert_not_called()
        worker._blends[b"era/"] = new  # as if it were open
        worker._era = b"era"
        self.assertIs(worker._opened(b"era/"), new)
        worker._era = b"before"
        worker._settings = worker._cache = worker._info = unittest.mock.Mock()
        worker._engine_salt, worker._rank, worker._world, worker._primer = None, 0, 1, ()
        worker.traffic = None
        with unittest.mock.patch("tessera.vllm.blend.Blend") as made:
            self.assertIs(worker._opened(b"era/"), made.return_value)
        for one in (*old, new):
            one.clear.assert_called_once()
            one.close.assert_called_once()


def every_fifth():
    """Fails every fifth blend and every fifth document learned. Not by chance: how many there are
    of either depends on when saves end, and at least one must fail."""
    counts = Counter()

    def fail(job):
        counts[job.learn] += 1
        return counts[job.learn] % 5 == 2

    return fail


class TestSchedules(MarksTest):
    """Blended and plain requests of the same texts together: preemptions, aborts, failures."""

    def schedules(self, asynchronous, depth, seed, n_requests, ranks=1, pieces=1, runner=1):
        chance = random.Random(seed)
        rig = self.rig(asynchronous, save_decode=True, ranks=ranks, runner=runner)
        for one in rig.ranks:
            one.blender.pieces = pieces
        rig.ranks[-1].blender.fail = every_fifth()
        rig.blending.segment_matcher = lambda *_asked: chance.choice((0, 1 << 20))
        flight, live, made = deque(), [], 0
        while made < n_requests or flight or rig.scheduler.has_requests():
            while made < n_requests and (not live or chance.random() < 0.5):
                made += 1
                live.append(f"r{made}")
                self.add(rig, chance, live[-1])
            output, sampling = rig.schedule()
            flight.append((output, rig.execute(output, sampling)))
            while flight and (len(flight) > depth or not output.num_scheduled_tokens):
                rig.update(*flight.popleft())
            if live and chance.random() < 0.02:
                rig.scheduler.finish_requests(live.pop(), RequestStatus.FINISHED_ABORTED)
            live = [name for name in live if name in rig.scheduler.requests]
        rig.drain()
        rig.check_answers()
        counters = rig.counters
        print(
            f"    {n_requests} requests, {counters}, {rig.preemptions} preemptions, "
            f"{rig.checked} positions compared"
        )
        self.assertGreater(rig.preemptions, 0)
        self.assertGreater(counters["blend_failed"], 0)
        self.assertGreater(counters["blend_runs"], counters["blend_requests"] // 2)
        self.assertEqual(rig.scheduler.connector._complaints, set())
        self.assertEqual([one.connector._complaints for one in rig.ranks], [set()] * ranks)
        self.assertEqual((rig.blending._blended, rig.blending._refused), ({}, {}))
        self.assertFalse(rig.blending.learning.busy)
        self.assertGreater(counters["blend_first"], 0)
        self.assertGreater(counters["blend_tokens_learned"], 0)
        free = rig.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        self.assertEqual(free, BLOCKS - 1, "blocks were never given back")

    def test_blends_of_aborted_requests_are_not_begun_or_stop(self):
        rig = self.rig(True)
        rig.blender.pieces = 6
        prompts = [document(i, 60) + [i, 6, 7] for i in range(4)]
        for i, prompt in enumerate(prompts):
            rig.ask(f"r{i}", prompt, wishes={"segments": [[0, 60]]})
        rig.step()
        for name in ("r0", "r1"):  # of which the first was begun
            rig.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
        told = rig.run_all()
        blended = {name for name in ("r2", "r3") if told[name]["tessera"]["blended"]}
        self.assertEqual(blended, {"r2", "r3"})
        blender = rig.blender
        self.assertEqual((blender.n_dropped, blender.n_stopped, len(blender.jobs)), (1, 1, 2))
        self.assertNotIn("blend_failed", rig.counters)
        self.assertEqual(rig.blending.take_aborted(), [])
        free = rig.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        self.assertEqual(free, BLOCKS - 1, "blocks were never given back")

    def add(self, rig, chance, name):
        texts = [document(chance.randrange(4), chance.choice((20, 33, 48))) for _ in range(3)]
        question = [int(name[1:])] + [chance.randrange(900) for _ in range(chance.randrange(30))]
        wishes = None
        if chance.random() < 0.5:
            edges = numpy.cumsum([0] + [len(text) for text in texts]).tolist()
            wishes = {"segments": [[a, b - a] for a, b in zip(edges, edges[1:])]}
        rig.ask(name, sum(texts, []) + question, chance.randrange(1, 48), wishes)

    def test_synchronous(self):
        self.schedules(False, 0, 1, 120)

    def test_asynchronous_one_step_ahead(self):
        self.schedules(True, 1, 2, 160)

    def test_asynchronous_two_steps_ahead(self):
        self.schedules(True, 2, 3, 160)

    def test_asynchronous_with_blends_that_take_several_steps(self):
        self.schedules(True, 1, 5, 160, pieces=4)
        self.schedules(True, 2, 6, 120, pieces=9)

    def test_two_ranks_of_which_one_fails(self):
        self.schedules(False, 0, 4, 80, ranks=2)

    def test_model_runner_v2(self):
        self.schedules(False, 0, 7, 120, runner=2)
        self.schedules(True, 1, 8, 120, runner=2)
        self.schedules(False, 0, 9, 80, ranks=2, pieces=3, runner=2)


if __name__ == "__main__":
    unittest.main(verbosity=2)
