#!/usr/bin/env python3
"""facts.py - factual questions over short invented documents, for `tessera-lab answers`.

  facts.py [--texts facts|dialogs|code] [--half tune|test|all] [--each N] > facts.jsonl

Each question has 4 to 10 documents of 50 to 150 tokens. One holds the answer; one to three others
are of the same kind and say the same about another person, product or train; the rest are of other
kinds. facts.txt has the texts; dialogs.txt has chats and transcripts, where the answer may be what
two people agree on after another proposal, and code.txt has code and configuration. Everything is
drawn from a fixed seed, so every run gives the same questions."""

import argparse
import datetime
import json
import pathlib
import random
import re
from dataclasses import dataclass, field

from halves import HALVES, wanted

MONTHS = """January February March April May June July August September October November
December""".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
COUNTS = "zero one two three four five six seven eight nine ten eleven twelve".split()
UNITS = {
    "minutes",
    "hours",
    "days",
    "weeks",
    "years",
    "grams",
    "metres",
    "centimetres",
    "kilometres",
}
SHORT = {"grams": "g", "metres": "m", "centimetres": "cm", "kilometres": "km"}
PLACES = """
Harwick Selmouth Brackley Dunford Oxmere Tilbrook Penhallow Carrow Wexley Ashcombe Norbury Lindale
Marwell Stokeby Fenwick Gorsley Hexton Kilbride Ravenglass Thirlby Upperton Valmont Westray Yarrow
Zellbach Moorgate Elstow Cranford Bellham Drayton
""".split()
FIRST = """
Ines Tomas Greta Malik Sofia Anton Priya Hugo Leila Oskar Nadia Felix Ruth Samir Clara Jonas Amara
Victor Elsa Dario Mona Edgar Yuki Carlos Hanna Isaac Vera Matteo Olga Kwame
""".split()
LAST = """
Calloway Brandt Okafor Lindqvist Marsh Pereira Novak Haddad Whitcombe Sato Delgado Fairfax
Kowalski Bianchi Thorne Rasmussen Mwangi Prescott Vance Ivanova Hollis Tremaine Castellan Ng
Abbott Moreau Stein Quill Yates Bergstrom Dunne Falk Grieve Holloway Jansen Keane Lomax Merrick
Ortega Paine
""".split()
GIVEN = """
Abel Agnes Basil Bruno Celia Conrad Dora Della Emil Enid Fiona Gideon Gwen Hector Imogen Ivor
Jasper Judith Kirsten Lars Lena Magnus Mabel Nina Norris Odette Otis Pearl Quentin Rhoda Rufus
Selma Silas Thea Tobias Una Viola Wanda Wilbur Zelda
""".split()
TEXTS = ("facts", "dialogs", "code")


@dataclass
class Value:
    """What a document says, and other ways to say it."""

    text: str
    others: list[str] = field(default_factory=list)

    def answers(self) -> list[str]:
        seen = {normal(self.text): self.text}
        for other in self.others:
            seen.setdefault(normal(other), other)
        return list(seen.values())


@dataclass
class Kind:
    name: str
    facts: dict[str, list[str]] = field(default_factory=dict)
    titles: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    asks: list[tuple[str, str]] = field(default_factory=list)


def normal(text: str) -> str:
    """As src/lab/answers.c compares: lower case, no punctuation, no articles."""
    bare = re.sub(r"[!-/:-@\[-`{-~]", "", text.lower())
    return " ".join(w for w in bare.split() if w not in ("a", "an", "the"))


def holds(text: str, answers: list[str]) -> bool:
    return any(f" {normal(a)} " in f" {normal(text)} " for a in answers)


def tokens(text: str) -> int:
    """About as many as a tokeniser makes of it: each digit is one, and long words are two."""
    return sum(1 + (len(p) > 8) for p in re.findall(r"\d|[^\W\d]+|[^\w\s]|\n", text))


def read_kinds(path: pathlib.Path) -> list[Kind]:
    kinds: list[Kind] = []
    for line in path.read_text().splitlines():
        word, _, rest = line.partition(" ")
        if word == "==":
            kinds.append(Kind(rest))
        elif word == "fact":
            key, *made = rest.split(" ", 2)
            kinds[-1].facts[key] = made
        elif word == "title":
            kinds[-1].titles.append(rest)
        elif word == "text":
            kinds[-1].texts.append(rest.replace("\\n", "\n"))
        elif word == "ask":
            key, _, question = rest.partition(" | ")
            kinds[-1].asks.append((key, question))
    return kinds


# ---- values ----


