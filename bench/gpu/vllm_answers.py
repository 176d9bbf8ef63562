"""The rows `same` and `answers` of bench/gpu/vllm: what vLLM says with and without blending.

same: prompts of which everything is recomputed (r = 100 %) against plain requests in the same
engine. Where tokens differ, the best two must be as close as rounding makes them.

answers: questions of bench/quality/facts.py, or a file of such, to a real model (--model): right
answers and agreement, blended and not, in the form that the program `tessera` gives to a prompt.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vllm_rows import Report
from vllm_side import prompt_tokens

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "quality"))

from facts import holds, normal, questions  # noqa: E402  in bench/quality
from halves import wanted  # noqa: E402

SYSTEM = (  # src/cli/dialog.c
    "You answer questions about the documents that the user gives you. Answer briefly, and only "
    "from the documents."
)
DOCUMENTS, QUESTION = 6, 24  # of a prompt for `same`
# Of the log-probabilities of the best two tokens: two steps of bf16 at logits of 16 to 32.
ROUNDING = {"bfloat16": 0.25, "float32": 1e-3}


# ---- everything recomputed ------------------------------------------------------------------


def same_prompts(n: int, document: int, vocabulary: int) -> list[dict[str, Any]]:
    made = []
    for number in range(n):
        chance = random.Random(f"same {number}")
        tokens, segments = [], []
        for _ in range(DOCUMENTS):
            size = chance.randrange(document // 2, document + 1)
            segments.append((len(tokens), size))
            tokens += prompt_tokens(500_000 + chance.randrange(40), size, vocabulary)
        tokens += prompt_tokens(600_000 + number, QUESTION, vocabulary)
        made.append({"tokens": tokens, "segments": segments})
    return made


def first_difference(plain: dict[str, Any], blended: dict[str, Any]) -> float | None:
    """None: the same tokens. Otherwise how far apart the two were that they differ in, for the
    plain request; infinity: the other's choice was not among its best."""
    for at, (one, two) in enumerate(zip(plain["tokens"], blended["tokens"])):
        if one != two:
            best = dict(map(tuple, plain["best"][at]))
            return best[one] - best[two] if two in best else float("inf")
    return None


def row_same(
    report: Report,
    engine: Any,
    prompts: list[dict[str, Any]],
    dtype: str,
    n_out: int,
    progress: Callable[[str], None],
) -> None:
    """`prompts`: tokens and segments of each."""

    def ask(wishes: dict[str, Any]) -> list[dict[str, Any]]:
        rows = []
        for one in prompts:
            marks = {**wishes, "segments": one["segments"]} if "ratio" in wishes else wishes
            rows.append({"tokens": one["tokens"], "wishes": marks})
        done = engine.many(requests=rows, n_out=n_out, in_flight=8, best=5)
        return list(done["answers"])

    plain = ask({"blend": False})
    again = ask({"blend": False})
    full = ask({"ratio": 1.0, "selector": "full"})
    blended = sum(bool((one["told"] or {}).get("blended")) for one in full)
    limit = ROUNDING[dtype]
    told = {}
    for name, answers in (("plain again", again), ("r = 1", full)):
        gaps = [first_difference(one, two) for one, two in zip(plain, answers)]
        n_same = sum(gap is None for gap in gaps)
        n_near = sum(gap is not None and gap <= limit for gap in gaps)
        told[name] = n_same, n_near
        progress(
            f"same, {name}: {n_same} of {len(gaps)} the same {n_out} tokens, {n_near} differ where "
            f"the best two are within {limit:g}"
        )
        report.samples[f"same {name}"] = gaps
    if blended < len(prompts):
        progress(f"same: {blended} of {len(prompts)} were blended, no row")
        return
    n_same, n_near = told["r = 1"]
    case = f"r = 1: prompts with vLLM's own {n_out} tokens, {n_near} more within rounding"
    report.add(case, n_same, "prompts", "plain requests, asked twice",
               baseline=told["plain again"][0], ratio=(n_same + n_near) / len(prompts),
               target=1.0, at_least=True)  # fmt: skip


# ---- answers of a real model ----------------------------------------------------------------


