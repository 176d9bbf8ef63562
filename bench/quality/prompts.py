#!/usr/bin/env python3
"""prompts.py - turns question answering data sets into the questions that `tessera-lab calibrate` reads.

  prompts.py DATA [--questions N] [--passages P] [--words W] [--format chat|plain]
             [--short] > questions.jsonl

DATA is a folder with musique.json (MuSiQue, 10 passages a question), nq-open-oracle.jsonl.gz (NQ-open
with its gold passage; passages of other questions are added), kv-retrieval-75.jsonl.gz (a value in
many keys) and multi_news.jsonl (several articles, to be summarised); those that are missing are left
out. Formats: chat, where the model's template, names of documents and "Question:" are added by who
reads this; plain, where everything is said here, as a model without a template reads it: passages,
then "Question: ... Answer:". The choice is drawn from a fixed seed, so the same data gives the same questions."""
import argparse, gzip, json, pathlib, random, re, sys


def words(text, n):
    text = re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ufeff\ufffe\uffff]", " ", text)  # no YAML, so no JSON for us
    return " ".join(text.split()[:n])


def musique(folder, a):
    for i, x in enumerate(json.load(open(folder / "musique.json"))[: a.questions]):
        documents = [(c.get("title", "") + "\n" + c["text"]).strip() for c in x["ctxs"]]
        answers = x["answers"] if isinstance(x["answers"], list) else [x["answers"]]
        yield "musique", str(i), [words(d, 10 * a.words) for d in documents], x["question"], answers


def nq(folder, a):
    rows = [json.loads(l) for l in gzip.open(folder / "nq-open-oracle.jsonl.gz", "rt")]
    rng = random.Random(1)
    for i in range(a.questions):
        gold = rows[i]
        others = rng.sample(rows[a.questions :], a.passages - 1)
        documents = [r["ctxs"][0]["title"] + "\n" + words(r["ctxs"][0]["text"], a.words) for r in [gold] + others]
        first = documents.pop(0)
        documents.insert(rng.randrange(a.passages), first)
        yield "nq", str(i), documents, gold["question"], gold["answers"]


def kv(folder, a):
    rows = [json.loads(l) for l in gzip.open(folder / "kv-retrieval-75.jsonl.gz", "rt")]
    for i, x in enumerate(rows[: a.questions]):
        pairs = x["ordered_kv_records"]
        size = -(-len(pairs) // a.passages)
        documents = ["\n".join('"%s": "%s"' % (k, v) for k, v in pairs[at : at + size]) for at in range(0, len(pairs), size)]
        yield "kv", str(i), documents, 'Which value belongs to the key "%s"? Give only the value.' % x["key"], [x["value"]]


def multi_news(folder, a):
    for i, line in enumerate(open(folder / "multi_news.jsonl")):
        if i == a.questions:
            return
        x = json.loads(line)
        documents = [d.strip() for d in re.split(r"Passage \d+:\n", x["context"]) if d.strip()]
        answers = x["answers"] if isinstance(x["answers"], list) else [x["answers"]]
        documents = [words(d, 5 * a.words) for d in documents[:10]]
        yield "multi_news", str(i), documents, "Write a short summary of all of these articles.", answers


def short(name, number, documents, question, answers):
    if name not in ("musique", "nq"):
        return name, number, documents, question, answers
    return name + "-short", number, documents, question + "\nAnswer with a few words.", answers


def prompt(form, name, number, documents, question, answers):
    if form == "chat":
        return {"set": name, "id": number, "documents": documents, "question": question, "answers": answers}
    return {"set": name + "-plain", "id": number, "plain": True, "system": "Answer the question using the passages below.\n\n",
            "documents": ["Passage: %s\n\n" % d for d in documents], "question": "Question: %s\nAnswer:" % question,
            "answers": [" " + a for a in answers]}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("data", type=pathlib.Path)
    p.add_argument("--questions", type=int, default=50, help="of each set")
    p.add_argument("--passages", type=int, default=8, help="of nq and kv")
    p.add_argument("--words", type=int, default=90, help="of a passage of nq; musique has up to 10 times, multi_news 5 times")
    p.add_argument("--sets", default="musique,nq,kv,multi_news")
    p.add_argument("--short", action="store_true", help="ask for a few words, where that is an answer (musique, nq)")
    p.add_argument("--format", choices=("chat", "plain"), default="chat")
    a = p.parse_args()
    makers = {"musique": (musique, "musique.json"), "nq": (nq, "nq-open-oracle.jsonl.gz"),
              "kv": (kv, "kv-retrieval-75.jsonl.gz"), "multi_news": (multi_news, "multi_news.jsonl")}
    lists = []
    for name in a.sets.split(","):
        make, file = makers[name]
        if (a.data / file).exists():
            lists.append(list(make(a.data, a)))
        else:
            print("%s is not there: left out" % file, file=sys.stderr)
    # One of each in turn, so that a run that is stopped early has all of them.
    for i in range(max(map(len, lists), default=0)):
        for rows in lists:
            if i < len(rows):
                row = short(*rows[i]) if a.short else rows[i]
                print(json.dumps(prompt(a.format, *row), ensure_ascii=False))


main()
