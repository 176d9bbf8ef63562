"""Prompts made of a system prompt, documents in any order, and a question: the documents of
examples/docs, with questions that they answer, and made-up ones of any length.

Every text is tokenised by itself and the tokens are joined, so that a document's tokens are the
same wherever it stands, here and in `tessera-lab calibrate` with "plain" questions.
"""

import json
import math
import random
from pathlib import Path

from engines import story

FOLDER = Path(__file__).resolve().parents[3] / "examples" / "docs"
SYSTEM = (
    "You answer questions about the documents that follow. Answer briefly, and only from the "
    "documents.\n\n"
)
DOCUMENTS = {path.stem: path.read_text() + "\n" for path in sorted(FOLDER.iterdir())}
QUESTIONS = [
    ("When does the bakery open?", "at six in the morning"),
    ("How long does rye bread need to rise?", "five hours"),
    ("What does the bakery's oven burn?", "beech wood"),
    ("When are beans and peas sown?", "in the last week of April"),
    ("How much water does the rain barrel hold?", "300 liters"),
    ("Who has the key to the tap?", "Mr. Osei"),
    ("What is the new pier made of?", "steel"),
    ("How long does the ferry's crossing take?", "forty minutes"),
    ("Who is the harbor master?", "Ines Calloway"),
    ("How large is the mirror of the telescope?", "1.2 meters"),
    ("What was the asteroid named after?", "the astronomer's cat"),
    ("When does the night train leave Halden?", "at 21:40"),
    ("Where are lost things brought in the end?", "to the office on platform 3"),
    ("Why is the engine changed at Krell?", "because the line beyond has another voltage"),
]


class Prompt:
    """Tokens, where the documents are, and what a request says of it."""

    def __init__(self, encode, documents, question, system=SYSTEM):
        self.texts = [system, *documents]
        self.tokens, self.segments = [], []
        for text in self.texts:
            tokens = encode(text)
            self.segments.append([len(self.tokens), len(tokens)])
            self.tokens += tokens
        self.n_context = len(self.tokens)
        self.tokens += encode(question)
        self.question = question

    def wishes(self, **more):
        return {"segments": self.segments, "system": True, **more}


def question_text(question):
    return f"Question: {question}\nAnswer:"


def orders(seed, n):
    """Documents of examples/docs in one random order after another."""
    chance = random.Random(seed)
    names = list(DOCUMENTS)
    for _ in range(n):
        chance.shuffle(names)
        yield [DOCUMENTS[name] for name in names]


def prompts(encode, n, seed=0):
    """n questions, each with all documents in an order of its own."""
    return [
        Prompt(encode, documents, question_text(QUESTIONS[i % len(QUESTIONS)][0]))
        for i, documents in enumerate(orders(seed, n))
    ]


def long_documents(encode, n, n_tokens):
    """Token lists of this length each."""
    return [encode(story(700 + i, n_tokens // 10))[:n_tokens] for i in range(n)]


def long_prompt(encode, documents, chance, question):
    """The same documents, given as tokens, in a new order."""
    shuffled = documents[:]
    chance.shuffle(shuffled)
    made = Prompt(encode, [], "")
    for tokens in shuffled:
        made.segments.append([len(made.tokens), len(tokens)])
        made.tokens += tokens
    made.n_context = len(made.tokens)
    made.tokens += encode(question_text(question))
    return made


def calibration_line(number, made):
    """A prompt as `tessera-lab calibrate --prompts` reads it."""
    return json.dumps(
        {
            "set": "docs",
            "id": str(number),
            "plain": True,
            "system": made.texts[0],
            "documents": made.texts[1:],
            "question": made.question,
        }
    )


def divergence(p, q):
    """KL(p || q) of two rows of log-probabilities of the whole vocabulary."""
    return sum(math.exp(a) * (a - b) for a, b in zip(p, q))
