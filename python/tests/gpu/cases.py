"""Tessera in real vLLM on a GPU: what is loaded is compared with what was computed, byte by byte.

    cases.py NAME [ARGUMENT...]     one case, in this process; run.py runs them all

Every engine has random weights, and KV memory that is overwritten before anything is loaded. A name
with `runner_v1` or `runner_v2` says which of vLLM's two model runners the case has.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

for _i, _runner in enumerate(("runner_v1", "runner_v2")):  # before vLLM is imported
    if _runner in "".join(sys.argv[1:2]):
        os.environ["VLLM_USE_V2_MODEL_RUNNER"] = str(_i)

import blending  # noqa: E402
from small_engine import (  # noqa: E402
    CPU,
    Engine,
    Seen,
    far_pages,
    tokens_of,
    torch,
    up_to,
    wrong_pages,
)

CHUNK = 64
OPTIONS: dict[str, Any] = dict(host_size="1G", chunk_size=CHUNK)
SKIPPED = 77
PATIENCE_S = 600 if CPU else 120  # for other processes
CASES: dict[str, Callable[..., None]] = {}


def case(function: Callable[..., None]) -> Callable[..., None]:
    CASES[function.__name__] = function
    return function


class Skip(Exception):
    pass


def reuse(engine: Engine, lengths: tuple[int, ...] = (130, 1000, 2500)) -> None:
    """Prompts that are computed, saved, and loaded into other memory."""
    for seed, n_tokens in enumerate(lengths):
        tokens = tokens_of(seed, n_tokens)
        computed = engine.ask(tokens)
        assert computed.found == 0, computed.found
        engine.scribble()
        loaded = engine.ask(tokens)
        check(computed, loaded, n_tokens)
        # Another text after the same beginning.
        shared = n_tokens // 2
        other = engine.ask(tokens[:shared] + tokens_of(100 + seed, 200))
        least = shared // CHUNK * CHUNK
        assert other.found == least, (other.found, least)
        begin = up_to(other.pages, least)
        if begin.keys() & computed.pages.keys():  # windows have only their last blocks
            assert not wrong_pages(computed.pages, begin), "a shared beginning is wrong"
        engine.settle()


def check(computed: Seen, loaded: Seen, n_tokens: int) -> None:
    assert loaded.found >= n_tokens - CHUNK, f"{loaded.found} of {n_tokens} tokens were found"
    pages = up_to(loaded.pages, loaded.found)  # what follows was computed, in another batch
    wrong = wrong_pages(computed.pages, pages)
    n_both = len(computed.pages.keys() & pages.keys())
    print(f"{n_tokens} tokens: {loaded.found} found, {n_both} pages compared, {len(wrong)} wrong")
    assert not wrong, f"wrong pages: {wrong[:8]}"


@case
def dense() -> None:
    reuse(Engine("llama", OPTIONS))


@case
def dense_runner_v1() -> None:
    reuse(Engine("llama", OPTIONS))


@case
def dense_runner_v2() -> None:
    reuse(Engine("llama", OPTIONS))


@case
def synchronous_scheduling() -> None:
    engine = Engine("llama", OPTIONS, async_scheduling=False)
    assert not engine.llm.llm_engine.vllm_config.scheduler_config.async_scheduling
    reuse(engine)


@case
def layerwise() -> None:
    reuse(Engine("llama", dict(OPTIONS, layerwise=True), async_scheduling=False))


@case
def layerwise_runner_v1() -> None:
    """The only way to have every load within a step."""
    reuse(Engine("llama", dict(OPTIONS, layerwise=True, load="sync"), async_scheduling=False))


@case
def compiled_with_graphs() -> None:
    reuse(Engine("llama", OPTIONS, enforce_eager=False))


@case
def chunked_prefill() -> None:
    reuse(Engine("llama", OPTIONS, max_num_batched_tokens=256))


@case
def prefix_caching() -> None:
    """vLLM has the beginning, Tessera the rest."""
    engine = Engine("llama", OPTIONS, enable_prefix_caching=True)
    reuse_after_reset(engine, 2000, 512)


def reuse_after_reset(engine: Engine, n_tokens: int, n_local: int) -> None:
    tokens = tokens_of(1, n_tokens)
    computed = engine.ask(tokens)
    engine.settle()
    assert engine.llm.reset_prefix_cache()
    engine.scribble()
    local = engine.ask(tokens[:n_local])
    check(computed, local, n_local)
    before = engine.counters["tokens_hit"]
    loaded = engine.ask(tokens)
    check(computed, loaded, n_tokens)
    hit = engine.counters["tokens_hit"] - before
    assert 0 < hit <= n_tokens - n_local + CHUNK, f"{hit} tokens from Tessera"
    hot = engine.ask(tokens)
    check(computed, hot, n_tokens)


@case
def mla() -> None:
    more = {} if CPU else {"attention_backend": "TRITON_MLA"}
    reuse(Engine("mla", OPTIONS, **more))


@case
def fp8_kv() -> None:
    if CPU and os.uname().machine != "x86_64":
        raise Skip("vLLM for CPUs has fp8 KV on x86_64 only")
    reuse(Engine("llama", OPTIONS, kv_cache_dtype="fp8"))


@case
def sliding_windows() -> None:
    """Steps of half a window: blocks that leave it within a step are not saved."""
    engine = Engine("windows", OPTIONS, max_num_batched_tokens=64)
    assert len(engine.kv.kv_cache_groups) > 1
    reuse(engine)


@case
def preemption_under_pressure() -> None:
    """Many requests, few blocks; whatever is loaded again and again is what was computed."""
    blocks = 61 if CPU else 127
    engine = Engine(
        "llama", dict(OPTIONS, save_decode=True), num_gpu_blocks_override=blocks, max_model_len=1024
    )
    n_preempted = 0
    original = engine.scheduler._preempt_request

    def preempt(*args: Any, **kwargs: Any) -> Any:
        nonlocal n_preempted
        n_preempted += 1
        return original(*args, **kwargs)

    engine.scheduler._preempt_request = preempt
    prompts = [tokens_of(seed, 200 + 17 * seed) for seed in range(12)]
    computed = [engine.ask(tokens) for tokens in prompts]
    engine.scribble()
    for _ in range(2):
        seen = engine.ask_all(prompts, 96)
        engine.settle()
        for right, one, tokens in zip(computed, seen, prompts):
            for pages in (one.pages, one.last):
                loaded = up_to(pages, len(tokens) // CHUNK * CHUNK)
                if loaded:
                    wrong = wrong_pages(right.pages, loaded)
                    assert not wrong, f"wrong pages: {wrong[:8]}"
    print(f"{n_preempted} preemptions")
    assert n_preempted > 0


# ---- several processes ---------------------------------------------------------------------------


def child(name: str, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-W", "ignore", __file__, name, *words])


def done(process: subprocess.Popen[bytes]) -> None:
    assert process.wait(PATIENCE_S) == 0, f"a second process failed: {process.args}"


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tessera-gpu-") as name:
        os.environ["TESSERA_TEST_MODELS"] = name  # the same weights' identity in all processes
        yield Path(name)


def start_daemon(socket: Path) -> subprocess.Popen[bytes]:
    program = Path(os.environ["TESSERA_LIBRARY"]).resolve().parents[1] / "bin" / "tesserad"
    process = subprocess.Popen([program, f"--server_socket={socket}", "--host_size=1G"])
    wait_for(socket)
    return process


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} never appears"
        time.sleep(0.02)


def put(path: Path, value: Any) -> None:
    made = path.with_suffix(".tmp")
    made.write_bytes(pickle.dumps(value))
    made.rename(path)


PROMPTS = {"a": (10, 1300), "b": (11, 2100)}


@case
def daemon_shared_by_two_engines() -> None:
    with folder() as home:
        daemon = start_daemon(home / "d.sock")
        try:
            both = [child("_sharing", str(home), *names) for names in ("ab", "ba")]
            for process in both:
                done(process)
        finally:
            daemon.terminate()
            daemon.wait(30)


def _sharing(home: str, mine: str, theirs: str) -> None:
    """Computes one prompt, loads the one of the other engine, which is up at the same time."""
    engine = Engine("llama", dict(OPTIONS, owner="daemon", server_socket=f"{home}/d.sock"))
    computed = engine.ask(tokens_of(*PROMPTS[mine]))
    assert computed.found == 0
    engine.scribble()
    put(Path(home) / f"{mine}.seen", computed)
    wait_for(Path(home) / f"{theirs}.seen")
    for name in (theirs, mine):
        right = pickle.loads((Path(home) / f"{name}.seen").read_bytes())
        check(right, engine.ask(tokens_of(*PROMPTS[name])), PROMPTS[name][1])
    engine.close()


@case
def disk_after_a_restart() -> None:
    with folder() as home:
        done(child("_disk", str(home), "write"))
        done(child("_disk", str(home), "read"))


def _disk(home: str, what: str) -> None:
    (Path(home) / "disk").mkdir(mode=0o700, exist_ok=True)
    options = dict(OPTIONS, disk_path=f"{home}/disk", disk_size="2G", disk_write="through")
    engine = Engine("llama", options)
    for name, (seed, n_tokens) in PROMPTS.items():
        seen = engine.ask(tokens_of(seed, n_tokens))
        engine.scribble()
        if what == "write":
            put(Path(home) / f"{name}.seen", seen)
            continue
        right = pickle.loads((Path(home) / f"{name}.seen").read_bytes())
        check(right, seen, n_tokens)
    engine.close()


@case
def daemon_killed_while_it_is_read() -> None:
    """kill -9 at any moment up to the end of a load: every answer comes, no page is wrong."""
    chance = random.Random(5)
    with folder() as home:
        socket = home / "d.sock"
        daemon = start_daemon(socket)
        try:
            engine = Engine("wide", dict(OPTIONS, owner="daemon", server_socket=str(socket)))
            dtype = next(iter(engine.tensors.values())).dtype
            n_tokens = 700 if CPU else 3500
            for turn in range(6):
                tokens = tokens_of(turn, n_tokens)
                computed = engine.ask(tokens)
                engine.scribble()
                start = time.perf_counter()
                loaded = engine.ask(tokens, 2)
                seconds = time.perf_counter() - start
                check(computed, loaded, n_tokens)
                engine.scribble()
                delay_s = chance.random() * seconds
                killer = threading.Timer(delay_s, daemon.send_signal, (signal.SIGKILL,))
                killer.start()
                seen = engine.ask(tokens)
                killer.join()
                daemon.wait(30)
                far = far_pages(computed.pages, seen.pages, dtype)
                assert not far, f"wrong pages: {far[:8]}"
                engine.scribble()
                alone = engine.ask(tokens)
                assert not far_pages(computed.pages, alone.pages, dtype)
                print(
                    f"kill {turn}: after {1e3 * delay_s:.1f} of {1e3 * seconds:.1f} ms, "
                    f"{seen.found} found, then {alone.found}"
                )
                socket.unlink(missing_ok=True)
                daemon = start_daemon(socket)
                connected_again(engine, turn)
        finally:
            daemon.send_signal(signal.SIGTERM)
            daemon.wait(30)
        engine.close()


def connected_again(engine: Engine, turn: int) -> None:
    tokens = tokens_of(1000 + turn, 400)
    deadline = time.monotonic() + PATIENCE_S
    while engine.ask(tokens).found < 400 - CHUNK:
        assert time.monotonic() < deadline, "the new daemon is never used"
        engine.settle()
        time.sleep(0.2)


# ---- blending ------------------------------------------------------------------------------------


def blended(**more: Any) -> blending.Blended:
    if CPU:
        raise Skip("on a CPU blends are tested by python/tests/vllm")
    return blending.Blended(**more)


@case
def blend() -> None:
    it = blended()
    blending.reuse(it)
    blending.beside_others(it)


@case
def blend_runner_v1() -> None:
    blending.reuse(blended())


@case
def blend_synchronous_scheduling() -> None:
    blending.reuse(blended(async_scheduling=False))


def failed(asynchronous: bool) -> None:
    """Whatever fails within a step or between steps, vLLM computes."""
    if CPU and asynchronous:
        raise Skip("vLLM for CPUs schedules synchronously")
    more = {"dtype": "float32"} if CPU else {}  # bf16 is packed there
    options = dict(blending.BLEND, load="sync", chunk_size=CHUNK)
    it = blending.Blended(options, async_scheduling=asynchronous, **more)
    config = it.engine.llm.llm_engine.vllm_config
    assert config.use_v2_model_runner == (os.environ["VLLM_USE_V2_MODEL_RUNNER"] == "1")
    assert bool(config.scheduler_config.async_scheduling) == asynchronous
    blending.failures(it)
    blending.failed_load(it)


@case
def failed_runner_v1() -> None:
    failed(True)


@case
def failed_runner_v1_synchronous() -> None:
    failed(False)


@case
def failed_runner_v2() -> None:
    failed(True)


@case
def failed_runner_v2_synchronous() -> None:
    failed(False)


@case
def blend_compiled_with_graphs() -> None:
    it = blended(enforce_eager=False)
    blending.reuse(it)
    blending.beside_others(it)
    if not CPU:
        blending.replayed()


@case
def blend_two_ranks_on_one_device() -> None:
    import two_ranks

    with folder() as home:
        try:
            engine = two_ranks.Engine(home, blending.BLEND)
        except two_ranks.NoEngine as why:
            raise Skip(f"vLLM does not start two workers on one device: {why}") from why
        two_ranks.blends(engine, blending.ORDERS, blending.Prompt)
        engine.close()


@case
def from_traffic() -> None:
    """Plain requests are kept as K and V: exact reuse is byte by byte as before, and blends find
    documents in them."""
    blend = {"any_offset": True, "from_traffic": True, "min_tokens": 100}
    more = {"dtype": "float32"} if CPU else {}  # bf16 is packed there
    it = blending.Blended(dict(OPTIONS, blend=blend), **more)
    assert it.engine.scheduler.connector._shape.groups[0].planes is not None
    reuse(it.engine)
    blending.unmarked(it)


@case
def kv_cache_over_device_tensors() -> None:
    """The five calls of a blend server over torch's memory. What is stored was queued just before,
    behind work that takes long, and the memory is overwritten right after a load is asked for."""
    import tessera

    n_layers, n_heads, dim, n_slots, n_tokens = 4, 8, 64, 4096, 1000
    device = torch.device("cpu" if CPU else "cuda:0")
    kv = [
        [torch.zeros(n_slots, n_heads, dim, device=device) for _plane in "kv"]
        for _layer in range(n_layers)
    ]
    rope = tessera.Rope(theta=10000.0, dims=dim)
    options = {} if CPU else {"device": device.type, "device_number": device.index}
    with tessera.Cache(host_size="1G", **options) as cache:
        shape = dict(n_layers=n_layers, n_heads=n_heads, k_dim=dim)
        space = cache.space("m", "f32", rope=rope.text, **shape)
        with tessera.KvCache(space, [tuple(pair) for pair in kv], rope) as registered:
            for turn in range(20):
                tokens = tokens_of(turn, n_tokens)
                slots = torch.randperm(n_slots, device=device)
                here, there = slots[:n_tokens], slots[n_tokens : 2 * n_tokens]
                if not CPU:
                    torch.cuda._sleep(50_000_000)
                want = []
                for pair in kv:
                    for plane in pair:
                        want.append(torch.randn(n_tokens, n_heads, dim, device=device))
                        plane[here] = want[-1]
                assert registered.store_pre_computed(tokens, here) == n_tokens
                found = registered.lookup_pre_computed(tokens, request=turn + 1)
                assert found.tokens == n_tokens, found.tokens
                if not CPU:
                    torch.cuda._sleep(50_000_000)
                for pair in kv:
                    for plane in pair:
                        plane[there] = 7.0
                assert registered.retrieve_pre_computed(found, there) == [(0, n_tokens)]
                got = [plane[there] for pair in kv for plane in pair]
                for one, other in zip(want, got):
                    assert torch.equal(one, other), "a byte is wrong"
                cache.release(turn + 1)


@case
def kv_pool_over_device_tensors() -> None:
    """load_kv and store_kv over torch's memory, in the order of what is queued around them. Slots
    of what the engine has are not written."""
    import tessera

    n_layers, n_heads, dim, n_slots, n_tokens, n_cached = 4, 8, 64, 4096, 1000, 100
    device = torch.device("cpu" if CPU else "cuda:0")
    k_pool, v_pool = (
        [torch.zeros(n_slots, n_heads, dim, device=device) for _layer in range(n_layers)]
        for _plane in "kv"
    )
    options = {} if CPU else {"device": device.type, "device_number": device.index}
    with tessera.Cache(host_size="1G", chunk_size=64, **options) as cache:
        space = cache.space("m", "f32", n_layers=n_layers, n_heads=n_heads, k_dim=dim)
        with tessera.KvPool(space, k_pool, v_pool) as pool:
            whole = n_tokens // pool.chunk_size() * pool.chunk_size()
            n_pad = n_cached % pool.chunk_size()
            for turn in range(20):
                tokens = torch.tensor(tokens_of(turn, n_tokens))
                slots = torch.randperm(n_slots, device=device)
                here, there = slots[:n_tokens], slots[n_tokens : 2 * n_tokens - n_cached]
                if not CPU:
                    torch.cuda._sleep(50_000_000)
                want = []
                for plane in k_pool + v_pool:
                    want.append(torch.randn(n_tokens, n_heads, dim, device=device))
                    plane[here] = want[-1]
                assert pool.store_kv(tokens, here) == whole
                if not CPU:
                    torch.cuda._sleep(50_000_000)
                for plane in k_pool + v_pool:
                    plane[there] = 7.0
                padding = torch.full((n_pad,), -1, device=device)
                mapping = torch.cat([padding, there])
                loaded = pool.load_kv(tokens, mapping, offset=n_cached - n_pad)
                assert loaded == whole - n_cached + n_pad, loaded
                for one, plane in zip(want, k_pool + v_pool):
                    got = plane[there]
                    assert torch.equal(got[: whole - n_cached], one[n_cached:whole])
                    assert bool((got[whole - n_cached :] == 7.0).all()), "more was written"
            assert pool.reset() > 0
            assert pool.load_kv(tokens, here) == 0


@case
def device_pool_within_the_engines_share() -> None:
    if CPU:
        raise Skip("a CPU has no device pool")
    from tessera.vllm import plugin, room

    plugin.register()
    told: list[tuple[int, int]] = []
    original = room.leave_room

    def leave_room(worker: Any, available: int) -> int:
        left = original(worker, available)
        told.append((available, left))
        return left

    room.leave_room = leave_room
    engine = Engine("llama", dict(OPTIONS, device_pool_share=0.02), kv_cache_memory_bytes=None)
    total = torch.cuda.get_device_properties(0).total_memory
    ((available, left),) = told
    assert abs(available - left - 0.02 * total) < 0.001 * total, told
    reuse(engine)
    tokens = tokens_of(70, 1000)
    computed = engine.ask(tokens)
    for _ in range(3):  # what is found is copied there, and then taken from there
        engine.scribble()
        check(computed, engine.ask(tokens), 1000)
        time.sleep(0.5)
    counts = metrics_of(engine)
    print(f"pool: {counts['device_pool_bytes'] >> 20} MiB, {counts['delivery_pool_hits']} hits")
    assert counts["device_pool_bytes"] > 0.01 * total
    assert counts["delivery_pool_hits"] > 0


def metrics_of(engine: Engine) -> dict[str, Any]:
    import ctypes
    import json

    from tessera._lib import check as checked
    from tessera._lib import library

    text = ctypes.create_string_buffer(1 << 16)
    handle = engine.scheduler.connector._cache.handle
    checked(library().tsr_cache_stats_text(handle, b"json", text, len(text)))
    counts: dict[str, Any] = json.loads(text.value)
    return counts


@case
def one_wrong_byte_is_seen() -> None:
    """The comparison itself."""
    engine = Engine("llama", OPTIONS)
    tokens = tokens_of(3, 500)
    computed = engine.ask(tokens)
    engine.scribble()
    loaded = engine.ask(tokens)
    assert not wrong_pages(computed.pages, loaded.pages)
    key = sorted(loaded.pages)[3]
    loaded.pages[key][17] ^= 1
    assert wrong_pages(computed.pages, loaded.pages) == [key]


def main(name: str, *words: str) -> int:
    if not CPU and not torch.cuda.is_available():
        print("skipped: torch sees no CUDA device")
        return SKIPPED
    try:
        {**CASES, "_sharing": _sharing, "_disk": _disk}[name](*words)
    except Skip as why:
        print(f"skipped: {why}")
        return SKIPPED
    sys.stdout.flush()
    # vLLM's threads and children end with the process; nothing of theirs is tested here.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
