#!/usr/bin/env python3
"""rag.py - asks a vLLM server about a folder of texts, with and without blending.

    python examples/vllm-rag/rag.py [--folder=docs] [--url=http://127.0.0.1:8000/v1] [--top=8]
                                    [--ratio=0.05] [--plot=rag.svg] [QUESTION ...]

The texts are cut into passages. The prompt of a question gets the passages that have the most words
in common with it, best last, so nearly every prompt has other passages in another order. Every
question is asked twice: as a plain request, and as one that Tessera blends. A separator marks the
passages. Only the openai client is needed.
"""

import argparse
import math
import re
import time
import urllib.request
from collections import Counter
from pathlib import Path

from openai import OpenAI

SEPARATOR = "<|doc|>"  # as in blend.json; no text may hold it
SYSTEM = "You answer questions about the passages that follow, briefly and only from them.\n"
QUESTIONS = [
    "Which file does the daemon read its tenants from?",
    "How is a document found again at another place of a prompt?",
    "What happens when the disk of the cache is full?",
    "How long may a lower tier take to load an entry?",
    "What is part of every key of a stored prefix?",
    "Which selector computes the tokens that the question looks at?",
]
PASSAGE_WORDS = 250


def passages(folder):
    """All texts, cut at ends of lines into passages of about the same length."""
    out = []
    for path in sorted(Path(folder).rglob("*")):
        if path.suffix not in (".md", ".txt"):
            continue
        lines, n = [], 0
        for line in [*path.read_text().splitlines(), None]:
            if lines and (line is None or n + len(line.split()) > PASSAGE_WORDS):
                out.append(f"{path.name}:\n" + "\n".join(lines) + "\n")
                lines, n = [], 0
            if line is not None:
                lines.append(line)
                n += len(line.split())
    return out


def words(text):
    return Counter(re.findall(r"[a-z]+", text.lower()))


def retrieve(texts, question, n):
    """The n texts that share the rarest words with the question, best last."""
    counted = [words(text) for text in texts]
    known = Counter(word for one in counted for word in one)

    def score(one):
        return sum(
            math.log(len(texts) / known[word]) * one[word] / (one[word] + 1)
            for word in words(question)
            if one[word]
        )

    best = sorted(range(len(texts)), key=lambda i: score(counted[i]))[-n:]
    return [texts[i] for i in best]


def ask(client, model, prompt, wishes, n_tokens):
    """(seconds to the first token, the answer)."""
    start = time.perf_counter()
    first, answer = None, ""
    for chunk in client.completions.create(
        model=model,
        prompt=prompt,
        max_tokens=n_tokens,
        temperature=0,
        stream=True,
        extra_body={"kv_transfer_params": {"tessera": wishes}},
    ):
        first = first or time.perf_counter() - start
        answer += chunk.choices[0].text
    return first, " ".join(answer.split())


def plot(path, rows):
    """Seconds to the first token as bars, two for each question."""
    width, bar, left = 720, 16, 330
    longest = max(max(plain, blended) for _question, plain, blended in rows)
    scale = (width - left - 70) / longest
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{60 + 52 * len(rows)}">',
        "<style>text{font:12px sans-serif;fill:#222}.t{font-size:14px;font-weight:bold}",
        ".page{fill:#fff}",
        "@media(prefers-color-scheme:dark){text{fill:#eee}.page{fill:#161b22}}</style>",
        '<rect class="page" width="100%" height="100%"/>',
        '<text x="10" y="22" class="t">Seconds to the first token</text>',
        '<rect x="330" y="11" width="12" height="12" fill="#999999"/>',
        '<text x="348" y="21">vLLM</text>',
        '<rect x="400" y="11" width="12" height="12" fill="#d55e00"/>',
        '<text x="418" y="21">with blending</text>',
    ]
    for i, (question, plain, blended) in enumerate(rows):
        y = 44 + 52 * i
        short = question if len(question) < 50 else question[:46].rstrip() + "..."
        short = short.replace("&", "&amp;").replace("<", "&lt;")
        parts.append(f'<text x="10" y="{y + 20}">{short}</text>')
        for k, (seconds, color) in enumerate(((plain, "#999999"), (blended, "#d55e00"))):
            length = max(seconds * scale, 1)
            top = y + k * (bar + 2)
            parts.append(
                f'<rect x="{left}" y="{top}" width="{length:.1f}" height="{bar}" fill="{color}"/>'
                f'<text x="{left + length + 6:.1f}" y="{top + 12}">{seconds:.2f}</text>'
            )
    Path(path).write_text("\n".join(parts) + "\n</svg>\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("questions", nargs="*", default=QUESTIONS)
    parser.add_argument("--folder", default="docs")
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--top", type=int, default=8)
    parser.add_argument("--ratio", type=float, default=0.05)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--plot", default="rag.svg")
    args = parser.parse_args()
    client = OpenAI(base_url=args.url, api_key="none", timeout=3600)
    model = client.models.list().data[0].id
    texts = passages(args.folder)
    found = {question: retrieve(texts, question, args.top) for question in args.questions}
    wanted = list(dict.fromkeys(text for some in found.values() for text in some))
    print(f"{len(texts)} passages; {args.top} per question, {len(wanted)} in total")
    wishes = {"ratio": args.ratio}
    # A passage is read once, ever; here before the first question, so that all have the same.
    for i in range(0, len(wanted), args.top):
        prompt = SEPARATOR.join([SYSTEM, *wanted[i : i + args.top], "Question: Why?\nAnswer:"])
        ask(client, model, prompt, wishes, 1)
    rows = []
    for question, some in found.items():
        prompt = SEPARATOR.join([SYSTEM, *some, f"Question: {question}\nAnswer:"])
        plain, answer = ask(client, model, prompt, {"blend": False}, args.tokens)
        blended, other = ask(client, model, prompt, wishes, args.tokens)
        rows.append((question, plain, blended))
        print(f"\n{question}\n  vLLM     {plain:6.2f} s  {answer}")
        print(f"  blended  {blended:6.2f} s  {other}   ({plain / blended:.1f}x)")
    ratios = sorted(plain / blended for _question, plain, blended in rows)
    print(f"\nfirst token {ratios[len(ratios) // 2]:.1f}x faster (median)")
    with urllib.request.urlopen(args.url.removesuffix("/v1") + "/metrics") as page:
        for line in page.read().decode().splitlines():
            if line.startswith("vllm:tessera_blend") and "_total{" in line:
                print(" ", line.split("{")[0], line.rsplit(" ", 1)[1])
    plot(args.plot, rows)


if __name__ == "__main__":
    main()