class Drawer:
    """Draws the values of one question; the same value never comes twice in it."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.used: set[str] = set()
        self.names = list(zip(rng.sample(FIRST, len(FIRST)), rng.sample(LAST, len(FIRST))))

    def new_document(self) -> None:
        """One document writes its dates, times and prices in one way."""
        self.clock = self.rng.choice(("24", "am", "plain"))
        self.calendar = self.rng.choice(("day", "month", "year"))
        self.money = self.rng.choice(("$", "euros", "EUR"))
        self.this_year = self.rng.randrange(2023, 2028)
        self.minute_of: dict[str, int] = {}
        self.day_of: dict[str, int] = {}

    def draw(self, key: str, kind: str, arguments: str = "") -> Value:
        self.key = key
        for _ in range(200):
            value = self.make(kind, arguments)
            if normal(value.text) not in self.used:
                break
        self.used.add(normal(value.text))
        return value

    def make(self, kind: str, arguments: str) -> Value:
        if kind in UNITS:
            return self.amount(kind, arguments)
        made: Value = getattr(self, kind)(arguments)
        return made

    def number_in(self, arguments: str) -> int:
        """LOW HIGH [STEP]"""
        low, high, *step = map(int, arguments.split()[:3])
        return self.rng.randrange(low, high + 1, *step)

    def number(self, arguments: str) -> Value:
        """LOW HIGH [STEP [UNIT]]; the text has the unit, and answers may have it."""
        n = self.number_in(arguments)
        others = [f"{n:,}"]
        for unit in arguments.split()[3:]:
            others += [f"{n}\u00b0", f"{n}\u00b0C"] if unit == "degrees" else [f"{n}{unit}"]
        if 0 <= n < len(COUNTS):
            others.append(COUNTS[n])
        return Value(str(n), others)

    def amount(self, unit: str, arguments: str) -> Value:
        n = self.number_in(arguments)
        one = unit if n != 1 else unit[:-1]
        others = [str(n), f"{n}-{unit[:-1]}"]
        if n < len(COUNTS):
            others += [f"{COUNTS[n]} {one}", COUNTS[n]]
        if unit in SHORT:
            others += [f"{n} {SHORT[unit]}", f"{n}{SHORT[unit]}"]
            others.append(f"{n} {unit.replace('metre', 'meter')}")
        if unit == "grams" and n >= 1000:
            others += [f"{n / 1000:g} kg", f"{n / 1000:g} kilograms", f"{n:,} grams"]
        return Value(f"{n} {one}", others)

    def price(self, arguments: str) -> Value:
        n = self.number_in(arguments)
        small = len(arguments.split()) == 2 and n < 100
        cents = self.rng.choice((0, 20, 50, 90)) if small else 0
        text = f"{n}.{cents:02}" if cents else f"{n:,}"
        others = [f"${text}", f"{text} euros", f"EUR {text}", f"\u20ac{text}", f"{text} EUR"]
        others += [f"{text} dollars", text]
        if not cents:
            others += [f"{o}.00" for o in (f"${n:,}", f"\u20ac{n:,}", f"{n:,}")]
        shown = {"$": f"${text}", "euros": f"{text} euros", "EUR": f"EUR {text}"}[self.money]
        return Value(shown, others)

    def time(self, arguments: str) -> Value:
        return self.clock_time(60 * self.number_in(arguments) + self.rng.randrange(5, 60, 5))

    def later(self, key: str) -> Value:
        """A time of the same document, half an hour to five hours after the one named."""
        return self.clock_time(self.minute_of[key] + self.rng.randrange(35, 300, 5))

    def clock_time(self, minutes: int) -> Value:
        self.minute_of[self.key] = minutes
        hour, minute = divmod(minutes, 60)
        half, twelve = ("am", "pm")[hour >= 12], (hour - 1) % 12 + 1
        others = [
            f"{hour}:{minute:02}",
            f"{hour:02}:{minute:02}",
            f"{twelve}:{minute:02} {half}",
            f"{twelve}:{minute:02}{half}",
            f"{twelve}:{minute:02}",
        ]
        shown = {"24": others[1], "am": others[2], "plain": others[0]}[self.clock]
        return Value(shown, others)

    def date(self, _: str) -> Value:
        return self.calendar_day(self.rng.randrange(330))

    def following(self, key: str) -> Value:
        return self.calendar_day(self.day_of[key] + self.rng.randrange(7, 28))

    def calendar_day(self, number: int) -> Value:
        self.day_of[self.key] = number
        when = datetime.date(self.this_year, 1, 1) + datetime.timedelta(number)
        day, month = when.day, MONTHS[when.month - 1]
        th = {1: "st", 2: "nd", 3: "rd"}.get(day % 10 if day not in (11, 12, 13) else 0, "th")
        others = [f"{day} {month}", f"{month} {day}", f"{month} {day}{th}", f"{day}{th} {month}"]
        others.append(f"{day}{th} of {month}")
        forms = {"day": others[0], "month": others[1], "year": f"{day} {month} {self.this_year}"}
        return Value(forms[self.calendar], others)

    def year(self, arguments: str) -> Value:
        return Value(str(self.number_in(arguments)))

    def month(self, _: str) -> Value:
        return Value(self.rng.choice(MONTHS))

    def weekday(self, _: str) -> Value:
        day = self.rng.choice(DAYS)
        return Value(day, [f"{day}s"])

    def place(self, _: str) -> Value:
        return Value(self.rng.choice(PLACES))

    def person(self, _: str) -> Value:
        first, last = self.names.pop()
        name = f"{first} {last}"
        # The last name alone is not enough: first names of other documents get mixed in.
        return Value(name, [f"{name}'s"])

    def given(self, _: str) -> Value:
        """A first name that no person() has."""
        return Value(self.rng.choice(GIVEN))

    def pick(self, arguments: str) -> Value:
        text = self.rng.choice(arguments.split("|"))
        others = [re.sub(r"^.* of ", "", text), re.sub(r"^(two|three|every|\w+ing) ", "", text)]
        return Value(text, others)

    def code(self, pattern: str) -> Value:
        """Z is a letter, z a small one, 9 a digit."""
        letters = "ABCDEFGHJKLMNPQRSTUVWXYZ"
        make = {"Z": letters, "z": letters.lower(), "9": "123456789"}
        text = "".join(self.rng.choice(make[c]) if c in make else c for c in pattern)
        return Value(text, [text.replace(" ", ""), text.replace("-", " "), text.replace(" ", "-")])

    def version(self, _: str) -> Value:
        self.release = (self.rng.randrange(1, 9), self.rng.randrange(10))
        return Value("{}.{}.{}".format(*self.release, self.rng.randrange(1, 30)))

    def newer(self, _: str) -> Value:
        return Value(f"{self.release[0]}.{self.release[1] + 1}.{self.rng.randrange(1, 30)}")

    def ip(self, _: str) -> Value:
        return Value(".".join(str(self.rng.randrange(11, 250)) for _ in range(4)))

    def score(self, _: str) -> Value:
        home, away = self.rng.sample(range(7), 2)
        return Value(f"{home}-{away}", [f"{home}:{away}", f"{home} to {away}", f"{home} {away}"])


# ---- documents and questions ----


class Document:
    def __init__(self, kind: Kind, drawer: Drawer, text: int | None = None) -> None:
        rng = drawer.rng
        drawer.new_document()
        self.kind = kind
        self.title = rng.choice(kind.titles)
        self.text = kind.texts[text] if text is not None else rng.choice(kind.texts)
        self.values = {k: drawer.draw(k, *made) for k, made in kind.facts.items()}

    def fill(self, template: str, hidden: str = "") -> str:
        return template.format(
            **{k: "?" if k == hidden else v.text for k, v in self.values.items()}
        )

    def show(self, hidden: str = "") -> str:
        title = self.fill(self.title, hidden)
        if title.split()[0].isalpha():
            title = title[0].upper() + title[1:]
        text = self.fill(self.text, hidden)
        text = re.sub(r"(^|[.?!] )([a-z])", lambda m: m[1] + m[2].upper(), text)
        return f"{title}\n{text}"


Question = dict[str, object]


def make_question(
    name: str, kinds: list[Kind], kind: Kind, number: int, rng: random.Random
) -> Question | None:
    """None if the draw was a bad one: the answer is in another document too, say."""
    drawer = Drawer(rng)
    target = Document(kind, drawer, number % len(kind.texts))
    key, question = kind.asks[(number + number // len(kind.asks)) % len(kind.asks)]
    if f"{{{key}}}" not in target.text:
        return None
    n = rng.randrange(4, 11)
    same = [Document(kind, drawer) for _ in range(rng.randrange(1, min(3, n - 2) + 1))]
    others = [k for k in kinds if k is not kind]
    rest = [Document(k, drawer) for k in rng.sample(others, n - 1 - len(same))]
    answer = target.values[key]
    texts = [d.show() for d in [*same, *rest]]
    asked = target.fill(question)
    right = answer.answers()
    bad = (
        holds(target.show(hidden=key), right)
        or holds(asked, right)
        or any(holds(d.show(), right) for d in same)
        or any(holds(t, [answer.text]) for t in texts)
        or not all(50 <= tokens(t) <= 150 for t in [target.show(), *texts])
    )
    if bad:
        return None
    texts.insert(rng.randrange(n), target.show())
    return {
        "set": name,
        "id": f"{kind.name}-{number}",
        "documents": texts,
        "question": asked,
        "answers": answer.answers(),
    }


def questions(each: int, name: str = "facts") -> list[Question]:
    """Those of NAME.txt, which is beside this file."""
    kinds = read_kinds(pathlib.Path(__file__).with_name(f"{name}.txt"))
    made = []
    for number in range(each):
        for kind in kinds:
            question = None
            for attempt in range(1000):
                rng = random.Random(f"{kind.name} {number} {attempt}")
                question = make_question(name, kinds, kind, number, rng)
                if question:
                    break
            if not question:
                raise SystemExit(f"{name}.txt: {kind.name}: no good question in 1000 draws")
            made.append(question)
    return made


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("--texts", choices=TEXTS, default="facts", help="the set of questions")
    p.add_argument("--half", choices=HALVES, default="all")
    p.add_argument("--each", type=int, default=16, help="questions of each kind of document")
    a = p.parse_args()
    for q in questions(a.each, a.texts):
        if wanted(a.half, str(q["set"]), str(q["id"])):
            print(json.dumps(q, ensure_ascii=False))


if __name__ == "__main__":
    main()
