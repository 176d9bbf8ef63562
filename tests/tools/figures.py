"""figures.py README SOURCE...: every measured figure of the README is in one of the sources. Prints
those that are not, a line each; exit status 1 if there are any.

A figure is a number with a unit of time or speed, a ratio or an overhead (109 ms, 10.8x, 40 to 60
tokens/s, 1.008 of, 0.8 % longer, which a source has as 1.008). A source has it if one of its lines
has that number, or one with more digits that rounds to it, and the unit; of a range, both numbers."""

import re
import sys
from pathlib import Path

NUMBER = r"\d+(?:\.\d+)?"
FIGURE = re.compile(
    rf"({NUMBER})(?: (?:to|and) ({NUMBER}))? ?(ms\b|s\b|x\b|GB/s|tokens/s)"
    rf"|\b(1\.0\d+)\b|({NUMBER}) % longer"
)


def lines_of(text):
    return text.replace("tokens per second", "tokens/s").splitlines()


def figures(text):
    """[(numbers, unit, line)] of the text, without code and the C program."""
    text = re.sub(r"```.*?```", "", text, flags=re.S)
    found = []
    for line in lines_of(text):
        if line.startswith("    "):
            continue
        for match in FIGURE.finditer(line):
            numbers = [n for n in (match[1], match[2], match[4]) if n]
            if match[5]:
                numbers = [f"{1 + float(match[5]) / 100:.3f}"]
            found.append((numbers, match[3] or "", line))
    return found


def has(numbers, unit, line):
    there = re.findall(NUMBER, line)
    return unit in line and all(
        any(f"{float(n):.{len(number.partition('.')[2])}f}" == number for n in there)
        for number in numbers
    )


def main():
    lines = [line for name in sys.argv[2:] for line in lines_of(Path(name).read_text())]
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
