#!/usr/bin/env python3
"""prompts.py - question answering data sets as questions for `tessera-lab answers` and `calibrate`.

  prompts.py DATA [--sets LIST] [--half tune|test|all] [--short] [--questions N] [--passages P]
             [--words W] [--format chat|plain] > questions.jsonl

DATA is a folder with musique.json (MuSiQue, 10 passages a question), nq-open-oracle.jsonl.gz
(NQ-open with its gold passage; passages of other questions are added), kv-retrieval-75.jsonl.gz (a
value in many keys) and multi_news.jsonl (several articles, to be summarised). Missing files are
left out.

--short asks for a few words (sets nq-short and musique-short). --half gives one half of every set
(halves.py). In format chat, the reader adds the model's template and "Question:". In format plain,
the prompt is complete, for models without a template: passages, then "Question: ... Answer:".

Everything is drawn from fixed seeds: a question is the same whatever else is asked for."""

import argparse
import gzip
import itertools
import json
import pathlib
import random
import re
import sys

from halves import HALVES, wanted

# Questions of each set, unless --questions says less. Passages that are added to questions of NQ
# come from those after the last one.
SIZES = {"musique": 150, "nq": 1100, "kv": 100, "multi_news": 50}


def words(text, n):
    # No YAML, so no JSON for us.
    text = re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ufeff\ufffe\uffff]", " ", text)
    return " ".join(text.split()[:n])


def texts(x):
    return x["answers"] if isinstance(x["answers"], list) else [x["answers"]]


def musique(folder, a):
    for i, x in enumerate(json.load(open(folder / "musique.json"))):
        documents = [(c.get("title", "") + "\n" + c["text"]).strip() for c in x["ctxs"]]
        documents = [words(d, 10 * a.words) for d in documents]
        yield "musique", str(i), documents, x["question"], texts(x)


def nq(folder, a):
    rows = [json.loads(line) for line in gzip.open(folder / "nq-open-oracle.jsonl.gz", "rt")]
    n = SIZES["nq"]
    for i in range(n):
        rng = random.Random(f"nq {i}")
        others = rng.sample(rows[n:], a.passages - 1)
        others.insert(rng.randrange(a.passages), rows[i])
        passages = [r["ctxs"][0] for r in others]
        documents = [c["title"] + "\n" + words(c["text"], a.words) for c in passages]
        yield "nq", str(i), documents, rows[i]["question"], rows[i]["answers"]


def kv(folder, a):
    for i, line in enumerate(gzip.open(folder / "kv-retrieval-75.jsonl.gz", "rt")):
        x = json.loads(line)
        pairs = [f'"{k}": "{v}"' for k, v in x["ordered_kv_records"]]
        size = -(-len(pairs) // a.passages)
        documents = ["\n".join(pairs[at : at + size]) for at in range(0, len(pairs), size)]
        question = f'Which value belongs to the key "{x["key"]}"? Give only the value.'
        yield "kv", str(i), documents, question, [x["value"]]


def multi_news(folder, a):
    for i, line in enumerate(open(folder / "multi_news.jsonl")):
        x = json.loads(line)
        documents = [d.strip() for d in re.split(r"Passage \d+:\n", x["context"]) if d.strip()]
        documents = [words(d, 5 * a.words) for d in documents[:10]]
        question = "Write a short summary of all of these articles."
        yield "multi_news", str(i), documents, question, texts(x)


def short(name, number, documents, question, answers):
    if name not in ("musique", "nq"):
        return name, number, documents, question, answers
    return name + "-short", number, documents, question + "\nAnswer with a few words.", answers


def prompt(form, name, number, documents, question, answers):
    if form == "chat":
        system = {}
    else:
        name += "-plain"
        system = {"plain": True, "system": "Answer the question using the passages below.\n\n"}
        documents = [f"Passage: {d}\n\n" for d in documents]
        question = f"Question: {question}\nAnswer:"
        answers = [" " + text for text in answers]
    rest = {"documents": documents, "question": question, "answers": answers}
    return {"set": name, "id": number} | system | rest


def main():
    files = {"musique": "musique.json", "nq": "nq-open-oracle.jsonl.gz"}
    files |= {"kv": "kv-retrieval-75.jsonl.gz", "multi_news": "multi_news.jsonl"}
    makers = {"musique": musique, "nq": nq, "kv": kv, "multi_news": multi_news}
    p = argparse.ArgumentParser()
    p.add_argument("data", type=pathlib.Path)
    p.add_argument("--sets", default=",".join(files), help="default: %(default)s")
    p.add_argument("--half", choices=HALVES, default="all")
    p.add_argument("--short", action="store_true", help="ask for a few words (musique, nq)")
    p.add_argument("--questions", type=int, default=10**9, help="at most, of each set")
    p.add_argument("--passages", type=int, default=8, help="of nq and kv")
    p.add_argument(
        "--words",
        type=int,
        default=90,
        help="of a passage of nq; musique has up to 10 times, multi_news 5 times",
    )
    p.add_argument("--format", choices=("chat", "plain"), default="chat")
    a = p.parse_args()
    lists = []
    for name in a.sets.split(","):
        if not (a.data / files[name]).exists():
            print(f"{files[name]}: not found, left out", file=sys.stderr)
            continue
        rows = itertools.islice(makers[name](a.data, a), SIZES[name])
        made = [prompt(a.format, *(short(*row) if a.short else row)) for row in rows]
        made = [q for q in made if wanted(a.half, q["set"], q["id"])]
        lists.append(made[: a.questions])
    # One of each in turn, so that a run that is stopped early has all of them.
    for turn in itertools.zip_longest(*lists):
        for question in turn:
            if question:
                print(json.dumps(question, ensure_ascii=False))


main()
