"""figures.py README SOURCE...: every measured figure of the README is in one of the sources. Prints
those that are not, a line each; exit status 1 if there are any.

A figure is a number with a unit of time or speed, or a ratio (109 ms, 10.8x, 40 to 60 tokens per
second, 1.008 of). A source has it if one of its lines has that number, or one with more digits that
rounds to it, and the unit; of a range, both numbers."""

import re
import sys
from pathlib import Path

NUMBER = r"\d+(?:\.\d+)?"
FIGURE = re.compile(
    rf"({NUMBER})(?: (?:to|and) ({NUMBER}))? ?(ms\b|s\b|x\b|GB/s|tokens per second)|\b(1\.0\d+)\b"
)


def figures(text):
    """[(numbers, unit, line)] of the text, without code and the C program."""
    text = re.sub(r"```.*?```", "", text, flags=re.S)
    found = []
    for line in text.splitlines():
        if line.startswith("    "):
            continue
        for match in FIGURE.finditer(line):
            numbers = [n for n in (match[1], match[2], match[4]) if n]
            found.append((numbers, match[3] or "", line))
    return found


def has(numbers, unit, line):
    there = re.findall(NUMBER, line)
    return unit in line and all(
        any(f"{float(n):.{len(number.partition('.')[2])}f}" == number for n in there)
        for number in numbers
    )


def main():
    lines = [line for name in sys.argv[2:] for line in Path(name).read_text().splitlines()]
    found = figures(Path(sys.argv[1]).read_text())
    wrong = [
        f"{' to '.join(numbers)} {unit}: {line[:100]}"
        for numbers, unit, line in found
        if not any(has(numbers, unit, line) for line in lines)
    ]
    if len(found) < 15:
        wrong.append(f"only {len(found)} figures found")
    print("\n".join(wrong))
    sys.exit(1 if wrong else 0)


main()
