"""How near to plain vLLM answers are, by what documents were computed after: their system prompt, a
primer, or whatever came before them in plain requests (from_traffic). Not a test: it prints rows
for docs/quality.md.

    python/tests/engine.sh vllm/contexts.py [QUESTIONS]      14 take five minutes on two cores
"""

import statistics
import sys

import rag
from engines import BLOCK, Engine, story
from vllm import TokensPrompt

SETTINGS = dict(max_logprobs=-1, num_gpu_blocks_override=160)
RATIOS = (0, 0.15)
BLENDS = {
    "same": {"min_tokens": 1},
    "primer": {"min_tokens": 1, "any_system": True},
    "traffic": {"min_tokens": 64, "any_offset": True, "from_traffic": True},
}
CLERK = "You are a friendly clerk. Read what people have written down below.\n\n"


def serve_plain(engine):
    """Every document in a request of its own, after another system prompt and an unrelated text."""
    question = rag.question_text("Was it a nice day?")
    for i, document in enumerate(rag.DOCUMENTS.values()):
        before = story(60 + i, 12) + "\n"
        made = rag.Prompt(engine.tokens_of, [before, document], question, CLERK)
        engine.ask([TokensPrompt(prompt_token_ids=made.tokens)], 1)
        engine.settle()


def first(row):
    return max(range(len(row)), key=row.__getitem__)


def measure(name, made, right):
    options = {"chunk_size": BLOCK, "host_size": "2G", "blend": BLENDS[name]}
    with Engine(options, **SETTINGS) as engine:
        if name == "traffic":
            serve_plain(engine)
        for ratio in RATIOS:
            before = dict(engine.connector._blending.counters.values)
            rows = []
            for one in made:
                wishes = {"ratio": ratio} if name == "traffic" else one.wishes(ratio=ratio)
                rows.append(engine.distribution(one.tokens, wishes))
            kl = statistics.mean(map(rag.divergence, right, rows))
            same = sum(first(a) == first(b) for a, b in zip(right, rows))
            counts = engine.connector._blending.counters.values
            new = counts.get("blend_tokens_new", 0) - before.get("blend_tokens_new", 0)
            print(
                f"{name}, ratio {ratio}: KL {kl:.3f}, first token the same {same}/{len(rows)}, "
                f"{new / len(rows):.0f} tokens of a prompt computed because they were not found"
            )


def main(n_questions):
    with Engine(None, **SETTINGS) as engine:
        made = rag.prompts(engine.tokens_of, n_questions)
        right = [engine.distribution(one.tokens) for one in made]
    lengths = [len(one.tokens) for one in made]
    print(f"{n_questions} prompts of {min(lengths)} to {max(lengths)} tokens")
    for name in BLENDS:
        measure(name, made, right)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else len(rag.QUESTIONS))
