"""What Tessera costs and gives inside vLLM on a CPU. Engines with and without it run in processes
of their own, one at a time and in turns: each pair yields one ratio, and the median of them counts.

    bench.py [--json] [--pairs=20] [--tokens=3072] [--generate=48] [--dtype=float32]
             [--only=TEXT] [--threads=N]

Rows are those of the C benches: bench, case, value, unit, baseline, ratio, target, met. Prompts are
of --tokens tokens and differ from their first words on; vLLM's own prefix caching is off. Blending
has prompts of its own, and vLLM's prefix caching on. Progress goes to standard error. The p99
between tokens is that of all steps of a side: one pair has too few.
"""

import argparse
import csv
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--json", action="store_true")
parser.add_argument("--pairs", type=int, default=20)
parser.add_argument("--tokens", type=int, default=3072)
parser.add_argument("--generate", type=int, default=48)
parser.add_argument("--dtype", default="float32")
parser.add_argument("--only", default="")
parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
args = parser.parse_args()
os.environ["OMP_NUM_THREADS"] = str(args.threads)
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
rows = os.fdopen(os.dup(1), "w")  # alone on standard output: whatever vLLM prints is no row
os.dup2(2, 1)

import rag  # noqa: E402  threads come first
from engines import Remote, scratch, story  # noqa: E402

SETTINGS = dict(dtype=args.dtype, max_model_len=args.tokens + 256, max_num_batched_tokens=8192)
BEGUN = time.monotonic()
missed = 0


def progress(text):
    print(f"[{time.monotonic() - BEGUN:5.0f} s] {text}", file=sys.stderr, flush=True)


def row(case, value, unit, baseline=None, ratio=None, target=None, at_least=False):
    global missed
    met = None
    if target is not None:
        measured = value if ratio is None else ratio
        met = measured >= target if at_least else measured <= target
        missed += not met
    against = "" if baseline is None else f" against {baseline:.6g}, {ratio:.3f}x"
    wanted = "" if target is None else f"  {'>=' if at_least else '<='} {target}"
    verdict = "" if met is None else "  met" if met else "  MISSED"
    text = f"{case:34} {value:.6g} {unit}{against}{wanted}{verdict}"
    if args.json:
        names = "bench case value unit baseline ratio target met".split()
        values = ["bench_vllm", case, value, unit, baseline, ratio, target, met]
        print(json.dumps(dict(zip(names, values))), file=rows, flush=True)
        progress(text)
    else:
        print(text, file=rows, flush=True)


def pairs_row(case, unit, values, baselines, target, at_least=False, inverse=False):
    ratios = [b / v if inverse else v / b for v, b in zip(values, baselines)]
    row(
        case,
        statistics.median(values),
        unit,
        statistics.median(baselines),
        statistics.median(ratios),
        target,
        at_least,
    )