class Form:
    """Prompts as the program `tessera` writes them: the system prompt, documents, "Question:",
    with the model's chat template around them, every part tokenised by itself."""

    def __init__(self, folder: str) -> None:
        from transformers import AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        marks = "<<documents>>"
        text = self.tokenizer.apply_chat_template(
            [{"role": "system", "content": SYSTEM}, {"role": "user", "content": marks}],
            tokenize=False,
            add_generation_prompt=True,
        )
        self.head, self.tail = text.split(marks)
        ends = [self.tokenizer.eos_token, "<|im_end|>", "<|endoftext|>"]
        known = self.tokenizer.get_vocab()
        self.ends = sorted({known[end] for end in ends if end in known})

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def prompt(self, question: dict[str, Any]) -> dict[str, Any]:
        tokens = self.encode(self.head)
        segments = [(0, len(tokens))]
        for text in question["documents"]:
            part = self.encode(text.strip() + "\n\n")
            segments.append((len(tokens), len(part)))
            tokens += part
        tokens += self.encode(f"Question: {question['question']}{self.tail}")
        return {"tokens": tokens, "segments": segments}

    def text(self, tokens: list[int]) -> str:
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True)).strip()


def sample(path: str | None, n: int, half: str = "test") -> list[dict[str, Any]]:
    """Questions of one half, from a file of bench/quality or of facts.py."""
    if path is None:
        every: Any = questions(16)
    else:
        every = [json.loads(line) for line in Path(path).read_text().splitlines()]
    mine = [q for q in every if wanted(half, str(q["set"]), str(q["id"]))]
    return random.Random(1).sample(mine, min(n, len(mine)))


def f1(given: str, answers: list[str]) -> float:
    """As src/lab/answers.c: overlap of words with the best of the right answers."""
    best = 0.0
    for answer in answers:
        one, two = normal(given).split(), normal(answer).split()
        left = list(two)
        for word in one:
            if word in left:
                left.remove(word)
        common = len(two) - len(left)
        best = max(best, 2 * common / (len(one) + len(two)) if one or two else 1.0)
    return best


def row_answers(
    report: Report,
    engine: Any,
    form: Form,
    asked: list[dict[str, Any]],
    n_out: int,
    profile: bool,
    progress: Callable[[str], None],
) -> None:
    prompts = [form.prompt(question) for question in asked]
    kinds: dict[str, dict[str, Any]] = {
        "prefill": {"blend": False},
        "prefill again": {"blend": False},
        "r = 0.05": {"ratio": 0.05, "selector": "query"},
        "r = 0.15": {"ratio": 0.15, "selector": "query"},
        "r = 1": {"ratio": 1.0, "selector": "full"},
    }
    if profile:
        kinds["profile"] = {}
    texts: dict[str, list[str]] = {}
    for kind, wishes in kinds.items():
        rows = []
        for one in prompts:
            marks: dict[str, Any] = dict(wishes)
            if "blend" not in marks:
                marks.update(segments=one["segments"], system=True)
            rows.append({"tokens": one["tokens"], "wishes": marks})
        done = engine.many(requests=rows, n_out=n_out, in_flight=8, ends=form.ends)
        texts[kind] = [form.text(one["tokens"]) for one in done["answers"]]
        told = [one["told"] or {} for one in done["answers"]]
        _tell(report, kind, asked, texts, told, done["seconds"], progress)


def _tell(
    report: Report,
    kind: str,
    asked: list[dict[str, Any]],
    texts: dict[str, list[str]],
    told: list[dict[str, Any]],
    seconds: float,
    progress: Callable[[str], None],
) -> None:
    own, given = texts["prefill"], texts[kind]
    n = len(asked)
    right = [holds(text, q["answers"]) for text, q in zip(given, asked)]
    was = [holds(text, q["answers"]) for text, q in zip(own, asked)]
    stay = sum(a and b for a, b in zip(was, right))
    same = sum(normal(a) == normal(b) for a, b in zip(own, given))
    scores = {
        name: statistics.mean(f1(text, q["answers"]) for text, q in zip(all_of, asked))
        for name, all_of in (("own", own), ("given", given))
    }
    n_blended = sum(bool(one.get("blended")) for one in told)
    facts = dict(questions=n, right=sum(right), right_prefill=sum(was), stay_right=stay,
                 same_text=same, f1=scores["given"], f1_prefill=scores["own"],
                 blended=n_blended, seconds=seconds)  # fmt: skip
    report.samples[f"answers {kind}"] = dict(facts, texts=given, told=told)
    progress(
        f"answers, {kind}: {sum(right)} of {n} right (prefill {sum(was)}), {stay} stay right, "
        f"{same} the same text, F1 {scores['given']:.3f} ({scores['own']:.3f}), {n_blended} "
        f"blended, {seconds:.1f} s"
    )
    if kind.startswith("prefill"):
        return
    case = f"{n} questions, {kind}: "
    report.add(case + "right answers that stay right", 100 * stay / max(sum(was), 1), "%",
               "vLLM's own prefill")  # fmt: skip
    report.add(case + "the same text", 100 * same / n, "%", "vLLM's own prefill")
    report.add(case + "loss of F1", scores["own"] - scores["given"], "F1", "vLLM's own prefill")
