"""Tessera below SGLang's radix trees with tensor parallelism: two processes with a gloo group, each
with SGLang's real tree, allocator and pool, and KV of its own. Both must take the same decisions,
whatever one of them cannot find, load or write (radix_kit.py)."""

import datetime
import multiprocessing
import os
import random
import tempfile
import traceback
import unittest

import torch
from radix_kit import CHUNK, Engine

from tessera.sglang import radix

TOKENS = list(range(100, 100 + 5 * CHUNK + 3))
WORLD = 2


def rank_main(rank, scenario, folder, results):
    """One rank, in a process of its own."""
    try:
        torch.distributed.init_process_group(
            "gloo",
            init_method=f"file://{folder}/group",
            rank=rank,
            world_size=WORLD,
            timeout=datetime.timedelta(seconds=60),
        )
        results.put((rank, scenario(rank, torch.distributed.group.WORLD, folder)))
    except BaseException:
        results.put((rank, traceback.format_exc()))
    results.close()
    results.join_thread()
    os._exit(0)


def opened(group, **options):
    engine = Engine(group=group, **options)
    assert isinstance(engine.tree, radix.TesseraRadixCache)
    return engine


def ended(engine):
    """What is left when everything has been evicted."""
    engine.lose()
    sizes = engine.slots.available_size(), engine.tree.evictable_size()
    state = sizes, len(engine.tree._writes), len(engine.tree._offers)
    engine.close()
    return state


FREE = ((512, 0), 0, 0)


def found_again(engine, expected):
    """Tokens that are loaded after the trees have lost them. On a busy machine a lookup of the rank
    that is a client may take too long, which is a miss: it is tried again."""
    for _ in range(5):
        engine.lose()
        found = engine.run(TOKENS)
        if found == expected:
            break
    return found


def loads(rank, group, folder):
    out = []
    for mla in (False, True):
        for page in (1, 4, 16):
            engine = opened(group, page=page, mla=mla, model=f"{mla} {page}")
            found = [engine.run(TOKENS), found_again(engine, 5 * CHUNK)]
            out.append((found, ended(engine)))
    return out


def one_rank_has_less(rank, group, folder):
    engine = opened(group)
    engine.run(TOKENS)
    pool, found = engine.tree._pool, []
    match, load = pool.match, pool.load
    if rank == 1:
        pool.match = lambda tokens, *more: match(tokens[: 3 * CHUNK], *more)
    found.append(found_again(engine, 3 * CHUNK))
    pool.match = match
    if rank == 0:
        pool.load = lambda tokens, count, *more: load(tokens, min(count, 2 * CHUNK), *more)
    found.append(found_again(engine, 2 * CHUNK))

    def broken(*args):
        raise OSError("gone")

    for name, expected in (("match", 0), ("load", 0), ("store_start", 5 * CHUNK)):
        if rank == 1:
            setattr(pool, name, broken)
        found.append(found_again(engine, expected))
        pool.match, pool.load = match, load
    return found, ended(engine)


def pressure(rank, group, folder):
    """One rank's writes end late or are refused at random, and it forgets entries."""
    engine = opened(group, size=256)
    chance = random.Random(rank)
    pool = engine.tree._pool
    written, start, match = pool.written, pool.store_start, pool.match
    late = []

    def written_late():
        late.extend(written())
        return [late.pop(0) for _ in range(chance.randrange(len(late) + 1))]

    def start_or_not(*args):
        return chance.random() < 0.8 and start(*args)

    def match_less(tokens, *more):
        return max(0, match(tokens, *more) - chance.choice((0, 0, CHUNK, 2 * CHUNK)))

    if rank == 1:
        pool.written, pool.store_start, pool.match = written_late, start_or_not, match_less
    tokens = random.Random(7)
    beginnings = [[tokens.randrange(9000) for _ in range(150)] for _ in range(4)]
    found = []
    for _ in range(120):
        prompt = tokens.choice(beginnings)[: tokens.randrange(150)]
        prompt = prompt + [tokens.randrange(9000) for _ in range(tokens.randrange(1, 40))]
        found.append((engine.run(prompt), engine.tree.evictable_size(), engine.waited))
    if rank == 1:
        pool.written = written
        engine.tree._ended.update(late)
    return found, ended(engine)


