"""rig.py with a blender that writes other bytes than the model would: a plain request that reads
blended KV fails its comparison, and so does a blended one that reads anything else. vLLM's own
prefix cache is on."""

import random
from array import array

import numpy
from rig import BLOCK, Rank, Rig, expected_kv
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash

from tessera.blend_job import BlendOutcome

APPROXIMATE, SCRATCH = 0x5A, 0xEE
init_none_hash(sha256)
HASHER = get_request_block_hasher(BLOCK, sha256)


def document(number, n):
    """Tokens that no other document has in this order."""
    return [1000 + number * 97 % 800 + i * 7 % 650 for i in range(n)]


class FakeBlender:
    """Writes recognisable KV into the blocks of a context; fails when asked to."""

    model = b""  # for a matcher, which the tests bring along

    def __init__(self, rank):
        self.rank = rank
        self.jobs, self.learned = [], []
        self.learners = set()
        self.names = {}  # of requests, by their tokens
        self.fail = lambda _job: False
        self.n_declined = self.n_dropped = self.n_stopped = 0
        self.queue = []
        self.pieces = 1  # steps that a blend between steps takes

    def close(self):
        pass

    def decline(self):
        self.n_declined += 1

    def add(self, job):
        if job.learn:
            self.learners.add(job.number)
        self.queue.append([job, self.pieces, False])

    def drop(self, number):
        """The first one is begun, and waits for something."""
        for row in self.queue:
            if row[0].number == number and row is self.queue[0]:
                row[2] = True
                return False
            if row[0].number == number:
                self.queue.remove(row)
                self.n_dropped += 1
                return True
        return False

    @property
    def busy(self):
        return bool(self.queue)

    def advance(self, budget, wait_s):
        assert budget > 0 and wait_s >= 0
        done = []
        while self.queue and (self.queue[0][1] == 1 or self.queue[0][2]):
            job, _, stopped = self.queue.pop(0)
            self.n_stopped += stopped
            if stopped:
                done.append(BlendOutcome(job.number, False, {}, 0.25, stopped=True))
            else:
                done.append(self.run(job))
        if self.queue:
            self.queue[0][1] -= 1
        return done

    def run(self, job):
        if job.learn:
            return self.learn(job)
        self.jobs.append(job)
        tokens = array("I")
        tokens.frombytes(job.tokens)
        whole = self.rank.expected[self.names[job.tokens]]
        exact = expected_kv(tokens[: job.n_context], self.rank.rank)
        whole[:, : job.n_context] = exact
        if self.fail(job):  # everything is then computed
            return BlendOutcome(job.number, False, {}, 0.25)
        whole[:, : job.n_context] ^= APPROXIMATE
        places = numpy.arange(job.n_context)
        slots = numpy.array(job.blocks)[places // BLOCK] * BLOCK + places % BLOCK
        self.rank.bytes[:, slots] = whole[:, : job.n_context]
        report = {"n_reused": job.n_context - 1, "n_recomputed": 1, "n_filled": 0, "bias": 0}
        return BlendOutcome(job.number, True, report, 0.5)

    def learn(self, job):
        """The blocks are the worker's: whoever else reads them fails its comparison."""
        self.learned.append(job)
        places = numpy.arange(job.n_context)
        slots = numpy.array(job.blocks)[places // BLOCK] * BLOCK + places % BLOCK
        self.rank.bytes[:, slots] ^= SCRATCH
        return BlendOutcome(job.number, not self.fail(job), {"n_stored": job.n_context}, 0.5)


class BlendRank(Rank):
    def __init__(self, *args):
        super().__init__(*args)
        self.blender = self.connector._blender = FakeBlender(self)

    def check_loads(self):
        """Exactly the contexts that this step could not blend."""
        failed = {one.number for one in self.connector._outcomes if not one.ok}
        failed -= self.blender.learners
        last = {job.number: job.context_blocks(BLOCK) for job in self.blender.jobs}
        wanted = {block for number in failed for block in last[number]}
        assert self.bad == wanted, f"{self.bad} failed to load, {wanted} were to"


class BlendRig(Rig):
    rank_class = BlendRank

    def __init__(self, asynchronous=False, blend=True, ranks=1, runner=1, **more):
        options = {"blend": {"min_tokens": 1} if blend is True else blend, **more}
        super().__init__(options, asynchronous, ranks=ranks, prefix_caching=True, runner=runner)

    @property
    def blender(self):
        return self.ranks[0].blender

    @property
    def blending(self):
        return self.scheduler.connector._blending

    @property
    def counters(self):
        return self.blending.counters.values

    def ask(self, name, tokens, n_output=4, wishes=None, **more):
        """A request whose answer is made up; no two may have the same prompt and be blended at the
        same time."""
        chance = random.Random(f"{name} {tokens[0]}")
        sequence = tokens + [chance.randrange(3, 9000) for _ in range(n_output + 4)]
        for one in self.ranks:
            one.blender.names[array("I", tokens).tobytes()] = name
        params = {"tessera": wishes} if wishes is not None else None
        return self.add(name, sequence, len(tokens), n_output, params, block_hasher=HASHER, **more)

    def step(self):
        output, sampling = self.schedule()
        result = self.execute(output, sampling)
        outputs = self.scheduler.update_from_output(output, result)
        return output, [one for group in outputs.values() for one in group.outputs]

    def run_all(self, limit=500):
        """Steps until nothing is left; the parameters that clients were told."""
        told = {}
        for _ in range(limit):
            if not self.scheduler.has_requests():
                return told
            for one in self.step()[1]:
                if one.finish_reason is not None:
                    told[one.request_id] = one.kv_transfer_params
        raise AssertionError("the engine never comes to rest")