def prompt(engine, number):
    tokens = engine.tokens_of(story(number, args.tokens // 12))
    assert len(tokens) > args.tokens
    return tokens[: args.tokens]


def bench_first_token(folder):
    """Nothing cached, a broken cache, all cached in host memory, all on disk."""
    disk = dict(disk_path=folder, disk_size="32G", host_size="6G")
    dead = dict(owner="daemon", server_socket=os.path.join(folder, "nobody.sock"))
    plain_s, cold_s, dead_s, cold_in, dead_in = [], [], [], [], []
    progress("first token: three engines start")
    with Remote(None, **SETTINGS) as plain, Remote(dead, **SETTINGS) as broken:
        cached = Remote(disk, **SETTINGS)
        prompts = [prompt(plain, i) for i in range(args.pairs)]
        cached.watch()
        broken.watch()
        sides = [(plain, plain_s, None), (cached, cold_s, cold_in), (broken, dead_s, dead_in)]
        warm = prompt(plain, 9999)
        for engine, _seconds, _inside in sides:
            engine.first_token(warm)
        order = random.Random(1)  # in a fixed cycle the same one always follows the one that saves
        for i, tokens in enumerate(prompts):
            for engine, seconds, inside in order.sample(sides, len(sides)):
                if inside is not None:
                    engine.in_calls()
                seconds.append(engine.first_token(tokens)[0])
                if inside is not None:
                    inside.append(engine.in_calls())
                if engine is cached:
                    cached.settle()
            progress(f"first token: {i + 1} of {args.pairs}, alone {plain_s[-1]:.2f} s")
        shares = [100 * inside / whole for inside, whole in zip(cold_in, cold_s)]
        row("ttft nothing cached, our calls", statistics.median(shares), "% of it", target=1.0)
        pairs_row("ttft nothing cached", "s", cold_s, plain_s, 1.01)
        shares = [100 * inside / whole for inside, whole in zip(dead_in, dead_s)]
        row("ttft broken cache, our calls", statistics.median(shares), "% of it", target=1.0)
        pairs_row("ttft broken cache", "s", dead_s, plain_s, 1.01)
        hit_s = []
        for tokens in prompts:
            seconds, found = cached.first_token(tokens)
            assert found >= args.tokens - 256, f"{found} of {args.tokens} tokens were cached"
            hit_s.append(seconds)
        pairs_row("ttft all in host memory", "s", hit_s, plain_s, 25, True, True)
        cached.close()
        progress("first token from disk: an engine starts")
        disk_s = []
        with Remote(disk, **SETTINGS) as fresh:
            fresh.first_token(warm[:64])  # what any engine does at its first step is not ours
            for tokens in prompts:
                seconds, found = fresh.first_token(tokens)
                assert found >= args.tokens - 256, f"{found} of {args.tokens} tokens were on disk"
                disk_s.append(seconds)
        pairs_row("ttft cold process, from disk", "s", disk_s, plain_s, 10, True, True)


def bench_decode(folder):
    """Eight requests that generate at once, everything they generate being saved."""
    saving = dict(save_decode=True, chunk_size=32, host_size="2G")
    more = dict(SETTINGS, block_size=32, max_model_len=1024)
    plain_rate, saved_rate, plain_steps, saved_steps = [], [], [], []
    inside = []
    progress("generating: two engines start")
    with Remote(None, **more) as plain, Remote(saving, **more) as saved:
        saved.watch()
        sides = [(plain, plain_rate, plain_steps), (saved, saved_rate, saved_steps)]
        for pair in range(-1, args.pairs):  # the first is not counted
            prompts = [plain.tokens_of(story(5000 + pair * 8 + i, 4)) for i in range(8)]
            saved.in_calls()
            for engine, rates, all_steps in sides if pair % 2 else reversed(sides):
                steps = engine.decode(prompts, args.generate)[1:]
                if pair >= 0:
                    rates.append(8 * len(steps) / sum(steps))
                    all_steps += steps
                    if engine is saved:
                        inside.append(100 * saved.in_calls() / sum(steps))
            progress(f"generating: {pair + 1} of {args.pairs}")
    row("decode, saving, our calls", statistics.median(inside), "% of it", target=1.0)
    pairs_row("output tokens/s, saving", "tokens/s", saved_rate, plain_rate, 0.99, True)
    tails = [1000 * sorted(steps)[int(len(steps) * 0.99)] for steps in (saved_steps, plain_steps)]
    row("inter-token p99, saving", tails[0], "ms", tails[1], tails[0] / tails[1], 1.01)


def bench_step(folder):
    """The scheduler's side of a step with 256 running requests that have nothing to do."""
    from rig import Rig
    from vllm.v1.core.sched.output import SchedulerOutput

    rig = Rig({}, False)
    connector = rig.scheduler.connector
    names = [f"r{i}" for i in range(256)]
    for i, name in enumerate(names):
        tokens = [i * 100 + t for t in range(60)]
        request = rig.add(name, tokens, 40, 20)
        connector.get_num_new_matched_tokens(request, 0)
        request.num_computed_tokens = 41

    class State:
        def get_block_ids(self, name):
            return ([1, 2, 3],)

    output = SchedulerOutput.make_empty()
    output.num_scheduled_tokens = dict.fromkeys(names, 1)
    output.kv_connector_block_state = State()
    seconds = []
    for _ in range(400):
        start = time.perf_counter()
        connector.build_connector_meta(output)
        connector.get_kv_connector_stats()
        connector.take_events()
        connector.has_pending_push_work()
        seconds.append(time.perf_counter() - start)
    row(
        "scheduler step, 256 idle requests",
        1e6 * statistics.median(seconds[100:]),
        "us",
        target=300,
    )
    rig.close()


def bench_blend(folder):
    """Ten documents of 600 tokens in a new order each time, all of them known; against a vLLM with
    its prefix cache on. And plain requests while such prompts come in."""
    settings = dict(SETTINGS, max_model_len=7168, enable_prefix_caching=True)
    chance = random.Random(1)
    times = {"plain": [], 0.05: [], 0: []}
    with (
        Remote(None, **settings) as plain,
        Remote({"host_size": "2G", "blend": True}, **settings) as blended,
    ):
        encode = plain.tokens_of
        documents = rag.long_documents(encode, 10, 600)
        for i in range(-1, max(args.pairs // 4, 2)):  # the first one reads the documents
            made = rag.long_prompt(encode, documents, chance, f"What did visitor {i} see?")
            seconds = {"plain": plain.first_token(made.tokens)[0]}
            for ratio in (0.05, 0):
                seconds[ratio], found = blended.first_token(made.tokens, made.wishes(ratio=ratio))
                assert found == made.n_context, f"{found} of {made.n_context} tokens"
            for name in times if i >= 0 else ():
                times[name].append(seconds[name])
        case = "ttft 10 x 600 shuffled, r = {}"
        pairs_row(case.format("5 %"), "s", times[0.05], times["plain"], 6, True, True)
        pairs_row(case.format("0"), "s", times[0], times["plain"], 15, True, True)
        blended.watch()
        shares = []
        for i in range(max(args.pairs // 4, 2)):
            made = [rag.long_prompt(encode, documents, chance, f"Where is {i}?") for _ in range(2)]
            others = [encode(story(6000 + 8 * i + k, 4)) for k in range(4)]
            rows = [(one.tokens, one.wishes(ratio=0)) for one in made]
            seconds, inside, blending = blended.beside(others, rows, 64)
            shares.append(100 * (inside - blending) / (seconds - blending))
        row("plain beside blended, our calls", statistics.median(shares), "% of it", target=1.0)


def bench_quality(folder):
    """KL(prefill || blend) of the first token at 5 % by query without a bias, here and by the
    library's own executor, which computes with the weights and 8-bit activations of the GGUF file:
    each against its own prefill."""
    gguf = Path(os.environ["TESSERA_TEST_VLLM_MODEL"]).with_suffix(".Q4_1.gguf")
    program = Path(os.environ["TESSERA_LIBRARY"]).resolve().parents[1] / "bin" / "tessera-lab"
    lines, table = os.path.join(folder, "questions.jsonl"), os.path.join(folder, "rows.csv")
    settings = dict(SETTINGS, max_model_len=1024, max_logprobs=-1)
    blend = {"min_tokens": 1, "selector": "query", "ratio": 0.05, "weigh": False}
    with Remote({"host_size": "1G", "blend": blend}, **settings) as engine:
        questions = rag.prompts(engine.tokens_of, len(rag.QUESTIONS))
        here = [
            rag.divergence(engine.distribution(q.tokens), engine.distribution(q.tokens, q.wishes()))
            for q in questions
        ]
    Path(lines).write_text("\n".join(map(rag.calibration_line, range(99), questions)) + "\n")
    command = [str(program), "calibrate", f"--prompts={lines}", f"--model={gguf}", "--ratios=0.05"]
    command += ["--biases=0", "--selectors=query", "--contexts=same", f"--threads={args.threads}"]
    command += [f"--csv={table}", f"--out={os.path.join(folder, 'profile.yaml')}"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        print(f"no row of KL: {done.stderr.strip()}", file=sys.stderr)
        return
    with open(table, newline="") as stream:
        own = [float(one["kl"]) for one in csv.DictReader(stream) if one["selector"] == "query"]
    ours, theirs = statistics.mean(here), statistics.mean(own)
    row("KL at the first token, r = 5 %", ours, "nats", theirs, ours / theirs, 1.2)


def main():
    progress(f"{args.pairs} pairs, {args.threads} threads")
    for part in (bench_step, bench_decode, bench_first_token, bench_blend, bench_quality):
        if args.only in part.__name__:
            progress(part.__name__)
            with scratch() as folder:
                part(folder)
    return 1 if missed and not args.json else 0


if __name__ == "__main__":
    sys.exit(main())