def one_writes_latents(rank, group, folder):
    engine = opened(group, mla=True)
    started = []
    start = engine.tree._pool.store_start

    def watched(*args):
        started.append(start(*args))
        return started[-1]

    engine.tree._pool.store_start = watched
    engine.run(TOKENS)
    found = [found_again(engine, 5 * CHUNK)]
    engine.written()
    engine.tree.reset()
    engine.slots.clear()
    found.append(engine.run(TOKENS))
    found.append(found_again(engine, 5 * CHUNK))
    return started, found, ended(engine)


def one_cannot_start(rank, group, folder):
    from sglang.srt.mem_cache.radix_cache import RadixCache

    radix.default_radix_cache_factory = lambda context: RadixCache(context.params)
    kinds = []
    for bad in (0, 1):
        options = dict(host_sise="1G") if rank == bad else {}
        kinds.append(type(Engine(group=group, **options).tree).__name__)
    return kinds


def no_blending(rank, group, folder):
    engine = opened(group, blend="true")
    engine.run(TOKENS)
    return engine.tree._blends is None, found_again(engine, 5 * CHUNK), ended(engine)


def restart(rank, group, folder):
    disk = dict(disk_path=f"{folder}/disk", disk_size="64M", disk_segment_size="4M")
    first = opened(group, **disk)
    first.run(TOKENS)
    state = ended(first)
    torch.distributed.barrier()
    second = opened(group, **disk)
    found = second.run(TOKENS) or found_again(second, 5 * CHUNK)
    return found, state, ended(second)


class TestRanks(unittest.TestCase):
    def both(self, scenario):
        """What each rank returned."""
        context = multiprocessing.get_context("fork")
        folder = self.enterContext(tempfile.TemporaryDirectory())
        os.makedirs(f"{folder}/disk")
        results = context.Queue()
        ranks = [
            context.Process(target=rank_main, args=(rank, scenario, folder, results))
            for rank in range(WORLD)
        ]
        for process in ranks:
            process.start()
        found = dict(results.get(timeout=300) for _ in ranks)
        for process in ranks:
            process.join(30)
        for rank in range(WORLD):
            self.assertNotIsInstance(found[rank], str, f"rank {rank}: {found[rank]}")
        return [found[rank] for rank in range(WORLD)]

    def test_what_the_trees_have_lost_is_loaded(self):
        for rank in self.both(loads):
            self.assertEqual(rank, [([0, 5 * CHUNK], FREE)] * 6)

    def test_a_hit_is_what_every_rank_has_and_has_loaded(self):
        for rank in self.both(one_rank_has_less):
            self.assertEqual(rank, ([3 * CHUNK, 2 * CHUNK, 0, 0, 5 * CHUNK], FREE))

    def test_trees_stay_the_same_under_pressure(self):
        first, second = self.both(pressure)
        self.assertEqual(first, second)
        self.assertEqual(first[1], ((256, 0), 0, 0))
        total = sum(found for found, _size, _waited in first[0])
        print(f"    {total} tokens found, {first[0][-1][2]} rounds waited")
        self.assertGreater(total, 1000)

    def test_one_rank_writes_latents_and_all_read_them(self):
        first, second = self.both(one_writes_latents)
        self.assertEqual(second[0], [])
        self.assertTrue(first[0] and all(first[0]))
        for rank in (first, second):
            self.assertEqual(rank[1:], ([5 * CHUNK, 0, 5 * CHUNK], FREE))

    def test_a_rank_that_cannot_start_turns_it_off_on_all(self):
        self.assertEqual(self.both(one_cannot_start), [["RadixCache"] * 2] * 2)

    def test_ranks_do_not_blend_and_still_reuse_prefixes(self):
        for rank in self.both(no_blending):
            self.assertEqual(rank, (True, 5 * CHUNK, FREE))

    def test_hits_survive_a_restart_through_the_disk(self):
        for rank in self.both(restart):
            self.assertEqual(rank, (5 * CHUNK, FREE, FREE))


if __name__ == "__main__":
    unittest.main(verbosity=2)
